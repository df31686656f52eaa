"""Estimate of the samples that a push server has persisted; a killed server loses the most recent ones."""

from __future__ import annotations

import logging
from collections import deque

from exporter.model import boottime
from exporter.push.http import PushResponse
from exporter.storage.push_queue import PushPosition

FLUSH_S = 30.0
"""Age at which accepted samples are on disk: a killed VictoriaMetrics loses 13 s, more on a slow disk."""
MAX_REWINDS = 3
"""Limit of rewinds without progress."""
MAX_SHORT_CONNECTIONS = 10
"""Limit of consecutive connections closed before anything was proven, as by a server that is killed repeatedly."""

log = logging.getLogger(__name__)


class ServerPersistence:
    """Positions that a server has accepted recently, but may not have persisted.

    A response on the same connection proves that the server process was not restarted; samples it accepted more than
    `flush_s` ago are persisted then. After a disconnection the later ones are sent again, which does no harm.
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
        """True after a rewind for an error response such as 502, which a proxy may send often, until the next proof."""
        self._short_connections = 0

    def may_rewind(self, *, from_server: bool = False) -> bool:
        """Return whether to send unproven samples again; `from_server`: after an error response."""
        return self._rewinds < MAX_REWINDS and not (from_server and self._has_rewound_for_response)

    @property
    def connections_last(self) -> bool:
        """False where connections are always closed early: a disconnection proves nothing then."""
        return self._short_connections < MAX_SHORT_CONNECTIONS

    def record_accepted(self, response: PushResponse, requested_s: float, before: PushPosition) -> PushPosition | None:
        """Return the position up to which samples are persisted, given that those after `before` were accepted.

        None for a server that persists at once.
        """
        self._loses_recent_samples |= response.loses_recent_samples
        if not self._loses_recent_samples:
            return None
        self._prove(response, requested_s)
        self._recent.append((boottime(), before))
        return self._recent[0][1]

    def record_empty(self, response: PushResponse, requested_s: float, position: PushPosition) -> PushPosition:
        """Return the position up to which samples are persisted, after a request without samples."""
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
                    "connections to %s are closed within %.0f s, by a proxy or a server that restarts repeatedly; "
                    "samples that the server loses between two pushes are not sent again",
                    self._url, self._flush_s,
                )  # fmt: skip

    def record_progress(self) -> None:
        self._rewinds = 0
