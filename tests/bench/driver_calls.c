/* The driver calls of the exporter's NVML worker, at the same rates, and nothing else.
 *
 * driver_calls FILE GPUS PERIOD_S READINGS_S PROCESSES_S: FILE has lines `STAGE CALL ARGUMENT...`, which
 * tests/bench/driver_calls.py records from the worker's code. The stage `poll` is called for each GPU every PERIOD_S.
 * `readings` and `lists` (of processes) are called every READINGS_S and PROCESSES_S, for one GPU in each round, as the
 * worker does. Runs until it is killed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *device;
typedef int (*take_device)(device, void *);
typedef int (*take_number)(device, unsigned, void *);
typedef int (*take_two)(device, void *, void *);
typedef int (*take_samples)(device, void *, unsigned *, unsigned long long);
typedef int (*take_fields)(device, int, void *);
typedef int (*take_handle)(unsigned, device *);
typedef int (*take_flags)(unsigned);

enum { MAX_CALLS = 64, MAX_GPUS = 64, MAX_ARGUMENTS = 16, MAX_PROCESSES = 256 };
enum form { ONE, NUMBER, TWO, COUNTED, SAMPLES, FIELDS };

struct field_value {
    uint32_t field_id, scope_id;
    int64_t timestamp_us, latency_us;
    uint32_t value_type, result;
    uint64_t value;
};

static const struct {
    const char *name, *symbol;
    enum form form;
} known[] = {
    {"nvmlDeviceGetFieldValues", NULL, FIELDS},
    {"nvmlDeviceGetTotalEnergyConsumption", NULL, ONE},
    {"nvmlDeviceGetPowerUsage", NULL, ONE},
    {"nvmlDeviceGetEnforcedPowerLimit", NULL, ONE},
    {"nvmlDeviceGetCurrentClocksEventReasons", NULL, ONE},
    {"nvmlDeviceGetPerformanceState", NULL, ONE},
    {"nvmlDeviceGetUtilizationRates", NULL, ONE},
    {"nvmlDeviceGetMemoryInfo", NULL, ONE},
    {"nvmlDeviceGetMarginTemperature", NULL, ONE},
    {"nvmlDeviceGetTemperature", NULL, NUMBER},
    {"nvmlDeviceGetClockInfo", NULL, NUMBER},
    {"nvmlDeviceGetEncoderUtilization", NULL, TWO},
    {"nvmlDeviceGetDecoderUtilization", NULL, TWO},
    {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v3", COUNTED},
    {"nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v3", COUNTED},
    {"nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v3", COUNTED},
    {"nvmlDeviceGetProcessUtilization", NULL, SAMPLES},
};

struct driver_call {
    char stage; /* first letter */
    enum form form;
    void *function;
    int count;
    unsigned arguments[MAX_ARGUMENTS];
};

static struct driver_call calls[MAX_CALLS];
static int call_count;
static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "driver_calls: the library has no %s\n", name);
        exit(2);
    }
    return found;
}

static void read_call(char *line) {
    struct driver_call *call = &calls[call_count++];
    call->stage = *strtok(line, " \n");
    const char *name = strtok(NULL, " \n");
    for (size_t i = 0; i < sizeof known / sizeof *known && call->function == NULL; i++) {
        if (strcmp(known[i].name, name) == 0) {
            call->form = known[i].form;
            call->function = symbol(known[i].symbol ? known[i].symbol : name);
        }
    }
    if (call->function == NULL || call_count == MAX_CALLS) {
        fprintf(stderr, "driver_calls: add %s to its table\n", name);
        exit(2);
    }
    for (char *text; (text = strtok(NULL, " \n")) != NULL && call->count < MAX_ARGUMENTS;) {
        call->arguments[call->count++] = (unsigned)strtoul(text, NULL, 10);
    }
}

static void perform(const struct driver_call *call, device gpu) {
    static uint64_t buffer[MAX_PROCESSES * 8];
    static struct field_value fields[MAX_ARGUMENTS];
    unsigned count = MAX_PROCESSES;
    switch (call->form) {
    case ONE:
        buffer[0] = 0;
        ((take_device)call->function)(gpu, buffer);
        break;
    case NUMBER:
        ((take_number)call->function)(gpu, call->arguments[0], buffer);
        break;
    case TWO:
        ((take_two)call->function)(gpu, buffer, buffer + 1);
        break;
    case COUNTED:
        ((take_two)call->function)(gpu, &count, buffer);
        break;
    case SAMPLES:
        ((take_samples)call->function)(gpu, buffer, &count, 0);
        break;
    case FIELDS:
        memset(fields, 0, sizeof fields);
        for (int i = 0; i < call->count; i++) {
            fields[i].field_id = call->arguments[i];
        }
        ((take_fields)call->function)(gpu, call->count, fields);
        break;
    }
}

static void perform_stage(char stage, device gpu) {
    for (int i = 0; i < call_count; i++) {
        if (calls[i].stage == stage) {
            perform(&calls[i], gpu);
        }
    }
}

int main(int argument_count, char **arguments) {
    if (argument_count != 6) {
        return 2;
    }
    unsigned gpus = (unsigned)strtoul(arguments[2], NULL, 10);
    double period_s = strtod(arguments[3], NULL);
    double every_s[2] = {strtod(arguments[4], NULL), strtod(arguments[5], NULL)};
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL || gpus == 0 || gpus > MAX_GPUS || period_s <= 0) {
        fprintf(stderr, "driver_calls: %s\n", library ? "invalid arguments" : dlerror());
        return 2;
    }
    FILE *file = fopen(arguments[1], "r");
    for (char line[512]; file != NULL && fgets(line, sizeof line, file) != NULL;) {
        read_call(line);
    }
    device handles[MAX_GPUS];
    double read_s[MAX_GPUS][2] = {0}; /* readings, lists */
    ((take_flags)symbol("nvmlInitWithFlags"))(0);
    take_handle handle = (take_handle)symbol("nvmlDeviceGetHandleByIndex_v2");
    for (unsigned gpu = 0; gpu < gpus; gpu++) {
        if (handle(gpu, &handles[gpu]) != 0) {
            fprintf(stderr, "driver_calls: no GPU %u\n", gpu);
            return 2;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct timespec clock;
        for (unsigned gpu = 0; gpu < gpus; gpu++) {
            perform_stage('p', handles[gpu]);
        }
        clock_gettime(CLOCK_BOOTTIME, &clock);
        double now_s = (double)clock.tv_sec + 1e-9 * (double)clock.tv_nsec;
        unsigned latest = 0;
        double late_s = -1;
        for (unsigned gpu = 0; gpu < gpus; gpu++) {
            double overdue_s = fmax(now_s - read_s[gpu][0] - every_s[0], now_s - read_s[gpu][1] - every_s[1]);
            if (overdue_s > late_s) {
                latest = gpu;
                late_s = overdue_s;
            }
        }
        for (int stage = 0; stage < 2; stage++) {
            if (late_s >= 0 && now_s - read_s[latest][stage] >= every_s[stage]) {
                read_s[latest][stage] = now_s;
                perform_stage("rl"[stage], handles[latest]);
            }
        }
        double rest_s = period_s - fmod(now_s, period_s);
        struct timespec rest = {0, (long)(rest_s * 1e9)};
        nanosleep(&rest, NULL);
    }
}
