/* From tags to widths.
 *
 *     1. rows of the table `tags`, the most specific one that matches a tag
 *     2. policy = artifact: calibrated losses and the budget, for tags that calibration saw
 *     3. the built-in rules
 *
 * The artifact holds what calibration measured, not what follows from it:
 *
 *     tag     u8 [n]      ascending
 *     tokens  u64 [n]     of that tag in all texts, > 0
 *     loss    f64 [n, 2]  error of the attention output if only this tag has 2 bits, 4 bits; of all layers
 */
#include "triaxial_policy.h"

#include "triaxial.h"
#include "triaxial_solver.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/tags.h>

#include <float.h>

/* ---- Tags ---------------------------------------------------------------------------------------------- */

/* What a byte means; false where it is no tag of the space. */
typedef struct meaning {
    uint32_t axis[KVANT_TAG_AXES];
    bool has[KVANT_TAG_AXES];
    bool generated;
} meaning;

static bool understand(uint32_t space, uint32_t byte, meaning *m) {
    /* The roles of kvant-kv/1 dumps, by number. */
    static const uint32_t roles[] = {KVANT_TAG_INST,      KVANT_TAG_USER, KVANT_TAG_ASSISTANT,
                                     KVANT_TAG_TOOL_CALL, KVANT_TAG_OBS,  KVANT_TAG_REASONING};
    uint32_t tag = byte & ~(uint32_t)KVANT_TAG_GENERATED;
    *m = (meaning){.generated = tag != byte};
    if (space == TRIAXIAL_SPACE_ROLES) {
        if (tag >= sizeof roles / sizeof roles[0]) return false;
        m->axis[KVANT_TAG_AXIS_ROLE] = roles[tag];
        m->has[KVANT_TAG_AXIS_ROLE] = true;
        return true;
    }
    for (uint32_t a = 0; a < KVANT_TAG_AXES && tag < KVANT_TAG_COUNT; a++) {
        m->axis[a] = kvant_tag_axis(tag, a);
        m->has[a] = true;
    }
    return tag < KVANT_TAG_COUNT;
}

/* Calibration and the literature agree on what needs its bits: instructions, scaffolding, tool calls, and the
 * text of the current turn; and the paper gives them to what the model generates. */
static uint8_t built_in(uint32_t space, uint32_t byte) {
    meaning m;
    if (!understand(space, byte, &m)) return 2;
    if (m.generated) return 4;
    uint32_t role = m.axis[KVANT_TAG_AXIS_ROLE];
    if (role == KVANT_TAG_INST || role == KVANT_TAG_DELIM || role == KVANT_TAG_TOOL_CALL) return 4;
    bool current = m.has[KVANT_TAG_AXIS_TIME] && m.axis[KVANT_TAG_AXIS_TIME] == KVANT_TAG_CURRENT;
    return current && m.axis[KVANT_TAG_AXIS_MODALITY] == KVANT_TAG_TEXT ? 4 : 2;
}

/* ---- Rows of the table --------------------------------------------------------------------------------- */

enum { RANK_DEFAULT = 0, RANK_GENERATED = KVANT_TAG_AXES + 1, RANK_BYTE };

/* A row of the table: what it matches, and how specific it is. */
typedef struct pattern {
    uint32_t rank; /* RANK_*, between them the number of axes it fixes */
    uint32_t byte; /* RANK_BYTE */
    uint32_t axis[KVANT_TAG_AXES];
    bool fixed[KVANT_TAG_AXES];
} pattern;

static bool read_number(const char *key, uint32_t *byte) {
    uint32_t x = 0;
    if (key[0] == '\0' || (key[0] == '0' && key[1] != '\0')) return false;
    for (const char *c = key; *c != '\0'; c++) {
        if (*c < '0' || *c > '9') return false;
        x = x * 10 + (uint32_t)(*c - '0');
        if (x > 255) return false;
    }
    *byte = x;
    return true;
}

static kvant_status unknown(kvant_diag *diag, const char *key, const char *word, size_t length) {
    return kvant_fail(
        diag, KVANT_ERROR_UNKNOWN_NAME, "tags",
        "table tags, key \"%.49s\": \"%.*s\" is no tag; there are current, turn_m1, turn_m2, older; "
        "text, image; inst, user, assistant, reasoning, tool_call, obs, delim; one of each kind, "
        "with dots between them, * for any; default, generated, and numbers from 0 to 255",
        key, (int)(length < 49 ? length : 49), word);
}

static kvant_status read_pattern(const char *key, uint32_t space, pattern *p, kvant_diag *diag) {
    *p = (pattern){.rank = RANK_DEFAULT};
    if (strcmp(key, "default") == 0) return KVANT_OK;
    p->rank = strcmp(key, "generated") == 0 ? RANK_GENERATED : RANK_BYTE;
    if (p->rank == RANK_GENERATED || read_number(key, &p->byte)) return KVANT_OK;
    p->rank = 0;
    for (const char *word = key; word != NULL;) {
        const char *dot = strchr(word, '.');
        size_t length = dot != NULL ? (size_t)(dot - word) : strlen(word);
        uint32_t axis, value;
        if (length != 1 || word[0] != '*') {
            if (!kvant_tag_find_word(word, length, &axis, &value) || p->fixed[axis])
                return unknown(diag, key, word, length);
            if (space == TRIAXIAL_SPACE_ROLES && (axis != KVANT_TAG_AXIS_ROLE || value == KVANT_TAG_DELIM))
                return kvant_fail(diag, KVANT_ERROR_CONFLICT, "tags",
                                  "table tags, key \"%.49s\": space = roles has no \"%.*s\"", key,
                                  (int)length, word);
            p->fixed[axis] = true;
            p->axis[axis] = value;
            p->rank++;
        }
        word = dot != NULL ? dot + 1 : NULL;
    }
    return p->rank > 0 ? KVANT_OK : unknown(diag, key, key, strlen(key));
}

static bool matches(const pattern *p, uint32_t space, uint32_t byte) {
    meaning m;
    if (p->rank == RANK_DEFAULT) return true;
    if (p->rank == RANK_BYTE) return p->byte == byte;
    if (!understand(space, byte, &m)) return false;
    if (p->rank == RANK_GENERATED) return m.generated;
    for (uint32_t a = 0; a < KVANT_TAG_AXES; a++)
        if (p->fixed[a] && (!m.has[a] || m.axis[a] != p->axis[a])) return false;
    return true;
}

static const kvant_value *table_of(const kvant_setup *setup) {
    return &setup->values[TRIAXIAL_PARAM_TAGS];
}

/* widths[byte] = 0 where no row matches. */
static kvant_status read_table(const kvant_setup *setup, uint8_t widths[256], kvant_diag *diag) {
    const kvant_value *table = table_of(setup);
    uint32_t space = (uint32_t)setup->values[TRIAXIAL_PARAM_SPACE].integer;
    uint32_t winner[256]; /* row and rank of what stands in widths */
    uint8_t rank[256] = {0};
    memset(widths, 0, 256);
    for (uint32_t r = 0; r < table->row_count; r++) {
        pattern p;
        kvant_status status = read_pattern(table->rows[r].key, space, &p, diag);
        if (status != KVANT_OK) return status;
        int64_t width = table->rows[r].value;
        if (width != 2 && width != 4)
            return kvant_fail(diag, KVANT_ERROR_VALUE, "tags",
                              "table tags, key \"%.49s\": %lld bits, must be 2 or 4", table->rows[r].key,
                              (long long)width);
        for (uint32_t byte = 0; byte < 256; byte++) {
            if (!matches(&p, space, byte) || (widths[byte] != 0 && p.rank < rank[byte])) continue;
            char tag[KVANT_TAG_TEXT_MAX];
            if (widths[byte] != 0 && p.rank == rank[byte] && widths[byte] != width)
                return kvant_fail(
                    diag, KVANT_ERROR_CONFLICT, "tags",
                    "table tags: \"%.49s\" and \"%.49s\" give %s %s different widths, and neither is the "
                    "narrower rule; add one that is",
                    table->rows[winner[byte]].key, table->rows[r].key,
                    space == TRIAXIAL_SPACE_ROLES ? "a tag like" : "the tag",
                    kvant_tag_text((uint8_t)byte, tag));
            widths[byte] = (uint8_t)width;
            rank[byte] = (uint8_t)p.rank;
            winner[byte] = r;
        }
    }
    return KVANT_OK;
}

bool triaxial_table_says_all(const kvant_setup *setup) {
    const kvant_value *table = table_of(setup);
    for (uint32_t r = 0; r < table->row_count; r++)
        if (strcmp(table->rows[r].key, "default") == 0) return true;
    return false;
}

/* ---- The artifact -------------------------------------------------------------------------------------- */

typedef struct losses {
    uint32_t count;
    const uint8_t *tags;
    uint64_t tokens[256];
    double loss[256][2];
} losses;

static const kvant_array *find(const kvant_setup *setup, const char *name) {
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        if (strcmp(setup->tensors[i].name, name) == 0) return &setup->tensors[i];
    return NULL;
}

static kvant_status unfit(const kvant_setup *setup, kvant_diag *diag, const char *tensor, const char *rule) {
    return kvant_fail(diag, KVANT_ERROR_MISMATCH, tensor, "layer %u, %s: tensor \"%s\" %s", setup->layer,
                      setup->side == KVANT_SIDE_KEY ? "keys" : "values", tensor, rule);
}

static kvant_status read_losses(const kvant_setup *setup, losses *l, kvant_diag *diag) {
    static const char *const names[] = {"tag", "tokens", "loss"};
    const kvant_array *arrays[3];
    for (uint32_t i = 0; i < 3; i++) {
        arrays[i] = find(setup, names[i]);
        if (arrays[i] == NULL)
            return kvant_fail(
                diag, KVANT_ERROR_MISSING, "policy",
                "layer %u, %s: policy = artifact needs the tensors tag, tokens and loss, and \"%s\" is not "
                "there; `kvant calibrate` makes them from a dump with tags and queries",
                setup->layer, setup->side == KVANT_SIDE_KEY ? "keys" : "values", names[i]);
    }
    const kvant_array *tag = arrays[0], *tokens = arrays[1], *loss = arrays[2];
    if (tag->dtype != KVANT_DTYPE_U8 || tag->rank != 1 || tag->shape[0] < 1 || tag->shape[0] > 256 ||
        tag->bytes != tag->shape[0])
        return unfit(setup, diag, "tag", "must be u8 [n], n from 1 to 256");
    *l = (losses){.count = (uint32_t)tag->shape[0], .tags = tag->data};
    if (tokens->dtype != KVANT_DTYPE_U64 || tokens->rank != 1 || tokens->shape[0] != l->count ||
        tokens->bytes != 8 * (uint64_t)l->count)
        return unfit(setup, diag, "tokens", "must be u64 [n], one for each tag");
    if (loss->dtype != KVANT_DTYPE_F64 || loss->rank != 2 || loss->shape[0] != l->count ||
        loss->shape[1] != 2 || loss->bytes != 16 * (uint64_t)l->count)
        return unfit(setup, diag, "loss", "must be f64 [n, 2], two for each tag");
    memcpy(l->tokens, tokens->data, (size_t)tokens->bytes);
    memcpy(l->loss, loss->data, (size_t)loss->bytes);
    for (uint32_t i = 0; i < l->count; i++) {
        if (i > 0 && l->tags[i] <= l->tags[i - 1]) return unfit(setup, diag, "tag", "must ascend");
        if (l->tokens[i] < 1 || l->tokens[i] > (uint64_t)1 << 40)
            return unfit(setup, diag, "tokens", "must hold numbers from 1 to 2^40");
        for (uint32_t b = 0; b < 2; b++)
            if (!(l->loss[i][b] >= 0 && l->loss[i][b] <= 1e300))
                return unfit(setup, diag, "loss", "must hold finite numbers that are not negative");
    }
    return KVANT_OK;
}

/* Fills the widths that the table left open. */
static kvant_status spend_budget(const kvant_setup *setup, uint8_t widths[256], kvant_diag *diag) {
    losses l;
    kvant_status status = read_losses(setup, &l, diag);
    if (status != KVANT_OK) return status;
    double budget = setup->values[TRIAXIAL_PARAM_BUDGET].number, all = 0, pinned = 0;
    triaxial_item items[256];
    uint8_t tag_of[256];
    uint32_t open = 0;
    bool wide[256];
    for (uint32_t i = 0; i < l.count; i++) {
        all += (double)l.tokens[i];
        if (widths[l.tags[i]] == 4) pinned += (double)l.tokens[i];
        if (widths[l.tags[i]] != 0) continue;
        items[open] = (triaxial_item){l.loss[i][0] - l.loss[i][1], (double)l.tokens[i]};
        tag_of[open++] = l.tags[i];
    }
    /* A budget in decimals is met where it is met but for rounding. */
    double room = (budget - 2 + 1e-9) / 2 * all - pinned;
    if (room < 0)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "budget",
                          "budget = %g bits: the tags that the table gives 4 bits come to %.4g already",
                          budget, 2 + 2 * pinned / all);
    (void)triaxial_solve(items, open, room, wide);
    for (uint32_t i = 0; i < open; i++) widths[tag_of[i]] = wide[i] ? 4 : 2;
    return KVANT_OK;
}

kvant_status triaxial_widths(const kvant_setup *setup, uint8_t widths[256], kvant_diag *diag) {
    kvant_status status = read_table(setup, widths, diag);
    if (status != KVANT_OK) return status;
    bool artifact = setup->values[TRIAXIAL_PARAM_POLICY].integer == TRIAXIAL_POLICY_ARTIFACT;
    if (artifact && triaxial_table_says_all(setup))
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "policy",
                          "policy = artifact has nothing to decide: the table tags has a row \"default\"");
    if (!artifact && setup->values[TRIAXIAL_PARAM_BUDGET].given != 0)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "budget",
                          "budget is what policy = artifact spends; with policy = rules it has no meaning");
    if (artifact) status = spend_budget(setup, widths, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t byte = 0; byte < 256; byte++)
        if (widths[byte] == 0)
            widths[byte] = built_in((uint32_t)setup->values[TRIAXIAL_PARAM_SPACE].integer, byte);
    return KVANT_OK;
}
