"""Assembly of the receiver of OTLP traces, and of the sender of OTLP metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from wattline.command_line import install
from wattline_exporter.config.values import OperationError, check_url
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.requests.service import RequestService
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.sensors.readings import Reading, Service

if TYPE_CHECKING:
    from wattline_exporter.requests.otlp.receiver import OtlpReceiver


def otlp_receiver(
    labels: Iterable[str], ledger: Ledger, requests: RequestService, live: LiveState
) -> OtlpReceiver:
    """Return the receiver. Its libraries are imported where traces are enabled: they need
    memory.
    """
    from wattline_exporter.requests.otlp.attributes import label_rules
    from wattline_exporter.requests.otlp.receiver import OtlpReceiver
    from wattline_exporter.requests.otlp.run_match import RunMatcher
    from wattline_exporter.requests.otlp.spans import SpanReader

    matcher = RunMatcher(ledger.runs.values)
    return OtlpReceiver(SpanReader(label_rules(labels)), matcher, requests, live.counters)


def otlp_metrics(
    url: str | None, readings: Callable[[], Awaitable[Iterable[Reading]]]
) -> list[Service]:
    """Return the sender of metrics to `url`; empty without a URL. Raises UsageError and
    OperationError.
    """
    if url is None:
        return []
    try:
        from wattline_exporter.web.otlp_metrics import OPTION, OtlpMetrics
    except ModuleNotFoundError as error:
        raise OperationError(
            f"--otlp.metrics-url: {error.name} is not installed; {install('otlp')}"
        ) from error
    return [OtlpMetrics(str(check_url(url, OPTION)), readings)]
