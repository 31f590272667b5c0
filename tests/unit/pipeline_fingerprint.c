/* Fingerprints: two spellings of one pipeline agree, every change of meaning shows, reading does not. */
#include "support/scratch.h"
#include "support/test.h"
#include "support/tester.h"

#include "base/text.h"
#include "data/digest.h"
#include "data/safetensors.h"

#include <kvant/kvant.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 5, DIM = 8 };

typedef struct model {
    kvant_geometry geometry;
    kvant_layer_geometry layers[LAYERS];
    kvant_rope rope[LAYERS];
    double frequency[LAYERS][DIM / 2];
} model;

/* Every layer has a RoPE of its own; the last one turns otherwise. */
static void make_model(model *m) {
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t i = 0; i < DIM / 2; i++)
            m->frequency[l][i] = (l + 1 == LAYERS ? 0.3 : 1.0) / (1 + 2 * i);
        m->rope[l] = (kvant_rope){.struct_size = sizeof m->rope[l],
                                  .style = KVANT_ROPE_NEOX,
                                  .rotary_dim = DIM,
                                  .magnitude = 1,
                                  .inverse_frequency = m->frequency[l]};
        m->layers[l] = (kvant_layer_geometry){.struct_size = sizeof m->layers[l],
                                              .kv_heads = 2,
                                              .q_heads = 4,
                                              .total_kv_heads = 4,
                                              .key_dim = DIM,
                                              .value_dim = DIM + 4,
                                              .rope = &m->rope[l]};
    }
    m->geometry = (kvant_geometry){.struct_size = sizeof m->geometry,
                                   .layer_count = LAYERS,
                                   .dtype = KVANT_DTYPE_F16,
                                   .layers = m->layers,
                                   .model = "model@1"};
}

static int setup(void **state) {
    (void)state;
    tester_register();
    tester = (tester_behaviour){0};
    return 0;
}

typedef struct print {
    char hex[65];
} print;

/* The fingerprint of a text on a model, held against the SHA-256 of its canonical text. */
static print print_on(const char *text, const kvant_geometry *geometry, const char *directory) {
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    uint8_t digest[32], again[32];
    const char *canonical = NULL;
    print p;
    if (kvant_pipeline_parse(text, strlen(text), "f.ini", directory, &pipeline, &diag) != KVANT_OK ||
        kvant_pipeline_resolve(pipeline, geometry, &plan, &diag) != KVANT_OK ||
        kvant_plan_fingerprint(plan, digest, &diag) != KVANT_OK ||
        kvant_plan_canonical(plan, &canonical, &diag) != KVANT_OK)
        fail_msg("%s\nline %d: %s", text, (int)diag.line, diag.message);
    assert_int_equal(kvant_sha256(canonical, strlen(canonical), again), KVANT_OK);
    assert_memory_equal(digest, again, 32);
    kvant_hex(digest, 32, p.hex);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    return p;
}

static print print_of(const char *text) {
    model m;
    make_model(&m);
    return print_on(text, &m.geometry, NULL);
}

/* ---- The canonical text -------------------------------------------------------------------------------- */

static void the_text_is_as_documented(void **state) {
    (void)state;
    static const char text[] =
        "[pipeline]\nsinks = 4\nrecent = 9\n[codec k]\nplugin = tester\nratio = 0.250\ntags = t\n"
        "[tags t]\nb = 2\na = 1\n[layers]\nkey = k\nvalue = tester\n[layers 1]\nkey = tester_keys\n";
    static const char want[] =
        "kvant-scheme/1\n"
        "model 7 model@1\n"
        "dtype f16\n"
        "keys after\n"
        "block_tokens 64\n"
        "sinks 4\n"
        "key_center none\n"
        "on_nonfinite error\n"
        "artifact none\n"
        "layers 2\n"
        "rope 0 neox rotary_dim=8 magnitude=1 1 0.5 0.1 0.015625\n"
        "layer 0 kv_heads=2 first_kv_head=1 total_kv_heads=4 q_heads=4 key_dim=8 value_dim=12 rope=0\n"
        "key \"TEST\" version=1 rope=after center=no bits=2 exact=yes group=32 meta=input ratio=0.25 "
        "tags={a=1,b=2}\n"
        "value \"TEST\" version=1 bits=2 exact=yes group=32 meta=input ratio=0.1 tags={}\n"
        "layer 1 kv_heads=2 first_kv_head=0 total_kv_heads=4 q_heads=4 key_dim=8 value_dim=12 rope=none\n"
        "key \"TESK\" version=2 rope=after center=no\n"
        "value \"TEST\" version=1 bits=2 exact=yes group=32 meta=input ratio=0.1 tags={}\n";
    model m;
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    const char *canonical = NULL;
    make_model(&m);
    memcpy(m.frequency[0], (double[]){1, 0.5, 0.1, 0.015625}, sizeof m.frequency[0]);
    m.geometry.layer_count = 2;
    m.layers[0].first_kv_head = 1;
    m.layers[1].rope = NULL;
    assert_int_equal(kvant_pipeline_parse(text, strlen(text), "f.ini", NULL, &pipeline, &diag), KVANT_OK);
    assert_int_equal(kvant_pipeline_resolve(pipeline, &m.geometry, &plan, &diag), KVANT_OK);
    assert_int_equal(kvant_plan_canonical(plan, &canonical, &diag), KVANT_OK);
    assert_string_equal(canonical, want);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
}

static void without_a_model_there_is_none(void **state) {
    (void)state;
    static const char text[] = "[layers]\nkey = tester\nvalue = tester\n";
    model m;
    uint8_t digest[32];
    const char *canonical = NULL;
    for (int empty = 0; empty < 2; empty++) {
        kvant_pipeline *pipeline = NULL;
        kvant_plan *plan = NULL;
        kvant_diag diag = {.struct_size = sizeof diag};
        make_model(&m);
        m.geometry.model = empty ? "" : NULL;
        assert_int_equal(kvant_pipeline_parse(text, strlen(text), "f.ini", NULL, &pipeline, &diag), KVANT_OK);
        assert_int_equal(kvant_pipeline_resolve(pipeline, &m.geometry, &plan, &diag), KVANT_OK);
        assert_int_equal(kvant_plan_fingerprint(plan, digest, &diag), KVANT_ERROR_MISSING);
        kvant_assert_contains(diag.message, "names no model");
        assert_int_equal(kvant_plan_canonical(plan, &canonical, &diag), KVANT_ERROR_MISSING);
        kvant_plan_free(plan);
        kvant_pipeline_free(pipeline);
    }
}

/* ---- Spellings ----------------------------------------------------------------------------------------- */

/* What a pipeline means: three codecs, and which one each layer and side uses. */
typedef struct meaning {
    uint8_t codec[LAYERS][2];
} meaning;

typedef struct writer {
    kvant_text text;
    uint64_t seed;
    const char *end; /* of a line */
} writer;

static uint64_t draw(writer *w, uint64_t below) {
    return kvant_test_random(&w->seed) % below;
}

static void blanks(writer *w) {
    static const char *const words[] = {"", " ", "\t", "  \t "};
    kvant_text_puts(&w->text, words[draw(w, 4)]);
}

/* The rest of a line, and now and then an empty line or a comment. */
static void end_line(writer *w) {
    if (draw(w, 4) == 0) kvant_text_puts(&w->text, " ; a comment, bits = 8 [layers]");
    blanks(w);
    kvant_text_puts(&w->text, w->end);
    if (draw(w, 4) == 0) kvant_text_printf(&w->text, "%s# [codec c0]%s", draw(w, 2) ? "  " : "", w->end);
    if (draw(w, 4) == 0) kvant_text_printf(&w->text, "\t%s", w->end);
}

static void put_key(writer *w, const char *key, const char *value) {
    kvant_text_puts(&w->text, key);
    blanks(w);
    kvant_text_puts(&w->text, "=");
    blanks(w);
    kvant_text_puts(&w->text, value);
    end_line(w);
}

/* `keys` in any order; those that only repeat a default, or do not count, may be left out. */
typedef struct spelled {
    const char *key, *value;
    bool optional;
} spelled;

static void put_keys(writer *w, const spelled *keys, uint32_t count) {
    bool done[16] = {false};
    for (uint32_t left = count; left > 0; left--) {
        uint32_t at = (uint32_t)draw(w, count);
        while (done[at]) at = (at + 1) % count;
        done[at] = true;
        if (!keys[at].optional || draw(w, 2) == 0) put_key(w, keys[at].key, keys[at].value);
    }
}

static void put_section(writer *w, int section, const char *const *names) {
    static const spelled head[] = {{"block_tokens", "64", true},    {"sinks", "3", false},
                                   {"recent", "17", true},          {"key_center", "none", true},
                                   {"on_nonfinite", "error", true}, {"name", "n", true},
                                   {"artifact", "none", true},      {"on_unsupported", "error", true}};
    static const spelled first[] = {{"plugin", "tester", false}, {"bits", "4", false},
                                    {"group", "32", true},       {"ratio", "0.1", true},
                                    {"attend", "int8", true},    {"tags", "t", false}};
    static const spelled first_too[] = {{"plugin", "tester", false}, {"bits", "4", false},
                                        {"ratio", "1e-1", false},    {"attend", "float", true},
                                        {"tags", "other", false},    {"later", "3", true}};
    static const spelled second[] = {
        {"plugin", "tester", false}, {"exact", "no", false}, {"meta", "input", true}};
    switch (section) {
    case 0:
        kvant_text_printf(&w->text, "[pipeline]%s", w->end);
        put_keys(w, head, 8);
        break;
    case 1:
        kvant_text_printf(&w->text, "[codec %s]%s", names[0], w->end);
        put_keys(w, draw(w, 2) ? first : first_too, 6);
        break;
    case 2:
        kvant_text_printf(&w->text, "[codec %s]%s", names[1], w->end);
        put_keys(w, second, 3);
        break;
    default:
        break;
    }
}

static void put_layer(writer *w, uint32_t layer) {
    kvant_text_printf(&w->text, "%d", draw(w, 2) ? (int)layer : (int)layer - LAYERS);
}

/* Layers [from, to], which use the same codecs, in a section of their own. */
static void put_layers(writer *w, const meaning *m, uint32_t from, uint32_t to, const char *const *names) {
    kvant_text_puts(&w->text, "[layers ");
    if (from < to && draw(w, 2) == 0) {
        for (uint32_t layer = from; layer <= to; layer++) {
            if (layer > from) kvant_text_puts(&w->text, draw(w, 2) ? ", " : " ");
            put_layer(w, layer);
        }
    } else {
        put_layer(w, from);
        if (from < to || draw(w, 4) == 0) {
            kvant_text_puts(&w->text, "-");
            put_layer(w, to);
        }
    }
    kvant_text_printf(&w->text, "]%s", w->end);
    spelled keys[2] = {{"key", names[m->codec[from][0]], false}, {"value", names[m->codec[from][1]], false}};
    put_keys(w, keys, 2);
}

static void put_all_layers(writer *w, const meaning *m, const char *const *names) {
    uint32_t first[LAYERS], last[LAYERS], count = 0;
    if (draw(w, 2) == 0) { /* overridden by all that follows */
        kvant_text_printf(&w->text, "[layers]%s", w->end);
        put_key(w, "key", names[draw(w, 3)]);
        put_key(w, "value", names[draw(w, 3)]);
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        bool same = layer > 0 && memcmp(m->codec[layer], m->codec[layer - 1], 2) == 0;
        if (same && draw(w, 2) == 0)
            last[count - 1] = layer;
        else
            first[count] = last[count] = layer, count++;
    }
    uint32_t at = (uint32_t)draw(w, count);
    for (uint32_t i = 0; i < count; i++)
        put_layers(w, m, first[(at + i) % count], last[(at + i) % count], names);
}

static char *spell(const meaning *m, uint64_t seed) {
    static const char *const name_sets[][3] = {
        {"k", "v", "tester_x"}, {"c1", "c0", "c2"}, {"zz", "aa", "tester_x"}};
    writer w = {.seed = seed, .end = seed % 3 == 0 ? "\r\n" : "\n"};
    const char *names[3];
    memcpy(names, name_sets[draw(&w, 3)], sizeof names);
    names[2] = "tester"; /* the plugin alone: its defaults */
    if (draw(&w, 4) == 0) kvant_text_puts(&w.text, "\xef\xbb\xbf");
    int order = (int)draw(&w, 3);
    for (int i = 0; i < 3; i++) put_section(&w, (order + i) % 3, names);
    bool other = w.text.data != NULL && strstr(w.text.data, "other") != NULL;
    bool tables_first = draw(&w, 2) == 0;
    if (!tables_first) put_all_layers(&w, m, names);
    kvant_text_printf(&w.text, "[tags %s]%s", other ? "other" : "t", w.end);
    static const spelled rows[] = {{"tool", "8", false}, {"user", "2", false}};
    put_keys(&w, rows, 2);
    if (tables_first) put_all_layers(&w, m, names);
    assert_false(w.text.failed);
    return w.text.data;
}

static void spellings_of_one_meaning_agree(void **state) {
    (void)state;
    uint64_t seed = 20240611;
    print seen[40];
    meaning meanings[40];
    for (uint32_t k = 0; k < 40; k++) {
        meaning m;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t side = 0; side < 2; side++)
                m.codec[l][side] = (uint8_t)(kvant_test_random(&seed) % 3);
        m.codec[0][0] = 0; /* every codec is used */
        m.codec[1][1] = 1;
        for (uint32_t round = 0; round < 60; round++) {
            char *text = spell(&m, kvant_test_random(&seed));
            print p = print_of(text);
            if (round == 0) seen[k] = p;
            if (strcmp(p.hex, seen[k].hex) != 0) fail_msg("another fingerprint:\n%s", text);
            free(text);
        }
        meanings[k] = m;
        for (uint32_t i = 0; i < k; i++)
            assert_int_equal(strcmp(seen[i].hex, seen[k].hex) == 0, memcmp(&meanings[i], &m, sizeof m) == 0);
    }
}

/* ---- Changes ------------------------------------------------------------------------------------------- */

/* One text with some lines exchanged. */
static char *with(const char *head, const char *codec, const char *table, const char *layers) {
    kvant_text text = {0};
    kvant_text_printf(
        &text,
        "[pipeline]\n%s\n[codec k]\nplugin = tester\ntags = t\n%s\n[tags t]\n%s\n[layers]\nkey = k\nvalue "
        "= k\n%s\n",
        head, codec, table, layers);
    return text.data;
}

static void changes_of_meaning_show(void **state) {
    (void)state;
    static const struct {
        const char *head, *codec, *table, *layers;
        bool changes;
    } cases[] = {{"", "", "a = 1\nb = 2", "", false},
                 {"name = y", "", "a = 1\nb = 2", "", false},
                 {"recent = 64", "", "a = 1\nb = 2", "", false},
                 {"on_unsupported = use tester", "", "a = 1\nb = 2", "", false},
                 {"", "attend = int8", "a = 1\nb = 2", "", false},
                 {"", "later = 3", "a = 1\nb = 2", "", false},
                 {"", "", "b = 2\na = 1", "", false},
                 {"", "", "a = 1\nb = 2", "[layers 2]\nkey = k", false},
                 {"block_tokens = 32", "", "a = 1\nb = 2", "", true},
                 {"sinks = 1", "", "a = 1\nb = 2", "", true},
                 {"on_nonfinite = saturate", "", "a = 1\nb = 2", "", true},
                 {"", "bits = 1", "a = 1\nb = 2", "", true},
                 {"", "bits = 3", "a = 1\nb = 2", "", true},
                 {"", "group = 31", "a = 1\nb = 2", "", true},
                 {"", "ratio = 0.10000000000000002", "a = 1\nb = 2", "", true},
                 {"", "ratio = -0.1", "a = 1\nb = 2", "", true},
                 {"", "meta = f32", "a = 1\nb = 2", "", true},
                 {"", "exact = no", "a = 1\nb = 2", "", true},
                 {"", "later = 4", "a = 1\nb = 2", "", true},
                 {"", "", "a = 2\nb = 2", "", true},
                 {"", "", "a = 1\nc = 2", "", true},
                 {"", "", "a = 1\nb = 2\nc = 0", "", true},
                 {"", "", "a = 1\nb = 2", "[layers 2]\nkey = tester", true},
                 {"", "", "a = 1\nb = 2", "[layers 2]\nvalue = tester", true},
                 {"", "", "a = 1\nb = 2", "[layers 3]\nvalue = tester", true},
                 {"", "", "a = 1\nb = 2", "[layers 2]\nkey = tester_keys", true}};
    print seen[sizeof cases / sizeof cases[0]];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = with(cases[i].head, cases[i].codec, cases[i].table, cases[i].layers);
        seen[i] = print_of(text);
        bool differs = strcmp(seen[i].hex, seen[0].hex) != 0;
        if (differs != cases[i].changes) fail_msg("case %zu: %s", i, text);
        for (size_t k = 0; k < i; k++)
            if (cases[i].changes && strcmp(seen[i].hex, seen[k].hex) == 0)
                fail_msg("cases %zu and %zu agree", i, k);
        free(text);
    }
}

static void changes_of_the_model_show(void **state) {
    (void)state;
    static const char text[] = "[layers]\nkey = tester\nvalue = tester\n";
    model m;
    print seen[32];
    size_t count = 0;
    make_model(&m);
    seen[count++] = print_on(text, &m.geometry, NULL);
#define CHANGES(change)                                                                                      \
    do {                                                                                                     \
        make_model(&m);                                                                                      \
        change;                                                                                              \
        seen[count] = print_on(text, &m.geometry, NULL);                                                     \
        for (size_t k = 0; k < count; k++) assert_string_not_equal(seen[k].hex, seen[count].hex);            \
        count++;                                                                                             \
    } while (0)
#define LEAVES(change)                                                                                       \
    do {                                                                                                     \
        make_model(&m);                                                                                      \
        change;                                                                                              \
        assert_string_equal(print_on(text, &m.geometry, NULL).hex, seen[0].hex);                             \
    } while (0)
    CHANGES(m.geometry.model = "model@2");
    CHANGES(m.geometry.model = "model@1\ndtype f16");
    CHANGES(m.geometry.dtype = KVANT_DTYPE_BF16);
    CHANGES(m.geometry.dtype = KVANT_DTYPE_F32);
    CHANGES(m.geometry.keys = KVANT_KEYS_BEFORE_ROPE);
    CHANGES(m.geometry.layer_count = 4);
    CHANGES(m.layers[1].first_kv_head = 1);
    CHANGES(m.layers[1].total_kv_heads = 3);
    CHANGES(m.layers[1].q_heads = 8);
    CHANGES((m.layers[1].kv_heads = 4, m.layers[1].q_heads = 4));
    CHANGES(m.layers[1].key_dim = 16);
    CHANGES(m.layers[1].value_dim = 16);
    CHANGES(m.layers[1].rope = NULL);
    CHANGES(m.rope[1].style = KVANT_ROPE_GPTJ);
    CHANGES(m.rope[1].rotary_dim = 6);
    CHANGES(m.rope[1].magnitude = 1.1);
    CHANGES(m.frequency[1][1] *= 1 + 0x1p-52);
    CHANGES(m.layers[1].rope = &m.rope[4]);
    LEAVES(m.layers[1].window = 512);
    LEAVES(m.layers[1].rope = &m.rope[0]); /* equal ones may be shared or not */
    LEAVES(m.rope[1].reserved = 7);
    /* On which side of RoPE a codec stores keys shows; that it happens to be lossless does not. */
    static const char keys[] = "[layers]\nkey = tester_keys\nvalue = tester\n";
    make_model(&m);
    print after = print_on(keys, &m.geometry, NULL);
    tester.flags = KVANT_LAYOUT_LOSSLESS;
    assert_string_equal(print_on(keys, &m.geometry, NULL).hex, after.hex);
    tester.flags = KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    print before = print_on("[layers]\nkey = tester_keys\nvalue = raw\n", &m.geometry, NULL);
    tester.flags = 0;
    assert_string_not_equal(print_on("[layers]\nkey = tester_keys\nvalue = raw\n", &m.geometry, NULL).hex,
                            before.hex);
}

static void the_artifact_shows(void **state) {
    (void)state;
    static const char text[] =
        "[pipeline]\nartifact = a.safetensors\n[layers]\nkey = tester\nvalue = tester\n";
    static const char centred[] = "[pipeline]\nartifact = a.safetensors\nkey_center = "
                                  "artifact\n[layers]\nkey = tester\nvalue = tester\n";
    char *folder = kvant_scratch_make(), *file = kvant_scratch_path(folder, "a.safetensors");
    model m;
    print seen[3];
    make_model(&m);
    for (int round = 0; round < 3; round++) {
        float means[2 * DIM] = {0};
        char names[LAYERS][32];
        kvant_array arrays[LAYERS];
        kvant_metadata metadata = {"format", "kvant-artifact/1"};
        kvant_diag diag = {.struct_size = sizeof diag};
        means[3] = round == 1 ? 1.0f : 0.0f;
        for (uint32_t l = 0; l < LAYERS; l++) {
            m.layers[l].total_kv_heads = 2;
            (void)snprintf(names[l], sizeof names[l], "layers.%u.key.center", l);
            arrays[l] = (kvant_array){.name = names[l],
                                      .data = means,
                                      .shape = {2, DIM},
                                      .rank = 2,
                                      .dtype = KVANT_DTYPE_F32,
                                      .bytes = sizeof means};
        }
        assert_int_equal(kvant_safetensors_write(file, arrays, LAYERS, &metadata, 1, &diag), KVANT_OK);
        seen[round] = print_on(text, &m.geometry, folder);
        assert_string_not_equal(seen[round].hex, print_on(centred, &m.geometry, folder).hex);
    }
    assert_string_equal(seen[0].hex, seen[2].hex);
    assert_string_not_equal(seen[0].hex, seen[1].hex);
    assert_string_not_equal(
        seen[0].hex,
        print_on(strchr(text, '\n') + 1 + strlen("artifact = a.safetensors\n"), &m.geometry, folder).hex);
    free(file);
    kvant_scratch_remove(folder);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_text_is_as_documented, setup),
        cmocka_unit_test_setup(without_a_model_there_is_none, setup),
        cmocka_unit_test_setup(spellings_of_one_meaning_agree, setup),
        cmocka_unit_test_setup(changes_of_meaning_show, setup),
        cmocka_unit_test_setup(changes_of_the_model_show, setup),
        cmocka_unit_test_setup(the_artifact_shows, setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
