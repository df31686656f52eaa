"""What is said of a server while it does not take samples: each thing once."""

from __future__ import annotations

import logging
import re
import time

from exporter.model import boottime
from exporter.storage.push_queue import PushPosition, PushQueueState

MOST_COUNTED = 1_000_000
"""At the start; which takes a tenth of a second."""
_NUMBERS = re.compile(r"\d{4,}|\d+\.\d+")

log = logging.getLogger(__name__)


class Outage:
    """Begins with the first word of trouble, and ends when something was taken."""

    def __init__(self, url: str) -> None:
        self.up: bool | None = None
        self._url = url
        self._trouble = ""
        self._since_s = 0.0
        self._refusals: set[str] = set()
        self._dropped: int | None = None
        """How many were, when it was looked at last."""
        self._dropped_before = 0

    def say_begun(self, waiting: PushQueueState) -> None:
        if waiting.oldest_ms is None:
            log.info("pushing to %s: nothing waits", self._url)
            return
        more = "more than " if waiting.samples == MOST_COUNTED else ""
        new = "" if any(waiting.position.counted) else "nothing was pushed there before, so all of the history is: "
        since = moment(waiting.oldest_ms)
        log.info("pushing to %s: %s%s%d samples wait, since %s", self._url, new, more, waiting.samples, since)

    def say(self, text: str) -> None:
        """Once, though numbers in it may change."""
        if not self._trouble:
            self._since_s = boottime()
        if _NUMBERS.sub("…", text) != _NUMBERS.sub("…", self._trouble):
            log.warning("cannot push to %s: %s; what is not sent waits in the history", self._url, text)
        self.up, self._trouble = False, text

    def say_refused(self, text: str, t_ms: int) -> None:
        """Once for each remedy."""
        remedy = text.rpartition("; ")[2]
        if remedy in self._refusals:
            return
        self._refusals.add(remedy)
        log.warning(
            "%s refuses samples of %s: %s; they are not sent again, and wattline_push_samples_total counts them",
            self._url, moment(t_ms), text,
        )  # fmt: skip

    def look(self, position: PushPosition) -> None:
        """Whether the history has dropped anything that was not sent."""
        if self._dropped is None:
            self._dropped = self._dropped_before = position.dropped
        elif position.dropped > self._dropped:
            if self._dropped == self._dropped_before:
                log.warning(
                    "%d samples or more are too old or too many for the history, which has dropped them before they "
                    "could be pushed to %s: they are lost to it, and wattline_push_samples_total counts them",
                    position.dropped - self._dropped, self._url,
                )  # fmt: skip
            self._dropped = position.dropped

    def end(self) -> None:
        if self._trouble:
            dropped = (self._dropped or 0) - self._dropped_before
            lost = f"; {dropped} samples were dropped by the history before" if dropped else ""
            log.info("pushing to %s again, after %.0f s%s", self._url, boottime() - self._since_s, lost)
            self._dropped_before += dropped
        self.up, self._trouble = True, ""


def moment(t_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(t_ms / 1_000))
