/* MIG instances of a GPU, and their GPM metrics. */
#include "nvml.h"

#include <stdlib.h>

enum { METRIC_SM_UTILIZATION = 2 };

EXPORT result nvmlDeviceGetMigMode(device handle, unsigned *current, unsigned *pending) {
    LOOK(handle)
    *current = *pending = gpu.mig_is_on;
    return gpu.is_of_data_centre ? SUCCESS : NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetMaxMigDeviceCount(device handle, unsigned *count) {
    LOOK(handle)
    *count = gpu.is_of_data_centre ? MAX_INSTANCES : 0;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetMigDeviceHandleByIndex(device handle, unsigned index, device *mig) {
    LOOK(handle)
    if (index >= MAX_INSTANCES) {
        return INVALID_ARGUMENT;
    }
    *mig = handle_of(gpu.index, index + 1);
    return gpu.mig_is_on && gpu.instances[index].number ? SUCCESS : NOT_FOUND;
}

EXPORT result nvmlDeviceIsMigDeviceHandle(device handle, unsigned *is_mig) {
    LOOK_AT_ANY(handle)
    *is_mig = instance != NULL;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device handle, device *parent) {
    LOOK_AT_ANY(handle)
    *parent = handle_of(gpu.index, 0);
    return instance ? SUCCESS : NOT_FOUND;
}

EXPORT result nvmlDeviceGetGpuInstanceId(device handle, unsigned *number) {
    LOOK_AT_ANY(handle)
    *number = instance ? instance->number : 0;
    return instance ? SUCCESS : NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetComputeInstanceId(device handle, unsigned *number) {
    LOOK_AT_ANY(handle)
    *number = 0;
    return instance ? SUCCESS : NOT_SUPPORTED;
}

/* ---- GPM ---- */

struct gpm_support {
    uint32_t version, is_supported;
};

struct gpm_sample {
    double at_s, sm_percent;
};

struct gpm_metric {
    uint32_t id, result;
    double value;
    const char *names[3];
};

struct gpm_metrics {
    uint32_t version, count;
    struct gpm_sample *samples[2];
    struct gpm_metric metrics[];
};

EXPORT result nvmlGpmQueryDeviceSupport(device handle, struct gpm_support *support) {
    LOOK(handle)
    support->is_supported = gpu.architecture >= HOPPER;
    return SUCCESS;
}

EXPORT result nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

EXPORT result nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return SUCCESS;
}

EXPORT result nvmlGpmMigSampleGet(device handle, unsigned number, struct gpm_sample *sample) {
    LOOK(handle)
    if (gpu.architecture < HOPPER) {
        return NOT_SUPPORTED;
    }
    if (!gpu.mig_is_on || number < 1 || number > MAX_INSTANCES || !gpu.instances[number - 1].number) {
        return INVALID_ARGUMENT;
    }
    *sample = (struct gpm_sample){now, instance_percent(&gpu, &gpu.instances[number - 1])};
    return SUCCESS;
}

EXPORT result nvmlGpmMetricsGet(struct gpm_metrics *wanted) {
    struct header header;
    result called = call(&header);
    for (uint32_t i = 0; called == SUCCESS && i < wanted->count; i++) {
        struct gpm_metric *metric = &wanted->metrics[i];
        bool apart = wanted->samples[1]->at_s > wanted->samples[0]->at_s;
        metric->result = metric->id != METRIC_SM_UTILIZATION ? NOT_SUPPORTED : apart ? SUCCESS : NO_DATA;
        metric->value = wanted->samples[1]->sm_percent;
    }
    return called;
}
