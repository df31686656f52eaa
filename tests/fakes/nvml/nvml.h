/* Declarations shared by the calls on a GPU and those of the library. */
#ifndef NVML_H
#define NVML_H

#include "simulation.h"

#define EXPORT __attribute__((visibility("default")))

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    NO_DATA = 21,
} result;

typedef struct opaque *device; /* position of the GPU in the file + 1, plus 256 times the number of a MIG instance */

/* Check at the start of every call: the driver must be loaded, and be the one that was initialized. */
result call(struct header *header);

/* Start of every call on a GPU: blocks while the GPU hangs, then returns the GPU and the time of the call. */
result look(device handle, struct gpu *gpu, double *now);

/* Start of a call that MIG instances support; `instance` is NULL for a whole GPU. */
result look_at_any(device handle, struct gpu *gpu, double *now, const struct instance **instance);

/* Position in the file of GPU `index`, among the GPUs that were bound at initialization. */
unsigned enumerated(void);
bool place_of(unsigned index, uint32_t *place);
bool index_of(uint32_t place, unsigned *index);

device handle_of(uint32_t place, uint32_t instance);

/* Body of a call on a GPU: defines `gpu` and `now`, or returns. */
#define LOOK(handle)                                                                                                   \
    struct gpu gpu;                                                                                                    \
    double now;                                                                                                        \
    result looked = look(handle, &gpu, &now);                                                                          \
    if (looked != SUCCESS) {                                                                                           \
        return looked;                                                                                                 \
    }

/* Body of a call on a GPU or instance: also defines `instance`. */
#define LOOK_AT_ANY(handle)                                                                                            \
    struct gpu gpu;                                                                                                    \
    double now;                                                                                                        \
    const struct instance *instance;                                                                                   \
    result looked = look_at_any(handle, &gpu, &now, &instance);                                                        \
    if (looked != SUCCESS) {                                                                                           \
        return looked;                                                                                                 \
    }

result put_text(char *buffer, unsigned size, const char *text);

#endif
