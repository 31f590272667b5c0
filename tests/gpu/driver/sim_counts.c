/* What kernels cost, as a table: one line for each, in the order of their names. */
#include "sim_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_memory(ptx_memory_counters *to, const ptx_memory_counters *c) {
    to->instructions += c->instructions;
    to->bytes += c->bytes;
    to->sectors += c->sectors;
    to->block_sectors += c->block_sectors;
}

static void add_shared(ptx_shared_counters *to, const ptx_shared_counters *c) {
    to->instructions += c->instructions;
    to->bytes += c->bytes;
    to->wavefronts += c->wavefronts;
    to->ideal += c->ideal;
}

void sim_counts_add(gpu_function to, uint64_t launches, uint64_t blocks, const ptx_counters *c) {
    ptx_counters *sums = &to->sums;
    to->launches += launches;
    to->blocks += blocks;
    sums->warp_instructions += c->warp_instructions;
    sums->thread_instructions += c->thread_instructions;
    for (uint32_t i = 0; i < PTX_CLASSES; i++) sums->by_class[i] += c->by_class[i];
    add_memory(&sums->load, &c->load);
    add_memory(&sums->store, &c->store);
    add_memory(&sums->atomic, &c->atomic);
    add_shared(&sums->shared_load, &c->shared_load);
    add_shared(&sums->shared_store, &c->shared_store);
    add_shared(&sums->shared_atomic, &c->shared_atomic);
    add_shared(&sums->matrix, &c->matrix);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const gpu_function *)a)->name, (*(const gpu_function *)b)->name);
}

static void put_line(FILE *out, const struct CUfunc_st *f) {
    const ptx_counters *c = &f->sums;
    uint64_t wavefronts = c->shared_load.wavefronts + c->shared_store.wavefronts +
                          c->shared_atomic.wavefronts + c->matrix.wavefronts;
    uint64_t ideal = c->shared_load.ideal + c->shared_store.ideal + c->shared_atomic.ideal + c->matrix.ideal;
    const uint64_t columns[] = {f->launches,          f->blocks,
                                c->warp_instructions, c->by_class[PTX_CLASS_MMA],
                                c->load.sectors,      c->load.block_sectors,
                                c->store.sectors,     c->atomic.sectors,
                                wavefronts,           ideal};
    (void)fputs(f->name, out);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        (void)fprintf(out, "\t%llu", (unsigned long long)columns[i]);
    (void)fputc('\n', out);
}

char *sim_counts(void) {
    char *text = NULL;
    size_t size = 0, count = 0;
    for (gpu_library l = sim.libraries; l != NULL; l = l->next)
        for (gpu_function f = l->functions; f != NULL; f = f->next) count += f->launches != 0;
    gpu_function *functions = calloc(count + 1, sizeof(gpu_function));
    FILE *out = functions != NULL ? open_memstream(&text, &size) : NULL;
    if (out == NULL) {
        free(functions);
        return NULL;
    }
    count = 0;
    for (gpu_library l = sim.libraries; l != NULL; l = l->next)
        for (gpu_function f = l->functions; f != NULL; f = f->next)
            if (f->launches != 0) functions[count++] = f;
    qsort(functions, count, sizeof(gpu_function), by_name);
    (void)fputs("kernel\tlaunches\tblocks\twarp_instructions\tmma\tload_sectors\tload_block_sectors\t"
                "store_sectors\tatomic_sectors\tshared_wavefronts\tshared_wavefronts_ideal\n",
                out);
    for (size_t i = 0; i < count; i++) {
        /* The same kernel of a library that was loaded again. */
        struct CUfunc_st sum = *functions[i];
        for (; i + 1 < count && strcmp(functions[i + 1]->name, sum.name) == 0; i++)
            sim_counts_add(&sum, functions[i + 1]->launches, functions[i + 1]->blocks,
                           &functions[i + 1]->sums);
        put_line(out, &sum);
    }
    (void)fprintf(out, "# device memory: %llu bytes at most, %llu at the end in %u allocations\n",
                  (unsigned long long)sim.totals.bytes_most, (unsigned long long)sim.totals.bytes,
                  sim.totals.allocations);
    free(functions);
    (void)fclose(out);
    return text;
}
