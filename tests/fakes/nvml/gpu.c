/* Power and energy of a simulated GPU, as in gpu.py and loads.py, with the same order of operations, so that results
 * agree to the last bit (hence no fused multiply-add: -ffp-contract=off). */
#include "simulation.h"

#include <math.h>
#include <stddef.h>

static double trace_energy_j(double at_s, double limit_w) {
    uint32_t count;
    const struct point *points = recorded_points(&count);
    double energy_j = 0.0;
    uint32_t i = 0;
    for (; i + 1 < count && points[i + 1].t_s <= at_s; i++) {
        energy_j += fmin(points[i].watts, limit_w) * (points[i + 1].t_s - points[i].t_s);
    }
    return energy_j + fmin(points[i].watts, limit_w) * (at_s - points[i].t_s);
}

static double trace_demand_w(double at_s) {
    uint32_t count, i = 0;
    const struct point *points = recorded_points(&count);
    while (i + 1 < count && points[i + 1].t_s <= at_s) {
        i++;
    }
    return points[i].watts;
}

static double square_energy_j(const double *p, double elapsed_s, double limit_w) {
    double low_w = fmin(p[0], limit_w), high_w = fmin(p[1], limit_w), period_s = p[2];
    double at_s = elapsed_s + p[4], high_s = p[3] * period_s;
    double periods = floor(at_s / period_s);
    double within_s = at_s - periods * period_s;
    double period_j = high_w * high_s + low_w * (period_s - high_s);
    return periods * period_j + high_w * fmin(within_s, high_s) + low_w * fmax(0.0, within_s - high_s);
}

static double ramp_demand_w(const double *p, double elapsed_s) {
    return p[0] + (p[1] - p[0]) * (fmin(elapsed_s, p[2]) / p[2]);
}

static double ramp_energy_j(const double *p, double elapsed_s, double limit_w) {
    double from_w = p[0], to_w = p[1], duration_s = p[2];
    double ramp_s = fmin(elapsed_s, duration_s);
    double hold_j = fmin(to_w, limit_w) * (elapsed_s - ramp_s);
    double end_w = ramp_demand_w(p, ramp_s);
    if (from_w <= limit_w && end_w <= limit_w) {
        return ramp_s * (from_w + end_w) / 2 + hold_j;
    }
    if (from_w >= limit_w && end_w >= limit_w) {
        return ramp_s * limit_w + hold_j;
    }
    double crossing_s = (limit_w - from_w) * duration_s / (to_w - from_w);
    double under_s = from_w < limit_w ? crossing_s : ramp_s - crossing_s;
    double over_s = from_w < limit_w ? ramp_s - crossing_s : crossing_s;
    return under_s * (fmin(from_w, end_w) + limit_w) / 2 + over_s * limit_w + hold_j;
}

static double load_energy_j(const struct segment *segment, double elapsed_s) {
    const double *p = segment->parameters;
    switch (segment->kind) {
    case LOAD_SQUARE:
        return square_energy_j(p, elapsed_s, segment->limit_w);
    case LOAD_RAMP:
        return ramp_energy_j(p, elapsed_s, segment->limit_w);
    case LOAD_TRACE:
        return trace_energy_j(elapsed_s + p[0], segment->limit_w);
    default:
        return fmin(p[0], segment->limit_w) * elapsed_s;
    }
}

static double trace_over_s(double at_s, double limit_w) {
    uint32_t count;
    const struct point *points = recorded_points(&count);
    double over_s = 0.0;
    uint32_t i = 0;
    for (; i + 1 < count && points[i + 1].t_s <= at_s; i++) {
        over_s += points[i].watts > limit_w ? points[i + 1].t_s - points[i].t_s : 0.0;
    }
    return over_s + (points[i].watts > limit_w ? at_s - points[i].t_s : 0.0);
}

static double square_over_s(const double *p, double elapsed_s, double limit_w) {
    double high = p[1] > limit_w, low = p[0] > limit_w, period_s = p[2];
    double at_s = elapsed_s + p[4], high_s = p[3] * period_s;
    double periods = floor(at_s / period_s);
    double within_s = at_s - periods * period_s;
    double period_over_s = high * high_s + low * (period_s - high_s);
    return periods * period_over_s + high * fmin(within_s, high_s) + low * fmax(0.0, within_s - high_s);
}

static double ramp_over_s(const double *p, double elapsed_s, double limit_w) {
    double from_w = p[0], to_w = p[1], duration_s = p[2];
    double ramp_s = fmin(elapsed_s, duration_s);
    double hold_s = to_w > limit_w ? elapsed_s - ramp_s : 0.0;
    double end_w = ramp_demand_w(p, ramp_s);
    if (from_w <= limit_w && end_w <= limit_w) {
        return hold_s;
    }
    if (from_w >= limit_w && end_w >= limit_w) {
        return ramp_s + hold_s;
    }
    double crossing_s = (limit_w - from_w) * duration_s / (to_w - from_w);
    return (from_w < limit_w ? ramp_s - crossing_s : crossing_s) + hold_s;
}

static double load_over_s(const struct segment *segment, double elapsed_s) {
    const double *p = segment->parameters;
    switch (segment->kind) {
    case LOAD_SQUARE:
        return square_over_s(p, elapsed_s, segment->limit_w);
    case LOAD_RAMP:
        return ramp_over_s(p, elapsed_s, segment->limit_w);
    case LOAD_TRACE:
        return trace_over_s(elapsed_s + p[0], segment->limit_w);
    default:
        return p[0] > segment->limit_w ? elapsed_s : 0.0;
    }
}

static double load_demand_w(const struct segment *segment, double elapsed_s) {
    const double *p = segment->parameters;
    switch (segment->kind) {
    case LOAD_SQUARE: {
        double at_s = elapsed_s + p[4];
        double within_s = at_s - floor(at_s / p[2]) * p[2];
        return within_s < p[3] * p[2] ? p[1] : p[0];
    }
    case LOAD_RAMP:
        return ramp_demand_w(p, elapsed_s);
    case LOAD_TRACE:
        return trace_demand_w(elapsed_s + p[0]);
    default:
        return p[0];
    }
}

static uint64_t oldest_change(const struct gpu *gpu) {
    return gpu->changes > KEPT_SEGMENTS ? gpu->changes - KEPT_SEGMENTS : 0;
}

const struct segment *segment_at(const struct gpu *gpu, double t) {
    for (uint64_t i = gpu->changes; i > oldest_change(gpu); i--) {
        const struct segment *segment = &gpu->segments[(i - 1) % KEPT_SEGMENTS];
        if (segment->begin_s <= t) {
            return segment;
        }
    }
    return NULL;
}

double cumulative_j(const struct gpu *gpu, double t) {
    const struct segment *segment = segment_at(gpu, t);
    if (segment == NULL) {
        const struct segment *oldest = &gpu->segments[oldest_change(gpu) % KEPT_SEGMENTS];
        return oldest->begin_j - gpu->idle_w * (oldest->begin_s - t);
    }
    double since_j = load_energy_j(segment, t - segment->load_begin_s);
    return segment->begin_j + (since_j - load_energy_j(segment, segment->begin_s - segment->load_begin_s));
}

double cumulative_capped_s(const struct gpu *gpu, double t) {
    const struct segment *segment = segment_at(gpu, t);
    if (segment == NULL) {
        return gpu->segments[oldest_change(gpu) % KEPT_SEGMENTS].begin_capped_s;
    }
    double since_s = load_over_s(segment, t - segment->load_begin_s);
    return segment->begin_capped_s + (since_s - load_over_s(segment, segment->begin_s - segment->load_begin_s));
}

double demand_w(const struct gpu *gpu, double t) {
    const struct segment *segment = segment_at(gpu, t);
    return segment ? load_demand_w(segment, t - segment->load_begin_s) : gpu->idle_w;
}

double clock_ratio(const struct gpu *gpu) {
    return gpu->locked_clock_mhz ? gpu->locked_clock_mhz / (double)gpu->sm_clock_mhz : 1.0;
}

double dynamic_ratio(const struct gpu *gpu) { return clock_ratio(gpu) * clock_ratio(gpu) * clock_ratio(gpu); }
