/* One session of calibration on rows of the check's own. See check_learn.h. */
#include "check_learn.h"

#include "data/blocks.h"
#include "oracle.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 512, QUERIES = 64, PASSES = 8, SINKS = 3, TAG_RUN = 9 };

/* Dense rows of one kind, in the dtype of the setup. */
typedef struct text_rows {
    unsigned char *bytes;
    kvant_view view;
} text_rows;

typedef struct collector {
    check_worker *worker;
    check_case *c;
    uint32_t layer, side;
} collector;

static void rows_fill(text_rows *t, check_data data, uint32_t dtype, uint32_t tokens, uint32_t heads,
                      uint32_t dim, check_random *random, bool zeros) {
    size_t count = (size_t)tokens * heads * dim, width = kvant_element_bytes(dtype);
    float *values = calloc(count + 1, sizeof *values);
    t->bytes = malloc(count * width + 1);
    if (values == NULL || t->bytes == NULL) check_out_of_memory();
    if (!zeros) check_data_fill(data, dtype, tokens, heads, dim, random, values);
    for (size_t i = 0; i < count; i++) kvant_store_element(t->bytes + i * width, dtype, values[i]);
    t->view = kvant_rows_view(t->bytes, dtype, tokens, heads, dim);
    free(values);
}

/* ---- Tensors that come out ----------------------------------------------------------------------------- */

static void refuse_tensor(const collector *to, const kvant_array *tensor, const char *why) {
    check_fail(to->worker, CHECK_CALIBRATE, "calibrate hands over a tensor \"%.64s\" %s",
               tensor->name != NULL ? tensor->name : "NULL", why);
}

static void take_tensor(void *context, uint32_t layer, uint32_t side, const kvant_array *tensor) {
    const collector *to = context;
    check_case *c = to->c;
    if (layer != to->layer || side != to->side) {
        refuse_tensor(to, tensor, "for a layer and side that it was not asked for");
        return;
    }
    if (tensor->name == NULL || tensor->name[0] == '\0' || strlen(tensor->name) >= CHECK_ARRAY_NAME) {
        refuse_tensor(to, tensor, "without a name, or with one of more than 63 characters");
        return;
    }
    uint32_t at = c->setup.tensor_count;
    if (at == CHECK_ARRAYS || tensor->rank > KVANT_RANK_MAX || (tensor->bytes > 0 && tensor->data == NULL)) {
        refuse_tensor(to, tensor, "that is one too many, has too many dimensions or no data");
        return;
    }
    kvant_array copy = *tensor;
    void *data = malloc((size_t)tensor->bytes + 1);
    if (data == NULL) check_out_of_memory();
    if (tensor->bytes > 0) memcpy(data, tensor->data, (size_t)tensor->bytes);
    copy.data = data;
    copy.name = strdup(tensor->name);
    if (copy.name == NULL) check_out_of_memory();
    for (; at > 0 && strcmp(c->arrays[at - 1].name, copy.name) > 0; at--) c->arrays[at] = c->arrays[at - 1];
    if (at > 0 && strcmp(c->arrays[at - 1].name, copy.name) == 0) refuse_tensor(to, tensor, "twice");
    c->arrays[at] = copy;
    c->setup.tensors = c->arrays;
    c->setup.tensor_count++;
}

/* ---- The session --------------------------------------------------------------------------------------- */

static void call_begin(check_worker *worker) {
    atomic_store(&worker->slot->call, CHECK_CALL_CALIBRATE);
    atomic_fetch_add(&worker->slot->beat, 1);
}

static kvant_status run_session(check_worker *worker, const kvant_calibrate *calibrate,
                                const kvant_setup *setup, const kvant_sample *sample, collector *to,
                                kvant_diag *diag) {
    void *session = NULL;
    call_begin(worker);
    kvant_status status = calibrate->begin(&setup, 1, &session, diag);
    if (status != KVANT_OK) return status;
    uint32_t again = 1;
    for (uint32_t pass = 0; status == KVANT_OK && again; pass++) {
        if (pass == PASSES) {
            check_fail(worker, CHECK_CALIBRATE, "calibrate asks for the samples again and again");
            break;
        }
        call_begin(worker);
        if (sample != NULL) status = calibrate->feed(session, sample, diag);
        again = 0;
        if (status == KVANT_OK) status = calibrate->again(session, &again, diag);
    }
    call_begin(worker);
    if (status == KVANT_OK) status = calibrate->end(session, take_tensor, to, diag);
    calibrate->free(session);
    return status;
}

static kvant_sample make_sample(const kvant_setup *setup, const text_rows parts[3], const uint8_t *tags,
                                uint32_t tokens, uint32_t queries) {
    return (kvant_sample){.struct_size = sizeof(kvant_sample),
                          .layer = setup->layer,
                          .keys = &parts[0].view,
                          .values = &parts[1].view,
                          .queries = &parts[2].view,
                          .tags = tags,
                          .sinks = tokens > SINKS ? SINKS : 0,
                          .query_position = tokens - queries,
                          .logit_scale = 0.125};
}

kvant_status check_calibrate_case(check_worker *worker, check_case *c, check_text text, kvant_diag *diag) {
    const kvant_calibrate *calibrate = check_call_extension(worker, KVANT_EXT_CALIBRATE);
    if (calibrate == NULL) return KVANT_ERROR_MISSING;
    check_case_free_arrays(c);
    kvant_setup setup = c->setup;
    setup.first_kv_head = 0;
    setup.kv_heads = setup.total_kv_heads;
    setup.q_heads = 2 * setup.total_kv_heads;
    bool zeros = text == CHECK_TEXT_ZEROS;
    uint32_t tokens = text == CHECK_TEXT_SHORT ? 1 : TOKENS, queries = text == CHECK_TEXT_SHORT ? 1 : QUERIES;
    check_data data = check_data_is_ordinary(c->data) ? c->data : CHECK_DATA_NORMAL;
    check_random random = check_random_stream(c->seed, 4242);
    text_rows parts[3];
    for (uint32_t side = 0; side < 2; side++)
        rows_fill(&parts[side], data, setup.dtype, tokens, setup.kv_heads, setup.head_dim, &random, zeros);
    rows_fill(&parts[2], CHECK_DATA_NORMAL, setup.dtype, queries, setup.q_heads, setup.head_dim, &random,
              zeros);
    if (text == CHECK_TEXT_NAN) {
        size_t middle = ((size_t)tokens / 2 * setup.kv_heads) * setup.head_dim;
        kvant_store_element(parts[setup.side].bytes + middle * kvant_element_bytes(setup.dtype), setup.dtype,
                            NAN);
    }
    uint8_t tags[TOKENS];
    for (uint32_t t = 0; t < TOKENS; t++) tags[t] = (uint8_t)(t / TAG_RUN % 56);
    const kvant_sample sample = make_sample(&setup, parts, tags, tokens, queries);
    collector to = {worker, c, setup.layer, setup.side};
    kvant_status status =
        run_session(worker, calibrate, &setup, text == CHECK_TEXT_NONE ? NULL : &sample, &to, diag);
    atomic_store(&worker->slot->call, CHECK_CALL_NONE);
    for (uint32_t i = 0; i < 3; i++) free(parts[i].bytes);
    return status;
}

kvant_status check_learn(check_worker *worker, check_case *c, kvant_diag *diag) {
    const oracle *formula = oracle_find(worker->plugin->descriptor);
    kvant_array arrays[ORACLE_ARRAYS];
    if (formula == NULL || formula->learn == NULL)
        return check_calibrate_case(worker, c, CHECK_TEXT_ORDINARY, diag);
    uint32_t count = formula->learn(worker->plugin->descriptor, &c->setup, arrays);
    if (count == 0) return KVANT_ERROR_MISSING;
    check_case_set_arrays(c, arrays, count);
    return KVANT_OK;
}
