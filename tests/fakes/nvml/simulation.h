/* State file of simulated GPUs as C structs, and the values that a driver reports about them.
 * Layout and arithmetic follow exporter/wattline_exporter/simulation (layout.py, loads.py, gpu.py, sensors.py), operation by operation. */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum { KEPT_SEGMENTS = 32, MAX_PROCESSES = 16, MAX_INSTANCES = 7, KEPT_XIDS = 16, MAX_GPUS = 64 };
enum { IDLE_CLOCK_MHZ = 345, CLOCK_STEP_MHZ = 15 };
enum { AMPERE = 7, ADA, HOPPER };
enum {
    FAULT_HANG = 1,
    FAULT_LOST = 2,
    FAULT_NO_COUNTER = 4,
    FAULT_NO_FIELDS = 8,
    FAULT_NO_AVERAGE = 16,
    FAULT_INIT_HANG = 32,
    FAULT_UNBOUND = 64,
    FAULT_FORBIDDEN = 128,
    FAULT_UNMOVED = 256,
};
enum { LOAD_CONSTANT = 1, LOAD_SQUARE, LOAD_RAMP, LOAD_TRACE };

struct header {
    char magic[8];
    uint32_t gpu_count, sequence, driver_loaded, call_latency_us, point_count, record_size;
    double driver_loaded_at_s, clock_s;
    char reserved[16];
};

struct process {
    uint32_t pid, instance; /* the number of a MIG instance, or 0 */
    double utilization;
    uint64_t memory_bytes;
};

struct instance {
    char uuid[48], profile[16];
    uint64_t memory_bytes;
    uint32_t number, slices;
};

struct segment {
    uint32_t kind, reserved;
    double begin_s, begin_j, limit_w, load_begin_s, begin_capped_s, parameters[5];
};

struct gpu {
    char name[96], uuid[96], pci_bus_id[32];
    double idle_w, peak_w, limit_min_w, limit_max_w, limit_default_w, peak_flop_per_s;
    double sensor_period_s, instant_window_s, average_window_s, counter_period_s, noise_w;
    double sensor_phase_s, counter_phase_s, limit_w, energy_at_load_j, capped_at_load_s;
    double frozen_at_s, frozen_instant_w, frozen_average_w, frozen_counter_j;
    uint64_t memory_bytes, changes, ecc_corrected, ecc_uncorrected, xid_count;
    uint32_t faults, index, architecture, compute_major, compute_minor, sm_clock_mhz, memory_clock_mhz, pci_device_id;
    uint32_t is_of_data_centre, mig_is_on, locked_clock_mhz, reserved, xids[KEPT_XIDS];
    struct process processes[MAX_PROCESSES];
    struct instance instances[MAX_INSTANCES];
    struct segment segments[KEPT_SEGMENTS];
};

struct point {
    double t_s, watts;
};

static_assert(sizeof(struct header) == 64, "the layout's header");
static_assert(sizeof(struct gpu) == 4296, "the layout's record");

/* Map the file named by WATTLINE_SIMULATION, once per process; print errors to stderr. */
bool simulation_open(void);

/* Consistent copy of the header, or of the header and one GPU. */
void read_header(struct header *header);
void read_gpu(uint32_t index, struct header *header, struct gpu *gpu);

/* Return false where the file cannot be written. */
bool write_limit(uint32_t index, double limit_w);
bool write_locked_clock(uint32_t index, uint32_t mhz);

double boottime_s(void);
void sleep_us(uint32_t microseconds);

/* Values that the driver reports at t. */
uint32_t instant_mw(const struct gpu *gpu, double t);
uint32_t average_mw(const struct gpu *gpu, double t);
uint64_t counter_mj(const struct gpu *gpu, double t);
double utilization(const struct gpu *gpu, double t);
bool is_capped(const struct gpu *gpu, double t);
uint32_t sm_clock_mhz(const struct gpu *gpu, double t);
uint32_t temperature_celsius(const struct gpu *gpu, double t);
uint64_t capped_ns(const struct gpu *gpu, double t);
uint64_t pcie_bytes(const struct gpu *gpu, double t, double bytes_per_joule);
uint32_t process_percent(const struct gpu *gpu, const struct process *process);
uint64_t process_sample_us(const struct gpu *gpu, double t);
double instance_percent(const struct gpu *gpu, const struct instance *instance);
uint64_t memory_used_bytes(const struct gpu *gpu, const struct instance *instance); /* NULL for the whole GPU */

/* Kinds of scheduled faults, as tests/fakes/nvml_faults.py describes them. */
enum {
    KIND_ERROR = 1,
    KIND_POWER,
    KIND_COUNTER_SLOPE,
    KIND_COUNTER_STEP,
    KIND_COUNTER_RESTART,
    KIND_COUNTER_SCALE,
    KIND_COUNTER_READS,
    KIND_COUNTER_NOISE,
    KIND_COUNTER_LATE,
    KIND_POWER_SCALE,
    KIND_POWER_RANDOM,
    KIND_FIELD_ERROR,
    KIND_FIELD_TYPE,
    KIND_FIELD_TIME,
    KIND_SLOW,
    KIND_SPIN,
    KIND_END,
    KIND_UUID,
    KIND_PROCESSES,
};
enum quantity { ANY_QUANTITY, QUANTITY_COUNTER, QUANTITY_POWER };

/* Scheduled faults at `now`: NVML's error code or 0, after the delay or the end of the process that they schedule; what
 * calls report; the number of processes or 0. */
int scheduled_driver_error(double now);
int scheduled_error(const struct gpu *gpu, double now);
int scheduled_field_error(const struct gpu *gpu, double now, enum quantity quantity);
uint32_t reported_type(const struct gpu *gpu, double now, uint32_t type);
int64_t reported_us(const struct gpu *gpu, double now, int64_t timestamp_us);
uint32_t reported_mw(const struct gpu *gpu, double now, uint32_t milliwatts);
uint64_t reported_counter_mj(const struct gpu *gpu, double now);
uint32_t reported_processes(const struct gpu *gpu, double now);
bool has_other_uuid(const struct gpu *gpu, double now);

/* Energy and capped time since the file was created; power of the load without a limit; recorded trace of the file. */
double cumulative_j(const struct gpu *gpu, double t);
double cumulative_capped_s(const struct gpu *gpu, double t);
double demand_w(const struct gpu *gpu, double t);
const struct segment *segment_at(const struct gpu *gpu, double t); /* NULL before the oldest that is kept */
const struct point *recorded_points(uint32_t *count);

/* Share of the highest SM clock, and of a process's dynamic power, with a locked clock. */
double clock_ratio(const struct gpu *gpu);
double dynamic_ratio(const struct gpu *gpu);

#endif
