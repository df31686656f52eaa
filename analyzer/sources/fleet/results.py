"""Sums of a fleet from its server, over the whole window at once or in as few parts as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from analyzer.sources.base import FetchError
from analyzer.sources.fleet import queries as q
from analyzer.sources.fleet import recording_rules
from analyzer.sources.promql import InstantServer, InstantValue, QuerySpan, QueryTooLargeError, Side
from analyzer.studies.fleet import NO_RUN, Counts, Keys, Means, Sums, plus
from exporter.contract import metrics as m

SHORTEST_MS = 600_000
_COMPONENT, _UNIT, _BASIS = ("component",), ("unit",), ("basis", "quality")
SpanQueries = Callable[[QuerySpan], Iterable[tuple[float, str]]]
"""Queries of a span, each with the sign of its result in the sum."""


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """Window and keys of a fleet report; `emissions` includes those that the nodes counted."""

    by: Keys
    policy: str
    start_s: float
    end_s: float
    emissions: bool = True
    rules: bool = True


class FleetClient:
    """Client that splits queries into as many parts as the server requires."""

    def __init__(self, server: InstantServer, asked: q.FleetCut, end_s: float, log: Callable[[str], None]) -> None:
        self._server = server
        self._asked = asked
        self._end_s = end_s
        self._log = log
        self._spans = [asked.whole]

    @property
    def spans(self) -> int:
        return len(self._spans)

    def sums(self, question: SpanQueries, what: Sequence[str], *, of_runs: bool = True) -> Sums:
        """Return sums by the keys and the additional labels `what`."""
        while True:
            try:
                return plus(self._sums(text_of, what, of_runs) for text_of in self._texts(question))
            except QueryTooLargeError as error:
                self._split(str(error))

    def once(self, text: str) -> Sums:
        """Return sums over the whole window, empty if the server refuses a query of this size."""
        try:
            return self._sums((1.0, text), (), True)
        except QueryTooLargeError:
            return {}

    def _texts(self, question: SpanQueries) -> Iterator[tuple[float, str]]:
        for span in self._spans:
            yield from question(span)

    def _sums(self, text_of: tuple[float, str], what: Sequence[str], of_runs: bool) -> Sums:
        sign, text = text_of
        return plus(
            {self._key(answer, what, of_runs): sign * answer.value}
            for answer in self._server.query(text, self._end_s)
            if math.isfinite(answer.value)
        )

    def _key(self, answer: InstantValue, what: Sequence[str], of_runs: bool) -> tuple[Keys, Keys]:
        device = (q.NODE, q.GPU_MODEL)
        keys = tuple(
            answer.labels.get(q.label_of_key(key), "") if of_runs or key in device else NO_RUN for key in self._asked.by
        )
        return keys, tuple(answer.labels.get(name, "") for name in what)

    def _split(self, reason: str) -> None:
        if self._spans[0].long_ms < 2 * SHORTEST_MS:
            raise FetchError(
                f"{self._server.name} refuses even {self._spans[0].long_ms / 60_000:.0f} min of this fleet: {reason}",
                "raise its limits (Prometheus: --query.max-samples, --query.timeout), or record the rules of "
                "deploy/prometheus",
            )
        self._spans = [half for span in self._spans for half in span.halves()]
        self._log(f"the server refused a query for its size; retrying in {len(self._spans)} parts ({reason[:120]})")


def fetch_fleet(server: InstantServer, wish: FleetRequest, log: Callable[[str], None]) -> Counts:
    """Return the sums from recording rules if they cover the window, else from raw samples. Raises FetchError."""
    asked, start_s, end_s, why_not = _asked(server, wish)
    asking = FleetClient(server, asked, end_s, log)
    devices = asking.sums(_rises(asked, q.device_energy_queries), _COMPONENT, of_runs=False)
    if not devices:
        raise _no_samples(server, wish)
    unclaimed = asking.sums(_rises(asked, q.unattributed_energy_queries), _COMPONENT, of_runs=False)
    idle = unclaimed
    if wish.policy != q.HELD:
        idle = asking.sums(
            _rises(replace(asked, policy=q.HELD), q.unattributed_energy_queries), _COMPONENT, of_runs=False
        )
    work = asking.sums(_counted(asked, q.work_queries), _UNIT)
    device_grams = (
        asking.sums(_rises(asked, q.device_emission_queries), _BASIS, of_runs=False) if wish.emissions else {}
    )
    return Counts(
        devices=devices,
        unclaimed=unclaimed,
        claimed=asking.sums(_counted(asked, q.attributed_energy_queries), _COMPONENT),
        work=work,
        working=asking.sums(_counted(asked, q.working_energy_queries), _UNIT) if work else {},
        grams=asking.sums(_counted(asked, q.emission_queries), _BASIS) if device_grams else {},
        device_grams=device_grams,
        runs=asking.once(q.run_count_query(asked)),
        idle={key: value for key, value in idle.items() if key[1] == ("gpu",)},
        means=Means(
            "recording rules" if asked.recorded else "raw samples",
            start_s,
            end_s,
            server.name,
            asking.spans,
            server.query_count,
            server.transferred_bytes,
            why_not,
        ),
    )


def _asked(server: InstantServer, wish: FleetRequest) -> tuple[q.FleetCut, float, float, str]:
    """Return the grouping, start and end of the window, and the reason why recording rules are not used."""
    dialect = server.dialect()
    if q.GPU_MODEL in wish.by or wish.policy != recording_rules.POLICY:
        found: recording_rules.RecordedWindow | str = (
            f"the recording rules have no {q.GPU_MODEL}, and only the policy {recording_rules.POLICY}"
        )
    else:
        found = recording_rules.recorded_window(server, dialect, wish.start_s, wish.end_s) if wish.rules else ""
    start_s, end_s, why_not = wish.start_s, wish.end_s, ""
    if isinstance(found, str):
        why_not = found
    else:
        start_s, end_s = found.start_s, found.end_s
    whole = QuerySpan(round((end_s - start_s) * 1_000))
    pods = "namespace" in wish.by and bool(server.query(q.pods_query(whole), end_s))
    return q.FleetCut(wish.by, wish.policy, dialect, whole, not isinstance(found, str), pods), start_s, end_s, why_not


def _rises(asked: q.FleetCut, texts: Callable[[q.FleetCut, QuerySpan], Iterable[str]]) -> SpanQueries:
    return lambda span: [(1.0, text) for text in texts(asked, span)]


def _counted(asked: q.FleetCut, texts: Callable[[q.FleetCut, QuerySpan, Side], Iterable[str]]) -> SpanQueries:
    """Return queries for the count up to the span's end minus the count before the span."""
    return lambda span: [
        *((1.0, text) for text in texts(asked, span, "until")),
        *((-1.0, text) for text in texts(asked, span, "before")),
    ]


def _no_samples(server: InstantServer, wish: FleetRequest) -> FetchError:
    start, end = (datetime.fromtimestamp(t).astimezone() for t in (wish.start_s, wish.end_s))
    return FetchError(
        f"no samples of {m.GPU_ENERGY.name} or {m.CPU_ENERGY.name} between {start:%Y-%m-%d %H:%M:%S} and "
        f"{end:%Y-%m-%d %H:%M:%S} at {server.name}",
        "check that it scrapes the exporters, and that they were running; see --since and --source",
    )
