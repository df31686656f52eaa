"""Rows of energy accuracy: live, compared with peers, and replayed over many loads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean

from tests.bench import energy
from tests.bench.cost import OURS
from tests.bench.energy import ToolErrors
from tests.bench.figures import Figure
from tests.bench.replay import ReplayResult
from tests.bench.window_errors import WindowErrors, quantile
from tests.exporter.meter.replay import Sensor

P95_GOALS = {1.0: 0.04, 10.0: 0.004, 30.0: 0.001, 100.0: 0.0005}
SUM_GOALS = {10.0: 0.0015}
HELD_GOAL = 0.95
_REPLAYED_WITH_GOALS: tuple[Sensor, ...] = ("counter", "full window")


def replay_figures(results: Iterable[ReplayResult]) -> Iterator[Figure]:
    """Yield rows of all loads together, which have goals, and of the worst load."""
    for each in results:
        of = f"{each.seconds:g} s, {each.sensor}, {len(each.loads)} loads replayed"
        goal = P95_GOALS[each.seconds] if each.sensor in _REPLAYED_WITH_GOALS else None
        worst, least = each.worst, each.least_covered
        note = f"worst {worst.name}: {100 * worst.p95:.2g} %"
        yield Figure(f"energy error p95, {of}", "%", each.p95, goal=goal, note=note)
        note = f"least {least.name}: {100 * fmean(least.covered):.0f} %"
        yield Figure(
            f"interval covers the true value, {of}",
            "%",
            each.held_ratio,
            goal=HELD_GOAL,
            at_least=True,
            note=note,
        )


def energy_figures(measured: Iterable[ToolErrors]) -> Iterator[Figure]:
    results = [each for each in measured if each.window_errors]
    for each in results:
        if each.tool != OURS or each.window_errors is None:
            continue
        name = f"energy error p95, {each.seconds:g} s, {each.sensor}"
        goal = P95_GOALS.get(each.seconds) if each.sensor in energy.SENSORS_WITH_GOALS else None
        peers: list[tuple[str, float | None]] = [
            (peer.tool, peer.window_errors.p95)
            for peer in results
            if peer.window_errors
            and peer.tool != OURS
            and (peer.sensor, peer.seconds) == (each.sensor, each.seconds)
        ]
        for tool, p95 in peers or [("", None)]:
            yield Figure(name, "%", each.window_errors.p95, tool, p95, goal)
        yield from _more_of(each, each.window_errors)
    yield from _begins(results)


def _begins(measured: Iterable[ToolErrors]) -> Iterator[Figure]:
    """Yield the delay that the start of a window causes in the measured program."""
    took_s = {
        each.tool: quantile(each.window_errors.begin_took_s, 0.5)
        for each in measured
        if each.window_errors
        and (each.sensor, each.seconds) == (energy.COUNTER.name, energy.PEER_WINDOW_S)
    }
    if OURS in took_s:
        peers: dict[str, float | None] = {
            tool: s for tool, s in took_s.items() if tool != OURS and s > 0
        }
        for tool, peer_s in (peers or {"": None}).items():
            yield Figure("delay of the start of a run, p50", "ms", took_s[OURS], tool, peer_s)


def _more_of(measured: ToolErrors, errors: WindowErrors) -> Iterator[Figure]:
    of = f"{measured.seconds:g} s, {measured.sensor}"
    counts = measured.sensor == energy.COUNTER.name
    if counts and measured.seconds in SUM_GOALS:
        yield Figure(
            f"energy error p95, sum of 8, {of}",
            "%",
            errors.p95_of_sums,
            goal=SUM_GOALS[measured.seconds],
        )
    if errors.held_ratio is not None:
        yield Figure(
            f"interval covers the true value, {of}",
            "%",
            errors.held_ratio,
            goal=HELD_GOAL,
            at_least=True,
        )
    if measured.sensor == energy.QUARTER.name and measured.aliasing is not None:
        yield Figure(f"aliasing is reported, {of}", "%", measured.aliasing, goal=1.0, at_least=True)
