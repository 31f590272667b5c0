/* What the model is made of: tokens, rows, blocks, who holds what. See cache_model.h. */
#include "support/cache_model.h"

#include "data/blocks.h"
#include "data/finite.h"

#include <kvant/kit/view.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void (*cache_model_end)(void);
void (*cache_model_place)(void);

void cache_model_fail(const char *file, int line, const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    if (cache_model_place != NULL) cache_model_place();
    if (cache_model_end != NULL) cache_model_end();
    abort();
}

static void *take(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) MODEL_FAIL("out of memory");
    return memory;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static uint64_t rounded(const cache_model *m, uint64_t bytes) {
    return (bytes + m->unit - 1) / m->unit * m->unit;
}

/* As the pool must count: parts of a page on 64 bytes, all in units. */
static void measure(cache_model *m) {
    m->unit = 64;
    m->one_size = true;
    for (uint32_t i = 0; i < 2 * MODEL_LAYERS; i++) {
        kvant_row row = {.struct_size = sizeof row};
        (void)kvant_plan_row(m->plan, i / 2, i % 2, &row);
        if (row.layout->alignment > m->unit) m->unit = row.layout->alignment;
        m->extent_max[i / 2][i % 2] = row.layout->size_min + row.layout->size_step * row.layout->size_steps;
        if (row.layout->size_steps != 0) m->one_size = false;
        uint64_t row_bytes = model_row_bytes(m, i / 2, i % 2);
        m->page_bytes += (row_bytes * m->block_tokens + 63) / 64 * 64;
        m->sinks_bytes += (row_bytes * m->sinks + 63) / 64 * 64;
        for (uint32_t tag = 0; tag < 256; tag++)
            m->classes[tag] = (uint8_t)(m->classes[tag] +
                                        16 * row.layout->tag_class[tag] * (i == 0)); /* both sides alike */
    }
    m->page_bytes = rounded(m, m->page_bytes);
    m->sinks_bytes = rounded(m, m->sinks_bytes);
    for (uint32_t i = 0; i < 2 * MODEL_LAYERS; i++)
        m->extent_max[i / 2][i % 2] = rounded(m, m->extent_max[i / 2][i % 2]);
}

static void open_scratch(cache_model *m) {
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) {
        size_t bytes = kvant_attention_scratch_bytes(m->attention[layer], 1, MODEL_TOKENS);
        if (bytes > m->scratch_bytes) m->scratch_bytes = bytes;
        for (uint32_t side = 0; side < 2; side++) {
            bytes = kvant_codec_scratch_bytes(kvant_attention_codec(m->attention[layer], side));
            if (bytes > m->scratch_bytes) m->scratch_bytes = bytes;
        }
    }
    if (kvant_cache_read_scratch(m->cache) > m->scratch_bytes)
        m->scratch_bytes = kvant_cache_read_scratch(m->cache);
    m->scratch_bytes = (m->scratch_bytes + 63) / 64 * 64;
    m->scratch = aligned_alloc(64, m->scratch_bytes);
    if (m->scratch == NULL) MODEL_FAIL("out of memory");
}

/* Threads by turns, the last index first. */
static void loop_backwards(void *context, uint32_t count, uint32_t threads, kvant_loop_body *body,
                           void *argument) {
    (void)context;
    for (uint32_t i = count; i-- > 0;) body(argument, i, i % threads);
}

cache_model *cache_model_open(const model_setting *setting, uint64_t bytes) {
    cache_model *m = take(1, sizeof *m);
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_plan_info info = {.struct_size = sizeof info};
    m->own = *setting;
    m->setting = &m->own;
    m->plan = model_setting_plan(setting);
    (void)kvant_plan_describe(m->plan, &info);
    m->block_tokens = info.block_tokens;
    m->sinks = info.sinks;
    m->recent = info.recent;
    m->saturates = info.on_nonfinite == KVANT_ON_NONFINITE_SATURATE;
    measure(m);
    uint64_t block = m->page_bytes;
    for (uint32_t i = 0; i < 2 * MODEL_LAYERS; i++) block += m->extent_max[i / 2][i % 2];
    kvant_cache_options options = {.struct_size = sizeof options,
                                   .threads = setting->threads,
                                   .loop = loop_backwards,
                                   .bytes = bytes != 0 ? bytes : setting->blocks * block};
    if (kvant_cache_open(m->plan, &options, &m->cache, &diag) != KVANT_OK) MODEL_FAIL("%s", diag.message);
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        if (kvant_attention_open(m->plan, layer, &m->attention[layer], &diag) != KVANT_OK)
            MODEL_FAIL("%s", diag.message);
    m->capacity = options.bytes / m->unit * m->unit;
    open_scratch(m);
    return m;
}

static void free_block(model_block *block) {
    for (uint32_t i = 0; i < 2 * MODEL_LAYERS; i++) free(block->extents[i / 2][i % 2].bytes);
    free(block->tokens);
    free(block);
}

static void close_all(cache_model *m) {
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) kvant_attention_close(m->attention[layer]);
    kvant_cache_close(m->cache);
    kvant_plan_free(m->plan);
    free(m->scratch);
    free(m);
}

static kvant_cache_report evict_all(const cache_model *m) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_cache_report report = {.struct_size = sizeof report};
    if (kvant_cache_evict(m->cache, m->capacity, NULL, &diag) != KVANT_OK)
        MODEL_FAIL("with all sequences freed: %s", diag.message);
    (void)kvant_cache_describe(m->cache, &report);
    if (report.free != report.capacity || report.sequences != 0 || report.pinned != 0)
        MODEL_FAIL(
            "%u sequences, %llu blocks that are held and %llu bytes are left when everything was freed",
            report.sequences, (unsigned long long)report.pinned,
            (unsigned long long)(report.capacity - report.free));
    return report;
}

void cache_model_close(cache_model *m) {
    for (uint32_t i = 0; i < MODEL_MATCHES; i++)
        if (m->matches[i].real != NULL) {
            kvant_match_release(m->matches[i].real);
            model_release(m, &m->matches[i]);
        }
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++)
        if (m->sequences[i].real != NULL) {
            kvant_sequence_free(m->sequences[i].real);
            model_free(m, &m->sequences[i]);
        }
    model_check_cache(m);
    kvant_cache_report report = evict_all(m);
    model_evict(m, report.evictions - m->evictions);
    model_check_cache(m);
    while (m->blocks != NULL) {
        model_block *b = m->blocks;
        if (!b->released[0] || !b->released[1])
            MODEL_FAIL("a block with bytes is left"); /* windows may leave others */
        m->blocks = b->next;
        free_block(b);
    }
    if (m->pages != NULL) MODEL_FAIL("a page is left");
    close_all(m);
}

void cache_model_leave(cache_model *m) {
    (void)evict_all(m);
    close_all(m);
}

/* ---- Tokens and rows ----------------------------------------------------------------------------------- */

uint64_t model_hash(uint64_t a, uint64_t b) {
    uint64_t z = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) + UINT64_C(0x632be59bd9b4e019);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

model_token model_next(cache_model *m, uint32_t salt, const model_token *before, uint64_t id, uint8_t tag,
                       bool like_others) {
    uint64_t context = before != NULL ? before->context : model_hash(12345, salt);
    context = model_hash(model_hash(context, id), m->classes[tag]);
    if (!like_others) context = model_hash(context, ++m->nonce);
    return (model_token){.id = id, .context = context, .tag = tag};
}

uint32_t model_dim(const cache_model *m, uint32_t layer, uint32_t side) {
    return side == KVANT_SIDE_KEY ? MODEL_KEY_DIM : m->setting->value_dim[layer];
}

uint64_t model_row_bytes(const cache_model *m, uint32_t layer, uint32_t side) {
    return (uint64_t)MODEL_HEADS * model_dim(m, layer, side) * kvant_element_bytes(m->setting->dtype);
}

/* One number of three tokens is none, where the pipeline takes that. */
static void spoil(const cache_model *m, const model_token *token, unsigned char *row, uint32_t count) {
    static const float bad[] = {(float)(1e300 * 1e300), -(float)(1e300 * 1e300)};
    uint64_t dice = model_hash(token->context, 77);
    if (!m->saturates || dice % 24 >= 3) return;
    uint32_t element = kvant_element_bytes(m->setting->dtype), at = (uint32_t)(dice >> 32) % count;
    float x = dice % 24 == 2 ? bad[0] - bad[0] : bad[dice % 24];
    if (m->setting->dtype == KVANT_DTYPE_F32) {
        memcpy(row + (size_t)at * element, &x, sizeof x);
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 31 << 15),
             half = m->setting->dtype == KVANT_DTYPE_F16 ? 0x7c00 : 0x7f80;
    half = (uint16_t)(half | sign | (x != x ? 0x11 : 0));
    memcpy(row + (size_t)at * element, &half, sizeof half);
}

void model_rows(const cache_model *m, uint32_t layer, uint32_t side, const model_token *tokens,
                uint32_t count, void *rows) {
    uint32_t width = MODEL_HEADS * model_dim(m, layer, side),
             element = kvant_element_bytes(m->setting->dtype);
    unsigned char *to = rows;
    float row[MODEL_HEADS * 16];
    for (uint32_t t = 0; t < count; t++, to += (size_t)width * element) {
        uint64_t seed = model_hash(tokens[t].context, 2 * layer + side);
        for (uint32_t i = 0; i < width; i += 4) {
            uint64_t z = model_hash(seed, i);
            for (uint32_t k = 0; k < 4; k++) {
                float x = (float)(int16_t)(z >> 16 * k) * 0x1p-14f; /* in [-2, 2) */
                row[i + k] = (i + k) % 16 == 5 ? 4 * x + 3 : (i + k) % 16 == 9 ? 0.25f : x;
            }
        }
        kvant_store_elements(to, m->setting->dtype, width, row);
        spoil(m, &tokens[t], to, width);
    }
}

void model_kept_rows(const cache_model *m, uint32_t layer, uint32_t side, const model_token *tokens,
                     uint32_t count, void *rows) {
    model_rows(m, layer, side, tokens, count, rows);
    if (m->saturates)
        (void)kvant_replace_nonfinite(rows, m->setting->dtype,
                                      (uint64_t)count * MODEL_HEADS * model_dim(m, layer, side));
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

uint64_t model_block_end(const cache_model *m, const model_state *s, uint32_t i) {
    uint64_t next = i + 1 < s->block_count ? s->blocks[i + 1]->first : s->tail_first;
    uint64_t whole = s->blocks[i]->first + m->block_tokens;
    return whole < next ? whole : next; /* the next one may stand behind a block of which nothing lived */
}

const model_extent *model_encoded(cache_model *m, model_block *block, uint32_t layer, uint32_t side) {
    model_extent *extent = &block->extents[layer][side];
    if (extent->bytes != NULL) return extent;
    const kvant_codec *codec = kvant_attention_codec(m->attention[layer], side);
    size_t room = kvant_codec_extent_max(codec);
    extent->bytes = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    void *rows = take(m->block_tokens, model_row_bytes(m, layer, side));
    uint8_t tags[256];
    if (extent->bytes == NULL) MODEL_FAIL("out of memory");
    memset(extent->bytes, 0xa5, room);
    model_rows(m, layer, side, block->tokens, m->block_tokens, rows);
    for (uint32_t t = 0; t < m->block_tokens; t++) tags[t] = block->tokens[t].tag;
    kvant_view view =
        kvant_rows_view(rows, m->setting->dtype, m->block_tokens, MODEL_HEADS, model_dim(m, layer, side));
    kvant_encode_report report = {.struct_size = sizeof report};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_codec_encode(codec, &view, block->first, tags, extent->bytes, room, m->scratch, &report,
                           &diag) != KVANT_OK)
        MODEL_FAIL("the model's own block: %s", diag.message);
    extent->size = report.size;
    block->saturated += report.saturated;
    block->replaced += report.replaced;
    free(rows);
    return extent;
}

/* ---- Who holds what ------------------------------------------------------------------------------------ */

static void count_state(const model_state *s, uint32_t first_block) {
    for (uint32_t i = first_block; i < s->block_count; i++) s->blocks[i]->pins++;
    for (uint32_t i = 0; i < s->page_count; i++) s->pages[i]->pins++;
}

void model_count(cache_model *m) {
    for (model_block *b = m->blocks; b != NULL; b = b->next) b->pins = b->marks = 0;
    for (model_page *p = m->pages; p != NULL; p = p->next) p->pins = 0;
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        if (m->sequences[i].real == NULL) continue;
        count_state(&m->sequences[i].now, 0);
        if (m->sequences[i].steps) count_state(&m->sequences[i].during, m->sequences[i].now.block_count);
    }
    for (uint32_t i = 0; i < MODEL_MATCHES; i++)
        for (uint32_t b = 0; m->matches[i].real != NULL && b < m->matches[i].block_count; b++)
            m->matches[i].blocks[b]->pins++;
    for (model_block **at = &m->blocks; *at != NULL;) {
        model_block *b = *at;
        if (b->pins == 0 && !b->indexed) {
            *at = b->next;
            free_block(b);
        } else {
            at = &b->next;
        }
    }
    for (model_page **at = &m->pages; *at != NULL;) {
        model_page *p = *at;
        if (p->pins == 0) {
            *at = p->next;
            free(p);
        } else {
            at = &p->next;
        }
    }
    for (model_block *b = m->blocks; b != NULL; b = b->next)
        if (b->indexed && b->before != NULL) b->before->marks++;
}
