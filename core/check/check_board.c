/* The memory that parent and children share, and their records. */
#include "check_board.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

check_board *check_board_create(void) {
    void *board = mmap(NULL, sizeof(check_board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board != MAP_FAILED ? board : NULL;
}

void check_board_free(check_board *board) {
    if (board != NULL) (void)munmap(board, sizeof *board);
}

static size_t record_head(void) {
    return offsetof(check_record, text);
}

bool check_record_send(int pipe, const check_record *record) {
    size_t size = record_head() + record->size;
    for (;;) {
        ssize_t written = write(pipe, record, size);
        if (written == (ssize_t)size) return true;
        if (written >= 0 || errno != EINTR) return false;
    }
}

void check_record_add(check_record *record, const char *string) {
    size_t left = sizeof record->text - record->size;
    if (left == 0) return;
    size_t size = strlen(string);
    if (size >= left) size = left - 1;
    memcpy(record->text + record->size, string, size);
    record->text[record->size + size] = '\0';
    record->size += (uint32_t)size + 1;
}

static bool read_whole(int pipe, void *data, size_t size) {
    for (size_t got = 0; got < size;) {
        ssize_t n = read(pipe, (char *)data + got, size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        got += (size_t)n;
    }
    return true;
}

bool check_record_receive(int pipe, check_record *record) {
    if (!read_whole(pipe, record, record_head()) || record->size > sizeof record->text) return false;
    return read_whole(pipe, record->text, record->size);
}

const char *check_record_string(const check_record *record, uint32_t index) {
    const char *string = record->text, *end = record->text + record->size;
    while (string < end && index > 0) {
        string += strlen(string) + 1;
        index--;
    }
    return string < end ? string : "";
}
