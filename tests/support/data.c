/* See data.h. */
#include "support/data.h"
#include "support/test.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char *allocate(size_t size) {
    unsigned char *bytes = malloc(size > 0 ? size : 1);
    assert_non_null(bytes);
    return bytes;
}

kvant_test_bytes kvant_test_safetensors(const char *header, size_t data_bytes) {
    size_t length = strlen(header);
    kvant_test_bytes file = {allocate(8 + length + data_bytes), 8 + length + data_bytes};
    for (unsigned i = 0; i < 8; i++) file.bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(file.bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) file.bytes[8 + length + i] = (unsigned char)(i + 1);
    return file;
}

kvant_test_bytes kvant_test_cut(kvant_test_bytes from, size_t size) {
    kvant_test_bytes cut = {allocate(size), size};
    memcpy(cut.bytes, from.bytes, size);
    return cut;
}

kvant_test_bytes kvant_test_read(const char *file) {
    FILE *stream = fopen(file, "rb");
    if (stream == NULL) {
        print_error("cannot read %s\n", file);
        fail();
    }
    fseek(stream, 0, SEEK_END);
    size_t size = (size_t)ftell(stream);
    rewind(stream);
    kvant_test_bytes all = {allocate(size), size};
    assert_int_equal(fread(all.bytes, 1, size, stream), size);
    fclose(stream);
    return all;
}

void kvant_test_write(const char *file, const void *bytes, size_t size) {
    FILE *stream = fopen(file, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, size, stream), size);
    assert_int_equal(fclose(stream), 0);
}

void kvant_assert_refused_at(kvant_status status, const kvant_diag *diag, const char *name, const char *file,
                             int line) {
    bool one_line = diag->message[0] != '\0';
    for (const char *c = diag->message; *c != '\0'; c++) one_line = one_line && (unsigned char)*c >= 0x20;
    if (status < 0 && one_line && strcmp(diag->file, name) == 0) return;
    print_error("status %d, file \"%s\" (not \"%s\"), message \"%s\"\n", (int)status, diag->file, name,
                diag->message);
    _fail(file, line);
}

static void remove_files(const char *directory) {
    char path[1024];
    DIR *stream = opendir(directory);
    if (stream == NULL) return;
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        (void)unlink(path);
    }
    closedir(stream);
}

static char directory_path[64];

static void remove_directory(void) {
    remove_files(directory_path);
    (void)rmdir(directory_path);
}

const char *kvant_test_directory(void) {
    if (directory_path[0] != '\0') return directory_path;
    strcpy(directory_path, "/tmp/kvant-test-XXXXXX");
    assert_non_null(mkdtemp(directory_path));
    (void)atexit(remove_directory);
    return directory_path;
}

unsigned kvant_test_file_count(const char *directory) {
    unsigned count = 0;
    DIR *stream = opendir(directory);
    assert_non_null(stream);
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(stream);
    return count;
}
