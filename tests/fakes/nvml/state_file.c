/* Mapped state file: read without a lock (its sequence number is odd during a write), written under flock. */
#define _GNU_SOURCE
#include "simulation.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER; /* flock excludes other processes, not threads of this one */
static int descriptor = -1;
static bool writable;
static struct header *shared; /* followed by the GPUs and the points */

static struct gpu *shared_gpus(void) { return (struct gpu *)(shared + 1); }

const struct point *recorded_points(uint32_t *count) {
    *count = shared->point_count;
    return (const struct point *)(shared_gpus() + shared->gpu_count);
}

double boottime_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void sleep_us(uint32_t microseconds) {
    struct timespec rest = {microseconds / 1000000, (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&rest, &rest) != 0) {
    }
}

static bool map_file(const char *path) {
    struct stat status;
    writable = true;
    descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
        writable = false;
        descriptor = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (descriptor < 0 || fstat(descriptor, &status) != 0 || (size_t)status.st_size < sizeof(struct header)) {
        return false;
    }
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    struct header *mapped = mmap(NULL, (size_t)status.st_size, protection, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) {
        return false;
    }
    size_t size = sizeof(struct header) + mapped->gpu_count * sizeof(struct gpu) + mapped->point_count * sizeof(struct point);
    if (memcmp(mapped->magic, "WATTSIM2", 8) != 0 || mapped->record_size != sizeof(struct gpu) ||
        size != (size_t)status.st_size) {
        munmap(mapped, (size_t)status.st_size);
        return false;
    }
    shared = mapped;
    return true;
}

bool simulation_open(void) {
    const char *path = getenv("WATTLINE_SIMULATION");
    pthread_mutex_lock(&opening);
    if (shared == NULL && (path == NULL || !map_file(path))) {
        fprintf(stderr, "simulated libnvidia-ml: WATTLINE_SIMULATION=%s is not a simulation's state file\n", path ? path : "");
        if (descriptor >= 0) {
            close(descriptor);
            descriptor = -1;
        }
    }
    bool opened = shared != NULL;
    pthread_mutex_unlock(&opening);
    return opened;
}

static uint32_t lock_and_make_odd(void) {
    pthread_mutex_lock(&writing);
    flock(descriptor, LOCK_EX);
    uint32_t odd = shared->sequence | 1;
    __atomic_store_n(&shared->sequence, odd, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return odd;
}

static void make_even_and_unlock(uint32_t odd) {
    __atomic_store_n(&shared->sequence, odd + 1, __ATOMIC_RELEASE);
    flock(descriptor, LOCK_UN);
    pthread_mutex_unlock(&writing);
}

static void read_together(struct header *header, uint32_t index, struct gpu *gpu) {
    for (int tries = 1;; tries++) {
        uint32_t before = __atomic_load_n(&shared->sequence, __ATOMIC_ACQUIRE);
        if (before % 2 == 0) {
            memcpy(header, shared, sizeof *header);
            if (gpu != NULL) {
                memcpy(gpu, &shared_gpus()[index], sizeof *gpu);
            }
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (__atomic_load_n(&shared->sequence, __ATOMIC_RELAXED) == before) {
                return;
            }
        } else if (writable && tries % 10000 == 0) { /* after more than a second: the writer was killed and no other is active */
            make_even_and_unlock(lock_and_make_odd());
        }
        sleep_us(100);
    }
}

void read_header(struct header *header) { read_together(header, 0, NULL); }

void read_gpu(uint32_t index, struct header *header, struct gpu *gpu) { read_together(header, index, gpu); }

/* Start a copy of the last segment now, which continues its load. */
static struct segment continued(const struct gpu *gpu) {
    struct segment next = gpu->segments[(gpu->changes - 1) % KEPT_SEGMENTS];
    double now = shared->clock_s > 0 ? shared->clock_s : boottime_s();
    next.begin_j = cumulative_j(gpu, now);
    next.begin_capped_s = cumulative_capped_s(gpu, now);
    next.begin_s = now;
    return next;
}

static void append(struct gpu *gpu, struct segment next) {
    gpu->segments[gpu->changes % KEPT_SEGMENTS] = next;
    gpu->changes++;
}

bool write_limit(uint32_t index, double limit_w) {
    if (!writable) {
        return false;
    }
    uint32_t odd = lock_and_make_odd();
    struct gpu *gpu = &shared_gpus()[index];
    struct segment next = continued(gpu);
    next.limit_w = limit_w;
    gpu->limit_w = limit_w;
    append(gpu, next);
    make_even_and_unlock(odd);
    return true;
}

bool write_locked_clock(uint32_t index, uint32_t mhz) {
    if (!writable) {
        return false;
    }
    uint32_t odd = lock_and_make_odd();
    struct gpu *gpu = &shared_gpus()[index];
    double used = 0.0;
    bool is_used = false;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        used += gpu->processes[i].utilization;
        is_used |= gpu->processes[i].pid != 0;
    }
    gpu->locked_clock_mhz = mhz;
    if (is_used) { /* the power of a process depends on its clock */
        struct segment next = continued(gpu);
        next.kind = LOAD_CONSTANT;
        next.load_begin_s = next.begin_s;
        next.parameters[0] = gpu->idle_w + (gpu->peak_w - gpu->idle_w) * (used < 1.0 ? used : 1.0) * dynamic_ratio(gpu);
        append(gpu, next);
    }
    make_even_and_unlock(odd);
    return true;
}
