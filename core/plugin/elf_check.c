/* A look at an ELF file before the loader gets it (search.h). Reads the header and the program headers:
 *
 *     0   7f 45 4c 46  class  byte order  ...       e_ident, 16 bytes
 *     16  type, machine, ...  offset of the program headers at 32, size of one at 54, count at 56
 *     program header: type at 0, offset in the file at 8, bytes in the file at 32
 */
#include "plugin/search.h"

#include <kvant/kit/diag.h>

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64 };
#endif

static bool read_at(int file, void *out, size_t size, uint64_t offset) {
    size_t done = 0;
    while (done < size) {
        ssize_t n = pread(file, (char *)out + done, size - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static const char *header_fault(const Elf64_Ehdr *header) {
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return "it is not an ELF file";
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
        header->e_machine != MACHINE)
        return "it is an ELF file for another machine";
    if (header->e_type != ET_DYN) return "it is an ELF file, but no shared object";
    if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum == 0) return "its ELF header is damaged";
    return NULL;
}

static const char *segment_fault(int file, const Elf64_Ehdr *header, uint64_t size) {
    bool dynamic = false;
    for (uint32_t i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment;
        uint64_t offset = header->e_phoff + (uint64_t)i * sizeof segment;
        if (header->e_phoff > size || !read_at(file, &segment, sizeof segment, offset))
            return "it is cut off";
        dynamic = dynamic || segment.p_type == PT_DYNAMIC;
        if (segment.p_type != PT_LOAD && segment.p_type != PT_DYNAMIC) continue;
        if (segment.p_offset > size || segment.p_filesz > size - segment.p_offset) return "it is cut off";
    }
    return dynamic ? NULL : "it is an ELF file, but no shared object";
}

kvant_status kvant_elf_check(const char *path, kvant_diag *diag) {
    const char *fault = NULL;
    Elf64_Ehdr header;
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &status) != 0)
        fault = strerror(errno);
    else if (!read_at(file, &header, sizeof header, 0))
        fault = "it is not an ELF file";
    else if ((fault = header_fault(&header)) == NULL)
        fault = segment_fault(file, &header, (uint64_t)status.st_size);
    kvant_status result =
        fault == NULL ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_PLUGIN_REFUSED, "", "%s", fault);
    if (file >= 0) (void)close(file);
    return result;
}
