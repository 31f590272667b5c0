/* triaxial: two widths in one cache, chosen by what a token is.
 *
 * Shen, Wu, Zhao, Mullins, "TriAxialKV", arXiv 2605.17170: tags of three axes (time, modality, role) say
 * which tokens get 2 bits and which 4, by the error that each tag causes in the attention output and a budget
 * of bits. This file has what a host sees: parameters, descriptor, plan, open. Widths of tags are in
 * triaxial_policy.c, the arithmetic in triaxial_group.h, the byte map in triaxial_block.h.
 */
#include "triaxial.h"

#include "triaxial_policy.h"

#include <kvant/kit/diag.h>

#include <string.h>

/* ---- What the user can set ----------------------------------------------------------------------------- */

enum { TOKENS_MAX = 1 << 16, HEAD_DIM_MAX = 4096 };

static const int64_t groups_allowed[] = {32, 64, 128};
static const char *const space_choices[] = {"triaxial", "roles"};
static const char *const policy_choices[] = {"rules", "artifact"};

static const kvant_param params[TRIAXIAL_PARAM_COUNT] = {
    [TRIAXIAL_PARAM_GROUP] =
        {.struct_size = sizeof(kvant_param),
         .type = KVANT_PARAM_INTEGER,
         .name = "group",
         .unit = "",
         .help =
             "numbers that share a scale: tokens of a 2-bit key channel, else channels of a token; also the "
             "quantum of tokens of one width (divides block_tokens)",
         .integers = groups_allowed,
         .integer_count = sizeof groups_allowed / sizeof groups_allowed[0],
         .integer_min = 32,
         .integer_max = 128,
         .integer_default = 32},
    [TRIAXIAL_PARAM_SPACE] =
        {.struct_size = sizeof(kvant_param),
         .type = KVANT_PARAM_CHOICE,
         .name = "space",
         .unit = "",
         .help =
             "what tag bytes mean: triaxial = time, modality and role (not causal: time changes when turns "
             "arrive), roles = the six roles of kvant-kv/1 dumps (causal)",
         .choices = space_choices,
         .choice_count = sizeof space_choices / sizeof space_choices[0],
         .integer_default = TRIAXIAL_SPACE_TRIAXIAL},
    [TRIAXIAL_PARAM_POLICY] = {.struct_size = sizeof(kvant_param),
                               .type = KVANT_PARAM_CHOICE,
                               .name = "policy",
                               .unit = "",
                               .help = "who decides on tags that the table leaves open: built-in rules, or "
                                       "calibrated losses within the "
                                       "budget",
                               .choices = policy_choices,
                               .choice_count = sizeof policy_choices / sizeof policy_choices[0],
                               .integer_default = TRIAXIAL_POLICY_RULES},
    [TRIAXIAL_PARAM_BUDGET] = {.struct_size = sizeof(kvant_param),
                               .type = KVANT_PARAM_NUMBER,
                               .flags = KVANT_PARAM_UNLEARNED,
                               .name = "budget",
                               .unit = "bits",
                               .help =
                                   "policy = artifact: mean width over the calibrated tokens, without scales",
                               .number_min = 2,
                               .number_max = 4,
                               .number_default = 2.7},
    [TRIAXIAL_PARAM_TAGS] = {.struct_size = sizeof(kvant_param),
                             .type = KVANT_PARAM_TABLE,
                             .flags = KVANT_PARAM_UNLEARNED,
                             .name = "tags",
                             .unit = "bits",
                             .help = "widths by tag, 2 or 4: `older.text.obs = 2`, `obs = 2`, `default = 4`; "
                                     "the most specific row wins",
                             .integer_min = 2,
                             .integer_max = 4},
};

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = (uint32_t)'T' | (uint32_t)'R' << 8 | (uint32_t)'I' << 16 | (uint32_t)'X' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .requires_bits = KVANT_REQUIRES_TAGS,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = TRIAXIAL_PARAM_COUNT,
    .name = "triaxial",
    .version = "1.0.0",
    .title = "TriAxialKV: 2 or 4 bits by a token's tag",
    .paper = "Shen et al., TriAxialKV, arXiv 2605.17170",
    .license = "Apache-2.0",
    .deviations =
        "The quantizers of the paper (group 32, F16 scales and minima), except: 2-bit tokens fill "
        "quanta within a block instead of a prefill chunk, and what is left is promoted to 4 bits on "
        "both sides; an artifact holds losses, and widths follow from them at plan; counts of tokens "
        "are those of all calibration texts, not their median; beyond 22 tags the greedy choice skips "
        "what does not fit. Time is not causal: a temporal tag that changes when later turns arrive "
        "is a prefix miss in the host; space = roles, or a table without times, is causal.",
    .params = params,
};

/* ---- Setup --------------------------------------------------------------------------------------------- */

/* Best last, within the family of this processor. */
static const triaxial_code_set *const codes[] = {
    &triaxial_code_reference,
#if defined(KVANT_HAVE_V2)
    &triaxial_code_v2,
#endif
#if defined(KVANT_HAVE_V3)
    &triaxial_code_v3,
#endif
#if defined(KVANT_HAVE_V4)
    &triaxial_code_v4,
#endif
#if defined(KVANT_HAVE_NEON)
    &triaxial_code_neon,
#endif
};

static const triaxial_code_set *code_for(uint32_t isa) {
    const triaxial_code_set *best = &triaxial_code_reference;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i]->isa <= isa) best = codes[i];
    return best;
}

/* The host has checked the parameters against the schema, and dtype, side and head_dim against the
 * descriptor. */
static kvant_status block_of(const kvant_setup *setup, triaxial_block *block, kvant_diag *diag) {
    uint32_t group = (uint32_t)setup->values[TRIAXIAL_PARAM_GROUP].integer;
    if (setup->block_tokens % group != 0)
        return kvant_fail(diag, KVANT_ERROR_BLOCK_TOKENS, "group",
                          "tokens of one width come in quanta: group = %u must divide block_tokens = %u",
                          group, setup->block_tokens);
    if (setup->block_tokens == 0 || setup->block_tokens > TOKENS_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "", "block_tokens is %u, must be 1 to %d",
                          setup->block_tokens, TOKENS_MAX);
    if (setup->kv_heads == 0 || setup->head_dim == 0 || setup->head_dim > HEAD_DIM_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "kv_heads is %u and head_dim %u: at least 1, head_dim at most %d", setup->kv_heads,
                          setup->head_dim, HEAD_DIM_MAX);
    if (!triaxial_block_make(block, setup->side, setup->dtype, group, setup->block_tokens, setup->kv_heads,
                             setup->head_dim))
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "a block of %u tokens, %u heads and %u channels is too large to address",
                          setup->block_tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

/* A wide quantum has twice the code bits; a narrow one of keys has other scales. Scales and minima are
 * F16. */
static void count_bits(const triaxial_block *block, kvant_layout *layout) {
    uint64_t heads = block->heads, quantum = block->group, quanta = block->tokens / block->group;
    uint64_t per_token = heads * quantum * block->channel_groups * 32;
    uint64_t narrow = block->side == KVANT_SIDE_KEY ? heads * block->head_dim * 32 : per_token;
    layout->payload_bits_step = heads * quantum * block->head_dim * 2;
    layout->payload_bits = quanta * layout->payload_bits_step;
    layout->metadata_bits = block->tokens + quanta * narrow; /* the map has a bit a token */
    layout->metadata_bits_step = per_token - narrow;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    triaxial_block block;
    uint8_t widths[256];
    layout->alignment = TRIAXIAL_ALIGN;
    layout->block_multiple = (uint32_t)setup->values[TRIAXIAL_PARAM_GROUP].integer;
    kvant_status status = block_of(setup, &block, diag);
    if (status == KVANT_OK) status = triaxial_widths(setup, widths, diag);
    if (status != KVANT_OK) return status;
    const triaxial_code_set *code = code_for(setup->isa);
    layout->isa = code->isa;
    layout->size_min = triaxial_extent_bytes(&block, 0);
    layout->size_steps = block.tokens / block.group;
    layout->size_step =
        (block.quantum_bytes[TRIAXIAL_WIDE] - block.quantum_bytes[TRIAXIAL_NARROW]) * block.heads;
    count_bits(&block, layout);
    layout->state_bytes = sizeof(triaxial_state);
    layout->scratch_bytes = code->scratch_bytes(&block);
    for (uint32_t byte = 0; byte < 256; byte++) layout->tag_class[byte] = widths[byte] == 4;
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    triaxial_state *state = memory;
    (void)layout; /* widths are in its tag_class, which the host applies */
    kvant_status status = block_of(setup, &state->block, diag);
    if (status == KVANT_OK) state->code = code_for(setup->isa);
    return status;
}

static void close_codec(void *memory) {
    (void)memory; /* everything is in the state, which the host frees */
}

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const triaxial_state *state = memory;
    state->code->encode(&state->block, args);
    return KVANT_OK;
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const triaxial_state *state = memory;
    state->code->decode(&state->block, args);
    return KVANT_OK;
}

static const void *extension(const char *id) {
    if (strcmp(id, KVANT_EXT_INSPECT) == 0) return &triaxial_inspect;
    return strcmp(id, KVANT_EXT_CALIBRATE) == 0 ? &triaxial_calibrate : NULL;
}

/* ---- The one exported function ------------------------------------------------------------------------- */

static const kvant_plugin plugin = {
    .struct_size = sizeof(kvant_plugin),
    .abi = KVANT_ABI,
    .descriptor = &descriptor,
    .plan = plan,
    .open = open_codec,
    .close = close_codec,
    .encode = encode,
    .decode = decode,
    .extension = extension,
};

__attribute__((visibility("default"))) const kvant_plugin *kvant_plugin_query(uint32_t host_abi);

const kvant_plugin *kvant_plugin_query(uint32_t host_abi) {
    (void)host_abi; /* the host decides whether plugin.abi fits */
    return &plugin;
}
