"""Sums of a fleet from its server, over the whole window at once or in as few parts as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from analyzer.model.devices import SIMULATED
from analyzer.sources.base import FetchError
from analyzer.sources.fleet import queries as q
from analyzer.sources.fleet.aliases import find_aliases, without_instances
from analyzer.sources.promql import InstantServer, InstantValue, QuerySpan, QueryTooLargeError, Side
from analyzer.studies.fleet import NO_RUN, Counts, Keys, Means, Sums, add_sums
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

    def __init__(self, server: InstantServer, cut: q.FleetCut, end_s: float, log: Callable[[str], None]) -> None:
        self._server = server
        self._cut = cut
        self._end_s = end_s
        self._log = log
        self._spans = [cut.whole]
        self._aliases = find_aliases(server, cut.whole, end_s, log)

    @property
    def spans(self) -> int:
        return len(self._spans)

    def sums(self, question: SpanQueries, what: Sequence[str], *, of_runs: bool = True) -> Sums:
        """Return sums by the keys and the additional labels `what`."""
        while True:
            try:
                return add_sums(self._sums(text_of, what, of_runs) for text_of in self._texts(question))
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
        return add_sums(
            {self._key(answer, what, of_runs): sign * answer.value}
            for answer in self._server.query(without_instances(text, self._aliases), self._end_s)
            if math.isfinite(answer.value)
        )

    def _key(self, answer: InstantValue, what: Sequence[str], of_runs: bool) -> tuple[Keys, Keys]:
        device = (q.NODE, q.GPU_MODEL)
        keys = tuple(
            answer.labels.get(q.label_of_key(key), "") if of_runs or key in device else NO_RUN for key in self._cut.by
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


def fetch_fleet(server: InstantServer, request: FleetRequest, log: Callable[[str], None]) -> Counts:
    """Return the sums from recording rules if they cover the window, else from raw samples. Raises FetchError."""
    cut, start_s, end_s, why_not = _choose_cut(server, request)
    client = FleetClient(server, cut, end_s, log)
    devices = client.sums(_rises(cut, q.device_energy_queries), _COMPONENT, of_runs=False)
    if not devices:
        raise _no_samples(server, request)
    unclaimed = client.sums(_rises(cut, q.unattributed_energy_queries), _COMPONENT, of_runs=False)
    idle = unclaimed
    if request.policy != q.POLICY:
        idle = client.sums(
            _rises(replace(cut, policy=q.POLICY), q.unattributed_energy_queries), _COMPONENT, of_runs=False
        )
    work = client.sums(_counted(cut, q.work_queries), _UNIT)
    device_grams = (
        client.sums(_rises(cut, q.device_emission_queries), _BASIS, of_runs=False) if request.emissions else {}
    )
    return Counts(
        devices=devices,
        unclaimed=unclaimed,
        claimed=client.sums(_counted(cut, q.attributed_energy_queries), _COMPONENT),
        work=work,
        working=client.sums(_counted(cut, q.working_energy_queries), _UNIT) if work else {},
        grams=client.sums(_counted(cut, q.emission_queries), _BASIS) if device_grams else {},
        device_grams=device_grams,
        runs=client.once(q.run_count_query(cut)),
        idle={key: value for key, value in idle.items() if key[1] == ("gpu",)},
        means=Means(
            "recording rules" if cut.recorded else "raw samples",
            start_s,
            end_s,
            server.name,
            client.spans,
            server.query_count,
            server.transferred_bytes,
            why_not,
        ),
    )


def has_simulated_gpus(server: InstantServer, request: FleetRequest) -> bool:
    """Return True if a simulated GPU was scraped in the window. Raises FetchError."""
    long_ms = round((request.end_s - request.start_s) * 1_000)
    shown = f'max_over_time({m.GPU_INFO.name}{{name=~"{SIMULATED}.*"}}[{long_ms}ms])'
    try:
        return bool(server.query(f"count({shown})", request.end_s))
    except QueryTooLargeError:
        return False


def _choose_cut(server: InstantServer, request: FleetRequest) -> tuple[q.FleetCut, float, float, str]:
    """Return the grouping, start and end of the window, and the reason why recording rules are not used."""
    dialect = server.dialect()
    if q.GPU_MODEL in request.by or request.policy != q.POLICY:
        found: q.RecordedWindow | str = f"the recording rules have no {q.GPU_MODEL}, and only the policy {q.POLICY}"
    else:
        found = q.recorded_window(server, dialect, request.start_s, request.end_s) if request.rules else ""
    start_s, end_s, why_not = request.start_s, request.end_s, ""
    if isinstance(found, str):
        why_not = found
    else:
        start_s, end_s = found.start_s, found.end_s
    whole = QuerySpan(round((end_s - start_s) * 1_000))
    pods = "namespace" in request.by and bool(server.query(q.pods_query(whole), end_s))
    return (
        q.FleetCut(request.by, request.policy, dialect, whole, not isinstance(found, str), pods),
        start_s,
        end_s,
        why_not,
    )


def _rises(cut: q.FleetCut, texts: Callable[[q.FleetCut, QuerySpan], Iterable[str]]) -> SpanQueries:
    return lambda span: [(1.0, text) for text in texts(cut, span)]


def _counted(cut: q.FleetCut, texts: Callable[[q.FleetCut, QuerySpan, Side], Iterable[str]]) -> SpanQueries:
    """Return queries for the count up to the span's end minus the count before the span."""
    return lambda span: [
        *((1.0, text) for text in texts(cut, span, "until")),
        *((-1.0, text) for text in texts(cut, span, "before")),
    ]


def _no_samples(server: InstantServer, request: FleetRequest) -> FetchError:
    start, end = (datetime.fromtimestamp(t).astimezone() for t in (request.start_s, request.end_s))
    return FetchError(
        f"no samples of {m.GPU_ENERGY.name} or {m.CPU_ENERGY.name} between {start:%Y-%m-%d %H:%M:%S %z} and "
        f"{end:%Y-%m-%d %H:%M:%S %z} at {server.name}",
        "check that it scrapes the exporters, and that they were running; see --since and --source",
    )
