/* What the calls on a GPU share with the calls of the library itself. */
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

typedef struct opaque *device; /* place of the GPU in the file + 1, and 256 times the number of a MIG instance */

/* Every call begins here: is there a driver, and still the one that was initialized? */
result call(struct header *header);

/* Every call on a GPU: hangs while it hangs; else the GPU, and the instant at which it is looked at. */
result look(device handle, struct gpu *gpu, double *now);

/* The same for a call that MIG instances answer too; `instance` is NULL for a whole GPU. */
result look_at_any(device handle, struct gpu *gpu, double *now, const struct instance **instance);

/* The GPUs that the driver had when it was initialized: the place in the file of the one that it numbers `index`. */
unsigned enumerated(void);
bool place_of(unsigned index, uint32_t *place);
bool index_of(uint32_t place, unsigned *index);

device handle_of(uint32_t place, uint32_t instance);

/* The body of a call on a GPU: `gpu` and `now` are there, or it has returned. */
#define LOOK(handle)                                                                                                   \
    struct gpu gpu;                                                                                                    \
    double now;                                                                                                        \
    result looked = look(handle, &gpu, &now);                                                                          \
    if (looked != SUCCESS) {                                                                                           \
        return looked;                                                                                                 \
    }

/* The same, with `instance`. */
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
