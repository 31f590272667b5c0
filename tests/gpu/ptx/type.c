/* Names and widths of PTX's types. */
#include "code.h"

#include <string.h>

static const struct {
    const char *name;
    uint8_t bits, is_signed, is_float;
} types[PTX_TYPES] = {
    [PTX_NONE] = {"", 0, 0, 0},
    [PTX_PRED] = {"pred", 1, 0, 0},
    [PTX_B8] = {"b8", 8, 0, 0},
    [PTX_U8] = {"u8", 8, 0, 0},
    [PTX_S8] = {"s8", 8, 1, 0},
    [PTX_B16] = {"b16", 16, 0, 0},
    [PTX_U16] = {"u16", 16, 0, 0},
    [PTX_S16] = {"s16", 16, 1, 0},
    [PTX_F16] = {"f16", 16, 0, 1},
    [PTX_BF16] = {"bf16", 16, 0, 1},
    [PTX_B32] = {"b32", 32, 0, 0},
    [PTX_U32] = {"u32", 32, 0, 0},
    [PTX_S32] = {"s32", 32, 1, 0},
    [PTX_F32] = {"f32", 32, 0, 1},
    [PTX_TF32] = {"tf32", 32, 0, 1},
    [PTX_F16X2] = {"f16x2", 32, 0, 1},
    [PTX_BF16X2] = {"bf16x2", 32, 0, 1},
    [PTX_U16X2] = {"u16x2", 32, 0, 0},
    [PTX_S16X2] = {"s16x2", 32, 1, 0},
    [PTX_B64] = {"b64", 64, 0, 0},
    [PTX_U64] = {"u64", 64, 0, 0},
    [PTX_S64] = {"s64", 64, 1, 0},
    [PTX_F64] = {"f64", 64, 0, 1},
    [PTX_B128] = {"b128", 128, 0, 0},
    [PTX_S4] = {"s4", 4, 1, 0},
    [PTX_U4] = {"u4", 4, 0, 0},
    [PTX_B1] = {"b1", 1, 0, 0},
    [PTX_E4M3] = {"e4m3", 8, 0, 1},
    [PTX_E5M2] = {"e5m2", 8, 0, 1},
    [PTX_E2M1] = {"e2m1", 4, 0, 1},
    [PTX_E2M3] = {"e2m3", 8, 0, 1},
    [PTX_E3M2] = {"e3m2", 8, 0, 1},
    [PTX_UE8M0] = {"ue8m0", 8, 0, 1},
    [PTX_E4M3X2] = {"e4m3x2", 16, 0, 1},
    [PTX_E5M2X2] = {"e5m2x2", 16, 0, 1},
    [PTX_E2M1X2] = {"e2m1x2", 8, 0, 1},
    [PTX_E2M3X2] = {"e2m3x2", 16, 0, 1},
    [PTX_E3M2X2] = {"e3m2x2", 16, 0, 1},
    [PTX_UE8M0X2] = {"ue8m0x2", 16, 0, 1},
};

uint32_t ptx_type_bits(ptx_type type) {
    return types[type].bits;
}

bool ptx_type_is_signed(ptx_type type) {
    return types[type].is_signed;
}

bool ptx_type_is_float(ptx_type type) {
    return types[type].is_float;
}

const char *ptx_type_name(ptx_type type) {
    return types[type].name;
}

ptx_type ptx_type_of(const char *word) {
    for (uint32_t i = 1; i < PTX_TYPES; i++)
        if (strcmp(types[i].name, word) == 0) return (ptx_type)i;
    return PTX_NONE;
}
