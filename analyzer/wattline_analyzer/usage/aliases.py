"""Exporters that a server scrapes under several addresses, and queries with further matchers, as
without them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from wattline.contract import metrics as m
from wattline_analyzer.core.sources.promql import InstantServer, QuerySpan, QueryTooLargeError

_SHORTEST_STEP_MS = 15_000
_STEPS = 200
"""Instants of the window at which the instances of each GPU are counted."""
_LOOKBACK_MS = 600_000
"""Longest time for which a server shows the last value of an instance that is gone, with a margin.
"""
_METRIC = re.compile(
    r"(?<![\w:])((?:instance(?:_run)?:)?wattline_\w+(?::\w+)?)(?:\{([^{}]*)\})?(?![\w:])"
)


def find_aliases(
    server: InstantServer, span: QuerySpan, at_s: float, log: Callable[[str], None]
) -> frozenset[str]:
    """Return the instances that show the GPUs of another instance at the same time, except the one
    with most samples.

    An exporter that got a new address shows its GPUs under both, but at different times, and both
    count.
    """
    step_ms = max(_SHORTEST_STEP_MS, span.long_ms // _STEPS)
    energy = m.GPU_ENERGY.name
    at_once = f"count by (uuid) (group by (instance, uuid) ({energy}))"
    try:
        together = server.query(
            f"count_over_time(({at_once} > 1)[{span.long_ms}ms:{step_ms // 1_000}s])", at_s
        )
        least = min(_LOOKBACK_MS, span.long_ms / 2) / step_ms
        doubled = {answer.labels.get("uuid", "") for answer in together if answer.value > least}
        if not doubled:
            return frozenset()
        counts = server.query(
            f"max by (instance, uuid) (count_over_time({energy}[{span.long_ms}ms]))", at_s
        )
    except QueryTooLargeError as error:
        log(f"cannot search for exporters with two addresses, which count twice: {error}")
        return frozenset()
    samples: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for answer in counts:
        if answer.labels.get("uuid", "") in doubled:
            samples[answer.labels["uuid"]][answer.labels.get("instance", "")] = answer.value
    aliases = {
        alias: kept
        for by_instance in samples.values()
        for alias, kept in _surplus(by_instance).items()
    }
    for alias, kept in sorted(aliases.items()):
        log(
            f"{alias} is not counted: it shows the same GPUs as {kept} at the same time, as the "
            "same exporter does"
        )
    return frozenset(aliases)


def _surplus(samples: Mapping[str, float]) -> dict[str, str]:
    """Return the instances of one GPU except the one with most samples, each with that one."""
    kept = min(samples, key=lambda instance: (-samples[instance], instance))
    return {instance: kept for instance in samples if instance != kept}


def without_instances(query: str, instances: Collection[str]) -> str:
    """Return the query with matchers on all its metrics that leave out the instances."""
    if not instances:
        return query
    return add_matchers(
        query, ",".join(f"instance!={_quoted(instance)}" for instance in sorted(instances))
    )


def add_matchers(query: str, matchers: str, metrics: str = "") -> str:
    """Return the query with further matchers on its metrics whose names contain the text
    `metrics`.
    """

    def extended(found: re.Match[str]) -> str:
        return (
            f"{found[1]}{{{','.join(filter(None, (found[2], matchers)))}}}"
            if metrics in found[1]
            else found[0]
        )

    return _METRIC.sub(extended, query)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
