"""OTLP metrics: all series of /metrics, sent with OpenTelemetry's own exporter; those of hardware
also under the names of the semantic conventions.

Specification: https://opentelemetry.io/docs/specs/semconv/hardware/.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from wattline.contract import metrics as m
from wattline_exporter.config.values import UsageError
from wattline_exporter.sensors.readings import Reading, Service, printable

OPTION = "--otlp.metrics-url"
EVERY_S = 60.0
"""Interval of the specification, if OTEL_METRIC_EXPORT_INTERVAL sets no other."""
MAX_POINTS = 10_000
"""Points in one request: about 2 MB before compression."""
FINISH_WITHIN_S = 1.5
"""Longest wait for the last request, so that the exporter ends within 3 s of SIGTERM."""
MAX_CAUSES = 16
"""Causes of failure that are logged until a request succeeds: a server may name a new one, such as
a number of the request, each time.
"""

Instrument = Literal["counter", "updowncounter", "gauge"]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HardwareMetric:
    """Metric of the semantic conventions that repeats a metric of the exporter."""

    metric: m.Metric
    name: str
    instrument: Instrument
    unit: str
    attributes: Mapping[str, str]
    """Templates of the values, with the labels of the series."""
    values: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """Further attributes by label and value; a series with another value is left out."""


_GPU = {"hw.id": "{uuid}", "hw.name": "GPU {gpu}", "hw.type": "gpu"}
_CPU = {"hw.id": "cpu-{package}/{zone}", "hw.name": "CPU {package} {zone}"}
_ZONES = {"zone": {"package": {"hw.type": "cpu"}, "dram": {"hw.type": "memory"}}}
_TASKS = {
    name: {"hw.gpu.task": task}
    for name, task in (("gpu", "general"), ("encoder", "encoder"), ("decoder", "decoder"))
}
_DIRECTIONS = {
    "tx": {"network.io.direction": "transmit"},
    "rx": {"network.io.direction": "receive"},
}
_ERRORS = {name: {"error.type": name} for name in ("corrected", "uncorrected")}
_SENSOR = {
    "hw.id": "{uuid}/{sensor}",
    "hw.name": "GPU {gpu} {sensor}",
    "hw.parent": "{uuid}",
    "hw.sensor_location": "{sensor}",
}

HARDWARE_METRICS = (
    HardwareMetric(m.GPU_ENERGY, "hw.energy", "counter", "J", _GPU),
    HardwareMetric(m.GPU_POWER, "hw.power", "gauge", "W", _GPU),
    HardwareMetric(m.CPU_ENERGY, "hw.energy", "counter", "J", _CPU, _ZONES),
    HardwareMetric(m.CPU_POWER, "hw.power", "gauge", "W", _CPU, _ZONES),
    HardwareMetric(m.GPU_UTILIZATION, "hw.gpu.utilization", "gauge", "1", _GPU, {"engine": _TASKS}),
    HardwareMetric(m.GPU_MEMORY_USED, "hw.gpu.memory.usage", "updowncounter", "By", _GPU),
    HardwareMetric(m.GPU_MEMORY_TOTAL, "hw.gpu.memory.limit", "updowncounter", "By", _GPU),
    HardwareMetric(
        m.GPU_PCIE_BYTES, "hw.gpu.io", "counter", "By", _GPU, {"direction": _DIRECTIONS}
    ),
    HardwareMetric(m.GPU_ECC_ERRORS, "hw.errors", "counter", "{error}", _GPU, {"type": _ERRORS}),
    HardwareMetric(m.GPU_TEMPERATURE, "hw.temperature", "gauge", "Cel", _SENSOR),
)


class OtlpMetrics(Service):
    """Sends the series of `readings` to `url`; an outage loses samples, and no energy, since
    energies are cumulative. Headers, certificates, timeout, interval and resource attributes are
    those of OpenTelemetry's environment variables. Raises UsageError.
    """

    def __init__(self, url: str, readings: Callable[[], Awaitable[Iterable[Reading]]]) -> None:
        self._url = url
        self._readings = readings
        self._every_s = _interval_s()
        self._exporter = OTLPMetricExporter(
            url, compression=Compression.Gzip, max_export_batch_size=MAX_POINTS
        )
        host = socket.gethostname()
        own = {"host.name": host, "service.name": "wattline", "service.instance.id": host}
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._thread = ThreadPoolExecutor(1, "otlp")
        self._failures = FirstOfEachCause()
        logger = logging.getLogger(OTLPMetricExporter.__module__)
        logger.setLevel(logging.ERROR)  # retries are warnings
        logger.addFilter(self._failures)

    async def run(self) -> None:
        """Send the series now and at each interval until cancelled."""
        while True:
            await self._send()
            await asyncio.sleep(self._every_s)

    async def stop(self) -> None:
        """Send the latest values once more."""
        await asyncio.wait({asyncio.create_task(self._send())}, timeout=FINISH_WITHIN_S)
        self._exporter.shutdown()
        self._thread.shutdown(wait=False)

    async def _send(self) -> None:
        data = metrics_data(await self._readings(), time.time_ns(), self._resource)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._thread, self._exporter.export, data)
        if result is MetricExportResult.SUCCESS and self._failures.causes:
            self._failures.causes.clear()
            log.info("%s: %s accepts metrics again", OPTION, self._url)


class FirstOfEachCause(logging.Filter):
    """Lets a cause of failure through once, and MAX_CAUSES of them, until `causes` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text in self.causes or len(self.causes) >= MAX_CAUSES:
            return False
        self.causes.add(text)
        return True


def _interval_s() -> float:
    text = os.environ.get(OTEL_METRIC_EXPORT_INTERVAL, "").strip()
    if not text:
        return EVERY_S
    try:
        interval_s = float(text) / 1_000
    except ValueError:
        interval_s = 0.0
    if not 1.0 <= interval_s <= 3_600.0:
        raise UsageError(
            f"{OTEL_METRIC_EXPORT_INTERVAL}={text}: expected milliseconds from 1000 to 3600000"
        )
    return interval_s


def metrics_data(readings: Iterable[Reading], t_ns: int, resource: Resource) -> MetricsData:
    """Return the readings at Unix time `t_ns` as points of OpenTelemetry's metrics."""
    points: dict[tuple[str, Instrument, str], list[NumberDataPoint]] = {}
    for reading in readings:
        for name, instrument, unit, attributes in _streams(reading):
            point = NumberDataPoint(attributes, None, t_ns, reading.value)  # type: ignore[arg-type]  # no start time
            points.setdefault((name, instrument, unit), []).append(point)
    metrics = [_metric(*key, its_points) for key, its_points in points.items()]
    scope = ScopeMetrics(InstrumentationScope("wattline"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(name: str, instrument: Instrument, unit: str, points: list[NumberDataPoint]) -> Metric:
    if instrument == "gauge":
        return Metric(name, "", unit, Gauge(points))
    is_monotonic = instrument == "counter"
    return Metric(name, "", unit, Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic))


def _streams(reading: Reading) -> Iterator[tuple[str, Instrument, str, dict[str, str]]]:
    """Yield name, instrument, unit and attributes: of the series itself, and of the semantic
    conventions if they have it.
    """
    metric = reading.metric
    pairs = [*zip(metric.labels, reading.labels, strict=True), *reading.extra]
    labels = {name: printable(value) for name, value in pairs}
    own = {name: value for name, value in labels.items() if value}
    yield metric.name, "gauge" if metric.kind == "gauge" else "counter", "", own
    for one in HARDWARE_METRICS:
        if one.metric is metric and all(labels[name] in of for name, of in one.values.items()):
            attributes = {name: text.format_map(labels) for name, text in one.attributes.items()}
            for name, of in one.values.items():
                attributes |= of[labels[name]]
            yield one.name, one.instrument, one.unit, attributes
