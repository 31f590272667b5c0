/* ELF: symbols in the file, segments in memory. See check_symbols.h. */
#include "check_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file in memory; `at` gives NULL for what lies outside. */
typedef struct image {
    const unsigned char *bytes;
    size_t size;
} image;

static const void *image_at(const image *file, uint64_t offset, uint64_t size) {
    if (offset > file->size || size > file->size - offset || offset % 8 != 0) return NULL;
    return file->bytes + offset;
}

/* A name of a string table; "" outside. */
static const char *name_at(const image *file, const Elf64_Shdr *strings, uint32_t offset) {
    if (strings->sh_offset > file->size || strings->sh_size > file->size - strings->sh_offset ||
        offset >= strings->sh_size)
        return "";
    const char *name = (const char *)file->bytes + strings->sh_offset + offset;
    return memchr(name, '\0', strings->sh_size - offset) != NULL ? name : "";
}

static bool is_sanitizer(const char *name) {
    return strncmp(name, "__asan_", 7) == 0 || strncmp(name, "__odr_asan", 10) == 0 ||
           strncmp(name, "__ubsan_", 8) == 0;
}

/* Functions whose last place depends on the library. sqrt, rint, fma and their kind are exact. */
static bool is_inexact(const char *name) {
    static const char *const functions[] = {"exp",   "exp2", "expm1", "log",    "log2",   "log10",
                                            "log1p", "pow",  "cbrt",  "sin",    "cos",    "tan",
                                            "asin",  "acos", "atan",  "atan2",  "sinh",   "cosh",
                                            "tanh",  "erf",  "erfc",  "tgamma", "lgamma", "hypot"};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        size_t length = strlen(functions[i]);
        if (strncmp(name, functions[i], length) == 0 &&
            (name[length] == '\0' || strcmp(name + length, "f") == 0))
            return true;
    }
    return false;
}

static void note_symbol(const Elf64_Sym *symbol, const char *name, check_symbols *symbols) {
    unsigned bind = ELF64_ST_BIND(symbol->st_info), visibility = ELF64_ST_VISIBILITY(symbol->st_other);
    if (name[0] == '\0' || bind == STB_LOCAL || is_sanitizer(name)) return;
    if (symbol->st_shndx == SHN_UNDEF) {
        if (strncmp(name, "kvant_", 6) == 0)
            (void)snprintf(symbols->core_import, sizeof symbols->core_import, "%.63s", name);
        if (strncmp(name, "pthread_create", 14) == 0 || strcmp(name, "thrd_create") == 0)
            (void)snprintf(symbols->thread_import, sizeof symbols->thread_import, "%.63s", name);
        if (is_inexact(name))
            (void)snprintf(symbols->libm_import, sizeof symbols->libm_import, "%.63s", name);
        return;
    }
    if (visibility == STV_HIDDEN || visibility == STV_INTERNAL) return;
    if (symbol->st_shndx == SHN_ABS) return; /* the name of a version */
    symbols->exported++;
    if (strcmp(name, "kvant_plugin_query") != 0)
        (void)snprintf(symbols->other_export, sizeof symbols->other_export, "%.63s", name);
}

static bool read_sections(const image *file, check_symbols *symbols) {
    const Elf64_Ehdr *header = image_at(file, 0, sizeof *header);
    if (header == NULL || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr))
        return false;
    const Elf64_Shdr *sections =
        image_at(file, header->e_shoff, (uint64_t)header->e_shnum * sizeof *sections);
    if (sections == NULL) return false;
    bool found = false;
    for (uint32_t i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *section = &sections[i];
        if (section->sh_flags & SHF_TLS) symbols->thread_local_bytes += section->sh_size;
        if (section->sh_type != SHT_DYNSYM || section->sh_link >= header->e_shnum) continue;
        const Elf64_Sym *symbol = image_at(file, section->sh_offset, section->sh_size);
        for (uint64_t k = 0; symbol != NULL && k < section->sh_size / sizeof *symbol; k++)
            note_symbol(&symbol[k], name_at(file, &sections[section->sh_link], symbol[k].st_name), symbols);
        found = symbol != NULL;
    }
    return found;
}

bool check_symbols_read(const char *path, check_symbols *symbols) {
    *symbols = (check_symbols){0};
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool good = false;
    if (fstat(file, &status) == 0 && status.st_size > 0) {
        image map = {.size = (size_t)status.st_size};
        void *bytes = mmap(NULL, map.size, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes != MAP_FAILED) {
            map.bytes = bytes;
            good = read_sections(&map, symbols);
            (void)munmap(bytes, map.size);
        }
    }
    (void)close(file);
    return good;
}

typedef struct search {
    uintptr_t address;
    uint64_t digest;
} search;

static uint64_t digest_bytes(uint64_t digest, uintptr_t from, uintptr_t to) {
    for (uintptr_t at = from; at < to; at++) digest = (digest ^ *(const unsigned char *)at) * 0x100000001b3u;
    return digest;
}

/* What a segment holds besides the part that becomes read-only after relocation. */
static uint64_t digest_segment(uint64_t digest, uintptr_t from, uintptr_t to, uintptr_t relro,
                               uintptr_t relro_end) {
    if (relro >= to || relro_end <= from) return digest_bytes(digest, from, to);
    digest = digest_bytes(digest, from, relro > from ? relro : from);
    return digest_bytes(digest, relro_end < to ? relro_end : to, to);
}

static int visit_object(struct dl_phdr_info *info, size_t size, void *context) {
    search *s = context;
    bool mine = false;
    uintptr_t base = info->dlpi_addr, relro = 0, relro_end = 0;
    (void)size;
    for (uint32_t i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *p = &info->dlpi_phdr[i];
        uintptr_t from = base + p->p_vaddr, to = from + p->p_memsz;
        if (p->p_type == PT_LOAD && s->address >= from && s->address < to) mine = true;
        if (p->p_type == PT_GNU_RELRO) {
            uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
            relro = from;
            relro_end = (to + page - 1) / page * page;
        }
    }
    if (!mine) return 0;
    s->digest = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *p = &info->dlpi_phdr[i];
        uintptr_t from = base + p->p_vaddr;
        if (p->p_type == PT_LOAD && (p->p_flags & PF_W))
            s->digest = digest_segment(s->digest, from, from + p->p_memsz, relro, relro_end);
    }
    return 1;
}

uint64_t check_writable_digest(const void *address) {
    search s = {.address = (uintptr_t)address};
    (void)dl_iterate_phdr(visit_object, &s);
    return s.digest;
}
