/* Axes and their values. See check_axes.h. */
#include "check_axes.h"

#include "base/text.h"
#include "check_data.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>
#include <kvant/kvant.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const fixed_names[CHECK_AXIS_PARAM] = {"side",         "dtype", "kv_heads", "head_dim",
                                                          "block_tokens", "data",  "rope",     "isa"};
static const char *const side_names[] = {"key", "value"};
static const char *const dtype_names[] = {"", "f32", "f16", "bf16"};
static const char *const rope_names[] = {"none", "neox", "gptj"};
static const char *const gpu_names[CHECK_GPU_AXES] = {"gqa", "tokens", "sight", "other_dim"};
static const char *const tokens_names[] = {"1", "block-1", "block", "block+1", "10*block+7"};
static const char *const sight_names[] = {"all", "window", "live", "cap", "mixed"};

static void axis_add(check_axis *axis, int64_t integer) {
    for (uint32_t i = 0; i < axis->count; i++)
        if (axis->values[i].integer == integer) return;
    if (axis->count < CHECK_AXIS_VALUES)
        axis->values[axis->count++] = (kvant_value){.integer = integer, .given = 1};
}

static void axis_add_number(check_axis *axis, double number) {
    for (uint32_t i = 0; i < axis->count; i++)
        if (axis->values[i].number == number) return;
    if (axis->count < CHECK_AXIS_VALUES)
        axis->values[axis->count++] = (kvant_value){.number = number, .given = 1};
}

static void axis_list(check_axis *axis, const int64_t *values, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) axis_add(axis, values[i]);
}

/* The ends, the default, powers of two of the small part, and two numbers from the seed. */
static void axis_fill_range(check_axis *axis, const kvant_param *p, check_random *random) {
    axis_add(axis, p->integer_default);
    axis_add(axis, p->integer_min);
    axis_add(axis, p->integer_max);
    uint64_t span = (uint64_t)p->integer_max - (uint64_t)p->integer_min;
    if (span < 10) {
        for (int64_t v = p->integer_min; v < p->integer_max; v++) axis_add(axis, v);
        return;
    }
    for (int64_t v = 2; v <= 128 && axis->count < 9; v *= v == 2 ? 4 : 2)
        if (v > p->integer_min && v < p->integer_max) axis_add(axis, v);
    uint32_t near = span < 200 ? (uint32_t)span : 200;
    axis_add(axis, (int64_t)((uint64_t)p->integer_min + 1 + check_random_below(random, near - 1)));
}

static void axis_fill_number(check_axis *axis, const kvant_param *p, check_random *random) {
    axis_add_number(axis, p->number_default);
    axis_add_number(axis, p->number_min);
    axis_add_number(axis, p->number_max);
    /* A number of the default's magnitude, so that a scale stays a scale. */
    double near = p->number_default * (0.5 + check_random_unit(random));
    if (near > p->number_min && near < p->number_max) axis_add_number(axis, near);
    static const double ordinary[] = {-2.5, 0.04, 0.7};
    for (size_t i = 0; i < sizeof ordinary / sizeof ordinary[0]; i++)
        if (ordinary[i] > p->number_min && ordinary[i] < p->number_max) axis_add_number(axis, ordinary[i]);
    double between = p->number_min + (p->number_max - p->number_min) * check_random_unit(random);
    if (between > p->number_min && between < p->number_max) axis_add_number(axis, between);
}

static void axis_fill_param(check_axis *axis, const kvant_param *p, check_random *random) {
    switch (p->type) {
    case KVANT_PARAM_CHOICE:
        for (uint32_t i = 0; i < p->choice_count; i++) axis_add(axis, i);
        break;
    case KVANT_PARAM_SWITCH:
        axis_add(axis, 0);
        axis_add(axis, 1);
        break;
    case KVANT_PARAM_INTEGER:
        if (p->integer_count > 0)
            axis_list(axis, p->integers, p->integer_count);
        else
            axis_fill_range(axis, p, random);
        break;
    case KVANT_PARAM_NUMBER:
        axis_fill_number(axis, p, random);
        break;
    default:
        axis->values[axis->count++] = (kvant_value){0};
        break; /* a table keeps its default */
    }
    for (uint32_t i = 0; i < axis->count; i++) {
        bool is_default = p->type == KVANT_PARAM_NUMBER ? axis->values[i].number == p->number_default
                                                        : axis->values[i].integer == p->integer_default;
        if (is_default) {
            axis->fallback = i;
            axis->values[i].given = 0; /* a codec may refuse a parameter that is given and has no meaning */
        }
    }
}

static void fill_fixed(const kvant_descriptor *d, check_axes *axes) {
    static const int64_t dims[] = {1, 8, 32, 46, 64, 72, 80, 96, 100, 112, 128, 192, 256, 320, 576};
    static const int64_t heads[] = {1, 3, 8};
    static const int64_t blocks[] = {-1, -3, CHECK_BLOCK_COMMON, 160};
    static const int64_t isas[] = {KVANT_ISA_SCALAR, KVANT_ISA_X86_64_V2, KVANT_ISA_X86_64_V3,
                                   KVANT_ISA_X86_64_V4, KVANT_ISA_AARCH64};
    for (uint32_t i = 0; i < CHECK_AXIS_PARAM; i++) axes->axis[i].name = fixed_names[i];
    for (uint32_t side = 0; side < 2; side++)
        if (d->sides >> side & 1) axis_add(&axes->axis[CHECK_AXIS_SIDE], side);
    for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++)
        if (d->dtypes >> dtype & 1) axis_add(&axes->axis[CHECK_AXIS_DTYPE], dtype);
    axis_list(&axes->axis[CHECK_AXIS_HEADS], heads, 3);
    axes->axis[CHECK_AXIS_HEADS].fallback = 1;
    axis_list(&axes->axis[CHECK_AXIS_DIM], dims, sizeof dims / sizeof dims[0]);
    axes->axis[CHECK_AXIS_DIM].fallback = 4;
    axis_list(&axes->axis[CHECK_AXIS_BLOCK], blocks, 4);
    axes->axis[CHECK_AXIS_BLOCK].fallback = 2;
    for (uint32_t i = 0; i < CHECK_DATA_COUNT; i++) axis_add(&axes->axis[CHECK_AXIS_DATA], i);
    for (uint32_t i = 0; i < 3; i++) axis_add(&axes->axis[CHECK_AXIS_ROPE], i);
    uint32_t best = kvant_isa();
    for (uint32_t i = 0; i < 5; i++) /* scalar, and what this machine can run of its own family */
        if (isas[i] == KVANT_ISA_SCALAR || ((isas[i] < 32) == (best < 32) && isas[i] <= best))
            axis_add(&axes->axis[CHECK_AXIS_ISA], isas[i]);
    axes->axis[CHECK_AXIS_ISA].fallback = axes->axis[CHECK_AXIS_ISA].count - 1;
}

/* Few values and small blocks: the device may be an interpreter. */
static void fill_for_kernels(check_axes *axes) {
    static const int64_t dims[] = {32, 36, 64, 80, 96, 128, 256}, heads[] = {1, 2, 3};
    static const int64_t blocks[] = {-1, CHECK_BLOCK_COMMON, 96}, groups[] = {1, 3, 4, 8};
    static const uint32_t replaced[] = {CHECK_AXIS_HEADS, CHECK_AXIS_DIM, CHECK_AXIS_BLOCK, CHECK_AXIS_DATA,
                                        CHECK_AXIS_ISA};
    const check_axis isa = axes->axis[CHECK_AXIS_ISA];
    for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++)
        axes->axis[replaced[i]].count = axes->axis[replaced[i]].fallback = 0;
    axis_list(&axes->axis[CHECK_AXIS_HEADS], heads, 3);
    axis_list(&axes->axis[CHECK_AXIS_DIM], dims, sizeof dims / sizeof dims[0]);
    axis_list(&axes->axis[CHECK_AXIS_BLOCK], blocks, 3);
    axes->axis[CHECK_AXIS_BLOCK].fallback = 1;
    axis_add(&axes->axis[CHECK_AXIS_DATA], CHECK_DATA_COUNT);
    axis_add(&axes->axis[CHECK_AXIS_ISA], isa.values[isa.fallback].integer);
    for (; axes->count + CHECK_GPU_AXES > CHECK_AXES; axes->count--) axes->skipped_params++;
    axes->gpu = axes->count;
    axes->count += CHECK_GPU_AXES;
    check_axis *gpu = &axes->axis[axes->gpu];
    memset(gpu, 0, CHECK_GPU_AXES * sizeof *gpu);
    for (uint32_t i = 0; i < CHECK_GPU_AXES; i++) gpu[i].name = gpu_names[i];
    axis_list(&gpu[CHECK_GPU_AXIS_GROUP], groups, sizeof groups / sizeof groups[0]);
    for (uint32_t i = 0; i < CHECK_TOKENS_COUNT; i++) axis_add(&gpu[CHECK_GPU_AXIS_TOKENS], i);
    for (uint32_t i = 0; i < CHECK_SIGHT_COUNT; i++) axis_add(&gpu[CHECK_GPU_AXIS_SIGHT], i);
    axis_list(&gpu[CHECK_GPU_AXIS_DIM], dims, sizeof dims / sizeof dims[0]);
}

static kvant_status pin_word(check_axis *axis, const char *text, const char *const *words, uint32_t count,
                             kvant_diag *diag) {
    for (uint32_t i = 0; i < count; i++)
        if (words[i][0] != '\0' && strcmp(words[i], text) == 0) {
            axis->values[0] = (kvant_value){.integer = i, .given = 1};
            return KVANT_OK;
        }
    const char *nearest = kvant_nearest(text, words, count);
    return kvant_fail(diag, KVANT_ERROR_VALUE, axis->name, "%s=%s: there is no such value%s%s%s", axis->name,
                      text, nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
                      nearest != NULL ? "\"?" : "");
}

static kvant_status pin_number(check_axis *axis, const char *text, int64_t most, kvant_diag *diag) {
    char *end = NULL;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || value < 1 || value > most)
        return kvant_fail(diag, KVANT_ERROR_VALUE, axis->name, "%s=%s: it takes a number from 1 to %lld",
                          axis->name, text, (long long)most);
    axis->values[0] = (kvant_value){.integer = value, .given = 1};
    return KVANT_OK;
}

static kvant_status pin_isa(check_axis *axis, const char *text, kvant_diag *diag) {
    for (uint32_t i = 0; i < axis->count; i++)
        if (strcmp(kvant_isa_name((uint32_t)axis->values[i].integer), text) == 0) {
            axis->values[0] = axis->values[i];
            return KVANT_OK;
        }
    return kvant_fail(diag, KVANT_ERROR_VALUE, "isa", "isa=%s: this machine has no such level", text);
}

static kvant_status gpu_axis_pin(check_axis *axis, uint32_t index, const char *text, kvant_diag *diag) {
    if (index == CHECK_GPU_AXIS_TOKENS) return pin_word(axis, text, tokens_names, CHECK_TOKENS_COUNT, diag);
    if (index == CHECK_GPU_AXIS_SIGHT) return pin_word(axis, text, sight_names, CHECK_SIGHT_COUNT, diag);
    return pin_number(axis, text, index == CHECK_GPU_AXIS_GROUP ? 1024 : 8192, diag);
}

static kvant_status fixed_axis_pin(check_axis *axis, uint32_t index, const char *text, kvant_diag *diag) {
    const char *data_words[CHECK_DATA_COUNT];
    for (uint32_t i = 0; i < CHECK_DATA_COUNT; i++) data_words[i] = check_data_name((check_data)i);
    kvant_status status = KVANT_OK;
    switch (index) {
    case CHECK_AXIS_SIDE:
        return pin_word(axis, text, side_names, 2, diag);
    case CHECK_AXIS_DTYPE:
        return pin_word(axis, text, dtype_names, 4, diag);
    case CHECK_AXIS_DATA:
        return pin_word(axis, text, data_words, CHECK_DATA_COUNT, diag);
    case CHECK_AXIS_ROPE:
        return pin_word(axis, text, rope_names, 3, diag);
    case CHECK_AXIS_HEADS:
        return pin_number(axis, text, 1024, diag);
    case CHECK_AXIS_DIM:
        return pin_number(axis, text, 8192, diag);
    case CHECK_AXIS_BLOCK:
        status = pin_number(axis, text, 65536, diag);
        axis->values[0].number = CHECK_BLOCK_EXACT;
        return status;
    default:
        return pin_isa(axis, text, diag);
    }
}

static kvant_status axis_pin(check_axes *axes, uint32_t index, const char *text, kvant_diag *diag) {
    check_axis *axis = &axes->axis[index];
    bool for_kernels = axes->gpu != 0 && index >= axes->gpu;
    kvant_status status = axis->param != NULL ? kvant_schema_parse(axis->param, text, &axis->values[0], diag)
                          : for_kernels       ? gpu_axis_pin(axis, index - axes->gpu, text, diag)
                                              : fixed_axis_pin(axis, index, text, diag);
    if (status == KVANT_OK) {
        axis->count = 1;
        axis->fallback = 0;
    }
    return status;
}

static kvant_status apply_setting(check_axes *axes, const char *setting, kvant_diag *diag) {
    const char *equals = strchr(setting, '=');
    size_t length = equals != NULL ? (size_t)(equals - setting) : 0;
    if (length == 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "\"%s\": a setting is KEY=VALUE", setting);
    const char *names[CHECK_AXES];
    for (uint32_t i = 0; i < axes->count; i++) {
        names[i] = axes->axis[i].name;
        if (strlen(names[i]) == length && strncmp(names[i], setting, length) == 0)
            return axis_pin(axes, i, equals + 1, diag);
    }
    char word[64];
    (void)snprintf(word, sizeof word, "%.*s", (int)length, setting);
    const char *nearest = kvant_nearest(word, names, axes->count);
    return kvant_fail(diag, KVANT_ERROR_UNKNOWN_NAME, word, "%s has no parameter \"%s\"%s%s%s",
                      axes->descriptor->name, word, nearest != NULL ? "; did you mean \"" : "",
                      nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
}

kvant_status check_axes_create(const kvant_descriptor *descriptor, const check_options *options,
                               check_axes *axes, kvant_diag *diag) {
    memset(axes, 0, sizeof *axes);
    axes->descriptor = descriptor;
    fill_fixed(descriptor, axes);
    axes->count = CHECK_AXIS_PARAM;
    check_random random = check_random_stream(options->seed, 1);
    for (uint32_t i = 0; i < descriptor->param_count; i++) {
        const kvant_param *p = kvant_schema_param(descriptor, i);
        if (axes->count == CHECK_AXES) {
            axes->skipped_params++;
            continue;
        }
        check_axis *axis = &axes->axis[axes->count++];
        axis->name = p->name;
        axis->param = p;
        axis->param_index = i;
        axis_fill_param(axis, p, &random);
    }
    if (options->gpu) fill_for_kernels(axes);
    for (uint32_t i = 0; i < options->setting_count; i++) {
        kvant_status status = apply_setting(axes, options->settings[i], diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

int64_t check_axes_value(const check_axes *axes, const check_row *row, uint32_t axis) {
    return axes->axis[axis].values[row->value[axis]].integer;
}

size_t check_axis_text(const check_axes *axes, uint32_t index, uint32_t value, char *text, size_t capacity) {
    const check_axis *axis = &axes->axis[index];
    const kvant_value *v = &axis->values[value];
    const char *word = NULL;
    char number[KVANT_SCHEMA_TEXT_MAX];
    (void)snprintf(number, sizeof number, "%lld", (long long)v->integer);
    if (axes->gpu != 0 && index >= axes->gpu) {
        uint32_t gpu = index - axes->gpu;
        word = gpu == CHECK_GPU_AXIS_TOKENS  ? tokens_names[v->integer]
               : gpu == CHECK_GPU_AXIS_SIGHT ? sight_names[v->integer]
                                             : number;
        int said = snprintf(text, capacity, "%s=%s", axis->name, word);
        return said > 0 ? (size_t)said : 0;
    }
    switch (index) {
    case CHECK_AXIS_SIDE:
        word = side_names[v->integer];
        break;
    case CHECK_AXIS_DTYPE:
        word = dtype_names[v->integer];
        break;
    case CHECK_AXIS_DATA:
        word = v->integer == CHECK_DATA_COUNT ? "mixed" : check_data_name((check_data)v->integer);
        break;
    case CHECK_AXIS_ROPE:
        word = rope_names[v->integer];
        break;
    case CHECK_AXIS_ISA:
        word = kvant_isa_name((uint32_t)v->integer);
        break;
    case CHECK_AXIS_HEADS:
    case CHECK_AXIS_DIM:
    case CHECK_AXIS_BLOCK:
        word = number;
        break;
    default:
        (void)kvant_schema_text(axis->param, v, number, sizeof number);
        word = number;
    }
    int written = snprintf(text, capacity, "%s=%s", axis->name, word);
    return written > 0 ? (size_t)written : 0;
}

uint64_t check_axes_product(const check_axes *axes) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < axes->count; i++) {
        uint64_t count = axes->axis[i].count;
        if (product > UINT64_MAX / count) return UINT64_MAX;
        product *= count;
    }
    return product;
}
