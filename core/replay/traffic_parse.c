/* The numbers of made-up traffic as text. */
#include "replay/traffic.h"

#include "base/text.h"

#include <kvant/kit/diag.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t at;
    uint32_t least, most, usual;
} numbers[] = {
#define NUMBER(name, least, most, usual)                                                                     \
    { #name, offsetof(kvant_traffic, name), (least), (most), (usual) }
    NUMBER(agents, 1, 1024, 8),
    NUMBER(turns, 1, 1000000, 12),
    NUMBER(seed, 0, UINT32_MAX, 1),
    NUMBER(tenants, 1, 1024, 1),
    NUMBER(kinds, 1, 1024, 2),
    NUMBER(system, 1, 100000, 200),
    NUMBER(tools, 1, 100000, 400),
    NUMBER(user, 1, 100000, 30),
    NUMBER(answer, 1, 100000, 60),
    NUMBER(calls, 0, 100, 2),
    NUMBER(observation, 1, 100000, 120),
    NUMBER(context, 64, 4000000, 4000),
    NUMBER(keep, 0, 100, 50),
    NUMBER(fork, 0, 100, 10),
    NUMBER(draft, 0, 100, 25),
    NUMBER(rollback, 0, 100, 15),
    NUMBER(drop, 0, 100, 5),
    NUMBER(evict, 0, 100, 3),
    NUMBER(save, 0, 100, 10),
    NUMBER(restart, 0, 100, 2),
#undef NUMBER
};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static uint32_t *number_at(kvant_traffic *t, size_t i) {
    return (uint32_t *)(void *)((char *)t + numbers[i].at);
}

static kvant_status parse_part(char *part, bool *seen, kvant_traffic *t, kvant_diag *diag) {
    const char *names[NUMBERS];
    char *value = strchr(part, '='), *end = NULL;
    size_t i = 0;
    for (size_t n = 0; n < NUMBERS; n++) names[n] = numbers[n].name;
    if (value != NULL) *value++ = '\0';
    while (i < NUMBERS && strcmp(part, names[i]) != 0) i++;
    if (i == NUMBERS) {
        const char *near = kvant_nearest(part, names, NUMBERS);
        return kvant_fail(diag, KVANT_ERROR_UNKNOWN_NAME, part, "traffic has no number \"%.64s\"%s%s%s", part,
                          near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                          near != NULL ? "\"?" : "");
    }
    if (value == NULL)
        return kvant_fail(diag, KVANT_ERROR_SYNTAX, part, "traffic is %s=NUMBER, with commas between", part);
    if (seen[i]) return kvant_fail(diag, KVANT_ERROR_DUPLICATE, part, "%s is there twice", part);
    seen[i] = true;
    unsigned long long number = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0' || strlen(value) > 12 || number < numbers[i].least ||
        number > numbers[i].most)
        return kvant_fail(diag, KVANT_ERROR_VALUE, part, "%s is a whole number from %u to %u, not \"%.64s\"",
                          part, numbers[i].least, numbers[i].most, value);
    *number_at(t, i) = (uint32_t)number;
    return KVANT_OK;
}

kvant_status kvant_traffic_parse(const char *text, kvant_traffic *t, kvant_diag *diag) {
    bool seen[NUMBERS] = {false};
    kvant_status status = KVANT_OK;
    for (size_t i = 0; i < NUMBERS; i++) *number_at(t, i) = numbers[i].usual;
    if (*text == '\0') return KVANT_OK;
    char *copy = strdup(text);
    if (copy == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (char *part = copy, *next; status == KVANT_OK && part != NULL; part = next) {
        next = strchr(part, ',');
        if (next != NULL) *next++ = '\0';
        status = parse_part(part, seen, t, diag);
    }
    free(copy);
    return status;
}
