/* See tag_classes.h. */
#include "tag_classes.h"

#include <stdbool.h>

/* Splits the classes so far by one codec's: tags stay together only where both agree. */
static void refine(unsigned char classes[256], const unsigned char other[256]) {
    unsigned char refined[256];
    for (unsigned tag = 0; tag < 256; tag++) {
        unsigned like = 0;
        while (classes[like] != classes[tag] || other[like] != other[tag]) like++;
        refined[tag] = (unsigned char)like;
    }
    for (unsigned tag = 0; tag < 256; tag++) classes[tag] = refined[tag];
}

kvant_status kvant_tag_classes(const kvant_plan *plan, unsigned char classes[256]) {
    kvant_plan_info info = {.struct_size = sizeof info};
    kvant_status status = kvant_plan_describe(plan, &info);
    for (unsigned tag = 0; tag < 256; tag++) classes[tag] = 0;
    for (uint32_t layer = 0; status == KVANT_OK && layer < info.geometry->layer_count; layer++)
        for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++) {
            kvant_row row = {.struct_size = sizeof row};
            status = kvant_plan_row(plan, layer, side, &row);
            if (status == KVANT_OK) refine(classes, row.layout->tag_class);
        }
    return status;
}
