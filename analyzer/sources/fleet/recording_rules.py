"""Coverage of a window by the recording rules of deploy/prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.sources.promql import Dialect, InstantServer, QueryTooLargeError

DEVICES = "instance:wattline_device_energy_joules:increase5m"
UNCLAIMED = "instance:wattline_unclaimed_energy_joules:increase5m"
GRAMS = "instance:wattline_emissions_grams:increase5m"
RUN_JOULES = "instance_run:wattline_run_attributed_energy_joules:max5m"
RUN_GRAMS = "instance_run:wattline_run_emissions_grams:max5m"
POLICY = "idle_shared"
BEHIND_MS = 60_000
"""Time between the end of a sample's five minutes and its timestamp."""
_STEP_S = 300.0
_LOOK = "10m"


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """Window without gaps in the recording rules: the requested one, moved by up to one step at either edge."""

    start_s: float
    end_s: float


def recorded_window(server: InstantServer, dialect: Dialect, start_s: float, end_s: float) -> RecordedWindow | str:
    """Return the recorded window, or the reason why the rules cannot be used. Raises FetchError."""
    behind_s = BEHIND_MS / 1_000
    try:
        last_s = _newest(server, dialect, end_s + behind_s)
        if last_s is None:
            return "the server has no recording rules"
        first_s = _newest(server, dialect, start_s + behind_s)
        if first_s is None:
            return "the recording rules start later than the window"
        steps = round((last_s - first_s) / _STEP_S)
        if steps < 1:
            return "the window is too short for the recording rules"
        long_ms = round((last_s - first_s) * 1_000) - 1
        found = server.query(f"max(count_over_time({DEVICES}[{long_ms}ms]))", last_s)
    except QueryTooLargeError as error:
        return f"the server refused to report the coverage of its recording rules: {error}"
    number = round(found[0].value) if found else 0
    if number != steps:
        return f"the recording rules have {number} of the window's {steps} samples"
    return RecordedWindow(first_s - behind_s, last_s - behind_s)


def _newest(server: InstantServer, dialect: Dialect, at_s: float) -> float | None:
    """Return the time of the rules' last evaluation up to a time."""
    text = f"max(max_over_time(timestamp({DEVICES})[{_LOOK}:5s]))"
    if dialect == "victoria-metrics":
        text = f"max(tlast_over_time({DEVICES}[{_LOOK}]))"
    found = server.query(text, at_s)
    return found[0].value if found else None
