/* Processes on a GPU or MIG instance. */
#include "nvml.h"

#include <stddef.h>

#define NO_INSTANCE UINT32_C(0xFFFFFFFF)

struct process_info {
    uint32_t pid;
    uint64_t used_memory_bytes;
    uint32_t gpu_instance, compute_instance;
};

struct utilization_sample {
    uint32_t pid;
    uint64_t timestamp_us;
    uint32_t sm, memory, encoder, decoder;
};

EXPORT result nvmlDeviceGetComputeRunningProcesses_v3(device handle, unsigned *count, struct process_info *processes) {
    LOOK_AT_ANY(handle)
    unsigned room = *count;
    *count = 0;
    for (int i = 0; i < MAX_PROCESSES && gpu.processes[i].pid; i++) {
        const struct process *process = &gpu.processes[i];
        if (instance != NULL && process->instance != instance->number) {
            continue;
        }
        if (*count < room) {
            bool on_instance = process->instance != 0;
            processes[*count] = (struct process_info){process->pid, process->memory_bytes,
                                                      on_instance ? process->instance : NO_INSTANCE,
                                                      on_instance ? 0 : NO_INSTANCE};
        }
        ++*count;
    }
    for (uint32_t i = 0; i < reported_processes(&gpu, now); i++) {
        if (*count < room) {
            processes[*count] = (struct process_info){1000000 + i, 1 << 20, NO_INSTANCE, NO_INSTANCE};
        }
        ++*count;
    }
    return *count <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

static result none(device handle, unsigned *count) {
    LOOK_AT_ANY(handle)
    *count = 0;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetGraphicsRunningProcesses_v3(device handle, unsigned *count, struct process_info *processes) {
    (void)processes;
    return none(handle, count);
}

EXPORT result nvmlDeviceGetMPSComputeRunningProcesses_v3(device handle, unsigned *count, struct process_info *processes) {
    (void)processes;
    return none(handle, count);
}

/* One sample for each busy process; NOT_FOUND where none is newer than `last_seen_us`. */
EXPORT result nvmlDeviceGetProcessUtilization(device handle, struct utilization_sample *samples, unsigned *count,
                                              unsigned long long last_seen_us) {
    LOOK(handle)
    unsigned room = *count;
    uint64_t at_us = process_sample_us(&gpu, now);
    *count = 0;
    if (gpu.mig_is_on) {
        return NOT_SUPPORTED;
    }
    for (int i = 0; i < MAX_PROCESSES && at_us > last_seen_us; i++) {
        uint32_t percent = process_percent(&gpu, &gpu.processes[i]);
        if (!gpu.processes[i].pid || !percent) {
            continue;
        }
        if (*count < room) {
            samples[*count] = (struct utilization_sample){gpu.processes[i].pid, at_us, percent, percent / 2, 0, 0};
        }
        ++*count;
    }
    return *count == 0 ? NOT_FOUND : *count <= room ? SUCCESS : INSUFFICIENT_SIZE;
}
