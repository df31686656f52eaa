"""Rows of Wattline's cost: CPU, memory, scrapes, a neighbour process, many GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean, median

from tests.bench.cost import OURS, THEIRS, Cost
from tests.bench.figures import Figure
from tests.bench.scale import FAST_S, Scale
from tests.bench.scrape import FORMS, Scrape
from tests.bench.slowdown import Slowdown
from tests.bench.window_errors import quantile

IDLE_CPU_GOAL, RUN_CPU_GOAL = 0.006, 0.025
P99_GOAL_S = 0.010
PSS_GOAL_BYTES = 80e6
SLOWDOWN_GOAL = 0.005
DRIVER_CALLS_GOAL = 1.5
"""Ratio of the exporter's CPU to that of a C program with the same driver calls."""
GROWTH_GOAL = 1.1
"""Limit of the exponent of cost per GPU; 1 is linear."""
AGE_GOAL_S = 0.5
"""Limit in polls: at a fast rate two rounds are sent as one message; older polls are delayed."""


def cost_figures(cost: Cost) -> Iterator[Figure]:
    yield _cpu("CPU of a core, idle at 1 Hz", cost.idle_cpu, IDLE_CPU_GOAL)
    yield _cpu("CPU of a core, run open", cost.run_cpu, RUN_CPU_GOAL)
    if cost.driver_calls_cpu:
        yield _driver_calls_figure(cost, cost.driver_calls_cpu)
    yield _beside(cost.scrape_cpu_s, "CPU of a scrape", "ms")
    yield _beside(
        {name: memory.pss_bytes for name, memory in cost.fresh.items()},
        "memory, PSS, at first",
        "MB",
    )
    after = "after an hour's runs and scrapes"
    pss = {name: memory.pss_bytes for name, memory in cost.memory.items()}
    yield _beside(pss, f"memory, PSS, {after}", "MB", PSS_GOAL_BYTES)
    yield _beside(
        {name: memory.rss_bytes for name, memory in cost.memory.items()},
        f"memory, RSS, {after}",
        "MB",
    )
    for form in FORMS:
        scrapes = {
            server: costs for (server, name), costs in cost.alone.items() if name == form.name
        }
        yield _beside(_latency(scrapes, 0.5), f"scrape p50, {form.name}", "ms")
        per_sample = _latency_per_sample(scrapes)
        yield _beside(
            per_sample, f"scrape p50 per sample, {form.name}", "µs", per_sample.get(THEIRS)
        )
        yield _beside(_latency(scrapes, 0.99), f"scrape p99, {form.name}", "ms", P99_GOAL_S)
    for name in dict.fromkeys(name for _, name in cost.two):
        scrapes = {server: costs for (server, form), costs in cost.two.items() if form == name}
        yield _beside(_latency(scrapes, 0.5), f"two at once p50, {name}", "ms")
        yield _beside(_latency(scrapes, 0.99), f"two at once p99, {name}", "ms", P99_GOAL_S)


def _driver_calls_figure(cost: Cost, least_cpu: float) -> Figure:
    cpu = fmean(cost.run_cpu[OURS])
    parts = (
        f"daemon {100 * (cpu - cost.worker_cpu):.2g} %, worker {100 * cost.worker_cpu:.2g} % "
        "of a core"
    )
    note = f"{parts}; C program {100 * least_cpu:.2g} %"
    return Figure(
        "CPU, run open, ratio to a C program with the same driver calls",
        "×",
        cpu / least_cpu,
        goal=DRIVER_CALLS_GOAL,
        note=note,
    )


def _beside(values: Mapping[str, float], name: str, unit: str, goal: float | None = None) -> Figure:
    return Figure(
        name, unit, values[OURS], THEIRS if THEIRS in values else "", values.get(THEIRS), goal
    )


def _cpu(name: str, spans: dict[str, list[float]], goal: float) -> Figure:
    """Return the median of the spans; other work of the machine affects the longest."""
    theirs = median(spans[THEIRS]) if THEIRS in spans else None
    spread = min(spans[OURS]), max(spans[OURS])
    return Figure(
        name,
        "%",
        median(spans[OURS]),
        THEIRS if THEIRS in spans else "",
        theirs,
        goal,
        spread=spread,
    )


def _latency(scrapes: dict[str, list[Scrape]], share: float) -> dict[str, float]:
    return {
        server: quantile([each.seconds for each in costs], share)
        for server, costs in scrapes.items()
    }


def _latency_per_sample(scrapes: dict[str, list[Scrape]]) -> dict[str, float]:
    return {
        server: quantile([each.seconds / each.samples for each in costs], 0.5)
        for server, costs in scrapes.items()
    }


def slowdown_figures(costs: Iterable[Slowdown]) -> Iterator[Figure]:
    """Yield the slowdown of a neighbour process.

    On the same core it loses all of the exporter's CPU time; the goal applies where the kernel may
    choose the core. An interval that contains the goal neither meets nor misses it.
    """
    for each in costs:
        least, most = each.interval
        requested = each.where.startswith("any core") or "idle" in each.where
        goal = SLOWDOWN_GOAL if requested and not least <= SLOWDOWN_GOAL < most else None
        note = "no clear difference" if least <= 0 <= most else ""
        yield Figure(
            f"a neighbour's slowdown, {each.where}",
            "%",
            each.ratio,
            goal=goal,
            spread=each.interval,
            note=note,
        )


def scale_figures(costs: list[Scale]) -> Iterator[Figure]:
    for latency_s in dict.fromkeys(each.latency_s for each in costs):
        of = [each for each in costs if each.latency_s == latency_s]
        call = f"{1e6 * latency_s:g} µs a driver call" if latency_s else "no time for a driver call"
        for each in of:
            where = f"{each.gpus} GPUs, {call}"
            yield Figure(f"CPU of a core per GPU, {where}", "%", each.cpu_per_gpu)
            note = f"told {each.received_hz:.1f} Hz; longest gap {1e3 * each.gap_s:.0f} ms"
            yield Figure(
                f"polls of a GPU ({1 / FAST_S:.1f} asked), {where}", "Hz", each.polled_hz, note=note
            )
            yield Figure(
                f"age of the newest poll, at most, {where}", "ms", each.age_s, goal=AGE_GOAL_S
            )
        fewest, most = min(of, key=lambda each: each.gpus), max(of, key=lambda each: each.gpus)
        if most.gpus > fewest.gpus and fewest.cpu:
            name = f"CPU per GPU, {most.gpus} to {fewest.gpus} GPUs, {call}"
            yield Figure(name, "×", most.cpu_per_gpu / fewest.cpu_per_gpu, goal=GROWTH_GOAL)
