/* For tests of the PTX interpreter: a machine, modules from text, one instruction on a table of inputs. */
#ifndef KVANT_TEST_PTX_FIXTURE_H
#define KVANT_TEST_PTX_FIXTURE_H

#include "support/test.h"

#include <ptx.h>
#include <stdbool.h>
#include <string.h>

typedef struct ptx_fixture {
    ptx_machine *machine;
    ptx_module *module;
} ptx_fixture;

/* Fails the test with the message if the text is refused. */
void ptx_fixture_open(ptx_fixture *fixture, const char *text);
void ptx_fixture_close(ptx_fixture *fixture);

/* With all checks; grid and block of one dimension. The only kernel of the module. */
int ptx_fixture_launch(ptx_fixture *fixture, uint32_t grid, uint32_t block, size_t dynamic_shared,
                       void *const *arguments);
/* The same, and fails the test unless there is no defect. */
void ptx_fixture_run(ptx_fixture *fixture, uint32_t grid, uint32_t block, size_t dynamic_shared,
                     void *const *arguments);

/* ---- One instruction ----------------------------------------------------------------------------------- */

/* Four numbers per case in, two out. Of input j the instruction finds all 64 bits in %dJ, the low 32 in
 * %rJ, the low 16 in %hJ, the low 8 in %bJ, the lowest in the predicate %pJ. `kind` says where it leaves
 * its result: d, r, h, b, p for %D, %R, %H, %B, %P; out[1] is the predicate %Q. */
typedef struct ptx_case {
    uint64_t in[4];
    uint64_t out[2];
} ptx_case;

void ptx_run_instruction(const char *text, char kind, ptx_case *cases, uint32_t count);

typedef uint64_t ptx_expected(const uint64_t *in);

typedef struct ptx_row_test {
    const char *text;
    char kind;
    ptx_expected *expected;
} ptx_row_test;

typedef enum ptx_inputs {
    PTX_INPUT_INTEGERS,
    PTX_INPUT_F32,
    PTX_INPUT_F64,
    PTX_INPUT_F16,
    PTX_INPUT_BF16
} ptx_inputs;

/* Every row on all pairs of edge values and on random numbers; names the instruction and the inputs that
 * differ. */
void ptx_check_rows(const ptx_row_test *rows, uint32_t count, ptx_inputs inputs);

#endif
