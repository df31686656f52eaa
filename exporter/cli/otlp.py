"""Assembly of the receiver of OTLP traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from exporter.polling.live_state import LiveState
from exporter.requests.service import RequestService
from exporter.runs.ledger import Ledger

if TYPE_CHECKING:
    from exporter.otlp.receiver import OtlpReceiver


def otlp_receiver(labels: Iterable[str], ledger: Ledger, requests: RequestService, live: LiveState) -> OtlpReceiver:
    """Return the receiver. Its libraries are imported where traces are enabled: they need memory."""
    from exporter.otlp.attributes import label_rules
    from exporter.otlp.receiver import OtlpReceiver
    from exporter.otlp.run_match import RunMatcher
    from exporter.otlp.spans import SpanReader

    matcher = RunMatcher(ledger.runs.values)
    return OtlpReceiver(SpanReader(label_rules(labels)), matcher, requests, live.counters)
