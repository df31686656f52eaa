"""Energy of each device over the time of a run, for slots of carbon intensity and power
profiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core import integrate
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.integrate import AHEAD_S, ANY_POWER, IDLE_AGE_S, RUN_AGE_S
from wattline_analyzer.core.sample_table import SampleTable, samples
from wattline_analyzer.core.samples import FloatArray, Samples
from wattline_analyzer.core.timeline import EnergyTrack, EnergyTracks, Window
from wattline_analyzer.report.devices import RawSeries, raw_signals

_ZONES = {"cpu": "package", "dram": "dram"}
_ROUNDING = 1e-9


def energy_tracks(
    raw: RawSeries, run_id: str, devices: Sequence[ReportDevice], windows: Mapping[str, Window]
) -> EnergyTracks:
    """Return the energy of each device over time, whose total is the ledger's.

    A GPU's track follows the run's own counter where it was fetched, else the GPU's counter, else
    the integral of its power. A device without any of them may have used its energy at any time.
    """
    found: dict[tuple[str, str], list[EnergyTrack]] = {}
    for device in devices:
        window = windows[device.instance]
        own = _own_counter(raw.table, run_id, device).between(window.start_s, window.end_s)
        counter, high_w = _device_counter(raw, device)
        if len(own):
            track = _of_run_counter(own, device, window, high_w)
        else:
            track = _of_device_counter(counter, device, window, high_w)
        found.setdefault((device.instance, device.component), []).append(track)
    return found


def _own_counter(raw: SampleTable, run_id: str, device: ReportDevice) -> Samples:
    """Return the run's own energy counter of the device, empty if it was not fetched."""
    where = {"instance": device.instance, "component": device.component, "device": device.device}
    return samples(raw, m.RUN_ENERGY, run_id=run_id, **where)


def _device_counter(raw: RawSeries, device: ReportDevice) -> tuple[Samples, float]:
    """Return the device's counter without restarts, or the integral of its power; and its highest
    power.
    """
    if device.component != "gpu":
        zone = _ZONES.get(device.component, "")
        counter = samples(
            raw.table, m.CPU_ENERGY, instance=device.instance, package=device.device, zone=zone
        )
        return integrate.unwrap(counter, ANY_POWER).samples, ANY_POWER.high_w
    signals = raw_signals(raw, device.instance, device.device)
    possible = signals.power_range
    if possible is None:
        return Samples(np.empty(0), np.empty(0)), ANY_POWER.high_w
    if len(signals.counter) > 1:
        return integrate.unwrap(signals.counter, possible).samples, possible.high_w
    t = signals.power.t
    watts = signals.power.value
    joules = np.diff(t) * (watts[1:] + watts[:-1]) / 2
    return Samples(t, np.concatenate([np.zeros(min(len(t), 1)), joules]).cumsum()), possible.high_w


def _of_run_counter(
    own: Samples, device: ReportDevice, window: Window, high_w: float
) -> EnergyTrack:
    value_j = np.clip(np.maximum.accumulate(own.value), 0.0, device.energy.value)
    return _track(own.t, (value_j, value_j, value_j), device, window, high_w)


def _of_device_counter(
    counter: Samples, device: ReportDevice, window: Window, high_w: float
) -> EnergyTrack:
    """Return the track by a counter of the device, whose samples show the energy between two of
    them.

    The remaining energy was used before the first sample or after the last one. Each of these two
    parts is at least the remainder less the maximum of the other part. The value is the
    interpolated counter; energy that the interpolation lacks is added in proportion to time.
    """
    inside = counter.between(window.start_s, window.end_s)
    whole_j = max(device.energy.number, 0.0)
    if not len(inside):
        nothing = np.empty(0)
        return _track(nothing, (nothing, nothing, nothing), device, window, high_w)
    rise_j = inside.value - inside.value[0]
    if rise_j[-1] > whole_j:
        rise_j = rise_j * (whole_j / rise_j[-1])
    rest_j = whole_j - float(rise_j[-1])
    ends_s = (float(inside.t[0]) - window.start_s, window.end_s - float(inside.t[-1]))
    edges_j = np.interp([window.start_s, window.end_s], counter.t, counter.value)
    usual_j = (float(inside.value[0] - edges_j[0]), float(edges_j[1] - inside.value[-1]))
    outer = (
        counter.value[counter.t < window.start_s][-1:],
        counter.value[counter.t > window.end_s][:1],
    )
    most_j = [
        min(abs(float(near - far[0])) if len(far) else rest_j, high_w * (end_s + RUN_AGE_S), rest_j)
        for near, far, end_s in zip((inside.value[0], inside.value[-1]), outer, ends_s, strict=True)
    ]
    if math.fsum(most_j) < rest_j * (
        1 - _ROUNDING
    ):  # the counter contradicts the ledger: only its shape counts
        value_j = (
            whole_j * (inside.value - edges_j[0]) / max(float(edges_j[1] - edges_j[0]), _ROUNDING)
        )
        apart_j = rest_j - math.fsum(most_j)
        return _track(
            inside.t, (value_j, value_j - apart_j, value_j + apart_j), device, window, high_w
        )
    low_j = rest_j - most_j[1]
    high_j = most_j[0]
    share = ends_s[0] / sum(ends_s) if sum(ends_s) > 0 else 0.0
    head_j = min(max(usual_j[0] + share * (rest_j - sum(usual_j)), low_j), high_j)
    return _track(
        inside.t, (head_j + rise_j, low_j + rise_j, high_j + rise_j), device, window, high_w
    )


def _track(
    t: FloatArray,
    energies_j: tuple[FloatArray, FloatArray, FloatArray],
    device: ReportDevice,
    window: Window,
    high_w: float,
) -> EnergyTrack:
    """Add the start and the end of the run, at which the energy is known."""
    within = (t > window.start_s) & (t < window.end_s)
    whole_j = max(device.energy.number, 0.0)
    value_j, low_j, high_j = (
        np.concatenate([[0.0], np.clip(each[within], 0.0, whole_j), [whole_j]])
        for each in energies_j
    )
    known = np.array([False, *[True] * int(within.sum()), False])
    return EnergyTrack(
        np.concatenate([[window.start_s], t[within], [max(window.end_s, window.start_s)]]),
        value_j,
        low_j,
        high_j,
        np.where(known, RUN_AGE_S if device.component == "gpu" else IDLE_AGE_S, 0.0),
        np.where(known, AHEAD_S, 0.0),
        max(high_w, whole_j / (window.end_s - window.start_s))
        if window.end_s > window.start_s
        else ANY_POWER.high_w,
    )
