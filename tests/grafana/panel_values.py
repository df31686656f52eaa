"""Values that a panel shows, computed as Grafana documents variables, steps, reducers and
tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from grafana.charts import ResultSeries, rows
from tests.grafana.query import fetch, panel

ALL = dict.fromkeys(("cluster", "node", "gpu", "model", "experiment"), ".*") | {
    "run": "",
    "price": "0.25",
}
SCRAPE_S = 15
_STEPS_S = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1_200,
    1_800,
    3_600,
    7_200,
    10_800,
    21_600,
    43_200,
    86_400,
)
_UNITS_S = {"s": 1, "m": 60, "h": 3_600}
_CALCS: dict[str, Callable[[Sequence[float]], float]] = {
    "lastNotNull": lambda values: values[-1],
    "max": max,
    "min": min,
    "mean": mean,
    "sum": sum,
}


def selection_regex(values: Sequence[str]) -> str:
    """Return the regular expression that Grafana inserts for selected values, escaped for
    PromQL.
    """
    each = [
        re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value.replace("\\", "\\\\\\\\"))
        for value in values
    ]
    return each[0] if len(each) == 1 else f"({'|'.join(each)})"


@dataclass(frozen=True)
class View:
    """Dashboard on a screen over `seconds` up to `end_s`; a variable is a text or several selected
    values.
    """

    server: str
    end_s: float
    seconds: int = 3_600
    chosen: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    screen_px: int = 1_800

    def figures(self, board: str, title: str) -> dict[str, float]:
        """Return the values of numbers and gauges by legend."""
        model = panel(board, title)
        assert model["options"]["reduceOptions"] == {"calcs": ["lastNotNull"], "values": False}
        return _distinct((one.legend, one.value[-1]) for one in self.answers(model))

    def legend(self, board: str, title: str) -> dict[str, dict[str, float]]:
        """Return the legend's calculations of each line by name."""
        model = panel(board, title)
        calcs = model["options"]["legend"]["calcs"]
        return _distinct(
            (one.legend, {calc: _CALCS[calc](one.value) for calc in calcs})
            for one in self.answers(model)
        )

    def lines(self, board: str, title: str) -> dict[str, dict[float, float]]:
        """Return the values of each line by time, by name."""
        result = self.answers(panel(board, title))
        return _distinct((one.legend, dict(zip(one.t, one.value, strict=True))) for one in result)

    def table(self, board: str, title: str, *key: str) -> dict[Any, dict[str, Any]]:
        """Return rows by the texts of the columns `key`; also for bars and points."""
        model = panel(board, title)
        _, values = rows(model, self.answers(model))
        names = [tuple(row.get(name, "") for name in key) for row in values]
        return _distinct(
            (name if len(key) > 1 else name[0], row)
            for name, row in zip(names, values, strict=True)
        )

    def answers(self, model: Mapping[str, Any]) -> list[ResultSeries]:
        return [one for target in model["targets"] for one in self._answer(model, target)]

    def _answer(self, model: Mapping[str, Any], target: Mapping[str, Any]) -> list[ResultSeries]:
        step_s = self._step_s(model, target)
        query = self._filled(target["expr"], step_s)
        if target.get("instant"):
            when: dict[str, object] = {"time": self.end_s}
        else:
            begin_s = (self.end_s - self.seconds) // step_s * step_s
            when = {"start": begin_s, "end": self.end_s // step_s * step_s, "step": step_s}
        answers = []
        for one in fetch(
            self.server, "query" if target.get("instant") else "query_range", query=query, **when
        )["result"]:
            labels, samples = one["metric"], one.get("values") or [one["value"]]
            legend = re.sub(
                r"\{\{(\w+)\}\}",
                lambda name, of=labels: of.get(name[1], ""),
                target.get("legendFormat", ""),
            )
            times, values = zip(*((float(t), float(value)) for t, value in samples), strict=True)
            assert all(map(math.isfinite, values)), f"{model['title']}: {values[-1]} of {labels}"
            answers.append(
                ResultSeries(target["refId"], " ".join(legend.split()), labels, times, values)
            )
        return answers

    def _step_s(self, model: Mapping[str, Any], target: Mapping[str, Any]) -> int:
        """Return the time range per pixel, rounded to one of Grafana's steps and at least the
        minimum step.
        """
        wanted_s = self.seconds / (self.screen_px * model["gridPos"]["w"] / 24)
        usual_s = min(_STEPS_S, key=lambda step_s: abs(step_s - wanted_s))
        least = target.get("interval", f"{SCRAPE_S}s")
        return max(usual_s, int(least[:-1]) * _UNITS_S[least[-1]])

    def _filled(self, query: str, step_s: int) -> str:
        rate_s = max(step_s + SCRAPE_S, 4 * SCRAPE_S)
        variables = {
            "__range": f"{self.seconds}s",
            "__rate_interval": f"{rate_s}s",
            "__interval": f"{step_s}s",
        }
        variables |= {"__interval_ms": f"{1_000 * step_s}"}
        for name, value in (ALL | dict(self.chosen)).items():
            variables[name] = value if isinstance(value, str) else selection_regex(value)
        return re.sub(r"\$(\w+)", lambda name: variables[name[1]], query)


def _distinct(pairs: Any) -> dict[Any, Any]:
    """Return the pairs as a dict; raise AssertionError for a duplicate name."""
    result = {}
    for name, value in pairs:
        assert name not in result, f"duplicate name {name!r}"
        result[name] = value
    return result
