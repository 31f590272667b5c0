/* The same numbers, bit for bit: in any company, on any number of threads, in any order, on any instruction
 * set; and nothing of what a row does not see, not even a byte. */
#include "support/attend_bed.h"
#include "support/scorer.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct {
    const char *key, *value;
} pairs[] = {{"raw", "raw"}, {"scorer", "scorer"}, {"kivi", "hack"}, {"hack", "uniform"}, {"hack", "hack"}};
enum { PAIRS = sizeof pairs / sizeof pairs[0], CALLS = 6 };

static int setup(void **state) {
    (void)state;
    scorer_register();
    return 0;
}

static bed *open_pair(size_t p) {
    return bed_open(&(bed_wish){.key = pairs[p].key,
                                .value = pairs[p].value,
                                .head = "sinks = 4",
                                .tokens = 4500,
                                .kv_heads = p == 0 ? 3 : 2,
                                .group = p == 1 ? 4 : 3,
                                .block_tokens = p == 0   ? 192
                                                : p == 4 ? 128
                                                         : 64,
                                .seed = 500 + p});
}

static void make_calls(const bed *b, bed_call *calls[CALLS]) {
    static const uint32_t tokens[CALLS] = {4500, 0, 300, 2200, 64, 4400}, rows[CALLS] = {1, 2, 50, 3, 1, 21};
    for (size_t i = 0; i < CALLS; i++) {
        uint32_t limit = b->wish.block_tokens * BED_REFERENCES;
        uint32_t coded = tokens[i] < limit ? tokens[i] : limit;
        calls[i] = bed_call_make(b, tokens[i], coded / b->wish.block_tokens * b->wish.block_tokens, rows[i]);
    }
    for (uint32_t r = 0; r < rows[5]; r++) calls[5]->ranges[r].from = 97 * r; /* a sliding window */
    for (uint32_t r = 0; r < rows[2]; r++) calls[2]->ranges[r].from = 5 * r;  /* into the raw rows */
}

static void free_calls(bed_call *calls[CALLS]) {
    for (size_t i = 0; i < CALLS; i++) bed_call_free(calls[i]);
}

static void sequences_together_are_sequences_alone(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = open_pair(p);
        bed_call *together[CALLS], *alone[CALLS];
        make_calls(b, together);
        make_calls(b, alone);
        kvant_attention_options options = bed_options(b);
        bed_run(b, together, CALLS, &options);
        for (size_t i = 0; i < CALLS; i++) {
            bed_run(b, &alone[i], 1, &options);
            bed_assert_same(together[i], alone[i]);
        }
        bed_assert_right(b, together[2], &options);
        free_calls(together);
        free_calls(alone);
        bed_close(b);
    }
}

/* Row by row, as calls of one row each. */
static void rows_together_are_rows_alone(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = open_pair(p);
        bed_call *calls[CALLS];
        make_calls(b, calls);
        kvant_attention_options options = bed_options(b);
        bed_run(b, calls, CALLS, &options);
        for (size_t i = 2; i < CALLS; i++)
            for (uint32_t r = 0; r < calls[i]->rows; r += 3) {
                bed_call one = *calls[i];
                size_t heads = calls[i]->queries.heads, outputs = heads * b->wish.value_dim;
                one.rows = 1;
                one.ranges += r;
                one.queries.tokens = one.outputs.tokens = 1;
                one.queries.data = calls[i]->query_rows + r * heads * b->wish.key_dim;
                one.outputs.data = one.output_rows = malloc(outputs * sizeof(float));
                one.sequence.log_sum_exp = one.log_sum_exp = malloc(heads * sizeof(float));
                one.sequence.queries = &one.queries;
                one.sequence.outputs = &one.outputs;
                one.sequence.ranges = one.ranges;
                bed_call *pointer = &one;
                bed_run(b, &pointer, 1, &options);
                kvant_assert_bytes(one.output_rows, calls[i]->output_rows + r * outputs,
                                   outputs * sizeof(float));
                kvant_assert_bytes(one.log_sum_exp, calls[i]->log_sum_exp + r * heads, heads * sizeof(float));
                free(one.output_rows);
                free(one.log_sum_exp);
            }
        free_calls(calls);
        bed_close(b);
    }
}

/* Head by head into the same outputs; a call leaves the heads of others alone. */
static void heads_apart_are_heads_together(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = open_pair(p);
        bed_call *all = bed_call_make(b, 2200, 1920, 3), *one = bed_call_make(b, 2200, 1920, 3);
        kvant_attention_options options = bed_options(b);
        uint32_t heads = b->wish.kv_heads, group = b->wish.group, dim = b->wish.value_dim;
        bed_run(b, &all, 1, &options);
        for (uint32_t first = 0; first < heads; first++) {
            options.first_kv_head = first;
            options.kv_heads = first == 1 ? 0 : 1; /* 1 to the end */
            bed_run(b, &one, 1, &options);
            uint32_t end = first == 1 ? heads : first + 1;
            for (uint32_t r = 0; r < 3; r++)
                for (uint32_t h = 0; h < heads * group; h++) {
                    bool served = h / group >= first && h / group < end;
                    size_t at = (size_t)r * heads * group + h;
                    const float untouched = kvant_bits_float(0xffffffffu);
                    kvant_assert_bytes(&one->log_sum_exp[at], served ? &all->log_sum_exp[at] : &untouched, 4);
                    kvant_assert_bytes(&one->output_rows[at * dim],
                                       served ? &all->output_rows[at * dim] : &untouched,
                                       served ? dim * sizeof(float) : 4);
                }
        }
        bed_call_free(all);
        bed_call_free(one);
        bed_close(b);
    }
}

/* Loops of the caller's: backwards, with threads in turn; and ones that break the rules. */
static void backwards(void *context, uint32_t count, uint32_t threads, kvant_loop_body *body,
                      void *argument) {
    ++*(uint32_t *)context;
    for (uint32_t i = count; i-- > 0;) body(argument, i, i % threads);
}

static void forgets_one(void *context, uint32_t count, uint32_t threads, kvant_loop_body *body,
                        void *argument) {
    (void)context;
    (void)threads;
    for (uint32_t i = 1; i < count; i++) body(argument, i, 0);
}

static void invents_threads(void *context, uint32_t count, uint32_t threads, kvant_loop_body *body,
                            void *argument) {
    (void)context;
    for (uint32_t i = 0; i < count; i++) body(argument, i, threads);
}

static void loops_of_the_callers(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = open_pair(p);
        bed_call *here[CALLS], *there[CALLS];
        make_calls(b, here);
        make_calls(b, there);
        kvant_attention_options options = bed_options(b);
        bed_run(b, here, CALLS, &options);
        uint32_t loops = 0;
        static const uint32_t threads[] = {2, 3, 64};
        for (size_t t = 0; t < 3; t++) {
            options.threads = threads[t];
            options.loop = backwards;
            options.loop_context = &loops;
            bed_run(b, there, CALLS, &options);
            for (size_t i = 0; i < CALLS; i++) bed_assert_same(here[i], there[i]);
        }
        assert_true(loops >= 6);
        kvant_diag diag = {.struct_size = sizeof diag};
        options.loop = forgets_one;
        assert_int_equal(bed_try_run(b, there, CALLS, &options, &diag), KVANT_ERROR_ARGUMENT);
        kvant_assert_contains(diag.message, "index 0 of");
        options.loop = invents_threads;
        assert_int_equal(bed_try_run(b, there, CALLS, &options, &diag), KVANT_ERROR_ARGUMENT);
        kvant_assert_contains(diag.message, "not below 64");
        free_calls(here);
        free_calls(there);
        bed_close(b);
    }
}

/* Where both sides are decoded, every instruction set gives the same bits. */
static void instruction_sets_agree(void **state) {
    (void)state;
    static const char *const levels[] = {"scalar", "v2", "v3", "v4"};
    static const char *const codecs[] = {"raw", "kivi", "uniform"};
    const char *best = kvant_isa_name(kvant_isa());
    for (size_t k = 0; k < 3; k++) {
        bed_call *first = NULL;
        uint32_t compared = 0;
        for (size_t l = 0; l < 4; l++) {
            if (kvant_isa_limit(levels[l], NULL) != KVANT_OK) continue; /* not on this machine */
            bed *b = bed_open(
                &(bed_wish){.key = codecs[k], .value = codecs[(k + 1) % 3], .tokens = 700, .seed = 30 + k});
            kvant_attention_options options = bed_options(b);
            options.soft_cap = k == 1 ? 5 : 0;
            kvant_attention_info info = {.struct_size = sizeof info};
            assert_int_equal(kvant_attention_describe(b->attention, &info), KVANT_OK);
            assert_true(info.isa <= kvant_isa() && info.keys_on_codes == 0 && info.values_on_codes == 0);
            bed_call *c = bed_call_make(b, 700, 640, 5);
            bed_run(b, &c, 1, &options);
            bed_assert_right(b, c, &options);
            if (first != NULL) {
                bed_assert_same(first, c);
                bed_call_free(c);
                compared++;
            } else {
                first = c;
            }
            bed_close(b);
        }
        bed_call_free(first);
        assert_true(compared >= 1 || strcmp(best, "scalar") == 0);
        assert_int_equal(kvant_isa_limit(best, NULL), KVANT_OK);
    }
}

/* ---- What is not seen ---------------------------------------------------------------------------------- */

/* Blocks that no row sees may lie where nobody may read; leaving them out changes no bit. Nor does leaving
 * out raw rows that no row sees. */
static void unseen_blocks_are_not_touched(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = open_pair(p);
        uint32_t coded = 3968 / b->wish.block_tokens * b->wish.block_tokens;
        bed_call *all = bed_call_make(b, 4400, coded, 30), *some = bed_call_make(b, 4400, coded, 30),
                 *gone = bed_call_make(b, 4400, coded, 30);
        kvant_attention_options options = bed_options(b);
        bed_call *calls[] = {all, some, gone};
        for (size_t i = 0; i < 3; i++)
            for (uint32_t r = 0; r < 30; r++) calls[i]->ranges[r].from = 900 + r;
        size_t size = 1 << 20;
        unsigned char *nowhere = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(nowhere != MAP_FAILED);
        uint32_t unseen = 900 / b->wish.block_tokens;
        for (uint32_t k = 0; k < unseen; k++) some->references[k].key = some->references[k].value = nowhere;
        memmove(gone->references, gone->references + unseen,
                (gone->sequence.reference_count - unseen) * sizeof *gone->references);
        gone->sequence.reference_count -= unseen;
        bed_run(b, calls, 3, &options);
        bed_assert_same(all, some);
        bed_assert_same(all, gone);
        munmap(nowhere, size);
        for (size_t i = 0; i < 2; i++) { /* the tail begins before 3969; rows see 4003 and on */
            for (uint32_t r = 0; r < 30; r++) calls[i]->ranges[r].from = 4003 + r;
            calls[i]->sequence.reference_count = 0;
        }
        some->sequence.run_count = 0;
        bed_call_add_run(b, some, 4001, 399);
        bed_run(b, calls, 2, &options);
        bed_assert_same(all, some);
        for (size_t i = 0; i < 3; i++) bed_call_free(calls[i]);
        bed_close(b);
    }
}

/* A row's floats of one token and all heads, in the extents of a codec that keeps them as they are. */
static void poison_token(const bed *b, uint32_t side, uint32_t token) {
    size_t count = (size_t)b->wish.kv_heads * bed_dim(b, side);
    float *rows =
        (float *)(void *)(b->extents[side] + token / b->wish.block_tokens * bed_extent_stride(b, side));
    for (size_t i = 0; i < count; i++)
        rows[token % b->wish.block_tokens * count + i] = i % 2 == 0 ? NAN : INFINITY;
}

static void poison_raw(const bed *b, uint32_t side, uint32_t token) {
    size_t count = (size_t)b->wish.kv_heads * bed_dim(b, side), width = kvant_element_bytes(b->wish.dtype);
    for (size_t i = 0; i < count; i++)
        kvant_store_element(b->raw[side] + (token * count + i) * width, b->wish.dtype, NAN);
}

/* NaN in dead tokens, in tokens that a range hides, in blocks and in raw rows. */
static void hidden_nan_enters_no_sum(void **state) {
    (void)state;
    bed *b = bed_open(&(bed_wish){.key = "scorer", .value = "scorer", .tokens = 400, .seed = 6});
    for (int soft_cap = 0; soft_cap < 2; soft_cap++) {
        bed_call *clean = bed_call_make(b, 400, 320, 3), *dirty = bed_call_make(b, 400, 320, 3);
        bed_call *calls[] = {clean, dirty};
        kvant_attention_options options = bed_options(b);
        options.soft_cap = 3.0f * (float)soft_cap;
        for (size_t i = 0; i < 2; i++) {
            calls[i]->references[1].live_first = 3;  /* 64 to 66 are dead */
            calls[i]->references[1].live_count = 50; /* 117 to 127, too */
            calls[i]->ranges[0] = (kvant_token_range){10, 120};
            calls[i]->ranges[1] = (kvant_token_range){131, 330};
            calls[i]->ranges[2] = (kvant_token_range){140, 350};
        }
        bed_run(b, &clean, 1, &options);
        static const uint32_t hidden[] = {0, 9, 64, 66, 117, 127, 128, 130};
        for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
            for (uint32_t side = 0; side < 2; side++) poison_token(b, side, hidden[i]);
        for (uint32_t side = 0; side < 2; side++) poison_raw(b, side, 350);
        bed_run(b, &dirty, 1, &options);
        bed_assert_same(clean, dirty);
        /* A row that sees one is NaN; its neighbours are not. */
        dirty->ranges[1].from = 130;
        bed_run(b, &dirty, 1, &options);
        assert_true(isnan(dirty->log_sum_exp[6]) && isnan(dirty->output_rows[6 * 32]));
        kvant_assert_bytes(dirty->output_rows, clean->output_rows, 6 * 32 * sizeof(float));
        kvant_assert_bytes(dirty->output_rows + 12 * 32, clean->output_rows + 12 * 32,
                           6 * 32 * sizeof(float));
        /* Also where it sees nothing else. */
        dirty->ranges[1] = (kvant_token_range){130, 131};
        bed_run(b, &dirty, 1, &options);
        assert_true(isnan(dirty->log_sum_exp[6]));
        bed_call_free(clean);
        bed_call_free(dirty);
        if (soft_cap == 0) { /* whole rows again */
            bed_close(b);
            b = bed_open(&(bed_wish){.key = "scorer", .value = "scorer", .tokens = 400, .seed = 6});
        }
    }
    bed_close(b);
}

/* Extents of any bytes give any numbers, and the sequence beside them its own. */
static void arbitrary_bytes_do_no_harm(void **state) {
    (void)state;
    uint64_t seed = 12;
    for (size_t p = 0; p < PAIRS; p++)
        for (int pattern = 0; pattern < 3; pattern++) {
            bed *b = open_pair(p);
            uint32_t block = b->wish.block_tokens;
            bed_call *good = bed_call_make(b, 2 * block + 20, 2 * block, 3),
                     *alone = bed_call_make(b, 2 * block + 20, 2 * block, 3),
                     *bad = bed_call_make(b, 2 * block + 20, 2 * block, 3);
            kvant_attention_options options = bed_options(b);
            bed_run(b, &alone, 1, &options);
            for (uint32_t k = 0; k < 2; k++) { /* blocks 4 and 5 stand in for its own */
                bad->references[k].key = b->extents[0] + (4 + k) * bed_extent_stride(b, 0);
                bad->references[k].value = b->extents[1] + (4 + k) * bed_extent_stride(b, 1);
            }
            for (uint32_t side = 0; side < 2; side++)
                for (size_t i = 0; i < 2 * bed_extent_stride(b, side); i++)
                    b->extents[side][4 * bed_extent_stride(b, side) + i] =
                        pattern == 0   ? (unsigned char)kvant_test_random(&seed)
                        : pattern == 1 ? 0xff
                                       : 0x7f;
            bed_call *calls[] = {bad, good, bad};
            bed_run(b, calls, 3, &options);
            bed_assert_same(good, alone);
            for (size_t i = 0; i < 3; i++) bed_call_free((bed_call *[]){good, alone, bad}[i]);
            bed_close(b);
        }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(sequences_together_are_sequences_alone, setup),
        cmocka_unit_test_setup(rows_together_are_rows_alone, setup),
        cmocka_unit_test_setup(heads_apart_are_heads_together, setup),
        cmocka_unit_test_setup(loops_of_the_callers, setup),
        cmocka_unit_test_setup(instruction_sets_agree, setup),
        cmocka_unit_test_setup(unseen_blocks_are_not_touched, setup),
        cmocka_unit_test_setup(hidden_nan_enters_no_sum, setup),
        cmocka_unit_test_setup(arbitrary_bytes_do_no_harm, setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
