/* The rules that a parameter schema must keep (plugin.h, "Parameter schema"): a schema that passes here
 * cannot surprise the INI reader, `kvant info` or the fingerprint. See schema.h. */
#include "plugin/schema.h"

#include "base/text.h"
#include "plugin/vet.h"

#include <kvant/kit/diag.h>

#include <math.h>
#include <stdalign.h>
#include <stdbool.h>
#include <string.h>

enum { KNOWN_FLAGS = KVANT_PARAM_READING | KVANT_PARAM_LATER | KVANT_PARAM_UNLEARNED };

/* "parameter 2 (group): ..."; `name` is only printed, so that a wrong one helps to find the place. */
#define BROKEN(param, index, format, ...)                                                                    \
    kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, (param)->name != NULL ? (param)->name : "",                  \
               "parameter %u (%.40s): " format, (index), (param)->name != NULL ? (param)->name : "NULL",     \
               __VA_ARGS__)

/* Characters that can stand in a line of an INI file as a whole value: printable, no blank, no comment. */
static bool is_word(const char *text) {
    size_t size = strnlen(text, 64);
    if (size == 0 || size > 63) return false;
    for (size_t i = 0; i < size; i++)
        if (text[i] <= 0x20 || text[i] >= 0x7f || text[i] == ';' || text[i] == '#' || text[i] == '"')
            return false;
    return true;
}

static kvant_status vet_integer(const kvant_param *p, uint32_t index, kvant_diag *diag) {
    if (p->integer_min > p->integer_max)
        return BROKEN(p, index, "integer_min %lld is above integer_max %lld", (long long)p->integer_min,
                      (long long)p->integer_max);
    if (p->type == KVANT_PARAM_TABLE) return KVANT_OK;
    if (p->integer_default < p->integer_min || p->integer_default > p->integer_max)
        return BROKEN(p, index, "the default %lld is outside of %lld to %lld", (long long)p->integer_default,
                      (long long)p->integer_min, (long long)p->integer_max);
    if (p->integer_count == 0) return KVANT_OK;
    if (p->integers == NULL)
        return BROKEN(p, index, "integer_count is %u and integers is NULL", p->integer_count);
    bool found = false;
    for (uint32_t i = 0; i < p->integer_count; i++) {
        if (i > 0 && p->integers[i] <= p->integers[i - 1])
            return BROKEN(p, index, "integers[%u] = %lld does not ascend", i, (long long)p->integers[i]);
        if (p->integers[i] < p->integer_min || p->integers[i] > p->integer_max)
            return BROKEN(p, index, "integers[%u] = %lld is outside of %lld to %lld", i,
                          (long long)p->integers[i], (long long)p->integer_min, (long long)p->integer_max);
        found = found || p->integers[i] == p->integer_default;
    }
    if (!found)
        return BROKEN(p, index, "the default %lld is not one of integers[]", (long long)p->integer_default);
    return KVANT_OK;
}

static kvant_status vet_number(const kvant_param *p, uint32_t index, kvant_diag *diag) {
    if (!isfinite(p->number_min) || !isfinite(p->number_max) || !isfinite(p->number_default))
        return BROKEN(p, index, "%s", "number_min, number_max and number_default must be finite");
    if (p->number_min > p->number_max)
        return BROKEN(p, index, "number_min %g is above number_max %g", p->number_min, p->number_max);
    if (p->number_default < p->number_min || p->number_default > p->number_max)
        return BROKEN(p, index, "the default %g is outside of %g to %g", p->number_default, p->number_min,
                      p->number_max);
    return KVANT_OK;
}

static kvant_status vet_choice(const kvant_param *p, uint32_t index, kvant_diag *diag) {
    if (p->choice_count == 0 || p->choices == NULL) return BROKEN(p, index, "%s", "a choice without choices");
    for (uint32_t i = 0; i < p->choice_count; i++) {
        if (p->choices[i] == NULL) return BROKEN(p, index, "choices[%u] is NULL", i);
        if (!is_word(p->choices[i]))
            return BROKEN(p, index,
                          "choices[%u] is \"%.40s\": it takes 1 to 63 printable characters without blank, "
                          "quote, ; and #",
                          i, p->choices[i]);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(p->choices[k], p->choices[i]) == 0)
                return BROKEN(p, index, "choices[%u] and choices[%u] are both \"%s\"", k, i, p->choices[i]);
    }
    if (p->integer_default < 0 || p->integer_default >= (int64_t)p->choice_count)
        return BROKEN(p, index, "the default %lld is not an index below %u", (long long)p->integer_default,
                      p->choice_count);
    return KVANT_OK;
}

static kvant_status vet_type(const kvant_param *p, uint32_t index, kvant_diag *diag) {
    switch (p->type) {
    case KVANT_PARAM_INTEGER:
    case KVANT_PARAM_TABLE:
        return vet_integer(p, index, diag);
    case KVANT_PARAM_NUMBER:
        return vet_number(p, index, diag);
    case KVANT_PARAM_CHOICE:
        return vet_choice(p, index, diag);
    case KVANT_PARAM_SWITCH:
        if (p->integer_default == 0 || p->integer_default == 1) return KVANT_OK;
        return BROKEN(p, index, "the default %lld of a switch is neither 0 nor 1",
                      (long long)p->integer_default);
    default:
        return BROKEN(p, index, "type %u does not exist", p->type);
    }
}

static kvant_status vet_param(const kvant_descriptor *d, uint32_t index, kvant_diag *diag) {
    const kvant_param *p = kvant_schema_param(d, index);
    if (p->struct_size != d->params->struct_size)
        return BROKEN(p, index, "struct_size is %u and that of parameter 0 is %u", p->struct_size,
                      d->params->struct_size);
    if (p->name == NULL || !kvant_is_name(p->name))
        return BROKEN(p, index, "%s", "a name takes [a-z][a-z0-9_]{0,31}");
    if (strcmp(p->name, "plugin") == 0)
        return BROKEN(p, index, "%s", "the pipeline keeps this word for itself");
    for (uint32_t k = 0; k < index; k++)
        if (strcmp(kvant_schema_param(d, k)->name, p->name) == 0)
            return BROKEN(p, index, "parameter %u has the same name", k);
    if (p->unit == NULL || !kvant_vet_text(p->unit, false))
        return BROKEN(p, index, "%s", "unit is not a line of text");
    if (p->help == NULL || !kvant_vet_text(p->help, false) || p->help[0] == '\0')
        return BROKEN(p, index, "%s", "help is not a line of text");
    if ((p->flags & ~(uint32_t)KNOWN_FLAGS) != 0)
        return BROKEN(p, index, "flags 0x%x do not exist", p->flags);
    return vet_type(p, index, diag);
}

kvant_status kvant_schema_vet(const kvant_descriptor *d, kvant_diag *diag) {
    if (d->param_count == 0) return KVANT_OK;
    if (d->params == NULL)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "",
                          "descriptor.param_count is %u and params is NULL", d->param_count);
    if (d->param_count > KVANT_SCHEMA_PARAMS_MAX)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "", "descriptor.param_count is %u: at most %d",
                          d->param_count, KVANT_SCHEMA_PARAMS_MAX);
    uint32_t step = d->params->struct_size;
    if (step < sizeof *d->params || step % alignof(kvant_param) != 0 || step > 4096)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "",
                          "parameter 0: struct_size is %u: it takes at least %zu and a multiple of %zu", step,
                          sizeof *d->params, alignof(kvant_param));
    for (uint32_t i = 0; i < d->param_count; i++) {
        kvant_status status = vet_param(d, i, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}
