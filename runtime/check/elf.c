#include "check/elf.h"

#include <string.h>

/* This one's; 0: not known here, and then any will do. */
#if defined(__x86_64__)
static const Elf64_Half machine = EM_X86_64;
#elif defined(__aarch64__)
static const Elf64_Half machine = EM_AARCH64;
#else
static const Elf64_Half machine = EM_NONE;
#endif

static bool within(const struct soq__elf *elf, uint64_t offset, uint64_t bytes, size_t align)
{
    return offset <= elf->map.size && bytes <= elf->map.size - offset && offset % align == 0;
}

static const void *at(const struct soq__elf *elf, uint64_t offset)
{
    return elf->map.data + offset;
}

static int check_header(const struct soq__elf *elf, struct soq_error *err)
{
    static const unsigned char order[] = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB};
    const Elf64_Ehdr *h = elf->header;

    if (elf->map.size < sizeof *h)
        return soq__fail(err, SOQ_ECORRUPT, "the file has %zu bytes and is no ELF object", elf->map.size);
    if (memcmp(h->e_ident, order, sizeof order) != 0)
        return soq__fail(err, SOQ_ECORRUPT, "no ELF object of 64 bits, little-endian");
    if (machine && h->e_machine != machine)
        return soq__fail(err, SOQ_EUNSUPPORTED, "built for another machine (ELF machine %u)", h->e_machine);
    if (h->e_type != ET_DYN)
        return soq__fail(err, SOQ_ECORRUPT, "ELF type %u is no shared object", h->e_type);
    return 0;
}

static int find_tables(struct soq__elf *elf, struct soq_error *err)
{
    const Elf64_Ehdr *h = elf->header;
    const Elf64_Shdr *names;

    if (!within(elf, h->e_phoff, (uint64_t)h->e_phnum * sizeof *elf->segments, 8) || h->e_phentsize != sizeof *elf->segments)
        return soq__fail(err, SOQ_ECORRUPT, "its segments lie outside the file");
    elf->segments = at(elf, h->e_phoff);
    if (!h->e_shnum)
        return soq__fail(err, SOQ_ECORRUPT, "it has no section headers: strip less (strip keeps them)");
    if (!within(elf, h->e_shoff, (uint64_t)h->e_shnum * sizeof *elf->sections, 8) || h->e_shentsize != sizeof *elf->sections ||
        h->e_shstrndx >= h->e_shnum)
        return soq__fail(err, SOQ_ECORRUPT, "its sections lie outside the file");
    elf->sections = at(elf, h->e_shoff);
    for (size_t i = 0; i < h->e_shnum; i++) {
        const Elf64_Shdr *s = &elf->sections[i];

        if (s->sh_type != SHT_NOBITS && !within(elf, s->sh_offset, s->sh_size, 1))
            return soq__fail(err, SOQ_ECORRUPT, "section %zu lies outside the file", i);
    }
    names = &elf->sections[h->e_shstrndx];
    elf->section_names = at(elf, names->sh_offset);
    elf->section_names_size = names->sh_size;
    return 0;
}

static int take_section(struct soq__elf *elf, const Elf64_Shdr *s, struct soq_error *err)
{
    const Elf64_Shdr *strings = s->sh_link < elf->header->e_shnum ? &elf->sections[s->sh_link] : NULL;

    if (s->sh_offset % 2 || (s->sh_type != SHT_GNU_versym && s->sh_offset % 8))
        return soq__fail(err, SOQ_ECORRUPT, "its dynamic sections are not aligned");
    if (s->sh_type == SHT_GNU_versym)
        elf->versions = at(elf, s->sh_offset);
    if (s->sh_type == SHT_DYNAMIC) {
        elf->dynamic = at(elf, s->sh_offset);
        elf->n_dynamic = s->sh_size / sizeof *elf->dynamic;
    }
    if (s->sh_type == SHT_DYNSYM) {
        if (!strings || strings->sh_type != SHT_STRTAB || !strings->sh_size ||
            elf->map.data[strings->sh_offset + strings->sh_size - 1])
            return soq__fail(err, SOQ_ECORRUPT, "its dynamic symbols have no names");
        elf->symbols = at(elf, s->sh_offset);
        elf->n_symbols = s->sh_size / sizeof *elf->symbols;
        elf->strings = at(elf, strings->sh_offset);
        elf->strings_size = strings->sh_size;
    }
    return 0;
}

static int find_sections(struct soq__elf *elf, struct soq_error *err)
{
    uint64_t versions = 0;
    int rc = 0;

    for (size_t i = 0; i < elf->header->e_shnum && !rc; i++) {
        const Elf64_Shdr *s = &elf->sections[i];

        if (s->sh_type == SHT_DYNSYM || s->sh_type == SHT_DYNAMIC || s->sh_type == SHT_GNU_versym)
            rc = take_section(elf, s, err);
        versions = s->sh_type == SHT_GNU_versym ? s->sh_size / sizeof *elf->versions : versions;
    }
    if (!rc && (!elf->symbols || !elf->dynamic))
        return soq__fail(err, SOQ_ECORRUPT, "it has no dynamic symbols");
    if (versions < elf->n_symbols)
        elf->versions = NULL;
    return rc;
}

int soq__elf_open(const char *path, struct soq__elf *elf_out, struct soq_error *err)
{
    struct soq__elf elf = {.n_symbols = 0};
    int rc = soq__map_open(path, &elf.map, err);

    if (rc)
        return rc;
    elf.header = (const Elf64_Ehdr *)(const void *)elf.map.data;
    rc = check_header(&elf, err);
    if (!rc)
        rc = find_tables(&elf, err);
    if (!rc)
        rc = find_sections(&elf, err);
    if (rc)
        soq__elf_done(&elf);
    else
        *elf_out = elf;
    return rc;
}

void soq__elf_done(struct soq__elf *elf)
{
    soq__map_done(&elf->map);
}

const char *soq__elf_string(const struct soq__elf *elf, uint64_t offset)
{
    return offset < elf->strings_size ? elf->strings + offset : "";
}

const Elf64_Shdr *soq__elf_section(const struct soq__elf *elf, size_t i)
{
    return i < elf->header->e_shnum ? &elf->sections[i] : NULL;
}

const Elf64_Shdr *soq__elf_find_section(const struct soq__elf *elf, const char *name)
{
    size_t n = strlen(name) + 1;

    for (size_t i = 0; i < elf->header->e_shnum; i++) {
        uint64_t offset = elf->sections[i].sh_name;

        if (offset <= elf->section_names_size && n <= elf->section_names_size - offset &&
            memcmp(elf->section_names + offset, name, n) == 0)
            return &elf->sections[i];
    }
    return NULL;
}

const Elf64_Phdr *soq__elf_find_segment(const struct soq__elf *elf, uint32_t type)
{
    for (size_t i = 0; i < elf->header->e_phnum; i++) {
        if (elf->segments[i].p_type == type)
            return &elf->segments[i];
    }
    return NULL;
}

bool soq__elf_dynamic(const struct soq__elf *elf, int64_t tag, uint64_t *value_out)
{
    for (size_t i = 0; i < elf->n_dynamic && elf->dynamic[i].d_tag != DT_NULL; i++) {
        if (elf->dynamic[i].d_tag == tag) {
            *value_out = elf->dynamic[i].d_un.d_val;
            return true;
        }
    }
    return false;
}
