/* Energy, power, power limits and field values. */
#define _GNU_SOURCE
#include "nvml.h"

#include <math.h>
#include <time.h>

enum {
    FIELD_ECC_CORRECTED_VOLATILE = 3,
    FIELD_ECC_UNCORRECTED_VOLATILE = 4,
    FIELD_ECC_CORRECTED = 5,
    FIELD_ECC_UNCORRECTED = 6,
    FIELD_EVENT_POWER_CAP = 74,
    FIELD_EVENT_SYNC_BOOST = 76,
    FIELD_MEMORY_TEMPERATURE = 82,
    FIELD_ENERGY = 83,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    FIELD_PCIE_TX = 197,
    FIELD_PCIE_RX = 198,
    FIELD_EVENT_SW_THERMAL = 269,
    FIELD_EVENT_HW_THERMAL = 270,
    FIELD_EVENT_POWER_BRAKE = 271,
};
enum { TYPE_UNSIGNED_INT = 1, TYPE_UNSIGNED_LONG_LONG = 3 };

struct field_value {
    uint32_t field_id, scope_id;
    int64_t timestamp_us, latency_us;
    uint32_t value_type, result;
    union {
        uint32_t ui;
        uint64_t ull;
    } value;
};

/* Fields other than energy and power that this GPU supports. */
static bool fill_other(struct field_value *value, const struct gpu *gpu, double now) {
    bool is_hopper = gpu->architecture >= HOPPER;
    value->value_type = TYPE_UNSIGNED_LONG_LONG;
    switch (value->field_id) {
    case FIELD_EVENT_POWER_CAP:
        value->value.ull = capped_ns(gpu, now);
        return true;
    case FIELD_EVENT_SYNC_BOOST:
    case FIELD_EVENT_SW_THERMAL:
    case FIELD_EVENT_HW_THERMAL:
    case FIELD_EVENT_POWER_BRAKE:
        value->value.ull = 0;
        return true;
    case FIELD_PCIE_TX:
        value->value.ull = pcie_bytes(gpu, now, 250000);
        return is_hopper;
    case FIELD_PCIE_RX:
        value->value.ull = pcie_bytes(gpu, now, 1000000);
        return is_hopper;
    case FIELD_ECC_CORRECTED_VOLATILE:
    case FIELD_ECC_CORRECTED:
        value->value.ull = gpu->ecc_corrected;
        return gpu->is_of_data_centre;
    case FIELD_ECC_UNCORRECTED_VOLATILE:
    case FIELD_ECC_UNCORRECTED:
        value->value.ull = gpu->ecc_uncorrected;
        return gpu->is_of_data_centre;
    case FIELD_MEMORY_TEMPERATURE:
        value->value_type = TYPE_UNSIGNED_INT;
        value->value.ui = temperature_celsius(gpu, now) + 8;
        return gpu->is_of_data_centre;
    default:
        return false;
    }
}

static void fill(struct field_value *value, const struct gpu *gpu, double now) {
    uint32_t lacking = value->scope_id ? FAULT_NO_FIELDS : gpu->faults; /* scopes of module and memory: unsupported */
    value->result = NOT_SUPPORTED;
    if (lacking & FAULT_NO_FIELDS) {
        return;
    }
    bool is_power = value->field_id == FIELD_POWER_AVERAGE || value->field_id == FIELD_POWER_INSTANT;
    if (is_power || value->field_id == FIELD_ENERGY) {
        int error = scheduled_field_error(gpu, now, is_power ? QUANTITY_POWER : QUANTITY_COUNTER);
        if (error != SUCCESS) {
            value->result = (uint32_t)error;
            return;
        }
    }
    if (value->field_id == FIELD_ENERGY && !(lacking & FAULT_NO_COUNTER)) {
        value->value_type = TYPE_UNSIGNED_LONG_LONG;
        value->value.ull = reported_counter_mj(gpu, now);
    } else if (value->field_id == FIELD_POWER_AVERAGE && !(lacking & FAULT_NO_AVERAGE)) {
        value->value_type = TYPE_UNSIGNED_INT;
        value->value.ui = reported_mw(gpu, now, average_mw(gpu, now));
    } else if (value->field_id == FIELD_POWER_INSTANT) {
        value->value_type = TYPE_UNSIGNED_INT;
        value->value.ui = reported_mw(gpu, now, instant_mw(gpu, now));
    } else if (!fill_other(value, gpu, now)) {
        return;
    }
    value->value_type = reported_type(gpu, now, value->value_type);
    value->result = SUCCESS;
}

EXPORT result nvmlDeviceGetFieldValues(device handle, int count, struct field_value *values) {
    LOOK(handle)
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    for (int i = 0; i < count; i++) {
        values[i].timestamp_us = reported_us(&gpu, now, wall.tv_sec * INT64_C(1000000) + wall.tv_nsec / 1000);
        fill(&values[i], &gpu, now);
    }
    return SUCCESS;
}

EXPORT result nvmlDeviceGetTotalEnergyConsumption(device handle, unsigned long long *millijoules) {
    LOOK(handle)
    if (gpu.faults & FAULT_NO_COUNTER) {
        return NOT_SUPPORTED;
    }
    *millijoules = reported_counter_mj(&gpu, now);
    return (result)scheduled_field_error(&gpu, now, QUANTITY_COUNTER);
}

/* A 1 s average from Ampere on, GA100 (compute capability 8.0) excepted. */
EXPORT result nvmlDeviceGetPowerUsage(device handle, unsigned *milliwatts) {
    LOOK(handle)
    bool is_ga100 = gpu.compute_major == 8 && gpu.compute_minor == 0;
    bool averages = gpu.architecture >= AMPERE && !is_ga100;
    *milliwatts = reported_mw(&gpu, now, averages ? average_mw(&gpu, now) : instant_mw(&gpu, now));
    return (result)scheduled_field_error(&gpu, now, QUANTITY_POWER);
}

static unsigned milliwatts_of(double watts) { return (unsigned)lround(watts * 1e3); }

EXPORT result nvmlDeviceGetPowerManagementLimit(device handle, unsigned *milliwatts) {
    LOOK(handle)
    *milliwatts = milliwatts_of(gpu.limit_w);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetEnforcedPowerLimit(device handle, unsigned *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(handle, milliwatts);
}

EXPORT result nvmlDeviceGetPowerManagementDefaultLimit(device handle, unsigned *milliwatts) {
    LOOK(handle)
    *milliwatts = milliwatts_of(gpu.limit_default_w);
    return SUCCESS;
}

EXPORT result nvmlDeviceGetPowerManagementLimitConstraints(device handle, unsigned *least, unsigned *most) {
    LOOK(handle)
    *least = milliwatts_of(gpu.limit_min_w);
    *most = milliwatts_of(gpu.limit_max_w);
    return SUCCESS;
}

EXPORT result nvmlDeviceSetPowerManagementLimit(device handle, unsigned milliwatts) {
    LOOK(handle)
    double limit_w = milliwatts / 1e3;
    if (limit_w < gpu.limit_min_w || limit_w > gpu.limit_max_w) {
        return INVALID_ARGUMENT;
    }
    if (gpu.faults & FAULT_FORBIDDEN) {
        return NO_PERMISSION;
    }
    return gpu.faults & FAULT_UNMOVED || write_limit(gpu.index, limit_w) ? SUCCESS : NO_PERMISSION;
}

EXPORT result nvmlDeviceSetGpuLockedClocks(device handle, unsigned least_mhz, unsigned most_mhz) {
    LOOK(handle)
    if (gpu.faults & FAULT_FORBIDDEN) {
        return NO_PERMISSION;
    }
    if (least_mhz > most_mhz || most_mhz < IDLE_CLOCK_MHZ || most_mhz > gpu.sm_clock_mhz) {
        return INVALID_ARGUMENT;
    }
    return gpu.faults & FAULT_UNMOVED || write_locked_clock(gpu.index, most_mhz) ? SUCCESS : NO_PERMISSION;
}

EXPORT result nvmlDeviceResetGpuLockedClocks(device handle) {
    LOOK(handle)
    return !(gpu.faults & FAULT_FORBIDDEN) && write_locked_clock(gpu.index, 0) ? SUCCESS : NO_PERMISSION;
}
