/* A file of records: one saved sequence, with all that it takes to read it again.
 *
 *     kvant sequence, version 1; all numbers little-endian                           docs/record-format.md
 *
 *     offset  bytes  field
 *     0       8      magic "KVANTSEQ"
 *     8       4      version = 1
 *     12      4      zeros
 *     16      8      head bytes h: from 0 to the first record, a multiple of 64
 *     24      8      number of records
 *     32      8      tokens in all records
 *     40      8      description bytes s
 *     48      16     zeros
 *     64      s      description: a safetensors file (description.h)
 *     ..      0-63   zeros
 *     h-8     8      XXH3-64 of the head without these 8 bytes
 *     h       ..     records (record.h): blocks 0, 1, 2, ... and at the end, where tokens are left, a tail
 *
 * The file ends with its last record. Records follow one another in positions, numbers and keys and share
 * fingerprint, layers and dtype; all blocks have the same number of tokens. */
#ifndef KVANT_STORE_SEQUENCE_FILE_H
#define KVANT_STORE_SEQUENCE_FILE_H

#include "data/file.h"
#include "record.h"

typedef struct kvant_sequence_file kvant_sequence_file;

/* Opens and verifies everything, every checksum included. The diag names the record, its place and the
 * reason. */
kvant_status kvant_sequence_file_open(const char *file, kvant_sequence_file **sequence, kvant_diag *diag);
/* The same over bytes in memory, which must outlive it; `name` stands for the file. */
kvant_status kvant_sequence_file_parse(const void *bytes, size_t size, const char *name,
                                       kvant_sequence_file **sequence, kvant_diag *diag);
void kvant_sequence_file_close(kvant_sequence_file *sequence);

uint32_t kvant_sequence_file_count(const kvant_sequence_file *sequence);
uint64_t kvant_sequence_file_tokens(const kvant_sequence_file *sequence);
/* Lives as long as the sequence; NULL beyond the last. */
const kvant_record *kvant_sequence_file_record(const kvant_sequence_file *sequence, uint32_t index);
kvant_record_part kvant_sequence_file_description(const kvant_sequence_file *sequence);

/* Writes the head; the caller adds the records and commits. */
kvant_status kvant_sequence_file_create(const char *file, const void *description, size_t size,
                                        uint32_t records, uint64_t tokens, kvant_file_writer **writer,
                                        kvant_diag *diag);

#endif
