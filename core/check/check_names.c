/* The checks by name, each with the promise that it puts to the test. */
#include "check.h"

#include <string.h>

static const struct {
    const char *name;
    const char *promise;
} checks[CHECK_COUNT] = {
    [CHECK_LOAD] = {"load", "loads in a process of its own and passes the loader's vetting"},
    [CHECK_DESCRIPTOR] = {"descriptor", "the descriptor is constant, complete and agrees with itself"},
    [CHECK_EXPORTS] =
        {"exports", "exports kvant_plugin_query alone, needs nothing of the core, has no thread-local data"},
    [CHECK_EXTENSION] = {"extension",
                         "extension() knows its own ids, answers NULL to others and fills its tables"},
    [CHECK_HEAD_DIMS] = {"head-dims", "every head_dim that the descriptor promises can be planned"},
    [CHECK_OPTIONS] = {"options",
                       "every value of a parameter changes bytes or floats; reading parameters never do"},
    [CHECK_BANDS] = {"bands", "the error on standard data lies in the published band"},
    [CHECK_PLAN] = {"plan", "plan is pure, refuses with a reason, and leaves the diag alone on success"},
    [CHECK_LAYOUT] = {"layout",
                      "sizes, bits and alignments agree; only the allowed members depend on isa and reading"},
    [CHECK_BLOCKS] = {"blocks", "multiples of block_multiple are accepted, others refused as BLOCK_TOKENS"},
    [CHECK_OPEN] = {"open", "open succeeds on what plan accepted, or names the artifact that is missing"},
    [CHECK_CALIBRATE] = {"calibrate",
                         "same samples, same tensors; zeros, NaN and too few tokens are refused"},
    [CHECK_ENCODE] =
        {"encode", "encode succeeds, chooses a size of the layout, writes every byte of it and none beyond"},
    [CHECK_DECODE] = {"decode", "decode succeeds and writes every element it was asked for and nothing else"},
    [CHECK_FINITE] = {"finite", "finite rows come back finite"},
    [CHECK_LOSSLESS] = {"lossless", "a layout that says lossless gives back the very bits"},
    [CHECK_ERROR] = {"error", "the error is that of the formula: neither larger nor smaller"},
    [CHECK_BITS] = {"bits", "no more bits carry information than payload_bits and metadata_bits say"},
    [CHECK_REPEAT] = {"repeat", "same rows, same bytes: whatever lay in extent, scratch and output before"},
    [CHECK_VIEWS] = {"views", "same bytes and floats whatever the strides and the alignment of the rows"},
    [CHECK_SLICES] = {"slices", "any range of tokens and heads decodes to the same floats as the whole"},
    [CHECK_ROUNDING] = {"rounding", "F16 and BF16 outputs are the F32 result, rounded once, saturated"},
    [CHECK_ISA] = {"isa", "same bytes and floats on every instruction set"},
    [CHECK_THREADS] = {"threads", "same bytes and floats from many threads at once on one state"},
    [CHECK_INSPECT] = {"inspect", "inspect describes arrays that fit, and writes just their bytes"},
    [CHECK_ATTEND] = {"attend",
                      "score and mix are those of decoded rows within attend_tolerance, row by row"},
    [CHECK_ARBITRARY] = {"arbitrary", "arbitrary bytes are decoded and inspected within bounds and in time"},
    [CHECK_QUIET] = {"quiet", "hot calls neither allocate nor lock, log, start threads or do I/O"},
    [CHECK_GPU_PLAN] = {"gpu-plan",
                        "the plan of kernels is pure, keeps the rules and names kernels that exist"},
    [CHECK_GPU_UPLOAD] =
        {"gpu-upload",
         "the device's state is the same from equal codecs, within its bytes, without addresses"},
    [CHECK_GPU_ENCODE] =
        {"gpu-encode", "kernels write the CPU's bytes, whatever the rows' strides, the grid and the order"},
    [CHECK_GPU_FINITE] = {"gpu-finite", "the first NaN or infinity of a block is reported, and no other"},
    [CHECK_GPU_DECODE] = {"gpu-decode",
                          "kernels give the CPU's floats for any tokens and heads, and nothing else"},
    [CHECK_GPU_ATTEND] =
        {"gpu-attend",
         "attention on codes is that on decoded rows within attend_tolerance, the same each time"},
    [CHECK_GPU_SCORE] = {"gpu-score",
                         "logits of keys' codes are those of decoded rows within attend_tolerance"},
    [CHECK_GPU_MIX] = {"gpu-mix",
                       "weights times values' codes are as of decoded rows within attend_tolerance"},
    [CHECK_GPU_ARBITRARY] = {"gpu-hostile",
                             "kernels end on arbitrary bytes of an extent and stay within bounds"},
    [CHECK_BOUNDS] = {"bounds", "no call reads or writes outside of the memory it was given"},
    [CHECK_STATE] = {"state", "hot calls write neither to the state nor to their inputs"},
    [CHECK_ENVIRONMENT] = {"environment", "no call changes the floating-point environment"},
    [CHECK_GLOBALS] = {"globals", "the plugin keeps no writable globals"},
};

const char *check_name(check_id id) {
    return id < CHECK_COUNT ? checks[id].name : "?";
}

const char *check_promise(check_id id) {
    return id < CHECK_COUNT ? checks[id].promise : "?";
}

bool check_needs_device(check_id id) {
    return id >= CHECK_GPU_ENCODE && id <= CHECK_GPU_ARBITRARY;
}

check_id check_find(const char *name) {
    for (unsigned id = 0; id < CHECK_COUNT; id++)
        if (strcmp(checks[id].name, name) == 0) return (check_id)id;
    return CHECK_COUNT;
}
