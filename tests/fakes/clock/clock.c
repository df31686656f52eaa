/* Library for LD_PRELOAD that shifts the wall clock and CLOCK_BOOTTIME of a process by the offsets in a shared file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NS_IN_S INT64_C(1000000000)

struct shifts {
    int64_t realtime_ns, boottime_ns;
};

static const struct shifts none;
static const volatile struct shifts *shifts = &none;
static int (*libc_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void map_shifts(void) {
    *(void **)&libc_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("WATTLINE_TEST_CLOCK");
    int descriptor = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return;
    }
    void *mapped = mmap(NULL, sizeof(struct shifts), PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != MAP_FAILED) {
        shifts = mapped;
    }
}

static int64_t shift_ns(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return shifts->realtime_ns;
    case CLOCK_BOOTTIME:
        return shifts->boottime_ns;
    default:
        return 0;
    }
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *now) {
    if (libc_clock_gettime == NULL) { /* called by the constructor of another library, before ours */
        *(void **)&libc_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    }
    int failed = libc_clock_gettime(clock, now);
    if (!failed) {
        int64_t at_ns = now->tv_sec * NS_IN_S + now->tv_nsec + shift_ns(clock);
        now->tv_sec = at_ns / NS_IN_S;
        now->tv_nsec = at_ns % NS_IN_S;
    }
    return failed;
}

EXPORT time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) {
        *at = now.tv_sec;
    }
    return now.tv_sec;
}

EXPORT int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec at;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return failed;
}
