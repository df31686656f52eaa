/* Event sets for XIDs: each XID after the registration of its GPU is delivered once. */
#include "nvml.h"

#include <stdlib.h>

enum { EVENT_XID = 8, WAIT_POLL_US = 250000 };
#define WHOLE_GPU UINT32_C(0xFFFFFFFF)

struct event_set {
    bool registered[MAX_GPUS];
    uint64_t seen[MAX_GPUS];
};

struct event_data {
    device device;
    unsigned long long type, data;
    uint32_t gpu_instance, compute_instance;
};

EXPORT result nvmlDeviceGetSupportedEventTypes(device handle, unsigned long long *types) {
    LOOK(handle)
    *types = EVENT_XID;
    return SUCCESS;
}

EXPORT result nvmlEventSetCreate(struct event_set **set) {
    struct header header;
    *set = calloc(1, sizeof **set);
    return call(&header);
}

EXPORT result nvmlEventSetFree(struct event_set *set) {
    free(set);
    return SUCCESS;
}

EXPORT result nvmlDeviceRegisterEvents(device handle, unsigned long long types, struct event_set *set) {
    LOOK(handle)
    if (types & ~(unsigned long long)EVENT_XID) {
        return NOT_SUPPORTED;
    }
    set->registered[gpu.index] = true;
    set->seen[gpu.index] = gpu.xid_count;
    return SUCCESS;
}

/* TIMEOUT where this GPU has no new event. */
static result take(struct event_set *set, uint32_t place, struct event_data *event) {
    struct header header;
    struct gpu gpu;
    read_gpu(place, &header, &gpu);
    if (gpu.faults & (FAULT_LOST | FAULT_UNBOUND)) {
        return GPU_IS_LOST;
    }
    uint64_t seen = set->seen[place];
    if (gpu.xid_count == seen) {
        return TIMEOUT;
    }
    seen = gpu.xid_count > seen + KEPT_XIDS ? gpu.xid_count - KEPT_XIDS : seen;
    *event = (struct event_data){handle_of(place, 0), EVENT_XID, gpu.xids[seen % KEPT_XIDS], WHOLE_GPU, WHOLE_GPU};
    set->seen[place] = seen + 1;
    return SUCCESS;
}

EXPORT result nvmlEventSetWait_v2(struct event_set *set, struct event_data *event, unsigned timeout_ms) {
    double until_s = boottime_s() + timeout_ms / 1e3;
    for (;;) {
        struct header header;
        result called = call(&header);
        for (uint32_t place = 0; called == SUCCESS && place < MAX_GPUS; place++) {
            result taken = set->registered[place] ? take(set, place, event) : TIMEOUT;
            if (taken != TIMEOUT) {
                return taken;
            }
        }
        if (called != SUCCESS || boottime_s() >= until_s) {
            return called != SUCCESS ? called : TIMEOUT;
        }
        sleep_us(WAIT_POLL_US);
    }
}
