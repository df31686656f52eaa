"""What a server has for good. One that is killed forgets what it took last, and is back before anyone looks."""

from __future__ import annotations

import logging
from collections import deque

from exporter.model import boottime
from exporter.push.responses import Answer
from exporter.storage.push_queue import PushPosition

FORGETS_S = 30.0
"""A VictoriaMetrics that is killed loses what it took in the last 13 s, and more where its disk is slow."""
MOST_IN_VAIN = 3
"""So often the same is sent again where one comes no further by it."""
MOST_UNPROVEN = 10
"""So many connections in a row may be gone early, as those to a server that is killed again and again."""

log = logging.getLogger(__name__)


class Certainty:
    """An answer proves that the server lives; on the connection that is kept, that it is the one that it was.

    So what it took long before that is there for good, and of the rest nobody knows once there is no connection.
    """

    def __init__(self, url: str, forgets_s: float) -> None:
        self._url = url
        self._forgets_s = forgets_s
        self._taken: deque[tuple[float, PushPosition]] = deque()
        """When something was taken lately, and the position before."""
        self._forgets = False
        self._in_vain = 0
        """How often one went back and came no further."""
        self._told = False
        """Whether one went back since something was proved for an answer, as a 502, of which a proxy may give many."""
        self._unproven = 0
        """How often a connection was gone before anything was proved on it."""

    def may_go_back(self, *, told: bool = False) -> bool:
        """`told`: for what somebody answered."""
        return self._in_vain < MOST_IN_VAIN and not (told and self._told)

    @property
    def connections_last(self) -> bool:
        """Where they never do, that one is gone says nothing."""
        return self._unproven < MOST_UNPROVEN

    def took(self, said: Answer, asked_s: float, before: PushPosition) -> PushPosition | None:
        """Up to where it has all for good, now that it has taken what follows `before`; None where it never forgets."""
        self._forgets |= said.forgets
        if not self._forgets:
            return None
        self._prove(said, asked_s)
        self._taken.append((boottime(), before))
        return self._taken[0][1]

    def answered(self, said: Answer, asked_s: float, position: PushPosition) -> PushPosition:
        """Likewise, though nothing was sent."""
        self._prove(said, asked_s)
        return self._taken[0][1] if self._taken else position

    def _prove(self, said: Answer, asked_s: float) -> None:
        if said.kept:
            while self._taken and self._taken[0][0] < asked_s - self._forgets_s:
                self._taken.popleft()
                self._unproven, self._told = 0, False
        elif not self.connections_last:
            self._taken.clear()

    def went_back(self, said: Answer) -> None:
        self._taken.clear()
        self._in_vain += 1
        self._told |= said.answered
        if said.kind == "gone":
            self._unproven += 1
            if not self.connections_last:
                log.warning(
                    "connections to %s do not last for %.0f s, by a proxy or since the server is killed all the time: "
                    "what it forgets between two pushes is not sent again until they do",
                    self._url, self._forgets_s,
                )  # fmt: skip

    def came_further(self) -> None:
        self._in_vain = 0
