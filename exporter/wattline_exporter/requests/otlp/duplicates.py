"""Detection of spans that describe the same request: a gateway's, and the server's below it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

MAX_SPANS = 50_000
"""Spans that are remembered, at least; at 5,000 spans a second, those of ten seconds."""
_EXCESS = 0.2
"""Parents beyond MAX_SPANS, relative to it, that are removed at once."""
MAX_DEPTH = 64


class SpanTree:
    """Parents of recent spans, and those spans whose request was counted.

    Of requests on one path of a trace, the innermost counts where both are in one body, else the
    first received. Span ids are numbers; 0 means none.
    """

    def __init__(self, max_spans: int = MAX_SPANS) -> None:
        self._max = max_spans
        self._parents: dict[int, int] = {}
        self._counted, self._above = _LatestSpans(max_spans), _LatestSpans(max_spans)
        """Counted spans, and the ancestors of such."""

    def add(self, links: Iterable[tuple[int, int]]) -> None:
        """Remember spans with their parents."""
        self._parents.update(links)
        if (
            len(self._parents) > (1 + _EXCESS) * self._max
        ):  # a search for the oldest passes all that were removed
            for oldest in list(islice(self._parents, len(self._parents) - self._max)):
                del self._parents[oldest]

    def redundant(self, requests: Collection[int]) -> set[int]:
        """Return those of the spans that describe a request that another span describes as well."""
        own = set(requests)
        linked = self._linked(own)
        above = {ancestor for span in linked for ancestor in self._ancestors(span)}
        below = {
            span for span in linked if any(each in self._counted for each in self._ancestors(span))
        }
        return own & above | below | self._counted.common(own) | self._above.common(own)

    def count(self, requests: Collection[int]) -> None:
        """Remember spans whose requests were counted."""
        self._counted.add(requests)
        self._above.add(
            ancestor for span in self._linked(requests) for ancestor in self._ancestors(span)
        )

    def _linked(self, spans: Iterable[int]) -> list[int]:
        """Return those of the spans that have a parent."""
        return [span for span in spans if span in self._parents] if self._parents else []

    def _ancestors(self, span: int) -> list[int]:
        """Return the nearest MAX_DEPTH ancestors; none of a span in or below a cycle of parents,
        which is an error.
        """
        found: list[int] = []
        while len(found) < MAX_DEPTH and (span := self._parents.get(span, 0)):
            found.append(span)
        return found if len(set(found)) == len(found) else []


class _LatestSpans:
    """Latest spans, in two sets, of which the older one is forgotten as a whole. A set is faster
    than a dict.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._new, self._old = set[int](), set[int]()

    def add(self, spans: Iterable[int]) -> None:
        self._new.update(spans)
        if len(self._new) >= self._least:
            self._new, self._old = set(), self._new

    def common(self, spans: set[int]) -> set[int]:
        return spans & self._new | spans & self._old

    def __contains__(self, span: int) -> bool:
        return span in self._new or span in self._old

    def __len__(self) -> int:
        return len(self._new) + len(self._old)
