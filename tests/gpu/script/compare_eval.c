/* Two documents of `kvant eval --json`, of the CPU and of a device: all numbers but times, and but what
 * only a device has, are the same. Exit status 1 and a line for each that is not.
 *
 *     compare_eval cpu.json device.json
 */
#include <jansson.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LINES_MOST = 20, NUMBERS_LEAST = 20 };

static unsigned compared, different;

static bool is_left_out(const char *key) {
    return strncmp(key, "device", 6) == 0 || strcmp(key, "jit") == 0 || strstr(key, "seconds") != NULL ||
           strstr(key, "per_second") != NULL;
}

static void differ(const char *path, json_t *a, json_t *b) {
    if (++different > LINES_MOST) return;
    char *x = json_dumps(a, JSON_ENCODE_ANY | JSON_COMPACT),
         *y = json_dumps(b, JSON_ENCODE_ANY | JSON_COMPACT);
    printf("%s: %.60s on the CPU, %.60s on the device\n", path, x != NULL ? x : "?", y != NULL ? y : "?");
}

static void compare(const char *path, json_t *a, json_t *b) {
    char below[512];
    if (json_is_object(a) && json_is_object(b)) {
        const char *key;
        json_t *value;
        json_object_foreach(b, key, value) if (!is_left_out(key) && json_object_get(a, key) == NULL)
            differ(key, json_null(), value);
        json_object_foreach(a, key, value) {
            json_t *other = json_object_get(b, key);
            if (is_left_out(key)) continue;
            (void)snprintf(below, sizeof below, "%s.%s", path, key);
            compare(below, value, other != NULL ? other : json_null());
        }
    } else if (json_is_array(a) && json_is_array(b) && json_array_size(a) == json_array_size(b)) {
        for (size_t i = 0; i < json_array_size(a); i++) {
            (void)snprintf(below, sizeof below, "%s[%zu]", path, i);
            compare(below, json_array_get(a, i), json_array_get(b, i));
        }
    } else {
        if (json_is_number(a)) compared++;
        if (!json_equal(a, b)) differ(path, a, b);
    }
}

int main(int argc, char **argv) {
    json_t *documents[2];
    json_error_t error;
    if (argc != 3) return fprintf(stderr, "usage: compare_eval cpu.json device.json\n"), 2;
    for (int i = 0; i < 2; i++) {
        documents[i] = json_load_file(argv[i + 1], 0, &error);
        if (documents[i] == NULL)
            return fprintf(stderr, "%s:%d: %s\n", argv[i + 1], error.line, error.text), 2;
    }
    compare("", documents[0], documents[1]);
    printf("%u numbers compared, %u places differ\n", compared, different);
    if (!json_is_object(json_object_get(documents[1], "device")))
        return printf("the second document names no device\n"), 1;
    return different != 0 || compared < NUMBERS_LEAST;
}
