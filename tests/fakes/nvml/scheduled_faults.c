/* Faults of a driver with begin and end, from the file named by WATTLINE_SIMULATED_FAULTS; tests/fakes/nvml_faults.py
 * writes it and describes the kinds. Without that file there are none. */
#define _GNU_SOURCE
#include "simulation.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SCHEDULED_FAULTS = 64 };
#define ALL_GPUS UINT32_MAX

struct scheduled_fault {
    uint32_t gpu, kind;
    double begin_s, end_s, value, second; /* `begin_s` is written last; 0: no fault */
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

/* Next random number in [0, 1) of this process, by SplitMix64. */
static double random_share(void) {
    static atomic_uint_fast64_t calls;
    uint64_t x = (atomic_fetch_add(&calls, 1) + (uint64_t)getpid()) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

static bool is_hit(double share) { return share <= 0.0 || random_share() < share; }

static int error_of(uint32_t gpu, double now) {
    const struct scheduled_fault *fault = active(gpu, KIND_ERROR, now);
    return fault == NULL || !is_hit(fault->second) ? 0 : (int)fault->value;
}

int scheduled_driver_error(double now) { return error_of(ALL_GPUS, now); }

int scheduled_error(const struct gpu *gpu, double now) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_SLOW, now);
    if (fault != NULL) {
        sleep_us((uint32_t)lround(fault->value * 1e6));
    }
    if ((fault = active(gpu->index, KIND_SPIN, now)) != NULL) {
        while (boottime_s() < fault->end_s) {
        }
    }
    if ((fault = active(gpu->index, KIND_END, now)) != NULL) {
        if (fault->value == 0.0) {
            _exit(0);
        }
        signal((int)fault->value, SIG_DFL);
        raise((int)fault->value);
    }
    return error_of(gpu->index, now);
}

int scheduled_field_error(const struct gpu *gpu, double now, enum quantity quantity) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_FIELD_ERROR, now);
    return fault == NULL || (fault->second != ANY_QUANTITY && (int)fault->second != (int)quantity) ? 0 : (int)fault->value;
}

uint32_t reported_type(const struct gpu *gpu, double now, uint32_t type) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_FIELD_TYPE, now);
    return fault == NULL ? type : (uint32_t)fault->value;
}

int64_t reported_us(const struct gpu *gpu, double now, int64_t timestamp_us) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_FIELD_TIME, now);
    return fault == NULL ? timestamp_us : (int64_t)fault->value;
}

uint32_t reported_processes(const struct gpu *gpu, double now) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_PROCESSES, now);
    return fault == NULL ? 0 : (uint32_t)fault->value;
}

bool has_other_uuid(const struct gpu *gpu, double now) { return active(gpu->index, KIND_UUID, now) != NULL; }

uint32_t reported_mw(const struct gpu *gpu, double now, uint32_t milliwatts) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_POWER, now);
    if (fault != NULL) {
        return (uint32_t)fmin(fault->value * 1e3 + 0.5, UINT32_MAX);
    }
    if ((fault = active(gpu->index, KIND_POWER_SCALE, now)) != NULL) {
        return (uint32_t)fmin(milliwatts * fault->value, UINT32_MAX);
    }
    fault = active(gpu->index, KIND_POWER_RANDOM, now);
    return fault == NULL ? milliwatts : (uint32_t)(random_share() * fault->value * 1e3);
}

uint64_t reported_counter_mj(const struct gpu *gpu, double now) {
    const struct scheduled_fault *fault = active(gpu->index, KIND_COUNTER_LATE, now);
    uint64_t millijoules = counter_mj(gpu, fault == NULL ? now : now - fault->value);
    if ((fault = active(gpu->index, KIND_COUNTER_SLOPE, now)) != NULL) {
        uint64_t before = counter_mj(gpu, fault->begin_s);
        return before + (uint64_t)llround(fault->value * (double)(millijoules - before));
    }
    if ((fault = active(gpu->index, KIND_COUNTER_STEP, now)) != NULL) {
        double steps = fault->second > 0 ? 1 + floor((now - fault->begin_s) / fault->second) : 1;
        return (uint64_t)((int64_t)millijoules + llround(fault->value * 1e3 * steps));
    }
    if ((fault = active(gpu->index, KIND_COUNTER_RESTART, now)) != NULL) {
        return millijoules - counter_mj(gpu, fault->begin_s) + (uint64_t)llround(fault->value * 1e3);
    }
    if ((fault = active(gpu->index, KIND_COUNTER_SCALE, now)) != NULL) {
        return (uint64_t)((double)millijoules * fault->value);
    }
    if ((fault = active(gpu->index, KIND_COUNTER_READS, now)) != NULL && is_hit(fault->second)) {
        return fault->value < 0 ? UINT64_MAX : (uint64_t)llround(fault->value * 1e3);
    }
    fault = active(gpu->index, KIND_COUNTER_NOISE, now);
    return fault == NULL ? millijoules : millijoules + (uint64_t)llround((2 * random_share() - 1) * fault->value * 1e3);
}
