/* Utilization, temperature, clocks and other readings of a GPU. */
#include "nvml.h"

#include <stddef.h>

enum { CLOCK_MEMORY = 2, CLOCK_COUNT = 4 };
enum { REASON_IDLE = 1, REASON_SW_POWER_CAP = 4, ALL_REASONS = 0x1FF };
enum { THRESHOLD_MEMORY_MAX = 2, THRESHOLD_GPU_MAX = 3, THRESHOLD_COUNT = 8 };

struct utilization_rates {
    uint32_t gpu, memory;
};

struct memory {
    uint64_t total, free, used;
};

struct memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};

struct margin {
    uint32_t version;
    int32_t celsius;
};

static uint32_t busy_percent(const struct gpu *gpu, double now) { return (uint32_t)(utilization(gpu, now) * 100 + 0.5); }

EXPORT result nvmlDeviceGetUtilizationRates(device handle, struct utilization_rates *rates) {
    LOOK(handle)
    rates->gpu = busy_percent(&gpu, now);
    rates->memory = rates->gpu / 2;
    return gpu.mig_is_on ? NOT_SUPPORTED : SUCCESS;
}

static result codec_utilization(device handle, unsigned divisor, unsigned *percent, unsigned *period_us) {
    LOOK(handle)
    *percent = busy_percent(&gpu, now) / divisor;
    *period_us = 100000;
    return gpu.mig_is_on ? NOT_SUPPORTED : SUCCESS;
}

EXPORT result nvmlDeviceGetEncoderUtilization(device handle, unsigned *percent, unsigned *period_us) {
    return codec_utilization(handle, 10, percent, period_us);
}

EXPORT result nvmlDeviceGetDecoderUtilization(device handle, unsigned *percent, unsigned *period_us) {
    return codec_utilization(handle, 5, percent, period_us);
}

EXPORT result nvmlDeviceGetMemoryInfo(device handle, struct memory *memory) {
    LOOK_AT_ANY(handle)
    memory->total = instance ? instance->memory_bytes : gpu.memory_bytes;
    memory->used = memory_used_bytes(&gpu, instance);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetMemoryInfo_v2(device handle, struct memory_v2 *memory) {
    struct memory plain;
    result looked = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (looked == SUCCESS) {
        *memory = (struct memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    }
    return looked;
}

EXPORT result nvmlDeviceGetTemperature(device handle, unsigned sensor, unsigned *celsius) {
    if (sensor != 0) {
        return INVALID_ARGUMENT;
    }
    LOOK(handle)
    *celsius = temperature_celsius(&gpu, now);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetTemperatureThreshold(device handle, unsigned threshold, unsigned *celsius) {
    static const uint32_t thresholds[] = {92, 89, 95, 85}; /* shutdown, slowdown, maximum of the memory, of the GPU */
    LOOK(handle)
    if (threshold >= THRESHOLD_COUNT) {
        return INVALID_ARGUMENT;
    }
    bool has = gpu.architecture < HOPPER && threshold <= THRESHOLD_GPU_MAX &&
               (threshold != THRESHOLD_MEMORY_MAX || gpu.is_of_data_centre);
    *celsius = has ? thresholds[threshold] : 0;
    return has ? SUCCESS : NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetMarginTemperature(device handle, struct margin *margin) {
    LOOK(handle)
    margin->celsius = 87 - (int32_t)temperature_celsius(&gpu, now);
    return gpu.architecture >= HOPPER ? SUCCESS : NOT_SUPPORTED;
}

static uint32_t fan_count(const struct gpu *gpu) { return gpu->is_of_data_centre ? 0 : 2; }

EXPORT result nvmlDeviceGetNumFans(device handle, unsigned *count) {
    LOOK(handle)
    *count = fan_count(&gpu);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetFanSpeed_v2(device handle, unsigned fan, unsigned *percent) {
    LOOK(handle)
    *percent = temperature_celsius(&gpu, now) - fan;
    return fan_count(&gpu) == 0 ? NOT_SUPPORTED : fan < fan_count(&gpu) ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT result nvmlDeviceGetFanSpeed(device handle, unsigned *percent) {
    return nvmlDeviceGetFanSpeed_v2(handle, 0, percent);
}

EXPORT result nvmlDeviceGetTotalEccErrors(device handle, unsigned kind, unsigned counter, unsigned long long *count) {
    LOOK(handle)
    if (kind > 1 || counter > 1) {
        return INVALID_ARGUMENT;
    }
    *count = kind == 0 ? gpu.ecc_corrected : gpu.ecc_uncorrected;
    return gpu.is_of_data_centre ? SUCCESS : NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetClockInfo(device handle, unsigned domain, unsigned *mhz) {
    LOOK(handle)
    *mhz = domain == CLOCK_MEMORY ? gpu.memory_clock_mhz : sm_clock_mhz(&gpu, now);
    return domain < CLOCK_COUNT ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT result nvmlDeviceGetMaxClockInfo(device handle, unsigned domain, unsigned *mhz) {
    LOOK(handle)
    *mhz = domain == CLOCK_MEMORY ? gpu.memory_clock_mhz : gpu.sm_clock_mhz;
    return domain < CLOCK_COUNT ? SUCCESS : INVALID_ARGUMENT;
}

/* In descending order, as the driver lists them; their number where `clocks_mhz` is too small. */
EXPORT result nvmlDeviceGetSupportedGraphicsClocks(device handle, unsigned memory_mhz, unsigned *count, unsigned *clocks_mhz) {
    LOOK(handle)
    if (memory_mhz != gpu.memory_clock_mhz) {
        return NOT_FOUND;
    }
    unsigned room = *count;
    *count = (gpu.sm_clock_mhz - IDLE_CLOCK_MHZ) / CLOCK_STEP_MHZ + 1;
    if (clocks_mhz == NULL || room < *count) {
        return INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < *count; i++) {
        clocks_mhz[i] = gpu.sm_clock_mhz - i * CLOCK_STEP_MHZ;
    }
    return SUCCESS;
}

EXPORT result nvmlDeviceGetCurrentClocksEventReasons(device handle, unsigned long long *reasons) {
    LOOK(handle)
    *reasons = is_capped(&gpu, now) ? REASON_SW_POWER_CAP : utilization(&gpu, now) <= 0 ? REASON_IDLE : 0;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetSupportedClocksEventReasons(device handle, unsigned long long *reasons) {
    LOOK(handle)
    *reasons = ALL_REASONS;
    return SUCCESS;
}

/* the older name of the same function */
EXPORT result nvmlDeviceGetCurrentClocksThrottleReasons(device handle, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(handle, reasons);
}

EXPORT result nvmlDeviceGetPerformanceState(device handle, unsigned *state) {
    LOOK(handle)
    *state = 0; /* data-centre GPUs stay there when idle */
    return SUCCESS;
}

EXPORT result nvmlDeviceGetComputeMode(device handle, unsigned *mode) {
    LOOK(handle)
    *mode = 0; /* default */
    return SUCCESS;
}
