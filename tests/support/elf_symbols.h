/* The dynamic symbol table of a shared object, read from the file itself. */
#ifndef KVANT_TEST_ELF_SYMBOLS_H
#define KVANT_TEST_ELF_SYMBOLS_H

#include <stdbool.h>

typedef struct elf_symbol {
    const char *name;
    bool defined;
    bool function;
} elf_symbol;

/* Calls visit for every global or weak symbol of .dynsym. Fails the test if the file cannot be read. */
void kvant_elf_symbols(const char *path, void (*visit)(void *context, const elf_symbol *symbol),
                       void *context);

/* Calls visit for the name of every library that the file asks for (DT_NEEDED). */
void kvant_elf_needed(const char *path, void (*visit)(void *context, const char *library), void *context);

#endif
