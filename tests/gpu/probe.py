"""Read-only probe of the first GPU's driver, printed as JSON: `python -m tests.gpu.probe QUANTITY
SECONDS`.

It is a separate process, so that a hanging driver can be abandoned and a simulated one substituted.
It never sets a power limit, clock or mode.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pynvml

from tests.bench.window_errors import quantile
from tests.gpu.sensor import TimedPoll, update_period
from wattline_exporter.sensors.nvml.driver import Nvml
from wattline_exporter.sensors.readings import boottime

FAST_S = 0.001
EXIT_NVML = 3
"""Exit code when NVML refused; all other non-zero codes are bugs."""
_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
}
CALLS = 300
_FIELDS = {
    "counter": pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    "instant": pynvml.NVML_FI_DEV_POWER_INSTANT,
    "average": pynvml.NVML_FI_DEV_POWER_AVERAGE,
}


class TimedNvml:
    """Wrapper of pynvml that times each function by name and counts its errors."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.raised: dict[str, Counter[str]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(pynvml, name)

        def timed(*arguments: Any) -> Any:
            begin_s = time.perf_counter()
            try:
                return function(*arguments)
            except pynvml.NVMLError as error:
                self.raised.setdefault(name, Counter())[str(error)] += 1
                raise
            finally:
                self.seconds.setdefault(name, []).append(time.perf_counter() - begin_s)

        return timed


def identity(_: float) -> dict[str, Any]:
    """Return the GPU, and whether it can be attached after an initialization without GPUs."""
    begin_s = time.perf_counter()
    pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_ATTACH)
    initialized_s = time.perf_counter()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    attached_s = time.perf_counter()
    pynvml.nvmlDeviceGetPowerUsage(handle)
    return {
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
        "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        "gpus": pynvml.nvmlDeviceGetCount(),
        "no_attach_init_seconds": initialized_s - begin_s,
        "attach_one_seconds": attached_s - initialized_s,
    }


def calls(_: float) -> dict[str, Any]:
    """Return the cost of every function of the exporter's source, in the order of its calls."""
    timed = TimedNvml()
    nvml = Nvml(timed)
    nvml.open()
    nvml.count()
    polls_s = []
    for _ in range(CALLS):
        gpu = nvml.gpu(0)
        begin_s = time.perf_counter()
        gpu.poll()
        polls_s.append(time.perf_counter() - begin_s)
        list(gpu.readings())
        gpu.pids()
        time.sleep(0.002)
    return {
        "functions": {
            name: _cost(seconds, timed.raised.get(name)) for name, seconds in timed.seconds.items()
        },
        "poll": _cost(polls_s, None),
    }


def updates(seconds: float) -> dict[str, Any]:
    """Return the times at which counter and powers change, polled quickly."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    polls_by_value: dict[str, list[TimedPoll]] = {name: [] for name in (*_FIELDS, "power usage")}
    end_s = boottime() + seconds
    while (before_s := boottime()) < end_s:
        values = pynvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS.values()))
        after_s = boottime()
        for name, field in zip(_FIELDS, values, strict=True):
            if (value := _value(field)) is not None:
                polls_by_value[name].append(TimedPoll(before_s, after_s, value))
        power_mw = pynvml.nvmlDeviceGetPowerUsage(handle)
        polls_by_value["power usage"].append(TimedPoll(after_s, boottime(), power_mw))
        time.sleep(FAST_S)
    return {name: update_period(polls) for name, polls in polls_by_value.items()}


def integral(seconds: float) -> dict[str, Any]:
    """Return the counter's difference and the trapezoids of both powers from the same polls at 100
    Hz.
    """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    rows: list[tuple[float, ...]] = []
    end_s = boottime() + seconds
    while boottime() < end_s:
        values = pynvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS.values()))
        known = [_value(field) for field in values]
        rows.append((boottime(), *(math.nan if value is None else value for value in known)))
        time.sleep(0.01)
    results: dict[str, Any] = {
        "seconds": rows[-1][0] - rows[0][0],
        "counter_joules": _known(rows[-1][1] - rows[0][1]),
    }
    for column, name in ((2, "instant_joules"), (3, "average_joules")):
        results[name] = _known(
            sum((a[column] + b[column]) / 2 * (b[0] - a[0]) for a, b in pairwise(rows))
        )
    return results


def samples(_: float) -> dict[str, Any]:
    """Return the state of the driver's buffer of power samples."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    try:
        _, power_samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    except pynvml.NVMLError as error:
        return {"available": False, "why": str(error)}
    stamps = sorted(sample.timeStamp / 1e6 for sample in power_samples)
    steps_s = [b - a for a, b in pairwise(stamps)]
    return {
        "available": True,
        "count": len(stamps),
        "span_seconds": stamps[-1] - stamps[0] if stamps else None,
        "median_step_seconds": quantile(steps_s, 0.5) if steps_s else None,
    }


def _value(field: Any) -> float | None:
    """Return the value in joules or watts."""
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return getattr(field.value, _MEMBERS[field.valueType]) / 1_000


def _cost(seconds: list[float], raised: Counter[str] | None) -> dict[str, Any]:
    return {
        "calls": len(seconds),
        "p50_seconds": quantile(seconds, 0.5),
        "p99_seconds": quantile(seconds, 0.99),
        "raised": dict(raised or {}),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


QUANTITIES = {
    function.__name__: function for function in (identity, calls, updates, integral, samples)
}


def main() -> None:
    quantity, seconds = sys.argv[1], float(sys.argv[2])
    try:
        print(json.dumps(QUANTITIES[quantity](seconds)))
    except pynvml.NVMLError as error:
        print(f"NVML: {error}", file=sys.stderr)
        sys.exit(EXIT_NVML)


if __name__ == "__main__":
    main()
