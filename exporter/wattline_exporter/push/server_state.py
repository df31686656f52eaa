"""State of a push server: samples that it has persisted, and its outages in the log."""

from __future__ import annotations

import logging
import re
import time
from collections import deque

from wattline_exporter.push.http import PushResponse
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.storage.push_queue import PushPosition, PushQueueState

FLUSH_S = 30.0
"""Age at which accepted samples are on disk: a killed VictoriaMetrics loses 13 s, more on a slow
disk.
"""
MAX_REWINDS = 3
"""Limit of rewinds without progress."""
MAX_SHORT_CONNECTIONS = 10
"""Limit of consecutive connections closed before anything was proven, as by a server that is killed
repeatedly.
"""

log = logging.getLogger(__name__)


class ServerPersistence:
    """Positions that a server has accepted recently, but may not have persisted.

    A response on the same connection proves that the server process was not restarted; samples it
    accepted more than `flush_s` ago are persisted then. After a disconnection the later ones are
    sent again, which does no harm.
    """

    def __init__(self, url: str, flush_s: float) -> None:
        self._url = url
        self._flush_s = flush_s
        self._recent: deque[tuple[float, PushPosition]] = deque()
        """Times of recently accepted requests, and the position before each."""
        self._loses_recent_samples = False
        self._rewinds = 0
        """Number of rewinds since the last progress."""
        self._has_rewound_for_response = False
        """True after a rewind for an error response such as 502, which a proxy may send often,
        until the next proof.
        """
        self._short_connections = 0

    def may_rewind(self, *, from_server: bool = False) -> bool:
        """Return whether to send unproven samples again; `from_server`: after an error response."""
        return self._rewinds < MAX_REWINDS and not (from_server and self._has_rewound_for_response)

    @property
    def connections_last(self) -> bool:
        """False where connections are always closed early: a disconnection proves nothing then."""
        return self._short_connections < MAX_SHORT_CONNECTIONS

    def record_accepted(
        self, response: PushResponse, requested_s: float, before: PushPosition
    ) -> PushPosition | None:
        """Return the position up to which samples are persisted, given that those after `before`
        were accepted.

        None for a server that persists at once.
        """
        self._loses_recent_samples |= response.loses_recent_samples
        if not self._loses_recent_samples:
            return None
        self._prove(response, requested_s)
        self._recent.append((boottime(), before))
        return self._recent[0][1]

    def record_empty(
        self, response: PushResponse, requested_s: float, position: PushPosition
    ) -> PushPosition:
        """Return the position up to which samples are persisted, after a request without
        samples.
        """
        self._prove(response, requested_s)
        return self._recent[0][1] if self._recent else position

    def _prove(self, response: PushResponse, requested_s: float) -> None:
        if response.same_connection:
            while self._recent and self._recent[0][0] < requested_s - self._flush_s:
                self._recent.popleft()
                self._short_connections, self._has_rewound_for_response = 0, False
        elif not self.connections_last:
            self._recent.clear()

    def record_rewind(self, response: PushResponse) -> None:
        self._recent.clear()
        self._rewinds += 1
        self._has_rewound_for_response |= response.from_server
        if response.kind == "disconnected":
            self._short_connections += 1
            if not self.connections_last:
                log.warning(
                    "connections to %s are closed within %.0f s, by a proxy or a server that "
                    "restarts repeatedly; "
                    "samples that the server loses between two pushes are not sent again",
                    self._url,
                    self._flush_s,
                )

    def record_progress(self) -> None:
        self._rewinds = 0


MAX_COUNTED_SAMPLES = 1_000_000
"""Limit of the count at the start; counting so many takes 0.1 s."""
_NUMBERS = re.compile(r"\d{4,}|\d+\.\d+")


class PushStatusLog:
    """State of the server: an outage starts with the first failure and ends with the next accepted
    request.
    """

    def __init__(self, url: str) -> None:
        self.up: bool | None = None
        self._url = url
        self._failure = ""
        self._since_s = 0.0
        self._logged_refusals: set[str] = set()
        self._dropped: int | None = None
        """Number of dropped samples when last checked."""
        self._dropped_before_outage = 0

    def log_start(self, state: PushQueueState) -> None:
        if state.oldest_ms is None:
            log.info("pushing to %s: no samples queued", self._url)
            return
        more = "more than " if state.samples == MAX_COUNTED_SAMPLES else ""
        new = "" if any(state.position.counted) else "new server, the whole history is sent: "
        since = format_time(state.oldest_ms)
        log.info(
            "pushing to %s: %s%s%d samples queued since %s",
            self._url,
            new,
            more,
            state.samples,
            since,
        )

    def log_failure(self, text: str) -> None:
        """Log the failure unless the last one differs in numbers only."""
        if not self._failure:
            self._since_s = boottime()
        if _NUMBERS.sub("…", text) != _NUMBERS.sub("…", self._failure):
            log.warning(
                "cannot push to %s: %s; unsent samples stay in the history", self._url, text
            )
        self.up, self._failure = False, text

    def log_refusal(self, text: str, t_ms: int) -> None:
        """Log refused samples, once per remedy."""
        remedy = text.rpartition("; ")[2]
        if remedy in self._logged_refusals:
            return
        self._logged_refusals.add(remedy)
        log.warning(
            "%s refuses samples of %s: %s; they are not sent again, see "
            "wattline_push_samples_total",
            self._url,
            format_time(t_ms),
            text,
        )

    def check_dropped(self, position: PushPosition) -> None:
        """Log once per outage that the history has deleted unsent samples."""
        if self._dropped is None:
            self._dropped = self._dropped_before_outage = position.dropped
        elif position.dropped > self._dropped:
            if self._dropped == self._dropped_before_outage:
                log.warning(
                    "the history has deleted %d or more samples before they were pushed to %s: "
                    "they exceed its "
                    "retention; see wattline_push_samples_total",
                    position.dropped - self._dropped,
                    self._url,
                )
            self._dropped = position.dropped

    def log_recovery(self) -> None:
        if self._failure:
            dropped = (self._dropped or 0) - self._dropped_before_outage
            lost = f"; the history deleted {dropped} samples meanwhile" if dropped else ""
            log.info(
                "pushing to %s recovered after %.0f s%s",
                self._url,
                boottime() - self._since_s,
                lost,
            )
            self._dropped_before_outage += dropped
        self.up, self._failure = True, ""


def format_time(t_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(t_ms / 1_000))
