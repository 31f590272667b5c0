/* See numbers.h. */
#include "numbers.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

kvant_status kvant_numbers_read(const char *text, bool whole, double low, double high,
                                kvant_numbers *numbers) {
    *numbers = (kvant_numbers){0};
    size_t length = strlen(text);
    char *bracketed = malloc(length + 3);
    if (bracketed == NULL) return KVANT_ERROR_MEMORY;
    bracketed[0] = '[';
    memcpy(bracketed + 1, text, length);
    memcpy(bracketed + length + 1, "]", 2);
    json_t *array = json_loads(bracketed, 0, NULL);
    free(bracketed);
    kvant_status status = KVANT_OK;
    size_t count = json_array_size(array); /* 0 also for what is no JSON */
    numbers->values = calloc(count + 1, sizeof *numbers->values);
    if (numbers->values == NULL) status = KVANT_ERROR_MEMORY;
    if (count == 0 && status == KVANT_OK) status = KVANT_ERROR_VALUE;
    for (size_t i = 0; i < count && status == KVANT_OK; i++) {
        const json_t *item = json_array_get(array, i);
        double value = json_number_value(item);
        if (!json_is_number(item) || (whole && !json_is_integer(item)) || !(value >= low) || !(value <= high))
            status = KVANT_ERROR_VALUE;
        numbers->values[i] = value;
    }
    numbers->count = count;
    json_decref(array);
    if (status != KVANT_OK) kvant_numbers_free(numbers);
    return status;
}

void kvant_numbers_free(kvant_numbers *numbers) {
    free(numbers->values);
    *numbers = (kvant_numbers){0};
}

double kvant_numbers_at(const kvant_numbers *numbers, size_t index, double absent) {
    if (numbers->count == 0) return absent;
    return numbers->values[numbers->count == 1 ? 0 : index];
}
