/* See schema.h. The rules that a schema itself must keep are in vet_schema.c. */
#include "plugin/schema.h"

#include "base/text.h"
#include "plugin/fpenv.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const kvant_param *kvant_schema_param(const kvant_descriptor *descriptor, uint32_t index) {
    if (descriptor->params == NULL || index >= descriptor->param_count) return NULL;
    const char *first = (const char *)descriptor->params;
    /* The vetting saw to it that the step keeps elements aligned. */
    return (const kvant_param *)(const void *)(first + (size_t)index * descriptor->params->struct_size);
}

kvant_status kvant_schema_find(const kvant_descriptor *descriptor, const char *name, uint32_t *index,
                               kvant_diag *diag) {
    const char *names[KVANT_SCHEMA_PARAMS_MAX];
    uint32_t count = 0;
    for (; count < descriptor->param_count && count < KVANT_SCHEMA_PARAMS_MAX; count++) {
        names[count] = kvant_schema_param(descriptor, count)->name;
        if (strcmp(names[count], name) == 0) {
            *index = count;
            return KVANT_OK;
        }
    }
    if (count == 0)
        return kvant_fail(diag, KVANT_ERROR_UNKNOWN_NAME, name, "codec %s has no parameters, so no \"%.64s\"",
                          descriptor->name, name);
    const char *nearest = kvant_nearest(name, names, count);
    if (nearest != NULL)
        return kvant_fail(diag, KVANT_ERROR_UNKNOWN_NAME, name,
                          "codec %s has no parameter \"%.64s\"; did you mean \"%s\"?", descriptor->name, name,
                          nearest);
    kvant_text list = {0};
    for (uint32_t i = 0; i < count; i++) kvant_text_printf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    kvant_status status =
        kvant_fail(diag, KVANT_ERROR_UNKNOWN_NAME, name, "codec %s has no parameter \"%.64s\"; it has: %s",
                   descriptor->name, name, list.data != NULL ? list.data : "");
    kvant_text_free(&list);
    return status;
}

void kvant_schema_default(const kvant_param *param, kvant_value *value) {
    *value = (kvant_value){.integer = param->integer_default, .number = param->number_default};
    if (param->type == KVANT_PARAM_NUMBER)
        value->integer = 0;
    else
        value->number = 0;
    if (param->type == KVANT_PARAM_TABLE) value->integer = 0;
}

const char *kvant_schema_type_name(uint32_t type) {
    switch (type) {
    case KVANT_PARAM_INTEGER:
        return "integer";
    case KVANT_PARAM_NUMBER:
        return "number";
    case KVANT_PARAM_CHOICE:
        return "choice";
    case KVANT_PARAM_SWITCH:
        return "switch";
    case KVANT_PARAM_TABLE:
        return "table";
    default:
        return "unknown";
    }
}

/* ---- Numbers as text ----------------------------------------------------------------------------------- */

/* The C library writes and reads decimal points as the application's locale says; pipelines do not depend
 * on it. */
static locale_t c_locale(void) {
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* The fewest digits that read back as the same double. */
static size_t number_text(double number, char *text, size_t capacity) {
    char digits[KVANT_SCHEMA_TEXT_MAX] = "";
    locale_t c = c_locale();
    locale_t old = c != (locale_t)0 ? uselocale(c) : (locale_t)0;
    kvant_fp_state saved = kvant_fp_enter();
    /* Of the spellings that read back exactly the shortest: 10 and not 1e+01. */
    for (int precision = 1; precision <= 17; precision++) {
        char longer[sizeof digits];
        (void)snprintf(longer, sizeof longer, "%.*g", precision, number);
        if (strtod(longer, NULL) == number && (digits[0] == '\0' || strlen(longer) < strlen(digits)))
            memcpy(digits, longer, sizeof digits);
    }
    kvant_fp_leave(saved);
    if (c != (locale_t)0) {
        (void)uselocale(old);
        freelocale(c);
    }
    int length = snprintf(text, capacity, "%s", digits);
    return length > 0 ? (size_t)length : 0;
}

static size_t skip_digits(const char **at) {
    size_t count = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) count++;
    return count;
}

/* -?digits with an optional fraction and exponent: none of strtod's blanks, hexadecimals, infinities and
 * NaNs. */
static bool is_decimal(const char *text, bool integer) {
    const char *at = text;
    if (*at == '-') at++;
    if (skip_digits(&at) == 0) return false;
    if (integer) return *at == '\0';
    if (*at == '.') {
        at++;
        if (skip_digits(&at) == 0) return false;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        if (skip_digits(&at) == 0) return false;
    }
    return *at == '\0';
}

/* False if it does not fit; `out` is then the nearest that does. */
static bool read_integer(const char *text, int64_t *out) {
    errno = 0;
    long long integer = strtoll(text, NULL, 10);
    *out = integer;
    return errno == 0;
}

static bool read_number(const char *text, double *out) {
    locale_t c = c_locale();
    if (c == (locale_t)0) return false;
    kvant_fp_state saved = kvant_fp_enter();
    *out = strtod_l(text, NULL, c);
    kvant_fp_leave(saved);
    freelocale(c);
    if (*out == 0) *out = 0; /* -0 is 0: one value, one text */
    bool vanished = *out == 0 && strcspn(text, "123456789") < strcspn(text, "eE");
    return isfinite(*out) && !vanished;
}

/* ---- Ranges -------------------------------------------------------------------------------------------- */

static void append_list(kvant_text *out, const kvant_param *param) {
    bool choice = param->type == KVANT_PARAM_CHOICE;
    uint32_t count = choice ? param->choice_count : param->integer_count;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) kvant_text_puts(out, i + 1 == count ? " or " : ", ");
        if (choice)
            kvant_text_puts(out, param->choices[i]);
        else
            kvant_text_printf(out, "%lld", (long long)param->integers[i]);
    }
}

static void append_range(kvant_text *out, const kvant_param *param) {
    char low[KVANT_SCHEMA_TEXT_MAX], high[KVANT_SCHEMA_TEXT_MAX];
    switch (param->type) {
    case KVANT_PARAM_CHOICE:
        append_list(out, param);
        return;
    case KVANT_PARAM_SWITCH:
        kvant_text_puts(out, "yes or no");
        return;
    case KVANT_PARAM_NUMBER:
        (void)number_text(param->number_min, low, sizeof low);
        (void)number_text(param->number_max, high, sizeof high);
        kvant_text_printf(out, "%s to %s", low, high);
        return;
    case KVANT_PARAM_TABLE:
        kvant_text_puts(out, "a section of key = ");
        break;
    default:
        if (param->integer_count > 0) {
            append_list(out, param);
            return;
        }
    }
    kvant_text_printf(out, "%lld to %lld", (long long)param->integer_min, (long long)param->integer_max);
}

static size_t hand_over(kvant_text *text, char *out, size_t capacity) {
    int length = snprintf(out, capacity, "%s", text->data != NULL && !text->failed ? text->data : "");
    kvant_text_free(text);
    return length > 0 ? (size_t)length : 0;
}

size_t kvant_schema_range(const kvant_param *param, char *text, size_t capacity) {
    kvant_text range = {0};
    append_range(&range, param);
    return hand_over(&range, text, capacity);
}

/* "group: 48 is not allowed: it takes 32, 64 or 128 tokens; the nearest is 64". `nearest` may be NULL. */
static kvant_status refuse(const kvant_param *param, kvant_status status, const char *text,
                           const char *nearest, kvant_diag *diag) {
    kvant_text range = {0};
    append_range(&range, param);
    if (param->unit[0] != '\0') kvant_text_printf(&range, " %s", param->unit);
    if (nearest != NULL) kvant_text_printf(&range, "; the nearest is %s", nearest);
    kvant_status result = kvant_fail(diag, status, param->name, "%s: \"%.64s\" is not allowed: it takes %s",
                                     param->name, text, range.data != NULL ? range.data : "");
    kvant_text_free(&range);
    return result;
}

/* |a - b| without overflow. */
static uint64_t gap(int64_t a, int64_t b) {
    return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

static kvant_status check_integer(const kvant_param *param, int64_t integer, const char *text,
                                  kvant_diag *diag) {
    int64_t nearest = integer;
    if (nearest < param->integer_min) nearest = param->integer_min;
    if (nearest > param->integer_max) nearest = param->integer_max;
    if (param->type == KVANT_PARAM_INTEGER && param->integer_count > 0) {
        nearest = param->integers[0];
        for (uint32_t i = 1; i < param->integer_count; i++)
            if (gap(param->integers[i], integer) < gap(nearest, integer)) nearest = param->integers[i];
    }
    if (nearest == integer) return KVANT_OK;
    char word[KVANT_SCHEMA_TEXT_MAX];
    (void)snprintf(word, sizeof word, "%lld", (long long)nearest);
    return refuse(param, KVANT_ERROR_VALUE, text, word, diag);
}

static kvant_status check_number(const kvant_param *param, double number, const char *text,
                                 kvant_diag *diag) {
    if (number >= param->number_min && number <= param->number_max) return KVANT_OK;
    char word[KVANT_SCHEMA_TEXT_MAX];
    (void)number_text(number < param->number_min ? param->number_min : param->number_max, word, sizeof word);
    return refuse(param, KVANT_ERROR_VALUE, text, isnan(number) ? NULL : word, diag);
}

/* ---- Text to value ------------------------------------------------------------------------------------- */

static kvant_status parse_integer(const kvant_param *param, const char *text, int64_t *integer,
                                  kvant_diag *diag) {
    if (!is_decimal(text, true))
        return kvant_fail(diag, KVANT_ERROR_VALUE, param->name,
                          "%s: \"%.64s\" is not an integer in decimal digits", param->name, text);
    /* What does not fit into 64 bits is at an end of them: if the range ends there too, say so instead of
     * taking it. */
    if (!read_integer(text, integer)) return refuse(param, KVANT_ERROR_VALUE, text, NULL, diag);
    return check_integer(param, *integer, text, diag);
}

static kvant_status parse_number(const kvant_param *param, const char *text, double *number,
                                 kvant_diag *diag) {
    if (!is_decimal(text, false))
        return kvant_fail(diag, KVANT_ERROR_VALUE, param->name,
                          "%s: \"%.64s\" is not a decimal number such as 3, 0.25 or 1e-3", param->name, text);
    if (!read_number(text, number)) return refuse(param, KVANT_ERROR_VALUE, text, NULL, diag);
    return check_number(param, *number, text, diag);
}

static kvant_status parse_choice(const kvant_param *param, const char *text, int64_t *index,
                                 kvant_diag *diag) {
    for (uint32_t i = 0; i < param->choice_count; i++)
        if (strcmp(param->choices[i], text) == 0) {
            *index = i;
            return KVANT_OK;
        }
    return refuse(param, KVANT_ERROR_UNKNOWN_NAME, text,
                  kvant_nearest(text, param->choices, param->choice_count), diag);
}

kvant_status kvant_schema_parse(const kvant_param *param, const char *text, kvant_value *value,
                                kvant_diag *diag) {
    kvant_value parsed = {.given = 1};
    kvant_status status = KVANT_OK;
    switch (param->type) {
    case KVANT_PARAM_INTEGER:
        status = parse_integer(param, text, &parsed.integer, diag);
        break;
    case KVANT_PARAM_NUMBER:
        status = parse_number(param, text, &parsed.number, diag);
        break;
    case KVANT_PARAM_CHOICE:
        status = parse_choice(param, text, &parsed.integer, diag);
        break;
    case KVANT_PARAM_SWITCH:
        parsed.integer = strcmp(text, "yes") == 0;
        if (parsed.integer == 0 && strcmp(text, "no") != 0)
            status = refuse(param, KVANT_ERROR_VALUE, text, NULL, diag);
        break;
    default:
        status = kvant_fail(
            diag, KVANT_ERROR_SYNTAX, param->name,
            "%s: a table is not one value: it takes a section of its own with a line key = %lld to "
            "%lld each",
            param->name, (long long)param->integer_min, (long long)param->integer_max);
    }
    if (status == KVANT_OK) *value = parsed;
    return status;
}

static bool is_row_key(const char *key) {
    size_t size = strnlen(key, 64);
    if (size == 0 || size > 63) return false;
    for (size_t i = 0; i < size; i++) {
        char c = key[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && strchr("_.:+*-", c) == NULL) return false;
    }
    return true;
}

kvant_status kvant_schema_parse_row(const kvant_param *param, const char *key, const char *text,
                                    kvant_table_row *row, kvant_diag *diag) {
    if (param->type != KVANT_PARAM_TABLE)
        return kvant_fail(diag, KVANT_ERROR_SYNTAX, param->name, "%s is one %s, not a table", param->name,
                          kvant_schema_type_name(param->type));
    if (!is_row_key(key))
        return kvant_fail(diag, KVANT_ERROR_SYNTAX, param->name,
                          "%s: \"%.64s\" cannot be a key of a table: 1 to 63 letters, digits and _ . : + * -",
                          param->name, key);
    int64_t integer = 0;
    if (!is_decimal(text, true) || !read_integer(text, &integer) || integer < param->integer_min ||
        integer > param->integer_max)
        return kvant_fail(diag, KVANT_ERROR_VALUE, param->name,
                          "%s: %s = \"%.64s\": it takes %lld to %lld%s%s", param->name, key, text,
                          (long long)param->integer_min, (long long)param->integer_max,
                          param->unit[0] != '\0' ? " " : "", param->unit);
    *row = (kvant_table_row){.key = key, .value = integer};
    return KVANT_OK;
}

/* ---- Values without text ------------------------------------------------------------------------------- */

static kvant_status check_rows(const kvant_param *param, const kvant_value *value, kvant_diag *diag) {
    if (value->row_count > 0 && value->rows == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, param->name, "%s: %u rows and no array of them",
                          param->name, value->row_count);
    for (uint32_t i = 0; i < value->row_count; i++) {
        char text[KVANT_SCHEMA_TEXT_MAX];
        kvant_table_row row;
        (void)snprintf(text, sizeof text, "%lld", (long long)value->rows[i].value);
        const char *key = value->rows[i].key != NULL ? value->rows[i].key : "";
        kvant_status status = kvant_schema_parse_row(param, key, text, &row, diag);
        if (status != KVANT_OK) return status;
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(value->rows[k].key, key) == 0)
                return kvant_fail(diag, KVANT_ERROR_DUPLICATE, param->name, "%s: \"%s\" twice", param->name,
                                  key);
    }
    return KVANT_OK;
}

kvant_status kvant_schema_check(const kvant_param *param, const kvant_value *value, kvant_diag *diag) {
    char text[KVANT_SCHEMA_TEXT_MAX];
    (void)snprintf(text, sizeof text, "%lld", (long long)value->integer);
    switch (param->type) {
    case KVANT_PARAM_INTEGER:
        return check_integer(param, value->integer, text, diag);
    case KVANT_PARAM_NUMBER:
        (void)number_text(value->number, text, sizeof text);
        return check_number(param, value->number, text, diag);
    case KVANT_PARAM_TABLE:
        return check_rows(param, value, diag);
    default: {
        int64_t count = param->type == KVANT_PARAM_CHOICE ? (int64_t)param->choice_count : 2;
        if (value->integer >= 0 && value->integer < count) return KVANT_OK;
        return kvant_fail(diag, KVANT_ERROR_VALUE, param->name, "%s: %s is not an index below %lld",
                          param->name, text, (long long)count);
    }
    }
}

/* ---- Value to text ------------------------------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b) {
    const kvant_table_row *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

static void append_rows(kvant_text *out, const kvant_value *value) {
    const kvant_table_row **rows = calloc(value->row_count + (size_t)1, sizeof *rows);
    if (rows == NULL) {
        out->failed = true;
        return;
    }
    for (uint32_t i = 0; i < value->row_count; i++) rows[i] = &value->rows[i];
    qsort(rows, value->row_count, sizeof *rows, compare_rows);
    kvant_text_puts(out, "{");
    for (uint32_t i = 0; i < value->row_count; i++)
        kvant_text_printf(out, "%s%s=%lld", i > 0 ? "," : "", rows[i]->key, (long long)rows[i]->value);
    kvant_text_puts(out, "}");
    free(rows);
}

size_t kvant_schema_text(const kvant_param *param, const kvant_value *value, char *text, size_t capacity) {
    kvant_text out = {0};
    switch (param->type) {
    case KVANT_PARAM_NUMBER:
        return number_text(value->number == 0 ? 0 : value->number, text, capacity);
    case KVANT_PARAM_CHOICE:
        if (value->integer >= 0 && value->integer < (int64_t)param->choice_count)
            kvant_text_puts(&out, param->choices[value->integer]);
        break;
    case KVANT_PARAM_SWITCH:
        kvant_text_puts(&out, value->integer != 0 ? "yes" : "no");
        break;
    case KVANT_PARAM_TABLE:
        append_rows(&out, value);
        break;
    default:
        kvant_text_printf(&out, "%lld", (long long)value->integer);
    }
    return hand_over(&out, text, capacity);
}
