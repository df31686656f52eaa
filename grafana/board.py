"""A dashboard in words, and its JSON by Grafana's own SDK.

`python -m grafana` writes `dashboards/`. Metrics are the contract's, and a panel's unit is its metric's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from exporter.contract import metrics as m
from exporter.contract.metrics import Metric
from grafana.look import look
from grafana.panel import Panel

_WIDTH = 24
_SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
NODE_KEY = "cluster, instance"
"""What a node is: two clusters may use the same addresses. Where no cluster is set both sides of a join lack it."""
RUN_KEY = "cluster, run_id"
"""A run on all of its nodes."""
NODE_RUN_KEY = f"{NODE_KEY}, run_id"
NODE_LEGEND = "{{cluster}} {{instance}}"
GPU_LEGEND = f"{NODE_LEGEND} GPU {{{{gpu}}}}"


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice of the values of `label` of `metric`, all of them at first."""

    name: str
    label: str
    metric: str
    of: str
    several: bool = True


@dataclass(frozen=True, slots=True)
class Entered:
    """A text that the user types."""

    name: str
    label: str
    default: str


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    description: str
    variables: tuple[Variable | Entered, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    since: str = "now-1h"
    marks_runs: bool = False


def selector(metric: Metric | str, *matchers: str) -> str:
    """With the choices of cluster and node, and more matchers as PromQL writes them."""
    name = metric if isinstance(metric, str) else metric.name
    chosen = ",".join(['cluster=~"$cluster"', 'instance=~"$node"', *matchers])
    return f"{name}{{{chosen}}}"


def peak(metric: Metric, *matchers: str) -> str:
    """The last of a run's counter in the range: it begins at 0 with the run and stays for ten minutes after."""
    return f"max_over_time({selector(metric, *matchers)}[$__range])"


def ended_well(runs: str) -> str:
    """Those of the runs that ended, on all of their nodes, as `ok`: others did a part of their work."""
    of_run = f"on ({RUN_KEY})"
    well, badly = peak(m.RUN_OUTCOME, 'outcome="ok"'), peak(m.RUN_OUTCOME, 'outcome!="ok"')
    return f"({runs} and {of_run} {well} unless {of_run} {badly})"


def named(expression: str, label: str, name: str = "(none)") -> str:
    """Series that lack the label are called `name`, so that a bar or row of theirs says so."""
    return f'label_replace({expression}, "{label}", "{name}", "{label}", "")'


CLUSTER = Variable("cluster", "Cluster", "wattline_build_info", "cluster")
NODE = Variable("node", "Node", 'wattline_build_info{cluster=~"$cluster"}', "instance")
GPU = Variable("gpu", "GPU", 'wattline_gpu_up{cluster=~"$cluster",instance=~"$node"}', "gpu")
MODEL = Variable("model", "Model", 'wattline_run_info{cluster=~"$cluster",instance=~"$node"}', "label_model")
RUN = Variable(
    "run",
    "Run",
    'wattline_run_info{cluster=~"$cluster",instance=~"$node",label_model=~"$model"}',
    "run_id",
    several=False,
)
EXPERIMENT = Variable(
    "experiment", "Experiment", 'wattline_run_info{cluster=~"$cluster",instance=~"$node"}', "label_experiment"
)


def as_json(board: Board) -> str:
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["wattline"])
        .time(board.since, "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Source").type("prometheus"))
    )
    for variable in board.variables:
        built = built.with_variable(_variable(variable))
    for panel in _placed(board.rows):
        built = built.with_row(panel) if isinstance(panel, dashboard.Row) else built.with_panel(panel)
    document = json.loads(JSONEncoder(sort_keys=True, indent=2).encode(built.build()))
    for number, panel in enumerate(document["panels"], 1):
        panel["id"] = number
    for variable in document["templating"]["list"]:  # the SDK gives each what only a variable of time steps has
        for name in ("auto", "auto_count", "auto_min"):
            variable.pop(name, None)
    if board.marks_runs:
        document["annotations"] = {"list": list(_run_marks())}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _variable(variable: Variable | Entered) -> Any:
    if isinstance(variable, Entered):
        shown = model.VariableOption(text=variable.default, value=variable.default, selected=True)
        return (
            dashboard.TextBoxVariable(variable.name)
            .label(variable.label)
            .default_value(variable.default)
            .current(shown)
            .options([shown])
        )
    query = f"label_values({variable.metric}, {variable.of})"
    built = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(_SOURCE)
        .query({"query": query, "qryType": 1, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
    )
    if variable.several:
        everything = model.VariableOption(text="All", value="$__all", selected=True)
        built = built.multi(True).include_all(True).all_value(".*").current(everything)
    return built


def _run_marks() -> Iterator[dict[str, Any]]:
    """A line where a run begins and where it ends, of all its nodes: the value of the series is the moment."""
    for word, metric, first, color in (("begin", m.RUN_START, "min", "blue"), ("end", m.RUN_END, "max", "orange")):
        yield {
            "name": f"run {word}",
            "datasource": {"type": "prometheus", "uid": _SOURCE.uid},
            "enable": True,
            "iconColor": color,
            "expr": f"1000 * {first} by ({RUN_KEY}) ({selector(metric)})",
            "useValueForTime": True,
            "titleFormat": f"{word} of {{{{run_id}}}}",
        }


def _placed(rows: Sequence[tuple[str, tuple[Panel, ...]]]) -> Iterator[Any]:
    """Rows below each other; their panels from left to right, as many as fit."""
    y = 0
    for title, panels in rows:
        yield dashboard.Row(title).grid_pos(model.GridPos(h=1, w=_WIDTH, x=0, y=y))
        y, x, highest = y + 1, 0, 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                y, x, highest = y + highest, 0, 0
            yield _panel(panel).grid_pos(model.GridPos(h=panel.height, w=panel.width, x=x, y=y))
            x, highest = x + panel.width, max(highest, panel.height)
        y += highest


def _panel(panel: Panel) -> Any:
    built = look(panel).title(panel.title).description(panel.description).datasource(_SOURCE).unit(panel.unit)
    if panel.remedy:
        built = built.no_value(panel.remedy)
    for query, name in zip(panel.queries, "ABCDEFGHIJ", strict=False):
        asked = prometheus.Dataquery().expr(query.expr).ref_id(name).datasource(_SOURCE)
        if panel.step:
            asked = asked.interval(panel.step)
        if panel.kind in ("lines", "areas", "spans", "means"):
            asked = asked.range()
        else:
            form = PromQueryFormat.TIME_SERIES if panel.kind in ("number", "gauges") else PromQueryFormat.TABLE
            asked = asked.instant().format(form)
        built = built.with_target(asked.legend_format(query.legend) if query.legend else asked)
    return built
