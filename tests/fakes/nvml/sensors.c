/* Sensor values of a simulated GPU, as in sensors.py. */
#include "simulation.h"

#include <math.h>
#include <stddef.h>

enum { SLICES = 7 };

/* Noise in [-1, 1), by the finalizer of SplitMix64. */
static double noise(uint32_t index, int64_t update, uint64_t salt) {
    uint64_t x = (uint64_t)update * 2 + salt + (index + UINT64_C(1)) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

static uint32_t sensed_mw(const struct gpu *gpu, double t, double window_s, uint64_t salt) {
    double update = floor((t - gpu->sensor_phase_s) / gpu->sensor_period_s);
    double at_s = gpu->sensor_phase_s + update * gpu->sensor_period_s;
    double mean_w = (cumulative_j(gpu, at_s) - cumulative_j(gpu, at_s - window_s)) / window_s;
    double noisy_w = fmax(0.0, mean_w + gpu->noise_w * noise(gpu->index, (int64_t)update, salt));
    return (uint32_t)floor(noisy_w * 1e3 + 0.5);
}

static bool is_frozen(const struct gpu *gpu, double t) { return gpu->frozen_at_s > 0 && t >= gpu->frozen_at_s; }

uint32_t instant_mw(const struct gpu *gpu, double t) {
    return is_frozen(gpu, t) ? (uint32_t)lround(gpu->frozen_instant_w * 1e3) : sensed_mw(gpu, t, gpu->instant_window_s, 0);
}

uint32_t average_mw(const struct gpu *gpu, double t) {
    return is_frozen(gpu, t) ? (uint32_t)lround(gpu->frozen_average_w * 1e3) : sensed_mw(gpu, t, gpu->average_window_s, 1);
}

uint64_t counter_mj(const struct gpu *gpu, double t) {
    if (is_frozen(gpu, t)) {
        return (uint64_t)llround(gpu->frozen_counter_j * 1e3);
    }
    double update = floor((t - gpu->counter_phase_s) / gpu->counter_period_s);
    double at_s = gpu->counter_phase_s + update * gpu->counter_period_s;
    return (uint64_t)floor(fmax(0.0, cumulative_j(gpu, at_s) - gpu->energy_at_load_j) * 1e3 + 1e-3);
}

double utilization(const struct gpu *gpu, double t) {
    double update = floor((t - gpu->sensor_phase_s) / gpu->sensor_period_s);
    double at_s = gpu->sensor_phase_s + update * gpu->sensor_period_s;
    double share = (demand_w(gpu, at_s) - gpu->idle_w) / (gpu->peak_w - gpu->idle_w);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (gpu->processes[i].pid) {
            share /= dynamic_ratio(gpu);
            break;
        }
    }
    return fmin(1.0, fmax(0.0, share));
}

bool is_capped(const struct gpu *gpu, double t) {
    const struct segment *segment = segment_at(gpu, t);
    return segment != NULL && demand_w(gpu, t) > segment->limit_w;
}

uint32_t sm_clock_mhz(const struct gpu *gpu, double t) {
    const struct segment *segment = segment_at(gpu, t);
    double demanded_w = demand_w(gpu, t), speed = 1.0;
    if (segment == NULL || demanded_w <= gpu->idle_w) {
        return IDLE_CLOCK_MHZ;
    }
    if (demanded_w > segment->limit_w) {
        speed = cbrt(fmax(0.0, segment->limit_w - gpu->idle_w) / (demanded_w - gpu->idle_w));
    }
    return (uint32_t)floor(gpu->sm_clock_mhz * (clock_ratio(gpu) * speed) + 0.5);
}

uint32_t temperature_celsius(const struct gpu *gpu, double t) {
    return (uint32_t)floor(30 + 45 * (average_mw(gpu, t) / 1e3) / gpu->peak_w + 0.5);
}

uint64_t capped_ns(const struct gpu *gpu, double t) {
    double update = floor((t - gpu->counter_phase_s) / gpu->counter_period_s);
    double at_s = gpu->counter_phase_s + update * gpu->counter_period_s;
    return (uint64_t)floor(fmax(0.0, cumulative_capped_s(gpu, at_s) - gpu->capped_at_load_s) * 1e9 + 0.5);
}

uint64_t pcie_bytes(const struct gpu *gpu, double t, double bytes_per_joule) {
    double update = floor((t - gpu->counter_phase_s) / gpu->counter_period_s);
    double at_s = gpu->counter_phase_s + update * gpu->counter_period_s;
    return (uint64_t)floor(fmax(0.0, cumulative_j(gpu, at_s)) * bytes_per_joule);
}

uint32_t process_percent(const struct gpu *gpu, const struct process *process) {
    double wanted = 0.0;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        wanted += gpu->processes[i].utilization;
    }
    return (uint32_t)floor(process->utilization / fmax(1.0, wanted) * 100 + 0.5);
}

uint64_t process_sample_us(const struct gpu *gpu, double t) {
    double update = floor((t - gpu->sensor_phase_s) / gpu->sensor_period_s);
    return (uint64_t)floor((gpu->sensor_phase_s + update * gpu->sensor_period_s) * 1e6);
}

static bool is_on(const struct process *process, const struct instance *instance) {
    return process->pid && (instance == NULL || process->instance == instance->number);
}

double instance_percent(const struct gpu *gpu, const struct instance *instance) {
    double used = 0.0;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        used += is_on(&gpu->processes[i], instance) ? gpu->processes[i].utilization : 0.0;
    }
    return fmin(1.0, used * SLICES / instance->slices) * 100;
}

uint64_t memory_used_bytes(const struct gpu *gpu, const struct instance *instance) {
    uint64_t used = 0;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        used += is_on(&gpu->processes[i], instance) ? gpu->processes[i].memory_bytes : 0;
    }
    return used;
}
