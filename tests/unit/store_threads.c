/* One handle, many threads: put, get, remove, iterate and describe at once. For ThreadSanitizer. */
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { THREADS = 4, RECORDS = 24, ROUNDS = 150 };

typedef struct worker {
    kvant_store *store;
    const test_record *records;
    uint64_t seed;
    uint64_t found, put, strange;
} worker;

static kvant_status count(void *context, const kvant_store_entry *entry) {
    *(uint64_t *)context += entry->bytes > 0;
    return KVANT_OK;
}

static void *work(void *context) {
    worker *w = context;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t random = kvant_test_random(&w->seed);
        const test_record *r = &w->records[random % RECORDS];
        switch (random >> 32 & 7) {
        case 0:
            (void)kvant_store_remove(w->store, &r->key, NULL);
            break;
        case 1: {
            uint64_t listed = 0;
            if (kvant_store_iterate(w->store, count, &listed, NULL) != KVANT_OK) w->strange++;
            break;
        }
        case 2:
            (void)test_store_stats(w->store);
            break;
        case 3:
        case 4:
            if (kvant_store_put(w->store, &r->key, r->bytes, r->size, NULL) == KVANT_OK)
                w->put++;
            else
                w->strange++;
            break;
        default: {
            uint32_t reason = test_store_ask(w->store, r);
            w->found += reason == KVANT_STORE_FOUND;
            w->strange += reason != KVANT_STORE_FOUND && reason != KVANT_STORE_ABSENT;
        }
        }
    }
    return NULL;
}

static void many_threads(void **state) {
    (void)state;
    test_record records[RECORDS];
    for (uint32_t i = 0; i < RECORDS; i++)
        records[i] = test_record_make(i, &(test_record_wish){.payload = 100 + 1000 * (i % 5)});
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        kvant_store *store = test_store_open(kind, directory, 8 << 20, kind);
        worker workers[THREADS];
        pthread_t threads[THREADS];
        uint64_t found = 0, put = 0;
        for (uint32_t i = 0; i < THREADS; i++) {
            workers[i] = (worker){.store = store, .records = records, .seed = i + 1};
            assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        }
        for (uint32_t i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(workers[i].strange, 0);
            found += workers[i].found;
            put += workers[i].put;
        }
        kvant_store_stats stats = test_store_stats(store);
        assert_int_equal(stats.hits, found);
        assert_int_equal(stats.puts, put);
        assert_true(found > 50 && put > 50);
        uint64_t listed = 0;
        assert_int_equal(kvant_store_iterate(store, count, &listed, NULL), KVANT_OK);
        assert_int_equal(listed, stats.records);
        kvant_store_close(store);
        free(directory);
        kvant_scratch_remove(folder);
    }
    for (uint32_t i = 0; i < RECORDS; i++) test_record_free(&records[i]);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(many_threads)};
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
