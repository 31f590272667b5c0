/* See eval_run.h: layers shared out among threads. */
#include "measure/eval_run.h"

#include "base/parallel.h"
#include "measure/eval_device.h"
#include "measure/eval_layer.h"

#include <kvant/kit/diag.h>

#include <pthread.h>
#include <stdlib.h>

typedef struct eval_run {
    eval_job job;
    const kvant_eval_options *options;
    kvant_eval *eval;
    pthread_mutex_t lock; /* guards what follows */
    uint32_t layers_done;
    uint32_t failed_layer; /* UINT32_MAX = none */
    kvant_diag diag;       /* of the failed layer */
} eval_run;

static kvant_status one_layer(void *context, uint32_t layer, uint32_t thread) {
    eval_run *run = context;
    (void)thread;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = eval_layer(&run->job, layer, &run->eval->layers[layer], &diag);
    pthread_mutex_lock(&run->lock);
    if (status != KVANT_OK && layer < run->failed_layer) {
        run->failed_layer = layer;
        run->diag = diag;
    }
    run->layers_done++;
    if (status == KVANT_OK && run->options->progress != NULL)
        run->options->progress(run->options->context, run->layers_done, run->eval->layer_count);
    pthread_mutex_unlock(&run->lock);
    return status;
}

/* As many threads as were asked for, if their memory allows. */
static uint32_t affordable_threads(const eval_job *job, uint32_t layers, uint32_t threads) {
    size_t largest = 1;
    for (uint32_t layer = 0; layer < layers; layer++) {
        size_t bytes = eval_layer_bytes(job, layer);
        if (bytes > largest) largest = bytes;
    }
    size_t most = KVANT_EVAL_MEMORY / largest;
    threads = kvant_parallel_threads(threads);
    if (threads > layers) threads = layers;
    if (threads > most) threads = (uint32_t)most;
    return threads > 0 ? threads : 1;
}

static kvant_eval *new_eval(const eval_job *job) {
    const kvant_dump_info *info = kvant_dump_describe(job->dump);
    kvant_eval *eval = calloc(1, sizeof *eval);
    if (eval == NULL) return NULL;
    eval->layer_count = kvant_dump_geometry(job->dump)->layer_count;
    eval->tokens = info->tokens;
    eval->coded_tokens = job->blocks.tail_first - job->blocks.sinks;
    eval->query_tokens = info->has_queries ? info->query_tokens : 0;
    eval->block_tokens = job->info.block_tokens;
    eval->sinks = job->info.sinks;
    eval->recent = job->info.recent;
    eval->has_divergence = info->has_queries && info->has_keys;
    eval->has_output_error = eval->has_divergence && info->has_values;
    eval->layers = calloc(eval->layer_count + (size_t)1, sizeof *eval->layers);
    if (eval->layers == NULL) {
        free(eval);
        return NULL;
    }
    return eval;
}

kvant_status kvant_eval_run(const kvant_plan *plan, const kvant_dump *dump, const kvant_eval_options *options,
                            kvant_eval **result, kvant_diag *diag) {
    eval_run run = {.job = {.plan = plan,
                            .dump = dump,
                            .info = {.struct_size = sizeof run.job.info},
                            .device = options->device},
                    .options = options,
                    .failed_layer = UINT32_MAX};
    *result = NULL;
    kvant_status status = kvant_plan_describe(plan, &run.job.info);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "this plan cannot be described");
    const kvant_plan_info *info = &run.job.info;
    if (info->geometry->layer_count != kvant_dump_geometry(dump)->layer_count)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "the plan is for %u layers, and the dump has %u",
                          info->geometry->layer_count, kvant_dump_geometry(dump)->layer_count);
    run.job.blocks =
        kvant_blocks_split(kvant_dump_describe(dump)->tokens, info->block_tokens, info->sinks, 0);
    run.eval = new_eval(&run.job);
    if (run.eval == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for the results");
    run.eval->on_device = options->device != NULL;
    run.eval->threads = affordable_threads(&run.job, run.eval->layer_count, options->threads);
    if (options->device != NULL && run.eval->threads > EVAL_DEVICE_THREADS)
        run.eval->threads = EVAL_DEVICE_THREADS;
    pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
    run.job.device_lock = &device_lock;
    pthread_mutex_init(&run.lock, NULL);
    status = kvant_parallel_for(run.eval->threads, run.eval->layer_count, one_layer, &run);
    pthread_mutex_destroy(&run.lock);
    if (status != KVANT_OK) {
        kvant_eval_free(run.eval);
        if (diag != NULL && diag->struct_size >= sizeof *diag) *diag = run.diag;
        return status;
    }
    *result = run.eval;
    return KVANT_OK;
}

void kvant_eval_free(kvant_eval *eval) {
    if (eval == NULL) return;
    for (uint32_t layer = 0; layer < eval->layer_count; layer++) free(eval->layers[layer].heads);
    free(eval->layers);
    free(eval);
}
