/* A look into the plugin's file and memory: which symbols it shows and needs, and where its writable data
 * lie. */
#ifndef KVANT_CHECK_SYMBOLS_H
#define KVANT_CHECK_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a shared object shows to others and needs from them, by its dynamic symbol table. Names are cut to
 * fit. */
typedef struct check_symbols {
    uint32_t exported;      /* defined, and visible outside */
    char other_export[64];  /* one that is not kvant_plugin_query; "" = none */
    char core_import[64];   /* one that begins with kvant_; "" = none */
    char thread_import[64]; /* pthread_create and its like; "" = none */
    char libm_import[64];   /* a function of libm that is not exact; "" = none */
    uint64_t thread_local_bytes;
} check_symbols;

/* False if the file cannot be read as a 64-bit shared object of this byte order. */
bool check_symbols_read(const char *file, check_symbols *symbols);

/* FNV-1a digest of the writable segments of the object that holds `address`, without what the loader
 * protects after relocation; 0 if it has none or cannot be found. */
uint64_t check_writable_digest(const void *address);

#endif
