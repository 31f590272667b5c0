/* What every call does, by the rules of kvant/cache.h and positions alone. See cache_model.h. */
#include "support/cache_model.h"

#include <stdlib.h>
#include <string.h>

static void *take(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) MODEL_FAIL("out of memory");
    return memory;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static bool same_key(const uint64_t a[2], const uint64_t b[2]) {
    return a[0] == b[0] && a[1] == b[1];
}

static model_block *find(cache_model *m, const uint64_t key[2]) {
    for (model_block *b = m->blocks; b != NULL; b = b->next)
        if (b->indexed && same_key(b->key, key)) return b;
    return NULL;
}

/* What two blocks must share to be one: all before, ids, classes of tags; of the first, the salt. */
static void make_key(const cache_model *m, uint32_t salt, const uint64_t parent[2], const model_token *tokens,
                     uint64_t key[2]) {
    for (uint32_t half = 0; half < 2; half++) {
        uint64_t h = parent[0] == 0 && parent[1] == 0 ? model_hash(99 + half, salt) : parent[half];
        for (uint32_t t = 0; t < m->block_tokens; t++)
            h = model_hash(model_hash(h, tokens[t].id), m->classes[tokens[t].tag]);
        key[half] = h;
    }
}

static model_block *new_block(cache_model *m, const model_state *s, uint64_t first) {
    model_block *b = take(1, sizeof *b);
    b->first = first;
    b->tokens = take(m->block_tokens, sizeof *b->tokens);
    memcpy(b->tokens, s->tokens + first, m->block_tokens * sizeof *b->tokens);
    b->next = m->blocks;
    m->blocks = b;
    return b;
}

static model_page *new_page(cache_model *m) {
    model_page *p = take(1, sizeof *p);
    p->next = m->pages;
    m->pages = p;
    return p;
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

static uint64_t sees_from(const cache_model *m, uint32_t layer, uint64_t position) {
    uint32_t window = m->setting->window[layer];
    return window != 0 && position + 1 > window ? position + 1 - window : 0;
}

static bool holds(model_block *const *blocks, uint32_t count, const uint32_t *passed, const model_block *b,
                  uint32_t layer, bool *held) {
    bool needed = false;
    for (uint32_t k = 0; k < count; k++) {
        if (blocks[k] != b) continue;
        *held = true;
        needed = needed || k >= passed[layer];
    }
    return needed;
}

/* Whether a holder other than `but` still needs the layer's extents, and whether there is another holder. */
static bool is_needed(const cache_model *m, const model_block *b, uint32_t layer, const void *but,
                      bool *held) {
    bool needed = false;
    *held = false;
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        const model_sequence *s = &m->sequences[i];
        if (s->real != NULL && s != but)
            needed = holds(s->now.blocks, s->now.block_count, s->now.passed, b, layer, held) || needed;
    }
    for (uint32_t i = 0; i < m->more_count; i++) {
        const model_state *s = &m->more[i].now;
        needed = holds(s->blocks, s->block_count, s->passed, b, layer, held) || needed;
    }
    for (uint32_t i = 0; i < MODEL_MATCHES; i++) {
        const model_match *match = &m->matches[i];
        if (match->real != NULL && match != but)
            needed = holds(match->blocks, match->block_count, match->passed, b, layer, held) || needed;
    }
    return needed;
}

/* Blocks are let go of once a cut to any place of the tail leaves a token that sees nothing of them. */
static void pass_windows(cache_model *m, model_sequence *s) {
    model_state *now = &s->now;
    bool held = false;
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) {
        uint64_t window = m->setting->window[layer];
        if (window == 0 || now->tail_first <= window) continue;
        for (; now->passed[layer] < now->block_count &&
               model_block_end(m, now, now->passed[layer]) <= now->tail_first - window;
             now->passed[layer]++) {
            model_block *b = now->blocks[now->passed[layer]];
            if (!is_needed(m, b, layer, s, &held)) b->released[layer] = true;
        }
    }
}

/* A holder lets go of a block that it holds at `index`; in order of leaving. */
static void leave(cache_model *m, model_block *b, uint32_t index, const uint32_t passed[MODEL_LAYERS],
                  const void *holder) {
    bool held = false;
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        if (m->setting->window[layer] != 0 && index >= passed[layer] &&
            !is_needed(m, b, layer, holder, &held) && held)
            b->released[layer] = true;
    b->used = ++m->ticks;
}

static void leave_from(cache_model *m, model_sequence *s, uint32_t first) {
    model_state *now = &s->now;
    for (uint32_t i = now->block_count; i-- > first;) {
        leave(m, now->blocks[i], i, now->passed, s);
        now->block_count = i;
    }
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        if (now->passed[layer] > now->block_count) now->passed[layer] = now->block_count;
}

/* ---- Sequences ----------------------------------------------------------------------------------------- */

static void clear(model_state *s) {
    memset(s, 0, sizeof *s);
    s->private_first = UINT64_MAX;
}

static void count_live(model_state *s) {
    s->live = s->length;
    for (uint64_t p = 0; p < s->length; p++) s->live -= s->dropped[p];
}

void model_create(cache_model *m, model_sequence *s, uint32_t salt) {
    (void)m;
    clear(&s->now);
    s->salt = salt;
    s->steps = false;
}

void model_reset(cache_model *m, model_sequence *s) {
    if (s->steps) model_abort(m, s);
    leave_from(m, s, 0);
    clear(&s->now);
    model_count(m);
}

void model_free(cache_model *m, model_sequence *s) {
    model_reset(m, s);
    s->real = NULL;
    model_count(m);
}

void model_fork(cache_model *m, const model_sequence *s, model_sequence *fork) {
    (void)m;
    fork->now = s->now;
    fork->salt = s->salt;
    fork->steps = false;
}

void model_reorder(cache_model *m, model_sequence *const *sequences, const uint32_t *sources,
                   uint32_t count) {
    model_sequence *copies = take(count, sizeof *copies);
    for (uint32_t i = 0; i < count; i++) copies[i] = *sequences[sources[i]];
    /* What will be held is held before anything is let go of. */
    m->more = copies;
    m->more_count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (sources[i] == i) continue;
        leave_from(m, sequences[i], 0);
        sequences[i]->now = copies[i].now;
        sequences[i]->salt = copies[i].salt;
    }
    m->more_count = 0;
    free(copies);
    model_count(m);
}

/* ---- Cuts ---------------------------------------------------------------------------------------------- */

/* Tokens after a block that was cut short, and those that came after others were dropped, are no one
 * else's. */
static void settle_private(const cache_model *m, model_state *s) {
    bool dropped = false;
    for (uint64_t p = 0; p < s->length; p++) dropped = dropped || s->dropped[p];
    if (s->private_first >= s->length) s->private_first = dropped ? s->length : UINT64_MAX;
    if (s->tail_first % m->block_tokens != 0 && s->tail_first < s->private_first)
        s->private_first = s->tail_first;
}

static uint32_t pages_of(const cache_model *m, uint64_t tokens) {
    return (uint32_t)((tokens + m->block_tokens - 1) / m->block_tokens);
}

/* Among encoded blocks, of which `blocks` stay. */
static kvant_status cut_blocks(cache_model *m, model_sequence *s, uint64_t length, uint32_t blocks) {
    model_state *now = &s->now;
    uint32_t passed[MODEL_LAYERS];
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) {
        passed[layer] = now->passed[layer] < blocks ? now->passed[layer] : blocks;
        for (; passed[layer] > 0 && m->setting->window[layer] != 0 &&
               model_block_end(m, now, passed[layer] - 1) > sees_from(m, layer, length);
             passed[layer]--)
            if (now->blocks[passed[layer] - 1]->released[layer]) return KVANT_ERROR_UNSUPPORTED;
    }
    leave_from(m, s, blocks);
    memcpy(now->passed, passed, sizeof passed); /* what others still hold is needed again */
    now->tail_first = length;
    now->page_count = 0;
    return KVANT_OK;
}

kvant_status model_truncate(cache_model *m, model_sequence *s, uint64_t length) {
    model_state *now = &s->now;
    uint32_t blocks = 0;
    if (length == now->length) return KVANT_OK;
    while (blocks < now->block_count && now->blocks[blocks]->first < length) blocks++;
    if (length == 0) {
        leave_from(m, s, 0);
        clear(now);
    } else if (length >= now->tail_first) {
        now->page_count = pages_of(m, length - now->tail_first);
    } else if (length <= m->sinks) {
        leave_from(m, s, 0);
        now->pages[0] = new_page(m);
        now->page_count = 1;
        now->tail_first = 0;
    } else {
        kvant_status status = cut_blocks(m, s, length, blocks);
        if (status != KVANT_OK) return status;
    }
    memset(now->dropped + length, 0, MODEL_TOKENS - (size_t)length);
    now->length = length;
    count_live(now);
    settle_private(m, now);
    model_count(m);
    return KVANT_OK;
}

void model_drop(cache_model *m, model_sequence *s, uint64_t first, uint64_t count) {
    model_state *now = &s->now;
    memset(now->dropped + first, 1, (size_t)count);
    if (count == 0) return;
    for (uint32_t i = 0; i < now->block_count;) {
        uint64_t live = 0, end = model_block_end(m, now, i);
        for (uint64_t p = now->blocks[i]->first; p < end; p++) live += !now->dropped[p];
        if (live > 0) {
            i++;
            continue;
        }
        model_block *b = now->blocks[i];
        uint32_t passed[MODEL_LAYERS];
        memcpy(passed, now->passed, sizeof passed);
        for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
            if (i < now->passed[layer]) now->passed[layer]--;
        memmove(now->blocks + i, now->blocks + i + 1, (now->block_count - i - 1) * sizeof *now->blocks);
        now->block_count--;
        leave(m, b, i, passed, s);
    }
    count_live(now);
    settle_private(m, now);
    model_count(m);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* Blocks of the tail that are older than the recent ones when `length` tokens are certain. */
static uint32_t sealable(const cache_model *m, const model_state *s, uint64_t length) {
    uint64_t old = length > m->recent ? length - m->recent : 0;
    return old > s->tail_first ? (uint32_t)((old - s->tail_first) / m->block_tokens) : 0;
}

/* The tail's last page is written to by the step and is another sequence's too. */
static bool copies(const cache_model *m, const model_sequence *s) {
    const model_state *now = &s->now;
    uint32_t holders = 0;
    if ((now->length - now->tail_first) % m->block_tokens == 0) return false;
    const model_page *last = now->pages[now->page_count - 1];
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++)
        for (uint32_t p = 0; m->sequences[i].real != NULL && p < m->sequences[i].now.page_count; p++)
            holders += m->sequences[i].now.pages[p] == last;
    return holders > 1;
}

void model_begin(cache_model *m, model_sequence *s) {
    model_state *now = &s->now, *during = &s->during;
    uint32_t seals = sealable(m, now, now->length + s->count - s->tentative);
    uint32_t whole = (uint32_t)((now->length - now->tail_first) / m->block_tokens);
    during->length = now->length;
    during->tail_first = now->tail_first;
    during->block_count = now->block_count;
    memcpy(during->tokens, now->tokens, (size_t)now->length * sizeof *now->tokens);
    memcpy(during->dropped, now->dropped, sizeof now->dropped);
    memcpy(during->passed, now->passed, sizeof now->passed);
    memcpy(during->blocks, now->blocks, now->block_count * sizeof *now->blocks);
    for (uint32_t i = 0; i < (seals < whole ? seals : whole); i++, during->tail_first += m->block_tokens)
        during->blocks[during->block_count++] = new_block(m, now, during->tail_first);
    during->pages[0] = NULL;
    during->page_count = 0;
    if (copies(m, s)) {
        during->pages[0] = new_page(m);
        during->page_count = 1;
    }
    s->steps = true;
}

void model_abort(cache_model *m, model_sequence *s) {
    if (!s->steps) return;
    s->steps = false;
    for (uint32_t i = 0; i < 2 * MODEL_LAYERS; i++) {
        free(s->rows[i / 2][i % 2]);
        s->rows[i / 2][i % 2] = NULL;
    }
    memset(s->given, 0, sizeof s->given);
    memset(s->open, 0, sizeof s->open);
    model_count(m);
}

/* Gives block `i` a key, if it may be shared: whole blocks of known ids from 0 on. */
static bool identify(cache_model *m, const model_sequence *s, uint32_t i, uint64_t shared) {
    static const uint64_t zeros[2] = {0, 0};
    model_block *b = s->now.blocks[i], *parent = i > 0 ? s->now.blocks[i - 1] : NULL;
    if (b->first + m->block_tokens > shared) return false;
    if (b->first > 0 &&
        (parent == NULL || !parent->identified || parent->first + m->block_tokens != b->first))
        return false;
    memcpy(b->parent, b->first > 0 ? parent->key : zeros, sizeof b->parent);
    make_key(m, s->salt, b->parent, b->tokens, b->key);
    b->identified = true;
    return true;
}

static bool enter(cache_model *m, const model_state *now, uint32_t i) {
    model_block *b = now->blocks[i];
    /* Not always the one before it in the sequence: that may have been dropped. */
    b->before = b->first > 0 ? find(m, b->parent) : NULL;
    if ((b->first > 0 && b->before == NULL) || find(m, b->key) != NULL) return false;
    b->indexed = true;
    b->used = ++m->ticks;
    return true;
}

/* Blocks from `first` on, and those before them that are not in the index any more, can be found from now on;
 * where others have put the same tokens there, theirs. */
static void publish(cache_model *m, const model_state *now, uint32_t first) {
    uint32_t from = first;
    while (from > 0 && now->blocks[from - 1]->identified && find(m, now->blocks[from - 1]->key) == NULL)
        from--;
    while (from < first && enter(m, now, from)) from++;
    for (uint32_t i = first; i < now->block_count; i++)
        if (now->blocks[i]->identified) (void)enter(m, now, i);
}

void model_commit(cache_model *m, model_sequence *s, uint32_t keep) {
    model_state *now = &s->now, *during = &s->during;
    uint64_t first = now->length, certain = first + s->count - s->tentative;
    uint32_t seals = sealable(m, now, certain);
    bool copied = during->page_count > 0, any = false;
    uint64_t shared = s->known || now->private_first < first ? now->private_first : first;
    memcpy(now->tokens + first, during->tokens + first, s->count * sizeof *now->tokens);
    now->length = first + keep;
    if (!s->known && keep > 0 && first < now->private_first) now->private_first = first;
    uint32_t was = now->page_count, old = during->block_count - now->block_count;
    if (copied) now->pages[was - 1] = during->pages[0];
    while (now->page_count < pages_of(m, now->length - now->tail_first))
        now->pages[now->page_count++] = new_page(m);
    for (uint32_t i = 0; i < seals; i++) {
        uint64_t at = now->tail_first + (uint64_t)i * m->block_tokens;
        model_block *b = i < old ? during->blocks[now->block_count] : new_block(m, now, at);
        now->blocks[now->block_count++] = b;
        for (uint32_t k = 0; k < 2 * MODEL_LAYERS; k++) (void)model_encoded(m, b, k / 2, k % 2);
        m->saturated += b->saturated;
        m->replaced += b->replaced;
        any = identify(m, s, now->block_count - 1, shared) || any;
    }
    if (any) publish(m, now, now->block_count - seals);
    memmove(now->pages, now->pages + seals, (now->page_count - seals) * sizeof *now->pages);
    now->page_count -= seals;
    now->tail_first += (uint64_t)seals * m->block_tokens;
    count_live(now);
    s->steps = false;
    pass_windows(m, s);
    s->steps = true;
    model_abort(m, s);
}

/* ---- Prefixes ------------------------------------------------------------------------------------------ */

/* Whether the token after the first `count` blocks sees only what is there. */
static bool can_end(const cache_model *m, const model_match *match, uint32_t count) {
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) {
        uint64_t from = sees_from(m, layer, (uint64_t)count * m->block_tokens);
        for (uint32_t i = 0; i < count; i++)
            if (match->blocks[i]->first + m->block_tokens > from && match->blocks[i]->released[layer])
                return false;
    }
    return true;
}

void model_lookup(cache_model *m, model_match *match, uint32_t salt, const uint64_t *ids, const uint8_t *tags,
                  uint64_t count, uint64_t first_step_end) {
    uint64_t parent[2] = {0, 0}, key[2], most = m->recent > 1 ? m->recent : 1;
    model_token tokens[256];
    match->salt = salt;
    match->block_count = 0;
    most = first_step_end > most ? first_step_end - most : 0;
    if (most > count) most = count;
    while ((match->block_count + 1ul) * m->block_tokens <= most) {
        uint64_t first = (uint64_t)match->block_count * m->block_tokens;
        for (uint32_t t = 0; t < m->block_tokens; t++)
            tokens[t] = (model_token){.id = ids[first + t], .tag = tags != NULL ? tags[first + t] : 0};
        make_key(m, salt, parent, tokens, key);
        model_block *b = find(m, key);
        if (b == NULL) break;
        match->blocks[match->block_count++] = b;
        memcpy(parent, key, sizeof key);
    }
    uint32_t ends = match->block_count;
    while (ends > 0 && !can_end(m, match, ends)) ends--;
    while (match->block_count > ends) match->blocks[--match->block_count]->used = ++m->ticks;
    match->tokens_count = (uint64_t)ends * m->block_tokens;
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        match->passed[layer] = (uint32_t)(sees_from(m, layer, match->tokens_count) / m->block_tokens);
    m->lookups++;
    m->asked += count;
    m->found += match->tokens_count;
}

void model_release(cache_model *m, model_match *match) {
    for (uint32_t i = match->block_count; i-- > 0;) {
        leave(m, match->blocks[i], i, match->passed, match);
        match->block_count = i;
    }
    match->real = NULL;
    model_count(m);
}

void model_create_from(cache_model *m, model_sequence *s, const model_match *match) {
    model_create(m, s, match->salt);
    model_state *now = &s->now;
    for (uint32_t i = 0; i < match->block_count; i++) {
        now->blocks[i] = match->blocks[i];
        memcpy(now->tokens + now->blocks[i]->first, now->blocks[i]->tokens,
               m->block_tokens * sizeof *now->tokens);
    }
    now->block_count = match->block_count;
    now->length = now->tail_first = match->tokens_count;
    memcpy(now->passed, match->passed, sizeof now->passed);
    count_live(now);
}

/* ---- Eviction ------------------------------------------------------------------------------------------ */

void model_evict(cache_model *m, uint64_t blocks) {
    for (; blocks > 0; blocks--) {
        model_block *oldest = NULL;
        model_count(m);
        for (model_block *b = m->blocks; b != NULL; b = b->next)
            if (b->indexed && b->pins == 0 && b->marks == 0 && (oldest == NULL || b->used < oldest->used))
                oldest = b;
        if (oldest == NULL)
            MODEL_FAIL("%llu blocks more were evicted than nobody holds", (unsigned long long)blocks);
        oldest->indexed = false;
        m->evictions++;
    }
    model_count(m);
}
