/* Lie: the bytes depend on the thread: the first one that encodes gets others than all that follow. */
#include "honest.h"

#include <stdatomic.h>
#include <stdbool.h>

static kvant_status encode(const void *state, kvant_encode_args *args) {
    static _Thread_local char here;
    static _Atomic uintptr_t first;
    uintptr_t none = 0;
    kvant_status status = honest_encode(state, args);
    bool is_first =
        atomic_compare_exchange_strong(&first, &none, (uintptr_t)&here) || none == (uintptr_t)&here;
    if (!is_first) ((uint8_t *)args->extent)[honest_codes(state)] ^= 1;
    return status;
}

LIAR("lie_thread", .encode = encode)
