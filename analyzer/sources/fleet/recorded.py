"""What the recording rules of deploy/prometheus hold of a window, where a server has them."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.sources.instant import Dialect, InstantServer, TooMuchError

DEVICES = "instance:wattline_device_energy_joules:increase5m"
UNCLAIMED = "instance:wattline_unclaimed_energy_joules:increase5m"
GRAMS = "instance:wattline_emissions_grams:increase5m"
RUN_JOULES = "instance_run:wattline_run_attributed_energy_joules:max5m"
RUN_GRAMS = "instance_run:wattline_run_emissions_grams:max5m"
POLICY = "idle_shared"
BEHIND_MS = 60_000
"""A sample is of the five minutes that end so long before it."""
_STEP_S = 300.0
_LOOK = "10m"


@dataclass(frozen=True, slots=True)
class Covered:
    """The window that is recorded without a hole: the one that was asked for, moved by up to a step at either edge."""

    start_s: float
    end_s: float


def covered(server: InstantServer, dialect: Dialect, start_s: float, end_s: float) -> Covered | str:
    """Or why the rules cannot be used. Raises SourceError."""
    behind_s = BEHIND_MS / 1_000
    try:
        last_s = _newest(server, dialect, end_s + behind_s)
        if last_s is None:
            return "no recording rules there"
        first_s = _newest(server, dialect, start_s + behind_s)
        if first_s is None:
            return "the recording rules begin later than the window"
        steps = round((last_s - first_s) / _STEP_S)
        if steps < 1:
            return "the window is too short for the recording rules"
        long_ms = round((last_s - first_s) * 1_000) - 1
        found = server.ask(f"max(count_over_time({DEVICES}[{long_ms}ms]))", last_s)
    except TooMuchError as error:
        return f"the server does not say what its recording rules hold: {error}"
    number = round(found[0].value) if found else 0
    if number != steps:
        return f"the recording rules have {number} of the window's {steps} samples"
    return Covered(first_s - behind_s, last_s - behind_s)


def _newest(server: InstantServer, dialect: Dialect, at_s: float) -> float | None:
    """When the rules were last evaluated up to then."""
    text = f"max(max_over_time(timestamp({DEVICES})[{_LOOK}:5s]))"
    if dialect == "victoria-metrics":
        text = f"max(tlast_over_time({DEVICES}[{_LOOK}]))"
    found = server.ask(text, at_s)
    return found[0].value if found else None
