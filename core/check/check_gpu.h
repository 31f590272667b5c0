/* Kernels (kvant.gpu/1) beside the same codec on the CPU.
 *
 * What needs no device, plan and upload, is looked at with every configuration. With check_options.gpu a
 * worker finds the driver after the fork, takes its first device and the plugin's image for it, and works on
 * device memory that lies between guards. What a kernel may not write is compared; what it may not read lies
 * at the end of an allocation, so that an interpreter or a memory checker sees it. A driver's error ends the
 * child: after a fault a device works no more for this process.
 *
 * check_gpu.c has device, memory and launches; check_gpu_setup.c plan and upload; check_gpu_encode.c encode
 * and what is not finite; check_gpu_decode.c decode, also of arbitrary bytes; check_gpu_attend.c attention,
 * of scenes that check_gpu_scene.c makes, against check_gpu_oracle.c; check_gpu_split.c score and mix
 * alone. */
#ifndef KVANT_CHECK_GPU_H
#define KVANT_CHECK_GPU_H

#include "check_context.h"

#include "gpu/gpu_device.h"

/* What a worker holds. */
enum { CHECK_GPU_TEXTS = 4 };
typedef struct check_gpu {
    const kvant_gpu *table;       /* NULL = the plugin has none, or a broken one */
    char *texts[CHECK_GPU_TEXTS]; /* of PTX images */
    bool has_device;
    const gpu_driver *driver;
    gpu_device device;
    gpu_module module;
    gpu_stream stream;
} check_gpu;

/* Finds the tables and, with check_options.gpu, a device. Refused: no tables, no driver, no device, no
 * image. */
kvant_status check_gpu_begin(check_worker *worker, kvant_diag *diag);
void check_gpu_end(check_worker *worker);

/* "NVIDIA H200, compute capability 9.0, cubin"; "" without a device. */
void check_gpu_device_text(const check_worker *worker, char *text, size_t capacity);

/* Whether kvant.gpu/1 plans kernels for this setup. */
bool check_gpu_accepts(check_worker *worker, const kvant_setup *setup, const kvant_layout *layout);

/* A codec on the device. UNSUPPORTED where a kernel does not fit on it; other errors are failures of what
 * runs. */
kvant_status check_gpu_open(check_worker *worker, const check_subject *subject, gpu_codec *codec);

/* ---- Memory -------------------------------------------------------------------------------------------- */

enum { CHECK_GUARD = 256 };

/* Device memory as it is written to the device. */
typedef struct check_room {
    const char *name; /* static */
    size_t size, lead, total;
    unsigned char *image; /* lead, data, guard */
    gpu_address base, data;
} check_room;

typedef struct check_placing {
    size_t alignment; /* 0 = 256 */
    size_t skew;      /* bytes beyond an aligned address */
    bool guarded;     /* to be written: with guards before and behind */
} check_placing;

/* Memory full of poison, on the host. check_room_send puts it onto the device. */
void check_room_create(check_worker *worker, check_room *room, const char *name, size_t size,
                       check_placing placing);
void check_room_send(check_worker *worker, check_room *room);
/* Both, with these bytes. */
void check_room_put(check_worker *worker, check_room *room, const char *name, const void *bytes, size_t size,
                    check_placing placing);
unsigned char *check_room_bytes(const check_room *room);
/* Reads it back. A guard that was written is a failure of CHECK_BOUNDS by `kernel`. */
void check_room_fetch(check_worker *worker, check_room *room, const char *kernel);
void check_room_free(check_worker *worker, check_room *room);

/* ---- Launches ------------------------------------------------------------------------------------------ */

typedef struct check_launch {
    const gpu_codec *codec;
    uint32_t call;
    uint32_t count;
    const void *jobs; /* [count] of job_bytes */
    size_t job_bytes;
    const kvant_gpu_layer *layer; /* NULL = none */
    bool narrow;                  /* a grid of one block */
} check_launch;

/* Launches and waits. */
void check_gpu_launch(check_worker *worker, const check_launch *launch);

/* "encode", "decode", "attend": a call in messages. */
const char *check_gpu_call_name(uint32_t call);

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* Rows of this form as they lie in `rows`, at an address beyond an aligned one. */
void check_gpu_rows_put(check_worker *worker, check_room *room, const check_rows *rows, bool guarded);
kvant_gpu_view check_gpu_rows_view(const check_room *room, const check_rows *rows);

/* ---- Blocks -------------------------------------------------------------------------------------------- */

enum { CHECK_BLOCKS_COUNT = 3 };

/* Some blocks of the configuration, each of another family of rows, as the CPU encodes them, and the codec on
 * the device. */
typedef struct check_sample {
    gpu_codec codec;
    bool is_open;
    float *values[CHECK_BLOCKS_COUNT];
    check_extent coded[CHECK_BLOCKS_COUNT];
} check_sample;

/* Makes them once; NULL, with the configuration over, where the CPU or the device does not take it. */
check_sample *check_sample_get(check_context *context);
void check_sample_free(check_context *context);

/* Attention on pools of arbitrary bytes, for check_gpu_arbitrary. */
void check_gpu_attend_arbitrary(check_context *context);

/* A kernel that does not serve this call: the running check does not count. */
bool check_gpu_offers(check_context *context, uint32_t call);

#endif
