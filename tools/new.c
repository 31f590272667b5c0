/* `kvant new NAME`: a plugin project that builds out of tree, loads by name and passes `kvant check`. */
#include "new.h"
#include "command.h"

#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] =
    "usage: kvant new NAME [DIRECTORY]\n"
    "\n"
    "Writes a plugin project for a codec called NAME ([a-z][a-z0-9_]{0,31}) into DIRECTORY (default "
    "kvant_NAME), which\n"
    "must not exist: the five calls, a parameter schema, a byte map, a README and two tests. It builds "
    "against an\n"
    "installed kvant:\n"
    "\n"
    "  kvant new mycodec\n"
    "  cmake -S kvant_mycodec -B kvant_mycodec/build && cmake --build kvant_mycodec/build\n"
    "  ctest --test-dir kvant_mycodec/build\n"
    "  kvant --plugin-path $PWD/kvant_mycodec/build eval mycodec dump.safetensors\n"
    "\n"
    "docs/writing-a-plugin.md walks through it.\n";

/* The text with every "template" replaced by the name, "TEMPLATE" by the same in capitals and the four
 * letters of the format id by four of the name's. */
static void instantiate(const char *text, const char *name, kvant_text *out) {
    char upper[33] = {0};
    for (size_t i = 0; i < sizeof upper - 1 && name[i] != '\0'; i++)
        upper[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
    char letters[5] = "XXXX";
    for (size_t i = 0; i < 4 && upper[i] != '\0'; i++) letters[i] = upper[i];
    for (const char *p = text; *p != '\0';) {
        if (strncmp(p, "template", 8) == 0) {
            kvant_text_puts(out, name);
            p += 8;
        } else if (strncmp(p, "TEMPLATE", 8) == 0) {
            kvant_text_puts(out, upper);
            p += 8;
        } else if (strncmp(p, "'T' | 'M' << 8 | 'P' << 16 | 'L' << 24", 38) == 0) {
            kvant_text_printf(out, "'%c' | '%c' << 8 | '%c' << 16 | '%c' << 24", letters[0], letters[1],
                              letters[2], letters[3]);
            p += 38;
        } else {
            kvant_text_append(out, p++, 1);
        }
    }
}

static int write_file(const char *directory, const struct embedded_file *file, const char *name) {
    kvant_text path = {0}, text = {0};
    int result = EXIT_INPUT;
    FILE *stream = NULL;
    kvant_text_printf(&path, "%s/", directory);
    instantiate(file->name, name, &path);
    instantiate(file->text, name, &text);
    if (path.failed || text.failed) {
        fputs("kvant new: out of memory\n", stderr);
        goto out;
    }
    stream = fopen(path.data, "wx");
    if (stream == NULL || fwrite(text.data, 1, text.size, stream) != text.size) {
        fprintf(stderr, "kvant new: %s: %s\n", path.data, strerror(errno));
        goto out;
    }
    result = EXIT_DONE;
out:
    if (stream != NULL && fclose(stream) != 0 && result == EXIT_DONE) {
        fprintf(stderr, "kvant new: %s: %s\n", path.data, strerror(errno));
        result = EXIT_INPUT;
    }
    kvant_text_free(&path);
    kvant_text_free(&text);
    return result;
}

static int run(int argc, char **argv) {
    if (argc < 2 || argc > 3) return usage_error("new", "takes a NAME and at most a DIRECTORY");
    const char *name = argv[1];
    if (!kvant_is_name(name) || strcmp(name, "template") == 0)
        return usage_error(
            "new", "\"%s\" cannot be a codec's name: [a-z][a-z0-9_]{0,31}, and not \"template\"", name);
    char standard[64];
    (void)snprintf(standard, sizeof standard, "kvant_%s", name);
    const char *directory = argc == 3 ? argv[2] : standard;
    if (mkdir(directory, 0777) != 0) {
        fprintf(stderr, "kvant new: %s: %s\n", directory, strerror(errno));
        return EXIT_INPUT;
    }
    for (const struct embedded_file *file = template_files; file->name != NULL; file++) {
        int result = write_file(directory, file, name);
        if (result != EXIT_DONE) return result;
    }
    printf("%s: a plugin project; next: cmake -S %s -B %s/build && cmake --build %s/build\n", directory,
           directory, directory, directory);
    return EXIT_DONE;
}

const command command_new = {"new", "write a plugin project that builds and passes `check`", help, run};
