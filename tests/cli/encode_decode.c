/* `kvant encode` and `kvant decode` as their users meet them. */
#include "data/dump.h"
#include "store/sequence_file.h"
#include "support/session.h"
#include "support/data.h"
#include "support/write_dump.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLES KVANT_TEST_SOURCE_DIR "/samples/"

static const char *ini(const char *name, const char *text) {
    const char *file = path(name);
    kvant_test_write(file, text, strlen(text));
    return file;
}

static kvant_dump *open_dump(const char *file) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    if (kvant_dump_open(file, &dump, &diag) != KVANT_OK) fail_msg("%s: %s", file, diag.message);
    return dump;
}

static void assert_same_files(const char *left, const char *right) {
    kvant_test_bytes a = kvant_test_read(left), b = kvant_test_read(right);
    assert_int_equal(a.size, b.size);
    kvant_assert_bytes(a.bytes, b.bytes, a.size);
    free(a.bytes);
    free(b.bytes);
}

/* Same tensors and metadata, whatever their order in the file. */
static void assert_same_dumps(const char *left, const char *right) {
    kvant_dump *a = open_dump(left), *b = open_dump(right);
    const kvant_safetensors *x = kvant_dump_file(a), *y = kvant_dump_file(b);
    assert_int_equal(kvant_safetensors_count(x), kvant_safetensors_count(y));
    for (uint32_t i = 0; i < kvant_safetensors_count(x); i++) {
        const kvant_array *p = kvant_safetensors_at(x, i), *q = kvant_safetensors_at(y, i);
        assert_string_equal(p->name, q->name);
        assert_int_equal(p->dtype, q->dtype);
        assert_int_equal(p->rank, q->rank);
        assert_memory_equal(p->shape, q->shape, sizeof p->shape);
        kvant_assert_bytes(q->data, p->data, (size_t)p->bytes);
    }
    assert_int_equal(kvant_safetensors_metadata_count(x), kvant_safetensors_metadata_count(y));
    for (uint32_t i = 0; i < kvant_safetensors_metadata_count(x); i++) {
        const char *key = kvant_safetensors_metadata_key(x, i);
        assert_string_equal(kvant_safetensors_metadata(x, key), kvant_safetensors_metadata(y, key));
    }
    kvant_dump_close(a);
    kvant_dump_close(b);
}

/* Error energy over energy of tokens [first, last) of one tensor; -1 where the dumps are equal there. */
static double nmse(const char *original, const char *decoded, uint32_t layer, uint32_t side, uint32_t first,
                   uint32_t last) {
    kvant_dump *a = open_dump(original), *b = open_dump(decoded);
    kvant_view x, y;
    double error = 0, energy = 0;
    assert_true(kvant_dump_view(a, layer, side, &x) && kvant_dump_view(b, layer, side, &y));
    float *p = calloc(x.head_dim, sizeof *p), *q = calloc(x.head_dim, sizeof *q);
    assert_true(p != NULL && q != NULL);
    for (uint32_t t = first; t < last; t++)
        for (uint32_t h = 0; h < x.heads; h++) {
            kvant_load_row(&x, t, h, p);
            kvant_load_row(&y, t, h, q);
            for (uint32_t c = 0; c < x.head_dim; c++) {
                energy += (double)p[c] * (double)p[c];
                error += ((double)p[c] - (double)q[c]) * ((double)p[c] - (double)q[c]);
            }
        }
    free(p);
    free(q);
    kvant_dump_close(a);
    kvant_dump_close(b);
    assert_true(isfinite(error) && energy > 0);
    return error == 0 ? -1 : error / energy;
}

/* ---- What comes back ----------------------------------------------------------------------------------- */

static void raw_gives_everything_back(void **state) {
    (void)state;
    static const char *const samples[] = {"sample", "sample_pre", "sample_prose"};
    const char *pipeline =
        ini("raw.ini", "[pipeline]\nname = raw\nblock_tokens = 80\nsinks = 3\nrecent = 30\n"
                       "[layers]\nkey = raw\nvalue = raw\n");
    for (unsigned i = 0; i < 3; i++) {
        char sample[512];
        (void)snprintf(sample, sizeof sample, "%s%s.safetensors", SAMPLES, samples[i]);
        must(KVANT("encode", pipeline, sample, "-o", path("r.kvant")));
        kvant_assert_contains(out, "384 tokens in 4 blocks of 80, 3 sinks raw, 64 tokens of the tail raw");
        must(KVANT("decode", path("r.kvant"), "-o", path("r.safetensors")));
        assert_string_equal(out, "");
        if (i == 1) { /* raw keeps keys after RoPE: turned and turned back, rounded to F16 on both ways */
            for (uint32_t l = 0; l < 4; l++) {
                double error = nmse(sample, path("r.safetensors"), l, 0, 3, 320);
                assert_true(error > 1e-9 && error < 1e-6);
                kvant_assert_close(nmse(sample, path("r.safetensors"), l, 0, 320, 384), -1, 0);
            }
            continue;
        }
        assert_same_dumps(sample, path("r.safetensors"));
        /* What decode writes can be encoded again, to the same bytes. */
        must(KVANT("encode", pipeline, path("r.safetensors"), "-o", path("again.kvant")));
        kvant_test_bytes a = kvant_test_read(path("r.kvant")), b = kvant_test_read(path("again.kvant"));
        assert_int_equal(a.size, b.size);
        free(a.bytes);
        free(b.bytes);
    }
}

static void any_number_of_tokens(void **state) {
    (void)state;
    static const uint32_t tokens[] = {1, 31, 32, 33, 64, 65, 100};
    const char *pipeline = ini("raw.ini", "[pipeline]\nname = raw\nblock_tokens = 32\nsinks = 2\n"
                                          "[layers]\nkey = raw\nvalue = raw\n");
    for (unsigned i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        kvant_test_dump d = kvant_test_dump_default();
        d.tokens = tokens[i];
        d.query_tokens = 1;
        d.query_start = tokens[i] - 1;
        d.dtype = i % 3 == 0 ? KVANT_DTYPE_F32 : i % 3 == 1 ? KVANT_DTYPE_F16 : KVANT_DTYPE_BF16;
        d.has_keys = i != 3;
        d.has_values = i != 4;
        d.has_queries = d.has_keys;
        kvant_test_dump_write(&d, path("d.safetensors"));
        must(KVANT("encode", pipeline, path("d.safetensors"), "-o", path("d.kvant")));
        must(KVANT("decode", path("d.kvant"), "-o", path("back.safetensors")));
        assert_same_dumps(path("d.safetensors"), path("back.safetensors"));

        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_sequence_file *file = NULL;
        assert_int_equal(kvant_sequence_file_open(path("d.kvant"), &file, &diag), KVANT_OK);
        assert_int_equal(kvant_sequence_file_count(file), tokens[i] / 32 + (tokens[i] % 32 > 0));
        assert_int_equal(kvant_sequence_file_tokens(file), tokens[i]);
        for (uint32_t r = 0; r < kvant_sequence_file_count(file); r++) /* no `tokens` tensor: 0, 1, 2, ... */
            for (uint32_t t = 0; t < kvant_sequence_file_record(file, r)->head.tokens; t++)
                assert_int_equal(kvant_record_id(kvant_sequence_file_record(file, r), t), r * 32 + t);
        kvant_sequence_file_close(file);
    }
}

static void codes_what_is_to_be_coded(void **state) {
    (void)state;
    const char *pipeline = ini("k.ini", "[pipeline]\nname = k\nblock_tokens = 64\nsinks = 4\nrecent = 65\n"
                                        "[codec k2]\nplugin = kivi\nbits = 2\ngroup = 32\n"
                                        "[layers]\nkey = k2\nvalue = uniform\n");
    const char *sample = SAMPLES "sample.safetensors";
    must(KVANT("encode", pipeline, sample, "-o", path("k.kvant"), "--threads", "1"));
    must(KVANT("encode", pipeline, sample, "-o", path("k4.kvant"), "--threads", "4"));
    assert_same_files(path("k.kvant"), path("k4.kvant"));
    must(KVANT("decode", path("k.kvant"), "-o", path("k.safetensors"), "--threads", "1"));
    must(KVANT("decode", path("k4.kvant"), "-o", path("k4.safetensors"), "--threads", "3"));
    assert_same_files(path("k.safetensors"), path("k4.safetensors"));
    for (uint32_t l = 0; l < 4; l++)
        for (uint32_t side = 0; side < 2; side++) {
            /* Sinks and tail are as they were, to the bit; between them every block has errors, and not large
             * ones. */
            kvant_assert_close(nmse(sample, path("k.safetensors"), l, side, 0, 4), -1, 0);
            kvant_assert_close(nmse(sample, path("k.safetensors"), l, side, 256, 384), -1, 0);
            for (uint32_t t = 4; t < 256; t = t / 64 * 64 + 64) {
                double error = nmse(sample, path("k.safetensors"), l, side, t, t / 64 * 64 + 64);
                if (side == KVANT_SIDE_KEY)
                    assert_true(error > 0.005 && error < 0.2);
                else
                    assert_true(error > 1e-6 && error < 1e-3);
            }
        }
}

/* Block 0 is coded as if the first row after the sinks stood in their place. */
static void sinks_do_not_enter_the_statistics(void **state) {
    (void)state;
    const char *pipeline = ini("s.ini", "[pipeline]\nname = s\nblock_tokens = 32\nsinks = 2\n"
                                        "[layers]\nkey = kivi\nvalue = kivi\n");
    kvant_test_dump calm = kvant_test_dump_default(), loud = calm;
    calm.tokens = loud.tokens = 40;
    calm.query_start = loud.query_start = 30;
    loud.poisoned = "layers.1.key";
    loud.token = 1;
    loud.channel = 5;
    loud.poison = 3000;
    kvant_test_dump_write(&calm, path("calm.safetensors"));
    kvant_test_dump_write(&loud, path("loud.safetensors"));
    must(KVANT("encode", pipeline, path("calm.safetensors"), "-o", path("calm.kvant")));
    must(KVANT("decode", path("calm.kvant"), "-o", path("calm2.safetensors")));
    must(KVANT("encode", pipeline, path("loud.safetensors"), "-o", path("loud.kvant")));
    must(KVANT("decode", path("loud.kvant"), "-o", path("loud2.safetensors")));
    for (uint32_t l = 0; l < 3; l++)
        kvant_assert_close(nmse(path("calm2.safetensors"), path("loud2.safetensors"), l, 0, 2, 40), -1, 0);
    assert_true(nmse(path("calm2.safetensors"), path("loud2.safetensors"), 1, 0, 1, 2) > 0);
    kvant_assert_close(nmse(path("loud.safetensors"), path("loud2.safetensors"), 1, 0, 0, 2), -1, 0);
    assert_true(nmse(path("calm.safetensors"), path("calm2.safetensors"), 1, 0, 2, 32) > 0.001);
    /* Without sinks the loud element spoils its group. */
    must(KVANT("encode",
               ini("n.ini", "[pipeline]\nname = n\nblock_tokens = 32\nsinks = 0\n"
                            "[layers]\nkey = kivi\nvalue = kivi\n"),
               path("loud.safetensors"), "-o", path("n.kvant")));
    must(KVANT("decode", path("n.kvant"), "-o", path("n2.safetensors")));
    assert_true(nmse(path("loud2.safetensors"), path("n2.safetensors"), 1, 0, 2, 32) > 0.01);
}

static void codec_name_is_its_defaults(void **state) {
    (void)state;
    must(KVANT("encode", "kivi", SAMPLES "sample.safetensors", "-o", path("name.kvant")));
    must(KVANT("--json", "encode", "kivi", SAMPLES "sample.safetensors", "-o", path("name.kvant")));
    kvant_assert_contains(out, "\"input_bytes\": 1179648");
    must(KVANT("decode", path("name.kvant"), "-o", path("name.safetensors")));
    assert_true(nmse(SAMPLES "sample.safetensors", path("name.safetensors"), 2, 1, 0, 384) > 0.01);
}

/* A pipeline with an artifact: found where it lay, or where --artifacts says; another artifact is refused. */
static void needs_its_artifact(void **state) {
    (void)state;
    float center[2 * 32];
    kvant_array arrays[3];
    static const char *const names[3] = {"layers.0.key.center", "layers.1.key.center", "layers.2.key.center"};
    for (unsigned i = 0; i < 64; i++) center[i] = 0.25f * (float)(i % 7);
    for (unsigned l = 0; l < 3; l++)
        arrays[l] = (kvant_array){.name = names[l],
                                  .data = center,
                                  .shape = {2, 32},
                                  .bytes = sizeof center,
                                  .dtype = KVANT_DTYPE_F32,
                                  .rank = 2};
    const kvant_metadata format = {"format", "kvant-artifact/1"};
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_safetensors_write(path("c.safetensors"), arrays, 3, &format, 1, &diag), KVANT_OK);
    const char *pipeline = ini("c.ini", "[pipeline]\nname = c\nkey_center = artifact\n"
                                        "artifact = c.safetensors\n[layers]\nkey = uniform\nvalue = raw\n");
    kvant_test_dump d = kvant_test_dump_default();
    kvant_test_dump_write(&d, path("d.safetensors"));
    must(KVANT("encode", pipeline, path("d.safetensors"), "-o", path("c.kvant")));
    must(KVANT("decode", path("c.kvant"), "-o", path("c1.safetensors")));
    double error = nmse(path("d.safetensors"), path("c1.safetensors"), 1, 0, 0, 128);
    assert_true(error > 1e-6 && error < 1e-3);
    /* The INI file is not needed any more; the artifact is. */
    assert_int_equal(unlink(pipeline), 0);
    must(KVANT("decode", path("c.kvant"), "-o", path("c2.safetensors")));
    assert_same_files(path("c1.safetensors"), path("c2.safetensors"));
    assert_int_equal(mkdir(path("elsewhere"), 0777), 0);
    assert_int_equal(rename(path("c.safetensors"), path("elsewhere/c.safetensors")), 0);
    refused(KVANT("decode", path("c.kvant"), "-o", path("c3.safetensors")), "c.safetensors");
    must(KVANT("decode", path("c.kvant"), "-o", path("c3.safetensors"), "--artifacts", path("elsewhere")));
    assert_same_files(path("c1.safetensors"), path("c3.safetensors"));
    center[3] += 1;
    assert_int_equal(kvant_safetensors_write(path("c.safetensors"), arrays, 3, &format, 1, &diag), KVANT_OK);
    refused(KVANT("decode", path("c.kvant"), "-o", path("c4.safetensors")), "artifact");
    assert_int_equal(unlink(path("elsewhere/c.safetensors")), 0);
    assert_int_equal(rmdir(path("elsewhere")), 0);
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

static void refuses_bad_input(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    const char *pipeline = ini("p.ini", "[pipeline]\nname = p\nblock_tokens = 64\nsinks = 4\n"
                                        "[layers]\nkey = kivi\nvalue = kivi\n");
    const char *saturate =
        ini("q.ini", "[pipeline]\nname = p\nblock_tokens = 64\nsinks = 4\non_nonfinite = saturate\n"
                     "[layers]\nkey = kivi\nvalue = kivi\n");
    unsigned before;
    d.model = NULL;
    kvant_test_dump_write(&d, path("m.safetensors"));
    before = kvant_test_file_count(kvant_test_directory());
    refused(KVANT("encode", pipeline, path("m.safetensors"), "-o", path("no.kvant")), "--model");
    must(KVANT("encode", pipeline, path("m.safetensors"), "-o", path("no.kvant"), "--model", "mine"));
    must(KVANT("decode", path("no.kvant"), "-o", path("no.safetensors")));
    kvant_dump *dump = open_dump(path("no.safetensors"));
    assert_string_equal(kvant_dump_geometry(dump)->model, "mine");
    kvant_dump_close(dump);
    before += 2;

    /* A NaN in a block, among the sinks, in the tail: named by place, or replaced. */
    static const struct {
        const char *tensor;
        uint32_t token;
        const char *part;
    } places[] = {{"layers.1.value", 70, "layer 1 value: token 6 (position 70), head 1, channel 7 is NaN"},
                  {"layers.2.key", 3, "layer 2 key: token 3 (position 3), head 1, channel 7 is NaN"},
                  {"layers.0.value", 149, "layer 0 value: position 149, head 1, channel 7 is not finite"}};
    for (unsigned i = 0; i < 3; i++) {
        d = kvant_test_dump_default();
        d.poisoned = places[i].tensor;
        d.token = places[i].token;
        d.head = 1;
        d.channel = 7;
        d.poison = NAN;
        kvant_test_dump_write(&d, path("m.safetensors"));
        refused(KVANT("encode", pipeline, path("m.safetensors"), "-o", path("nan.kvant")), places[i].part);
        kvant_assert_contains(err, "m.safetensors");
        assert_int_equal(access(path("nan.kvant"), F_OK), -1);
        must(KVANT("encode", saturate, path("m.safetensors"), "-o", path("sat.kvant")));
        kvant_assert_contains(out, "1 elements were not finite and were replaced");
        must(KVANT("decode", path("sat.kvant"), "-o", path("sat.safetensors")));
    }
    before += 2;

    assert_int_equal(KVANT("encode", "kivy", SAMPLES "sample.safetensors", "-o", path("no.kvant")), 3);
    kvant_assert_contains(err, "kivi"); /* and one line for each path that was tried */
    refused(KVANT("encode", path("none.ini"), SAMPLES "sample.safetensors", "-o", path("no.kvant")),
            "none.ini");
    refused(KVANT("encode", "kivi", path("none.safetensors"), "-o", path("no.kvant")), "none.safetensors");
    refused(KVANT("encode", "kivi", pipeline, "-o", path("no.kvant")), "p.ini");
    refused(KVANT("encode", "kivi", SAMPLES "sample.safetensors", "-o", "/nonexistent/x"), "/nonexistent/x");
    refused(KVANT("encode", "kivi", SAMPLES "sample.safetensors", "-o", "/dev/null"), "not a regular file");
    refused(KVANT("decode", SAMPLES "sample.safetensors", "-o", path("no.safetensors")),
            "not a file of records");
    refused(KVANT("decode", path("none.kvant"), "-o", path("no.safetensors")), "none.kvant");
    refused(KVANT("decode", path("no.kvant"), "-o", "/nonexistent/x"), "/nonexistent/x");
    assert_int_equal(kvant_test_file_count(kvant_test_directory()), before);

    assert_int_equal(KVANT("encode", "kivi", SAMPLES "sample.safetensors"), 2);
    assert_int_equal(KVANT("encode", "kivi", "-o", "x"), 2);
    assert_int_equal(KVANT("encode", "a", "b", "c", "-o", "x"), 2);
    assert_int_equal(KVANT("encode", "a", "b", "-o", "x", "--model", ""), 2);
    assert_int_equal(KVANT("encode", "a", "b", "--nothing"), 2);
    assert_int_equal(KVANT("encode", "a", "b", "-o"), 2);
    assert_int_equal(KVANT("decode", "a"), 2);
    assert_int_equal(KVANT("decode", "-o", "x"), 2);
    assert_int_equal(KVANT("decode", "a", "b", "-o", "x"), 2);
}

static void refuses_damaged_files(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    kvant_test_dump_write(&d, path("d.safetensors"));
    must(KVANT("encode", "kivi", path("d.safetensors"), "-o", path("d.kvant")));
    kvant_test_bytes good = kvant_test_read(path("d.kvant"));
    uint64_t seed = 3;
    for (unsigned i = 0; i < 40; i++) {
        size_t at = kvant_test_random(&seed) % good.size;
        kvant_test_bytes bad = kvant_test_cut(good, i % 4 == 3 ? at : good.size);
        if (i % 4 != 3) bad.bytes[at] ^= (unsigned char)(1u << i % 8);
        kvant_test_write(path("bad.kvant"), bad.bytes, bad.size);
        refused(KVANT("decode", path("bad.kvant"), "-o", path("bad.safetensors")), "bad.kvant");
        assert_int_equal(access(path("bad.safetensors"), F_OK), -1);
        free(bad.bytes);
    }
    free(good.bytes);
}

/* Records of one pipeline behind the description of another: what a new version of a codec looks like. */
static void refuses_another_scheme(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    kvant_test_dump_write(&d, path("d.safetensors"));
    const char *two = ini("two.ini", "[codec k]\nplugin = kivi\nbits = 2\n[layers]\nkey = k\nvalue = k\n");
    const char *four = ini("four.ini", "[codec k]\nplugin = kivi\nbits = 4\n[layers]\nkey = k\nvalue = k\n");
    must(KVANT("encode", two, path("d.safetensors"), "-o", path("two.kvant")));
    must(KVANT("encode", four, path("d.safetensors"), "-o", path("four.kvant")));
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_sequence_file *a = NULL, *b = NULL;
    kvant_file_writer *writer = NULL;
    assert_int_equal(kvant_sequence_file_open(path("two.kvant"), &a, &diag), KVANT_OK);
    assert_int_equal(kvant_sequence_file_open(path("four.kvant"), &b, &diag), KVANT_OK);
    kvant_record_part description = kvant_sequence_file_description(b);
    uint32_t count = kvant_sequence_file_count(a);
    assert_int_equal(kvant_sequence_file_create(path("mixed.kvant"), description.bytes,
                                                (size_t)description.size, count,
                                                kvant_sequence_file_tokens(a), &writer, &diag),
                     KVANT_OK);
    for (uint32_t i = 0; i < count; i++)
        kvant_file_writer_add(writer, kvant_sequence_file_record(a, i)->bytes,
                              (size_t)kvant_sequence_file_record(a, i)->size);
    assert_int_equal(kvant_file_writer_commit(writer, &diag), KVANT_OK);
    kvant_sequence_file_close(a);
    kvant_sequence_file_close(b);
    refused(KVANT("decode", path("mixed.kvant"), "-o", path("mixed.safetensors")), "another fingerprint");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_gives_everything_back),  cmocka_unit_test(any_number_of_tokens),
        cmocka_unit_test(codes_what_is_to_be_coded),  cmocka_unit_test(sinks_do_not_enter_the_statistics),
        cmocka_unit_test(codec_name_is_its_defaults), cmocka_unit_test(needs_its_artifact),
        cmocka_unit_test(refuses_bad_input),          cmocka_unit_test(refuses_damaged_files),
        cmocka_unit_test(refuses_another_scheme)};
    return kvant_run_tests(tests, argc, argv);
}
