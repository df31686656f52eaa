"""Log messages about a push server, each once per outage."""

from __future__ import annotations

import logging
import re
import time

from exporter.model import boottime
from exporter.storage.push_queue import PushPosition, PushQueueState

MAX_COUNTED_SAMPLES = 1_000_000
"""Limit of the count at the start; counting so many takes 0.1 s."""
_NUMBERS = re.compile(r"\d{4,}|\d+\.\d+")

log = logging.getLogger(__name__)


class PushStatusLog:
    """State of the server: an outage starts with the first failure and ends with the next accepted request."""

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
        log.info("pushing to %s: %s%s%d samples queued since %s", self._url, new, more, state.samples, since)

    def log_failure(self, text: str) -> None:
        """Log the failure unless the last one differs in numbers only."""
        if not self._failure:
            self._since_s = boottime()
        if _NUMBERS.sub("…", text) != _NUMBERS.sub("…", self._failure):
            log.warning("cannot push to %s: %s; unsent samples stay in the history", self._url, text)
        self.up, self._failure = False, text

    def log_refusal(self, text: str, t_ms: int) -> None:
        """Log refused samples, once per remedy."""
        remedy = text.rpartition("; ")[2]
        if remedy in self._logged_refusals:
            return
        self._logged_refusals.add(remedy)
        log.warning(
            "%s refuses samples of %s: %s; they are not sent again, see wattline_push_samples_total",
            self._url, format_time(t_ms), text,
        )  # fmt: skip

    def check_dropped(self, position: PushPosition) -> None:
        """Log once per outage that the history has deleted unsent samples."""
        if self._dropped is None:
            self._dropped = self._dropped_before_outage = position.dropped
        elif position.dropped > self._dropped:
            if self._dropped == self._dropped_before_outage:
                log.warning(
                    "the history has deleted %d or more samples before they were pushed to %s: they exceed its "
                    "retention; see wattline_push_samples_total",
                    position.dropped - self._dropped, self._url,
                )  # fmt: skip
            self._dropped = position.dropped

    def log_recovery(self) -> None:
        if self._failure:
            dropped = (self._dropped or 0) - self._dropped_before_outage
            lost = f"; the history deleted {dropped} samples meanwhile" if dropped else ""
            log.info("pushing to %s recovered after %.0f s%s", self._url, boottime() - self._since_s, lost)
            self._dropped_before_outage += dropped
        self.up, self._failure = True, ""


def format_time(t_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(t_ms / 1_000))
