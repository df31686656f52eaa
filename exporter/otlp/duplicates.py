"""Detection of spans that describe the same request: a gateway's, and the server's below it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

MAX_SPANS = 50_000
"""Spans that are remembered; at 5,000 spans a second, those of ten seconds."""
_EXCESS = 0.2
"""Spans beyond MAX_SPANS, relative to it, that are removed at once."""
MAX_DEPTH = 64


class SpanTree:
    """Parents of recent spans, and those spans whose request was counted.

    Of requests on one path of a trace, the innermost counts where both are in one body, else the first received. Span
    ids are numbers; 0 means none.
    """

    def __init__(self, max_spans: int = MAX_SPANS) -> None:
        self._max = max_spans
        self._parents: dict[int, int] = {}
        self._counted: dict[int, None] = {}
        self._above: dict[int, None] = {}
        """Ancestors of counted spans."""

    def add(self, links: Iterable[tuple[int, int]]) -> None:
        """Remember spans with their parents."""
        self._parents.update(links)
        _limit(self._parents, self._max)

    def redundant(self, requests: Collection[int]) -> set[int]:
        """Return those of the spans that describe a request that another span describes as well."""
        own = set(requests)
        linked = self._linked(own)
        above = {ancestor for span in linked for ancestor in self._ancestors(span)}
        below = {span for span in linked if any(each in self._counted for each in self._ancestors(span))}
        return own & above | below | own & self._counted.keys() | own & self._above.keys()

    def count(self, requests: Collection[int]) -> None:
        """Remember spans whose requests were counted."""
        self._counted.update(dict.fromkeys(requests))
        for span in self._linked(requests):
            self._above.update(dict.fromkeys(self._ancestors(span)))
        _limit(self._counted, self._max)
        _limit(self._above, self._max)

    def _linked(self, spans: Iterable[int]) -> list[int]:
        """Return those of the spans that have a parent."""
        return [span for span in spans if span in self._parents] if self._parents else []

    def _ancestors(self, span: int) -> list[int]:
        """Return the nearest MAX_DEPTH ancestors; none of a span in or below a cycle of parents, which is an error."""
        found: list[int] = []
        while len(found) < MAX_DEPTH and (span := self._parents.get(span, 0)):
            found.append(span)
        return found if len(set(found)) == len(found) else []


def _limit(kept: dict[int, int] | dict[int, None], most: int) -> None:
    """Remove the oldest entries beyond the limit, many at once: a search for the oldest passes all removed ones."""
    if len(kept) > (1 + _EXCESS) * most:
        for oldest in list(islice(kept, len(kept) - most)):
            del kept[oldest]
