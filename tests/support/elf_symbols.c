/* See elf_symbols.h. 64-bit little-endian files, as the build makes them. */
#include "support/elf_symbols.h"

#include "support/test.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) fail_msg("cannot read %s", path);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    if (bytes == NULL || fread(bytes, 1, *size, file) != *size) fail_msg("cannot read %s", path);
    bytes[*size] = '\0';
    (void)fclose(file);
    return bytes;
}

/* The section header of a type, and the strings that it refers to. */
static const Elf64_Shdr *section(const char *bytes, size_t size, uint32_t type, const char **strings) {
    const Elf64_Ehdr *header = (const void *)bytes;
    if (size < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_shoff + (uint64_t)header->e_shnum * sizeof(Elf64_Shdr) > size)
        return NULL;
    const Elf64_Shdr *sections = (const void *)(bytes + header->e_shoff);
    for (uint32_t i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == type) {
            *strings = bytes + sections[sections[i].sh_link].sh_offset;
            return &sections[i];
        }
    return NULL;
}

void kvant_elf_symbols(const char *path, void (*visit)(void *context, const elf_symbol *symbol),
                       void *context) {
    size_t size = 0;
    char *bytes = read_file(path, &size);
    const char *strings = NULL;
    const Elf64_Shdr *table = section(bytes, size, SHT_DYNSYM, &strings);
    if (table == NULL) fail_msg("%s has no dynamic symbols", path);
    const Elf64_Sym *symbols = (const void *)(bytes + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        if (ELF64_ST_BIND(symbols[i].st_info) == STB_LOCAL) continue;
        const elf_symbol symbol = {.name = strings + symbols[i].st_name,
                                   .defined = symbols[i].st_shndx != SHN_UNDEF,
                                   .function = ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC};
        /* The version script's own node. */
        if (symbols[i].st_shndx != SHN_ABS) visit(context, &symbol);
    }
    free(bytes);
}

void kvant_elf_needed(const char *path, void (*visit)(void *context, const char *library), void *context) {
    size_t size = 0;
    char *bytes = read_file(path, &size);
    const char *strings = NULL;
    const Elf64_Shdr *table = section(bytes, size, SHT_DYNAMIC, &strings);
    if (table == NULL) fail_msg("%s has no dynamic section", path);
    const Elf64_Dyn *entries = (const void *)(bytes + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof *entries && entries[i].d_tag != DT_NULL; i++)
        if (entries[i].d_tag == DT_NEEDED) visit(context, strings + entries[i].d_un.d_val);
    free(bytes);
}
