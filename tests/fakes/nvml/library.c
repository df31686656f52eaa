/* Initialization of the library, and the checks that start every call.
 *
 * While the driver is unloaded, nvmlInit fails with DRIVER_NOT_LOADED. In a process that had it open, every call fails
 * with UNINITIALIZED, even after the driver is loaded again, until it initializes NVML again. */
#define _GNU_SOURCE
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>

enum { FLAG_NO_ATTACH = 2, HANG_POLL_US = 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;
static double initialized_for_s; /* load time of the driver for which this process is initialized */
static uint32_t places[MAX_GPUS];
static unsigned place_count;

static bool any_has(uint32_t count, uint32_t faults) {
    for (uint32_t i = 0; i < count; i++) {
        struct header header;
        struct gpu gpu;
        read_gpu(i, &header, &gpu);
        if (gpu.faults & faults) {
            return true;
        }
    }
    return false;
}

static void enumerate(uint32_t count) {
    place_count = 0;
    for (uint32_t i = 0; i < count && i < MAX_GPUS; i++) {
        struct header header;
        struct gpu gpu;
        read_gpu(i, &header, &gpu);
        if (!(gpu.faults & FAULT_UNBOUND)) {
            places[place_count++] = i;
        }
    }
}

unsigned enumerated(void) { return place_count; }

bool place_of(unsigned index, uint32_t *place) {
    bool found = index < place_count;
    *place = found ? places[index] : 0;
    return found;
}

bool index_of(uint32_t place, unsigned *index) {
    for (*index = 0; *index < place_count; ++*index) {
        if (places[*index] == place) {
            return true;
        }
    }
    return false;
}

device handle_of(uint32_t place, uint32_t instance) {
    return (device)((uintptr_t)place + 1 + 256 * (uintptr_t)instance); /* NOLINT(performance-no-int-to-ptr): opaque */
}

EXPORT result nvmlInitWithFlags(unsigned flags) {
    struct header header;
    if (!simulation_open()) {
        return DRIVER_NOT_LOADED;
    }
    read_header(&header);
    uint32_t hanging = flags & FLAG_NO_ATTACH ? FAULT_INIT_HANG : FAULT_INIT_HANG | FAULT_HANG;
    while (header.driver_loaded && any_has(header.gpu_count, hanging)) {
        sleep_us(HANG_POLL_US);
        read_header(&header);
    }
    if (!header.driver_loaded) {
        return DRIVER_NOT_LOADED;
    }
    int error = scheduled_driver_error(header.clock_s > 0 ? header.clock_s : boottime_s());
    if (error != SUCCESS) {
        return (result)error;
    }
    pthread_mutex_lock(&lock);
    references++;
    initialized_for_s = header.driver_loaded_at_s;
    enumerate(header.gpu_count);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

EXPORT result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT result nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    result done = references ? SUCCESS : UNINITIALIZED;
    references -= references ? 1 : 0;
    pthread_mutex_unlock(&lock);
    return done;
}

static bool is_initialized(const struct header *header) {
    pthread_mutex_lock(&lock);
    bool initialized = references && header->driver_loaded && header->driver_loaded_at_s == initialized_for_s;
    pthread_mutex_unlock(&lock);
    return initialized;
}

result call(struct header *header) {
    pthread_mutex_lock(&lock);
    bool initialized = references;
    pthread_mutex_unlock(&lock);
    if (!initialized) {
        return UNINITIALIZED;
    }
    read_header(header);
    if (!is_initialized(header)) {
        return UNINITIALIZED;
    }
    if (header->call_latency_us) {
        sleep_us(header->call_latency_us);
    }
    return (result)scheduled_driver_error(header->clock_s > 0 ? header->clock_s : boottime_s());
}

result look_at_any(device handle, struct gpu *gpu, double *now, const struct instance **instance) {
    struct header header;
    result called = call(&header);
    if (called != SUCCESS) {
        return called;
    }
    uint32_t place = (uint32_t)((uintptr_t)handle % 256) - 1, number = (uint32_t)((uintptr_t)handle / 256);
    if (handle == NULL || place >= header.gpu_count) {
        return INVALID_ARGUMENT;
    }
    for (;;) {
        *now = boottime_s(); /* before the state, so that the state includes every change up to now */
        read_gpu(place, &header, gpu);
        if (!is_initialized(&header)) {
            return UNINITIALIZED;
        }
        if (!(gpu->faults & FAULT_HANG)) {
            break;
        }
        sleep_us(HANG_POLL_US);
    }
    if (header.clock_s > 0) {
        *now = header.clock_s;
    }
    if (gpu->faults & (FAULT_LOST | FAULT_UNBOUND)) {
        return GPU_IS_LOST;
    }
    int error = scheduled_error(gpu, *now);
    if (error != SUCCESS) {
        return (result)error;
    }
    *instance = number ? &gpu->instances[number - 1] : NULL;
    return !number || (gpu->mig_is_on && (*instance)->number == number) ? SUCCESS : NOT_FOUND;
}

result look(device handle, struct gpu *gpu, double *now) {
    const struct instance *instance;
    result looked = look_at_any(handle, gpu, now, &instance);
    return looked == SUCCESS && instance != NULL ? INVALID_ARGUMENT : looked;
}

result put_text(char *buffer, unsigned size, const char *text) {
    return snprintf(buffer, size, "%s", text) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT const char *nvmlErrorString(result code) {
    switch (code) {
    case SUCCESS:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NO_PERMISSION:
        return "Insufficient Permissions";
    case NOT_FOUND:
        return "Not Found";
    case INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case TIMEOUT:
        return "Timeout";
    case GPU_IS_LOST:
        return "GPU is lost";
    case NO_DATA:
        return "No data";
    }
    return "Unknown Error";
}

EXPORT result nvmlSystemGetDriverVersion(char *version, unsigned size) {
    struct header header;
    result called = call(&header);
    return called != SUCCESS ? called : put_text(version, size, "SIMULATED 580.95.05");
}

EXPORT result nvmlSystemGetNVMLVersion(char *version, unsigned size) { return nvmlSystemGetDriverVersion(version, size); }

EXPORT result nvmlSystemGetCudaDriverVersion_v2(int *version) {
    struct header header;
    *version = 13000;
    return call(&header);
}

EXPORT result nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT result nvmlDeviceGetCount_v2(unsigned *count) {
    struct header header;
    result called = call(&header);
    if (called == SUCCESS) {
        *count = enumerated();
    }
    return called;
}
