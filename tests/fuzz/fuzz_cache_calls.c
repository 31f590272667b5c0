/* Calls on the cache, in whatever order the bytes say, against the model (tests/support/cache_machine.h).
 * The first byte is the setting, the second the room of the pool, each that follows a choice. */
#include "fuzz.h"

#include "support/cache_machine.h"

enum { OPERATIONS_MAX = 400 };

typedef struct bytes {
    const uint8_t *data;
    size_t size, at;
} bytes;

static uint32_t below(void *context, uint32_t limit) {
    bytes *b = context;
    uint32_t number = b->at < b->size ? b->data[b->at++] : 0;
    if (limit > 256) number = number << 8 | (b->at < b->size ? b->data[b->at++] : 0u);
    return number % limit;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    bytes b = {.data = data, .size = size, .at = 2};
    model_setting setting = model_settings[data[0] % model_setting_count];
    setting.blocks = 2 + setting.blocks * data[1] / 255;
    cache_machine *x = cache_machine_open(&setting, 0, below, &b);
    for (uint32_t i = 0; i < OPERATIONS_MAX && b.at < size; i++) cache_machine_operation(x);
    cache_machine_close(x);
    return 0;
}
