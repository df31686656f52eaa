"""Assembly of the receiver of OTLP traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.requests.service import RequestService
from wattline_exporter.runs.ledger import Ledger

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
