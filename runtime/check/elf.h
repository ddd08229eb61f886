/* Reading a shared object without loading it: what of ELF64 the static checks ask for. Every offset is checked against the
 * file; it finds its way by section headers, which `strip` leaves. */
#ifndef SOQ_CHECK_ELF_H
#define SOQ_CHECK_ELF_H

#include <elf.h>
#include <stdbool.h>

#include "base/file.h"

struct soq__elf {
    struct soq_map map;
    const Elf64_Ehdr *header;
    const Elf64_Phdr *segments;
    const Elf64_Shdr *sections;
    const char *section_names;
    size_t section_names_size;
    const Elf64_Sym *symbols; /* .dynsym, the first is none */
    size_t n_symbols;
    const char *strings; /* .dynstr, ends in NUL */
    size_t strings_size;
    const Elf64_Half *versions; /* [n_symbols] or NULL */
    const Elf64_Dyn *dynamic;
    size_t n_dynamic;
};

/* Fails where the file is no shared object for this machine. */
int soq__elf_open(const char *path, struct soq__elf *elf_out, struct soq_error *err);
void soq__elf_done(struct soq__elf *elf);

/* "" where the offset is outside. */
const char *soq__elf_string(const struct soq__elf *elf, uint64_t offset);
/* The i-th section, NULL behind the last; by name, NULL if there is none. */
const Elf64_Shdr *soq__elf_section(const struct soq__elf *elf, size_t i);
const Elf64_Shdr *soq__elf_find_section(const struct soq__elf *elf, const char *name);
const Elf64_Phdr *soq__elf_find_segment(const struct soq__elf *elf, uint32_t type);
/* The value of the first such entry; false if there is none. */
bool soq__elf_dynamic(const struct soq__elf *elf, int64_t tag, uint64_t *value_out);

#endif
