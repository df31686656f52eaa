"""Sums of a fleet from its server, over the whole window at once or in as few parts as possible."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from wattline.contract import metrics as m
from wattline_analyzer.core.devices import SIMULATED
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.http import start_request
from wattline_analyzer.core.sources.promql import (
    InstantServer,
    InstantValue,
    QuerySpan,
    QueryTooLargeError,
    Side,
)
from wattline_analyzer.usage import queries as q
from wattline_analyzer.usage.aliases import add_matchers, find_aliases, without_instances
from wattline_analyzer.usage.cut import GPU_MODEL, FleetCut, device_keys, folded_keys, run_keys
from wattline_analyzer.usage.emission_coverage import emission_energy_query
from wattline_analyzer.usage.fleet import Counts, Keys, Means, Sums, add_sums
from wattline_analyzer.usage.unit_queries import UNMEASURED, phases_query, working_energy_queries

SHORTEST_MS = 600_000
QUERIES = 2
"""Maximum number of queries at the same time, which the smallest VictoriaMetrics accepts."""
_SERVER_REMEDY = "check that it scrapes the exporters, and that they were running"
_COMPONENT, _UNIT, _BASIS = ("component",), ("unit",), ("basis", "quality")
SpanQueries = Callable[[QuerySpan], Iterable[tuple[float, str]]]
"""Queries of a span, each with the sign of its result in the sum."""
Naming = Callable[[Keys, Mapping[str, str]], Keys]
"""Texts of the user's keys for the labels of a result."""


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """Window and keys of a fleet report; `emissions` includes those that the nodes counted.

    With `details` it includes GPU hours, uncertainties, nodes, and the counters by owner.
    """

    by: Keys
    policy: str
    start_s: float
    end_s: float
    emissions: bool = True
    rules: bool = True
    details: bool = False


class FleetClient:
    """Client that splits queries into as many parts as the server requires; `cut` is the window
    that it covers.

    The recording rules determine the window, if they are used. Results are futures. Raises
    FetchError, as they do.
    """

    def __init__(
        self, server: InstantServer, request: FleetRequest, log: Callable[[str], None]
    ) -> None:
        self.server = server
        self.cut, self.start_s, self.end_s, self.why_not_rules = _choose_cut(server, request)
        self._log = log
        self._spans = [self.cut.whole]
        self._free, self._splitting = threading.Semaphore(QUERIES), threading.Lock()
        self._aliases = find_aliases(server, self.cut.whole, self.end_s, log)

    @property
    def spans(self) -> int:
        return len(self._spans)

    def sums(
        self, question: SpanQueries, what: Sequence[str], naming: Naming = run_keys
    ) -> Future[Sums]:
        """Return sums by the keys and the additional labels `what`."""
        return start_request(self._free, partial(self._sums_of_spans, question, what, naming))

    def values(self, text: str) -> Future[list[InstantValue] | None]:
        """Return the result for the end of the window, None if the server refuses a query of this
        size.
        """

        def request() -> list[InstantValue] | None:
            try:
                return self.server.query(without_instances(text, self._aliases), self.end_s)
            except QueryTooLargeError:
                return None

        return start_request(self._free, request)

    def once(self, text: str) -> Future[Sums]:
        """Return sums over the whole window, empty if the server refuses a query of this size."""

        def request() -> Sums:
            try:
                return self._sums((1.0, text), (), run_keys)
            except QueryTooLargeError:
                return {}

        return start_request(self._free, request)

    def _sums_of_spans(self, question: SpanQueries, what: Sequence[str], naming: Naming) -> Sums:
        while True:
            spans = self._spans
            try:
                return add_sums(
                    self._sums(text_of, what, naming)
                    for span in spans
                    for text_of in question(span)
                )
            except QueryTooLargeError as error:
                with self._splitting:
                    if spans is self._spans:  # no other thread did
                        self._split(str(error))

    def _sums(self, text_of: tuple[float, str], what: Sequence[str], naming: Naming) -> Sums:
        sign, text = text_of
        return add_sums(
            {(naming(self.cut.by, answer.labels), _texts(what, answer.labels)): sign * answer.value}
            for answer in self.server.query(without_instances(text, self._aliases), self.end_s)
            if math.isfinite(answer.value)
        )

    def _split(self, reason: str) -> None:
        if self._spans[0].long_ms < 2 * SHORTEST_MS:
            raise FetchError(
                f"{self.server.name} refuses even {self._spans[0].long_ms / 60_000:.0f} min of "
                f"this fleet: {reason}",
                "raise its limits (Prometheus: --query.max-samples, --query.timeout), or record "
                "the rules of "
                "deploy/prometheus",
            )
        self._spans = [half for span in self._spans for half in span.halves()]
        self._log(
            f"the server refused a query for its size; retrying in {len(self._spans)} parts "
            f"({reason[:120]})"
        )


def _texts(names: Sequence[str], labels: Mapping[str, str]) -> Keys:
    return tuple(labels.get(name, "") for name in names)


def fetch_fleet(server: InstantServer, request: FleetRequest, log: Callable[[str], None]) -> Counts:
    """Return the sums from recording rules if they cover the window, else from raw samples. Raises
    FetchError.
    """
    return fetch_counts(FleetClient(server, request, log), request)


def fetch_counts(client: FleetClient, request: FleetRequest) -> Counts:
    """Return the sums of `fetch_fleet` with a client. Raises FetchError."""
    cut, server = client.cut, client.server
    nothing: Future[Sums] = Future()
    nothing.set_result({})
    devices = client.sums(rises(cut, q.device_energy_queries), _COMPONENT, device_keys)
    work, phases = (
        client.sums(counted(cut, q.work_queries), _UNIT),
        client.values(phases_query(cut)),
    )
    device_grams = nothing
    if request.emissions:
        device_grams = client.sums(rises(cut, q.device_emission_queries), _BASIS, device_keys)
    if not devices.result():
        raise no_samples(server.name, request)
    per_unit = rises(cut, partial(working_energy_queries, phased=phases.result() != []))
    halves = _halves_of_runs(per_unit) if work.result() else []
    energies = [client.sums(half, (*_UNIT, UNMEASURED)) for half in halves]
    primary = client.values(q.primary_unit_query(cut))
    claimed = client.sums(counted(cut, q.attributed_energy_queries), _COMPONENT)
    folded = client.sums(rises(cut, q.folded_energy_queries), _COMPONENT, folded_keys)
    unclaimed = idle = client.sums(
        rises(cut, q.unattributed_energy_queries), _COMPONENT, device_keys
    )
    if request.policy != q.POLICY:
        idle = client.sums(
            rises(replace(cut, policy=q.POLICY), q.unattributed_energy_queries),
            _COMPONENT,
            device_keys,
        )
    runs = client.once(q.run_count_query(cut))
    grams, covered = nothing, None
    if device_grams.result():
        grams = client.sums(counted(cut, q.emission_queries), _BASIS)
        covered = client.values(emission_energy_query(cut))
    by_unit = add_sums(half.result() for half in energies)
    return Counts(
        devices=devices.result(),
        unclaimed=unclaimed.result(),
        claimed=add_sums([claimed.result(), folded.result()]),
        work=work.result(),
        working=_by_unit(by_unit, ""),
        unmeasured=_by_unit(by_unit, "yes"),
        primary={one.labels["unit"]: one.value for one in primary.result() or ()},
        grams=grams.result(),
        device_grams=device_grams.result(),
        runs=runs.result(),
        idle={key: value for key, value in idle.result().items() if key[1] == ("gpu",)},
        emission_energy={
            one.labels["basis"]: one.value for one in (covered and covered.result()) or ()
        },
        means=Means(
            "recording rules" if cut.recorded else "raw samples",
            client.start_s,
            client.end_s,
            server.name,
            client.spans,
            server.query_count,
            server.transferred_bytes,
            client.why_not_rules,
        ),
    )


def _halves_of_runs(question: SpanQueries) -> list[SpanQueries]:
    """Return the questions for two disjoint halves of the runs, by the last character of their
    ids.
    """

    def half(matcher: str) -> SpanQueries:
        return lambda span: [
            (sign, add_matchers(text, matcher, "wattline_run_")) for sign, text in question(span)
        ]

    return [half(f'run_id{operator}".*[02468ace]"') for operator in ("=~", "!~")]


def _by_unit(energies: Sums, unmeasured: str) -> Sums:
    return {
        (keys, (unit,)): value
        for (keys, (unit, text)), value in energies.items()
        if text == unmeasured
    }


def has_simulated_gpus(server: InstantServer, request: FleetRequest) -> bool:
    """Return True if a simulated GPU was scraped in the window. Raises FetchError."""
    long_ms = round((request.end_s - request.start_s) * 1_000)
    shown = f'max_over_time({m.GPU_INFO.name}{{name=~"{SIMULATED}.*"}}[{long_ms}ms])'
    try:
        return bool(server.query(f"count({shown})", request.end_s))
    except QueryTooLargeError:
        return False


def _choose_cut(server: InstantServer, request: FleetRequest) -> tuple[FleetCut, float, float, str]:
    """Return the grouping, start and end of the window, and the reason why recording rules are not
    used.
    """
    dialect = server.dialect()
    if GPU_MODEL in request.by or request.policy != q.POLICY:
        found: q.RecordedWindow | str = (
            f"the recording rules have no {GPU_MODEL}, and only the policy {q.POLICY}"
        )
    else:
        found = (
            q.recorded_window(server, dialect, request.start_s, request.end_s)
            if request.rules
            else ""
        )
    start_s, end_s, why_not = request.start_s, request.end_s, ""
    if isinstance(found, str):
        why_not = found
    else:
        start_s, end_s = found.start_s, found.end_s
    whole = QuerySpan(round((end_s - start_s) * 1_000))
    pods = "namespace" in request.by and bool(server.query(q.pods_query(whole), end_s))
    return (
        FleetCut(request.by, request.policy, dialect, whole, not isinstance(found, str), pods),
        start_s,
        end_s,
        why_not,
    )


def rises(cut: FleetCut, texts: Callable[[FleetCut, QuerySpan], Iterable[str]]) -> SpanQueries:
    return lambda span: [(1.0, text) for text in texts(cut, span)]


def counted(
    cut: FleetCut, texts: Callable[[FleetCut, QuerySpan, Side], Iterable[str]]
) -> SpanQueries:
    """Return queries for the count up to the span's end minus the count before the span."""
    return lambda span: [
        *((1.0, text) for text in texts(cut, span, "until")),
        *((-1.0, text) for text in texts(cut, span, "before")),
    ]


def no_samples(name: str, request: FleetRequest, remedy: str = _SERVER_REMEDY) -> FetchError:
    """Return the error for a window without samples of devices at a source."""
    start, end = (datetime.fromtimestamp(t).astimezone() for t in (request.start_s, request.end_s))
    return FetchError(
        f"no samples of {m.GPU_ENERGY.name} or {m.CPU_ENERGY.name} between "
        f"{start:%Y-%m-%d %H:%M:%S %z} and "
        f"{end:%Y-%m-%d %H:%M:%S %z} at {name}",
        f"{remedy}; see --since and --source",
    )
