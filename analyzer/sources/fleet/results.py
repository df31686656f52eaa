"""A fleet's sums, fetched from its server: the whole window at once, or in as few parts as the server takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from analyzer.sources.error import SourceError
from analyzer.sources.fleet import queries as q
from analyzer.sources.fleet import recorded
from analyzer.sources.instant import Answer, InstantServer, TooMuchError
from analyzer.sources.promql import Side, Span
from analyzer.studies.fleet import NO_RUN, Counts, Keys, Means, Sums, plus
from exporter.contract import metrics as m

SHORTEST_MS = 600_000
_COMPONENT, _UNIT, _BASIS = ("component",), ("unit",), ("basis", "quality")
Question = Callable[[Span], Iterable[tuple[float, str]]]
"""What to ask of a span, each with the sign that its answer has in the sum."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A window and how to cut it. `emissions` says whether to ask for those that the nodes counted."""

    by: Keys
    policy: str
    start_s: float
    end_s: float
    emissions: bool = True
    rules: bool = True


class Asking:
    """Puts questions to a server and remembers into how many parts it wants them cut."""

    def __init__(self, server: InstantServer, asked: q.Asked, end_s: float, say: Callable[[str], None]) -> None:
        self._server = server
        self._asked = asked
        self._end_s = end_s
        self._say = say
        self._spans = [asked.whole]

    @property
    def spans(self) -> int:
        return len(self._spans)

    def sums(self, question: Question, what: Sequence[str], *, of_runs: bool = True) -> Sums:
        """`what` are the labels beside the keys."""
        while True:
            try:
                return plus(self._sums(text_of, what, of_runs) for text_of in self._texts(question))
            except TooMuchError as error:
                self._cut(str(error))

    def once(self, text: str) -> Sums:
        """Of the whole window; nothing where the server takes that for too much."""
        try:
            return self._sums((1.0, text), (), True)
        except TooMuchError:
            return {}

    def _texts(self, question: Question) -> Iterator[tuple[float, str]]:
        for span in self._spans:
            yield from question(span)

    def _sums(self, text_of: tuple[float, str], what: Sequence[str], of_runs: bool) -> Sums:
        sign, text = text_of
        return plus(
            {self._key(answer, what, of_runs): sign * answer.value}
            for answer in self._server.ask(text, self._end_s)
            if math.isfinite(answer.value)
        )

    def _key(self, answer: Answer, what: Sequence[str], of_runs: bool) -> tuple[Keys, Keys]:
        device = (q.NODE, q.GPU_MODEL)
        keys = tuple(
            answer.labels.get(q.label(key), "") if of_runs or key in device else NO_RUN for key in self._asked.by
        )
        return keys, tuple(answer.labels.get(name, "") for name in what)

    def _cut(self, reason: str) -> None:
        if self._spans[0].long_ms < 2 * SHORTEST_MS:
            raise SourceError(
                f"{self._server.name} refuses even {self._spans[0].long_ms / 60_000:.0f} min of this fleet: {reason}",
                "raise its limits (Prometheus: --query.max-samples, --query.timeout), or record the rules of "
                "deploy/prometheus",
            )
        self._spans = [half for span in self._spans for half in span.halves()]
        self._say(f"the server refuses so much at once; asking in {len(self._spans)} parts ({reason[:120]})")


def read(server: InstantServer, wish: Wish, say: Callable[[str], None]) -> Counts:
    """From recording rules where they hold the window, else from raw samples. Raises SourceError."""
    asked, start_s, end_s, why_not = _asked(server, wish)
    asking = Asking(server, asked, end_s, say)
    devices = asking.sums(_rises(asked, q.devices), _COMPONENT, of_runs=False)
    if not devices:
        raise _nothing(server, wish)
    unclaimed = asking.sums(_rises(asked, q.unclaimed), _COMPONENT, of_runs=False)
    idle = unclaimed
    if wish.policy != q.HELD:
        idle = asking.sums(_rises(replace(asked, policy=q.HELD), q.unclaimed), _COMPONENT, of_runs=False)
    work = asking.sums(_counted(asked, q.work), _UNIT)
    device_grams = asking.sums(_rises(asked, q.device_grams), _BASIS, of_runs=False) if wish.emissions else {}
    return Counts(
        devices=devices,
        unclaimed=unclaimed,
        claimed=asking.sums(_counted(asked, q.claimed), _COMPONENT),
        work=work,
        working=asking.sums(_counted(asked, q.working), _UNIT) if work else {},
        grams=asking.sums(_counted(asked, q.grams), _BASIS) if device_grams else {},
        device_grams=device_grams,
        runs=asking.once(q.number(asked)),
        idle={key: value for key, value in idle.items() if key[1] == ("gpu",)},
        means=Means(
            "recording rules" if asked.recorded else "raw samples",
            start_s,
            end_s,
            server.name,
            asking.spans,
            server.asked,
            server.moved_bytes,
            why_not,
        ),
    )


def _asked(server: InstantServer, wish: Wish) -> tuple[q.Asked, float, float, str]:
    """What to ask, of which window, and why not of the recording rules."""
    dialect = server.dialect()
    if q.GPU_MODEL in wish.by or wish.policy != recorded.POLICY:
        found: recorded.Covered | str = f"the recording rules hold no {q.GPU_MODEL}, and {recorded.POLICY} alone"
    else:
        found = recorded.covered(server, dialect, wish.start_s, wish.end_s) if wish.rules else ""
    start_s, end_s, why_not = wish.start_s, wish.end_s, ""
    if isinstance(found, str):
        why_not = found
    else:
        start_s, end_s = found.start_s, found.end_s
    whole = Span(round((end_s - start_s) * 1_000))
    pods = "namespace" in wish.by and bool(server.ask(q.any_pods(whole), end_s))
    return q.Asked(wish.by, wish.policy, dialect, whole, not isinstance(found, str), pods), start_s, end_s, why_not


def _rises(asked: q.Asked, texts: Callable[[q.Asked, Span], Iterable[str]]) -> Question:
    return lambda span: [(1.0, text) for text in texts(asked, span)]


def _counted(asked: q.Asked, texts: Callable[[q.Asked, Span, Side], Iterable[str]]) -> Question:
    """What was counted up to the span's end, less what had been before it."""
    return lambda span: [
        *((1.0, text) for text in texts(asked, span, "until")),
        *((-1.0, text) for text in texts(asked, span, "before")),
    ]


def _nothing(server: InstantServer, wish: Wish) -> SourceError:
    start, end = (datetime.fromtimestamp(t).astimezone() for t in (wish.start_s, wish.end_s))
    return SourceError(
        f"no samples of {m.GPU_ENERGY.name} or {m.CPU_ENERGY.name} between {start:%Y-%m-%d %H:%M:%S} and "
        f"{end:%Y-%m-%d %H:%M:%S} at {server.name}",
        "were the exporters up, and are they scraped by it? see --since and --source",
    )
