/* See npy.h. */
#include "npy.h"

#include "file.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { FIXED_BYTES = 8, HEADER_MAX = 1 << 20 };
static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

struct kvant_npy {
    char *file;
    char *name;
    kvant_file_map map; /* empty where the bytes are the caller's */
    kvant_array array;
    bool fortran;
};

static kvant_status corrupt(const kvant_npy *npy, kvant_diag *diag, const char *rule) {
    return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, npy->file, "not a .npy file that kvant reads: %s",
                           rule);
}

/* ---- The header's dict --------------------------------------------------------------------------------- */

/* What is left of the header. A token that is not there leaves it alone. */
typedef struct cursor {
    const char *at;
    const char *end;
} cursor;

static void skip_spaces(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
}

static bool take(cursor *c, char wanted) {
    skip_spaces(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word) {
    size_t length = strlen(word);
    skip_spaces(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return false;
    c->at += length;
    return true;
}

/* 'text' or "text" without escapes, which none of the format's strings has. */
static bool take_string(cursor *c, char *text, size_t capacity) {
    skip_spaces(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    char quote = *c->at++;
    size_t length = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at == '\\' || *c->at == '\0' || length + 1 >= capacity) return false;
        text[length++] = *c->at;
    }
    text[length] = '\0';
    return take(c, quote);
}

static bool take_number(cursor *c, uint64_t *number) {
    skip_spaces(c);
    const char *start = c->at;
    *number = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(*number, (uint64_t)10, number) ||
            __builtin_add_overflow(*number, (uint64_t)(*c->at - '0'), number))
            return false;
    return c->at > start;
}

/* (), (3,), (3, 4) and (3, 4,) */
static bool take_shape(cursor *c, kvant_array *array) {
    if (!take(c, '(')) return false;
    bool comma = true;
    while (!take(c, ')')) {
        if (!comma || array->rank == KVANT_RANK_MAX || !take_number(c, &array->shape[array->rank]))
            return false;
        array->rank++;
        comma = take(c, ',');
        if (!comma && array->rank == 1) return false; /* (3) is a number */
    }
    return true;
}

static kvant_status read_descr(kvant_npy *npy, const char *descr, kvant_diag *diag) {
    static const struct {
        const char *name;
        uint32_t dtype;
    } types[] = {{"f2", KVANT_DTYPE_F16}, {"f4", KVANT_DTYPE_F32}, {"f8", KVANT_DTYPE_F64},
                 {"u1", KVANT_DTYPE_U8},  {"i1", KVANT_DTYPE_I8},  {"b1", KVANT_DTYPE_BOOL},
                 {"u2", KVANT_DTYPE_U16}, {"V2", KVANT_DTYPE_U16}, {"i2", KVANT_DTYPE_I16},
                 {"u4", KVANT_DTYPE_U32}, {"i4", KVANT_DTYPE_I32}, {"u8", KVANT_DTYPE_U64},
                 {"i8", KVANT_DTYPE_I64}};
    if (descr[0] == '>')
        return kvant_file_fail(diag, KVANT_ERROR_UNSUPPORTED, npy->file,
                               "big-endian data ('%s') are not supported", descr);
    for (size_t i = 0; i < sizeof types / sizeof types[0] && (descr[0] == '<' || descr[0] == '|'); i++)
        if (strcmp(descr + 1, types[i].name) == 0) npy->array.dtype = types[i].dtype;
    /* '|' says that byte order does not matter. */
    if (descr[0] == '|' && kvant_dtype_bytes(npy->array.dtype) > 1 && descr[1] != 'V') npy->array.dtype = 0;
    if (npy->array.dtype != KVANT_DTYPE_NONE) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_DTYPE, npy->file, "data of type '%s' are not supported", descr);
}

static kvant_status read_dict(kvant_npy *npy, cursor c, kvant_diag *diag) {
    enum { DESCR = 1, ORDER = 2, SHAPE = 4, ALL = 7 };
    unsigned seen = 0;
    char key[32], descr[32] = "";
    if (!take(&c, '{')) return corrupt(npy, diag, "the header is not a dict");
    bool comma = true;
    while (!take(&c, '}')) {
        if (!comma || !take_string(&c, key, sizeof key) || !take(&c, ':'))
            return corrupt(npy, diag, "the header is not a dict of strings");
        unsigned bit = strcmp(key, "descr") == 0           ? DESCR
                       : strcmp(key, "fortran_order") == 0 ? ORDER
                       : strcmp(key, "shape") == 0         ? SHAPE
                                                           : 0;
        if (bit == 0 || (seen & bit) != 0)
            return corrupt(npy, diag, "the header has an unknown or a double key");
        seen |= bit;
        if (bit == DESCR && !take_string(&c, descr, sizeof descr))
            return corrupt(npy, diag, "'descr' is not a simple type (structured arrays are not supported)");
        if (bit == ORDER) {
            npy->fortran = take_word(&c, "True");
            if (!npy->fortran && !take_word(&c, "False"))
                return corrupt(npy, diag, "'fortran_order' is not True or False");
        }
        if (bit == SHAPE && !take_shape(&c, &npy->array))
            return corrupt(npy, diag, "'shape' is not a tuple of at most 8 whole numbers");
        comma = take(&c, ',');
    }
    skip_spaces(&c);
    if (c.at != c.end) return corrupt(npy, diag, "the header goes on after its dict");
    if (seen != ALL) return corrupt(npy, diag, "the header lacks 'descr', 'fortran_order' or 'shape'");
    return read_descr(npy, descr, diag);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static kvant_status read_file(kvant_npy *npy, const unsigned char *bytes, size_t size, kvant_diag *diag) {
    if (size < FIXED_BYTES + 2 || memcmp(bytes, magic, sizeof magic) != 0)
        return corrupt(npy, diag, "wrong magic");
    unsigned major = bytes[6], minor = bytes[7];
    if (major < 1 || major > 3 || minor != 0)
        return kvant_file_fail(diag, KVANT_ERROR_VERSION, npy->file, ".npy version %u.%u is not known", major,
                               minor);
    size_t start = major == 1 ? FIXED_BYTES + 2 : FIXED_BYTES + 4;
    if (size < start) return corrupt(npy, diag, "cut off inside its header");
    size_t length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (major > 1) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (length > HEADER_MAX) return corrupt(npy, diag, "a header of more than 1 MiB");
    if (length > size - start) return corrupt(npy, diag, "cut off inside its header");
    const char *header = (const char *)bytes + start;
    kvant_status status = read_dict(npy, (cursor){header, header + length}, diag);
    if (status != KVANT_OK) return status;
    uint64_t wanted, given = size - start - length;
    if (!kvant_array_size(npy->array.dtype, npy->array.shape, npy->array.rank, &wanted))
        return corrupt(npy, diag, "the size of its shape overflows 64 bits");
    if (wanted != given)
        return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, npy->file,
                               "its shape takes %llu bytes, and %llu follow the header%s",
                               (unsigned long long)wanted, (unsigned long long)given,
                               given < wanted ? " (truncated file?)" : "");
    npy->array.data = bytes + start + length;
    npy->array.bytes = wanted;
    return KVANT_OK;
}

static bool set_names(kvant_npy *npy, const char *file) {
    const char *slash = strrchr(file, '/');
    npy->file = strdup(file);
    npy->name = strdup(slash != NULL ? slash + 1 : file);
    if (npy->file == NULL || npy->name == NULL) return false;
    size_t length = strlen(npy->name);
    if (length > 4 && strcmp(npy->name + length - 4, ".npy") == 0) npy->name[length - 4] = '\0';
    npy->array.name = npy->name;
    return true;
}

kvant_status kvant_npy_parse(const void *bytes, size_t size, const char *name, kvant_npy **out,
                             kvant_diag *diag) {
    kvant_npy *npy = calloc(1, sizeof *npy);
    kvant_status status = npy != NULL && set_names(npy, name)
                              ? read_file(npy, bytes, size, diag)
                              : kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    if (status == KVANT_OK)
        *out = npy;
    else
        kvant_npy_close(npy);
    return status;
}

kvant_status kvant_npy_open(const char *file, kvant_npy **out, kvant_diag *diag) {
    kvant_file_map map;
    kvant_status status = kvant_file_map_open(file, &map, diag);
    if (status != KVANT_OK) return status;
    status = kvant_npy_parse(map.bytes, map.size, file, out, diag);
    if (status == KVANT_OK)
        (*out)->map = map;
    else
        kvant_file_map_close(&map);
    return status;
}

void kvant_npy_close(kvant_npy *npy) {
    if (npy == NULL) return;
    kvant_file_map_close(&npy->map);
    free(npy->file);
    free(npy->name);
    free(npy);
}

const kvant_array *kvant_npy_array(const kvant_npy *npy) {
    return &npy->array;
}

bool kvant_npy_fortran(const kvant_npy *npy) {
    return npy->fortran;
}
