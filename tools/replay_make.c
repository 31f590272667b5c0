/* See replay_make.h. */
#include "replay_make.h"

#include "command.h"

#include "replay/trace_of_dump.h"
#include "replay/traffic.h"

#include <string.h>

int replay_generate(const char *numbers, const char *output) {
    kvant_traffic traffic;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_traffic_parse(numbers, &traffic, &diag) != KVANT_OK)
        return usage_error("replay", "--generate: %s", diag.message);
    kvant_status status = kvant_traffic_write(&traffic, output, &diag);
    return status == KVANT_OK ? EXIT_DONE : input_error(&diag, status);
}

int replay_from_dump(const char *file, const char *output) {
    kvant_dump *dump = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = kvant_dump_open(file, &dump, &diag);
    if (status == KVANT_OK) status = kvant_trace_of_dump(dump, output, &diag);
    kvant_dump_close(dump);
    return status == KVANT_OK ? EXIT_DONE : input_error(&diag, status);
}
