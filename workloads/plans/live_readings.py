"""What the exporter shows at this moment: power and temperature by GPU, and the work that runs do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from workloads.client.api import Api, ExporterError

POWER, TEMPERATURE = "wattline_gpu_power_watts", "wattline_gpu_temperature_celsius"


@dataclass(frozen=True, slots=True)
class GpuNow:
    """None for what the exporter does not show."""

    gpu: str
    uuid: str
    power_w: float | None = None
    temperature_celsius: float | None = None


@dataclass(slots=True)
class Rates:
    """Work by unit and second between two looks at the same runs."""

    _before: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def of(self, api: Api, run_ids: Iterable[str], now: Callable[[], float] = time.monotonic) -> dict[str, float]:
        rates: dict[str, float] = {}
        for run_id in run_ids:
            try:
                work = api.get(f"/runs/{run_id}")["work"]
            except (ExporterError, KeyError):  # not begun yet
                continue
            now_s = now()
            for unit, total in work.items():
                before_s, before = self._before.get((run_id, unit), (now_s, total))
                self._before[run_id, unit] = now_s, total
                if now_s > before_s:
                    rates[unit] = rates.get(unit, 0.0) + (total - before) / (now_s - before_s)
        return rates


def gpus(text: str) -> list[GpuNow]:
    """Of the text of /metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    power_w: dict[tuple[str, str], float] = {}
    celsius: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in {POWER, TEMPERATURE}:
            continue
        for sample in family.samples:
            key = sample.labels["gpu"], sample.labels["uuid"]
            if family.name == POWER:
                power_w[key] = sample.value
            elif sample.labels.get("sensor") == "gpu":
                celsius[key] = sample.value
    keys = sorted({*power_w, *celsius}, key=lambda key: (len(key[0]), key))
    return [GpuNow(*key, power_w.get(key), celsius.get(key)) for key in keys]


def now(api: Api) -> list[GpuNow]:
    """Nothing where the exporter does not answer."""
    try:
        return gpus(api.metrics())
    except (ExporterError, ValueError):
        return []


def hottest(readings: Sequence[GpuNow], wanted: Sequence[str] | None) -> float | None:
    """Degrees Celsius of the hottest of the wanted GPUs (index or UUID; None: all); None where none is shown."""
    shown = [
        each.temperature_celsius
        for each in readings
        if each.temperature_celsius is not None
        and (wanted is None or "all" in wanted or {each.gpu, each.uuid} & set(wanted))
    ]
    return max(shown, default=None)
