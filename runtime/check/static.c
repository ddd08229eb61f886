/* Static checks: the shared object as a file. None of its code is mapped. */
#include <dlfcn.h>
#include <stdlib.h>

#include "check/elf.h"
#include "check/kit.h"
#include "check/table.h"

static void open_elf(struct soq__kit *kit, struct soq__elf *elf)
{
    struct soq_error err = SOQ_ERROR_INIT;

    if (soq__elf_open(kit->library, elf, &err))
        soq__kit_fail(kit, "%s", err.text);
}

static const char *name_of(const struct soq__elf *elf, const Elf64_Sym *s)
{
    return soq__elf_string(elf, s->st_name);
}

/* Sanitizers add symbols, constructors and thread-local data. */
static void skip_sanitized(struct soq__kit *kit, const struct soq__elf *elf)
{
    static const char *const prefixes[] = {"__asan_", "__ubsan_", "__tsan_", "__msan_", "__sanitizer_"};

    for (size_t i = 1; i < elf->n_symbols; i++) {
        for (size_t k = 0; k < SOQ__COUNT(prefixes); k++) {
            if (strncmp(name_of(elf, &elf->symbols[i]), prefixes[k], strlen(prefixes[k])) == 0)
                soq__kit_skip(kit, "built with a sanitizer");
        }
    }
}

static void check_elf(struct soq__kit *kit)
{
    struct soq__elf elf;

    open_elf(kit, &elf);
}

static bool is_exported(const Elf64_Sym *s)
{
    unsigned type = ELF64_ST_TYPE(s->st_info), visibility = ELF64_ST_VISIBILITY(s->st_other);

    return s->st_shndx != SHN_UNDEF && ELF64_ST_BIND(s->st_info) != STB_LOCAL && type != STT_SECTION && type != STT_FILE &&
           (visibility == STV_DEFAULT || visibility == STV_PROTECTED) && !(s->st_shndx == SHN_ABS && type == STT_OBJECT);
}

static void check_exports(struct soq__kit *kit)
{
    struct soq__elf elf;
    bool found = false;

    open_elf(kit, &elf);
    skip_sanitized(kit, &elf);
    for (size_t i = 1; i < elf.n_symbols; i++) {
        const char *name = name_of(&elf, &elf.symbols[i]);

        if (!is_exported(&elf.symbols[i]))
            continue;
        SOQ__EXPECT(kit, strcmp(name, SOQ_PLUGIN_SYMBOL) == 0, "exports \"%s\"; hide all but %s (a version script)", name,
                    SOQ_PLUGIN_SYMBOL);
        found = true;
    }
    SOQ__EXPECT(kit, found, "does not export %s", SOQ_PLUGIN_SYMBOL);
}

/* Data that is writable only until it is relocated. */
static void check_constant(struct soq__kit *kit)
{
    const Elf64_Phdr *relro;
    struct soq__elf elf;

    open_elf(kit, &elf);
    relro = soq__elf_find_segment(&elf, PT_GNU_RELRO);
    for (size_t i = 1; i < elf.n_symbols; i++) {
        const Elf64_Sym *s = &elf.symbols[i];
        const Elf64_Shdr *section = soq__elf_section(&elf, s->st_shndx);

        if (strcmp(name_of(&elf, s), SOQ_PLUGIN_SYMBOL) != 0)
            continue;
        SOQ__EXPECT(kit, ELF64_ST_TYPE(s->st_info) == STT_OBJECT, "%s is no data", SOQ_PLUGIN_SYMBOL);
        SOQ__EXPECT(kit, s->st_size >= sizeof(uint32_t) * 2, "%s has %lu bytes", SOQ_PLUGIN_SYMBOL, s->st_size);
        SOQ__EXPECT(kit, section, "%s lies in no section", SOQ_PLUGIN_SYMBOL);
        SOQ__EXPECT(kit,
                    !(section->sh_flags & SHF_WRITE) ||
                        (relro && s->st_value >= relro->p_vaddr && s->st_value + s->st_size <= relro->p_vaddr + relro->p_memsz),
                    "%s is writable; declare it const (and link with -z relro)", SOQ_PLUGIN_SYMBOL);
        return;
    }
    soq__kit_skip(kit, "no symbol %s", SOQ_PLUGIN_SYMBOL);
}

static void check_imports(struct soq__kit *kit)
{
    struct soq__elf elf;

    open_elf(kit, &elf);
    for (size_t i = 0; i < elf.n_dynamic; i++) {
        const char *needed = soq__elf_string(&elf, elf.dynamic[i].d_un.d_val);

        SOQ__EXPECT(kit, elf.dynamic[i].d_tag != DT_NEEDED || strncmp(needed, "libsoquete", 10) != 0,
                    "is linked with %s; the host's services come in struct soq_host", needed);
        SOQ__EXPECT(kit, elf.dynamic[i].d_tag != DT_NEEDED || needed[0] != '/', "is linked with %s by its path", needed);
    }
    for (size_t i = 1; i < elf.n_symbols; i++) {
        const Elf64_Sym *s = &elf.symbols[i];

        SOQ__EXPECT(kit, s->st_shndx != SHN_UNDEF || strncmp(name_of(&elf, s), "soq", 3) != 0,
                    "imports \"%s\" from the host; its services come in struct soq_host", name_of(&elf, s));
    }
}

/* A symbol that is bound to a version names its library; the others must be in one of those that it is linked with. */
static void check_resolves(struct soq__kit *kit)
{
    void *libraries[32];
    size_t n = 0;
    struct soq__elf elf;

    open_elf(kit, &elf);
    skip_sanitized(kit, &elf);
    for (size_t i = 0; i < elf.n_dynamic && n < SOQ__COUNT(libraries); i++) {
        const char *needed = soq__elf_string(&elf, elf.dynamic[i].d_un.d_val);

        if (elf.dynamic[i].d_tag != DT_NEEDED)
            continue;
        libraries[n] = dlopen(needed, RTLD_LAZY | RTLD_LOCAL);
        if (!libraries[n++])
            soq__kit_skip(kit, "%s is not installed", needed);
    }
    for (size_t i = 1; i < elf.n_symbols; i++) {
        const Elf64_Sym *s = &elf.symbols[i];
        bool found = s->st_shndx != SHN_UNDEF || ELF64_ST_BIND(s->st_info) == STB_WEAK ||
                     (elf.versions && (elf.versions[i] & 0x7fff) > VER_NDX_GLOBAL);

        for (size_t k = 0; k < n && !found; k++)
            found = dlsym(libraries[k], name_of(&elf, s));
        SOQ__EXPECT(kit, found,
                    "\"%s\" is in none of the libraries that it is linked with: it would have to come from the host",
                    name_of(&elf, s));
    }
}

static void check_text(struct soq__kit *kit)
{
    const Elf64_Phdr *stack;
    struct soq__elf elf;
    uint64_t value;

    open_elf(kit, &elf);
    SOQ__EXPECT(kit, !soq__elf_dynamic(&elf, DT_TEXTREL, &value), "has relocations in its text; compile with -fPIC");
    SOQ__EXPECT(kit, !soq__elf_dynamic(&elf, DT_FLAGS, &value) || !(value & DF_TEXTREL),
                "has relocations in its text; compile with -fPIC");
    stack = soq__elf_find_segment(&elf, PT_GNU_STACK);
    SOQ__EXPECT(kit, stack && !(stack->p_flags & PF_X), "asks for an executable stack; link with -z noexecstack");
}

static void check_tls(struct soq__kit *kit)
{
    struct soq__elf elf;
    uint64_t value;

    open_elf(kit, &elf);
    skip_sanitized(kit, &elf);
    SOQ__EXPECT(kit, !soq__elf_dynamic(&elf, DT_FLAGS, &value) || !(value & DF_STATIC_TLS),
                "has static thread-local storage, of which a process has little; leave out -ftls-model=initial-exec");
}

static void check_paths(struct soq__kit *kit)
{
    static const struct {
        int64_t tag;
        const char *name;
    } tags[] = {{DT_RPATH, "RPATH"}, {DT_RUNPATH, "RUNPATH"}};
    struct soq__elf elf;
    uint64_t value;

    open_elf(kit, &elf);
    for (size_t i = 0; i < SOQ__COUNT(tags); i++) {
        const char *path = soq__elf_dynamic(&elf, tags[i].tag, &value) ? soq__elf_string(&elf, value) : "";

        while (*path) {
            size_t n = strcspn(path, ":");

            SOQ__EXPECT(kit, strncmp(path, "$ORIGIN", 7) == 0 && !memmem(path, n, "..", 2),
                        "%s has \"%.*s\"; libraries are found in the system's folders or below $ORIGIN", tags[i].name, (int)n,
                        path);
            path += n + (path[n] == ':');
        }
    }
}

/* One entry comes from the compiler's start-up files, which also bring these weak symbols. */
static size_t startup_entries(const struct soq__elf *elf)
{
    for (size_t i = 1; i < elf->n_symbols; i++) {
        if (strcmp(name_of(elf, &elf->symbols[i]), "_ITM_registerTMCloneTable") == 0 ||
            strcmp(name_of(elf, &elf->symbols[i]), "__cxa_finalize") == 0)
            return 1;
    }
    return 0;
}

static void check_constructors(struct soq__kit *kit)
{
    static const struct {
        const char *section, *what;
        size_t sentinels; /* entries that are no functions */
    } arrays[] = {{".init_array", "constructor", 0},
                  {".fini_array", "destructor", 0},
                  {".ctors", "constructor", 2},
                  {".dtors", "destructor", 2},
                  {".preinit_array", "constructor", 0}};
    struct soq__elf elf;

    open_elf(kit, &elf);
    skip_sanitized(kit, &elf);
    if (soq__elf_find_section(&elf, ".nv_fatbin") || soq__elf_find_section(&elf, ".hip_fatbin"))
        soq__kit_skip(kit, "device code registers itself in a constructor, which its compiler emits");
    for (size_t i = 0; i < SOQ__COUNT(arrays); i++) {
        const Elf64_Shdr *s = soq__elf_find_section(&elf, arrays[i].section);
        size_t expected = arrays[i].sentinels ? arrays[i].sentinels : startup_entries(&elf), n = s ? s->sh_size / 8 : 0;

        SOQ__EXPECT(kit, n <= expected, "has %zu %s%s (%s): code that runs before the host has looked at it", n - expected,
                    arrays[i].what, n - expected > 1 ? "s" : "", arrays[i].section);
    }
}

static const struct soq__check checks[] = {
    {"static.elf", SOQ__ROLE_NONE, "it is a shared object for this machine", check_elf, NULL},
    {"static.exports", SOQ__ROLE_NONE, "it exports the descriptor and nothing else", check_exports, "static.elf"},
    {"static.constant", SOQ__ROLE_NONE, "the descriptor is constant data", check_constant, "static.elf"},
    {"static.imports", SOQ__ROLE_NONE, "it takes no symbol from the host", check_imports, "static.elf"},
    {"static.resolves", SOQ__ROLE_NONE, "its own libraries have all that it needs", check_resolves, "static.imports"},
    {"static.text", SOQ__ROLE_NONE, "no relocations in its text, no executable stack", check_text, "static.elf"},
    {"static.tls", SOQ__ROLE_NONE, "no static thread-local storage", check_tls, "static.elf"},
    {"static.paths", SOQ__ROLE_NONE, "no library path of its own but below $ORIGIN", check_paths, "static.elf"},
    {"static.constructors", SOQ__ROLE_NONE, "nothing runs when it is opened or closed", check_constructors, "static.elf"},
};
const struct soq__check_family soq__checks_static = SOQ__FAMILY(checks);
