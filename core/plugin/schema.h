/* Parameter schemas: what a descriptor says about its parameters, put to use.
 *
 * A schema turns text into a value and a value into text, gives defaults, and says what is wrong in words
 * that a person can act on. The INI reader, the command's --set, `kvant info` and the fingerprint all go
 * through these calls, so that they agree. Nothing here depends on the locale or changes it.
 *
 * Functions that take a descriptor expect one that was vetted (a plugin that kvant_plugin_find returned was).
 */
#ifndef KVANT_PLUGIN_SCHEMA_H
#define KVANT_PLUGIN_SCHEMA_H

#include <kvant/plugin.h>

/* More parameters than this are taken for a broken descriptor. */
enum { KVANT_SCHEMA_PARAMS_MAX = 256 };

/* Room for the canonical text of anything but a long table, and the longest text of a number. */
enum { KVANT_SCHEMA_TEXT_MAX = 64 };

/* Parameter `index` of the schema, walked by the first element's struct_size; NULL past the end. */
const kvant_param *kvant_schema_param(const kvant_descriptor *descriptor, uint32_t index);

/* The index of the parameter called `name`. UNKNOWN_NAME, with key = name, names the nearest parameter or
 * lists all. */
kvant_status kvant_schema_find(const kvant_descriptor *descriptor, const char *name, uint32_t *index,
                               kvant_diag *diag);

/* The default: `given` = 0. A table's default has no rows. */
void kvant_schema_default(const kvant_param *param, kvant_value *value);

/* Reads `text`, without blanks around it, as a value of `param`: `given` = 1. Integers are decimal digits
 * with an optional minus; numbers are decimal, with optional fraction and exponent, and finite; switches
 * are `yes` or `no`; choices are the very word. VALUE or UNKNOWN_NAME (a choice that does not exist), with
 * key = the parameter, says the rule and the nearest valid value. A TABLE is not one text: SYNTAX; see
 * kvant_schema_parse_row. */
kvant_status kvant_schema_parse(const kvant_param *param, const char *text, kvant_value *value,
                                kvant_diag *diag);

/* Reads one `key = text` line of a TABLE. row->key = key (not copied). A key is [A-Za-z0-9_.:+*-]{1,63}.
 * That no key comes twice is for the caller to check, who knows the lines; value->rows and row_count are
 * the caller's too. */
kvant_status kvant_schema_parse_row(const kvant_param *param, const char *key, const char *text,
                                    kvant_table_row *row, kvant_diag *diag);

/* Checks a value that did not come from text (of a caller who fills kvant_value by hand). Same errors. */
kvant_status kvant_schema_check(const kvant_param *param, const kvant_value *value, kvant_diag *diag);

/* The canonical text of a value: parses back to the same value, and equal values have equal texts. "32",
 * "0.5" (the fewest digits that come back exactly), "f16", "yes", and for a table "{a=1,b=2}" sorted by
 * key. Returns the length without NUL, like snprintf: a result >= capacity was cut. */
size_t kvant_schema_text(const kvant_param *param, const kvant_value *value, char *text, size_t capacity);

/* What values a parameter takes: "2, 4 or 8", "1 to 128", "0.5 to 2", "f16, bf16 or f32", "yes or no", "a
 * section of key = 0 to 8". Returns like snprintf. */
size_t kvant_schema_range(const kvant_param *param, char *text, size_t capacity);

/* "integer", "number", "choice", "switch", "table". */
const char *kvant_schema_type_name(uint32_t type);

/* Refuses a schema that breaks a rule of plugin.h: PLUGIN_BROKEN, with key = the parameter, and the rule.
 * Reads only descriptor->params and param_count. */
kvant_status kvant_schema_vet(const kvant_descriptor *descriptor, kvant_diag *diag);

#endif
