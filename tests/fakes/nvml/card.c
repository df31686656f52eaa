/* Identity and settings of a GPU. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { BRAND_NVIDIA = 14 };

struct pci_info {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

EXPORT result nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle) {
    uint32_t place;
    bool found = place_of(index, &place);
    *handle = handle_of(place, 0);
    struct header header;
    result called = call(&header);
    if (called != SUCCESS || !found) {
        return called != SUCCESS ? called : INVALID_ARGUMENT;
    }
    LOOK(*handle)
    return SUCCESS;
}

static result find(const char *wanted, bool by_uuid, device *handle) {
    struct header header;
    result called = call(&header);
    for (unsigned i = 0; called == SUCCESS && i < enumerated(); i++) {
        struct gpu gpu;
        uint32_t place;
        place_of(i, &place);
        read_gpu(place, &header, &gpu);
        bool is_it = by_uuid ? strcmp(wanted, gpu.uuid) == 0
                             : strcasecmp(wanted, gpu.pci_bus_id) == 0 || strcasecmp(wanted, gpu.pci_bus_id + 4) == 0;
        if (is_it) {
            return nvmlDeviceGetHandleByIndex_v2(i, handle);
        }
    }
    return called == SUCCESS ? NOT_FOUND : called;
}

EXPORT result nvmlDeviceGetHandleByUUID(const char *uuid, device *handle) { return find(uuid, true, handle); }

EXPORT result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device *handle) { return find(bus_id, false, handle); }

EXPORT result nvmlDeviceGetIndex(device handle, unsigned *index) {
    LOOK(handle)
    return index_of(gpu.index, index) ? SUCCESS : NOT_FOUND;
}

EXPORT result nvmlDeviceGetMinorNumber(device handle, unsigned *minor) { return nvmlDeviceGetIndex(handle, minor); }

EXPORT result nvmlDeviceGetUUID(device handle, char *uuid, unsigned size) {
    LOOK_AT_ANY(handle)
    if (instance == NULL && has_other_uuid(&gpu, now)) {
        return put_text(uuid, size, "GPU-00000000-0000-0000-0000-000000000000");
    }
    return put_text(uuid, size, instance ? instance->uuid : gpu.uuid);
}

EXPORT result nvmlDeviceGetName(device handle, char *name, unsigned size) {
    LOOK_AT_ANY(handle)
    char full[128];
    snprintf(full, sizeof full, instance ? "%s MIG %s" : "%s", gpu.name, instance ? instance->profile : "");
    return put_text(name, size, full);
}

EXPORT result nvmlDeviceGetBrand(device handle, unsigned *brand) {
    LOOK(handle)
    *brand = BRAND_NVIDIA;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetArchitecture(device handle, unsigned *architecture) {
    LOOK(handle)
    *architecture = gpu.architecture;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor) {
    LOOK(handle)
    *major = (int)gpu.compute_major;
    *minor = (int)gpu.compute_minor;
    return SUCCESS;
}

EXPORT result nvmlDeviceGetPciInfo_v3(device handle, struct pci_info *info) {
    LOOK(handle)
    memset(info, 0, sizeof *info);
    sscanf(gpu.pci_bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    info->pci_device_id = gpu.pci_device_id;
    memcpy(info->bus_id, gpu.pci_bus_id, sizeof info->bus_id);
    memcpy(info->bus_id_legacy, gpu.pci_bus_id + 4, sizeof info->bus_id_legacy); /* its domain has four digits */
    return SUCCESS;
}

EXPORT result nvmlDeviceGetPersistenceMode(device handle, unsigned *mode) {
    LOOK(handle)
    *mode = 1;
    return SUCCESS;
}

EXPORT result nvmlDeviceSetPersistenceMode(device handle, unsigned mode) {
    LOOK(handle)
    return mode <= 1 ? SUCCESS : INVALID_ARGUMENT; /* tools set it at their start; it is always on */
}
