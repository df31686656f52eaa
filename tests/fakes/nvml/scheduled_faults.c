/* Faults of a driver with begin and end, from the file named by WATTLINE_SIMULATED_FAULTS; tests/fakes/nvml_faults.py
 * writes it. Without that file there are none. */
#define _GNU_SOURCE
#include "simulation.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SCHEDULED_FAULTS = 16 };
enum { KIND_ERROR = 1, KIND_POWER, KIND_COUNTER_SLOPE };

struct scheduled_fault {
    uint32_t gpu, kind;
    double begin_s, end_s, value; /* `begin_s` is written last; 0: no fault */
};

static pthread_once_t opening = PTHREAD_ONCE_INIT;
static const struct scheduled_fault *scheduled;

static void map_faults(void) {
    const char *path = getenv("WATTLINE_SIMULATED_FAULTS");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return;
    }
    void *mapped = mmap(NULL, SCHEDULED_FAULTS * sizeof(struct scheduled_fault), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    scheduled = mapped == MAP_FAILED ? NULL : mapped;
}

static const struct scheduled_fault *active(uint32_t gpu, uint32_t kind, double now) {
    pthread_once(&opening, map_faults);
    for (int i = 0; scheduled != NULL && i < SCHEDULED_FAULTS; i++) {
        const struct scheduled_fault *fault = &scheduled[i];
        if (fault->begin_s > 0 && fault->gpu == gpu && fault->kind == kind && now >= fault->begin_s && now < fault->end_s) {
            return fault;
        }
    }
    return NULL;
}

int scheduled_error(const struct gpu *gpu, double now) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_ERROR, now);
    return fault == NULL ? 0 : (int)fault->value;
}

uint32_t reported_mw(const struct gpu *gpu, double now, uint32_t milliwatts) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_POWER, now);
    return fault == NULL ? milliwatts : (uint32_t)llround(fault->value * 1e3);
}

uint64_t reported_counter_mj(const struct gpu *gpu, double now) {
    uint64_t millijoules = counter_mj(gpu, now);
    const struct scheduled_fault *fault = active(gpu->index, KIND_COUNTER_SLOPE, now);
    if (fault == NULL) {
        return millijoules;
    }
    uint64_t before = counter_mj(gpu, fault->begin_s);
    return before + (uint64_t)llround(fault->value * (double)(millijoules - before));
}
