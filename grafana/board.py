"""Dashboard definitions and their JSON, built with Grafana's SDK.

`python -m grafana` writes `dashboards/`. Metric names come from the contract; a panel has the unit
of its metric.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.appearance import styled_panel
from grafana.panel import Panel
from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.contract.work import WorkQueries

_WIDTH = 24
_SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
NODE_KEY = "cluster, instance"
"""Labels that identify a node, since two clusters may use the same addresses."""
RUN_KEY = "cluster, run_id"
"""Labels that identify a run over all its nodes."""
NODE_RUN_KEY = f"{NODE_KEY}, run_id"
NODE_LEGEND = "{{cluster}} {{instance}}"
GPU_LEGEND = f"{NODE_LEGEND} GPU {{{{gpu}}}}"


@dataclass(frozen=True, slots=True)
class Variable:
    """Variable whose choices are the values of label `of` of `metric`; all are selected at
    first.
    """

    name: str
    label: str
    metric: str
    of: str
    several: bool = True


@dataclass(frozen=True, slots=True)
class TextVariable:
    """Variable whose value the user types."""

    name: str
    label: str
    default: str


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    description: str
    variables: tuple[Variable | TextVariable, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    since: str = "now-1h"
    marks_runs: bool = False
    refresh: str = "30s"


def selector(metric: Metric | str, *matchers: str) -> str:
    """Return a selector with the chosen cluster and node and further matchers in PromQL."""
    name = metric if isinstance(metric, str) else metric.name
    chosen = ",".join(['cluster=~"$cluster"', 'instance=~"$node"', *matchers])
    return f"{name}{{{chosen}}}"


def peak(metric: Metric, *matchers: str) -> str:
    """Return the last value of a run's counter in the range; its series starts at 0 and only
    rises.
    """
    return f"max_over_time({selector(metric, *matchers)}[$__range])"


def _last_by(keys: str, metric: Metric, labels: tuple[str, ...], matchers: str) -> str:
    return f"max by ({', '.join((keys, *labels))}) ({peak(metric, *filter(None, [matchers]))})"


WORK = WorkQueries(RUN_KEY, NODE_RUN_KEY, partial(_last_by, NODE_RUN_KEY))
"""Work and energy per unit of the runs in the time range."""


def succeeded(runs: str) -> str:
    """Return the runs whose outcome is `ok` on every node; other runs did only part of their
    work.
    """
    of_run = f"on ({RUN_KEY})"
    ok = peak(m.RUN_OUTCOME, 'outcome="ok"')
    not_ok = peak(m.RUN_OUTCOME, 'outcome!="ok"')
    return f"({runs} and {of_run} {ok} unless {of_run} {not_ok})"


def named(expression: str, label: str, name: str = "(none)") -> str:
    """Give series without the label the value `name`, so that their bar or row has a title."""
    return f'label_replace({expression}, "{label}", "{name}", "{label}", "")'


def without_label(expression: str, label: str) -> str:
    """Remove a label of a run's series, so that a table has one row for queries with and without
    it.
    """
    return f'label_replace({expression}, "{label}", "", "run_id", ".*")'


_TIMES = "from=${__from}&to=${__to}&var-datasource=${datasource}&${cluster:queryparam}"
NODE_LINK = "/d/wattline-node?" + _TIMES + "&var-node=${__data.fields.node}"
"""Link from a row of a table with the column `node` to the dashboard of the node."""
RUN_LINK = "/d/wattline-runs?" + _TIMES + "&var-run=${__data.fields.run}"
"""Link from a row of a table with the column `run` to the dashboard of the run."""
CLUSTER = Variable("cluster", "Cluster", "wattline_build_info", "cluster")
NODE = Variable("node", "Node", 'wattline_build_info{cluster=~"$cluster"}', "instance")
GPU = Variable("gpu", "GPU", 'wattline_gpu_up{cluster=~"$cluster",instance=~"$node"}', "gpu")
MODEL = Variable(
    "model", "Model", 'wattline_run_info{cluster=~"$cluster",instance=~"$node"}', "label_model"
)
RUN = Variable(
    "run",
    "Run",
    'wattline_run_info{cluster=~"$cluster",instance=~"$node",label_model=~"$model"}',
    "run_id",
    several=False,
)
EXPERIMENT = Variable(
    "experiment",
    "Experiment",
    'wattline_run_info{cluster=~"$cluster",instance=~"$node"}',
    "label_experiment",
)


def as_json(board: Board) -> str:
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["wattline"])
        .time(board.since, "now")
        .refresh(board.refresh)
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(_other_boards())
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Source").type("prometheus")
        )
    )
    for variable in board.variables:
        built = built.with_variable(_variable(variable))
    for panel in _placed(board.rows):
        built = (
            built.with_row(panel) if isinstance(panel, dashboard.Row) else built.with_panel(panel)
        )
    document = json.loads(JSONEncoder(sort_keys=True, indent=2).encode(built.build()))
    for number, panel in enumerate(document["panels"], 1):
        panel["id"] = number
    for variable in document["templating"][
        "list"
    ]:  # fields of interval variables, which the SDK adds to every variable
        for name in ("auto", "auto_count", "auto_min"):
            variable.pop(name, None)
    if board.marks_runs:
        document["annotations"] = {"list": list(_run_marks())}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _other_boards() -> dashboard.DashboardLink:
    """Return a menu of all dashboards, which keeps the time range and the variables."""
    menu = (
        dashboard.DashboardLink("Wattline")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags(["wattline"])
    )
    return menu.as_dropdown(True).include_vars(True).keep_time(True)


def _variable(variable: Variable | TextVariable) -> Any:
    if isinstance(variable, TextVariable):
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
        .query(
            {"query": query, "qryType": 1, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
        )
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
    )
    if variable.several:
        all_values = model.VariableOption(text="All", value="$__all", selected=True)
        built = built.multi(True).include_all(True).all_value(".*").current(all_values)
    return built


def _run_marks() -> Iterator[dict[str, Any]]:
    """Yield annotations at the start and the end of each run; the value of the series is the
    time.
    """
    for word, metric, first, color in (
        ("start", m.RUN_START, "min", "blue"),
        ("end", m.RUN_END, "max", "orange"),
    ):
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
    """Yield rows from top to bottom with their panels from left to right, wrapped at the width."""
    y = 0
    for title, panels in rows:
        yield dashboard.Row(title).grid_pos(model.GridPos(h=1, w=_WIDTH, x=0, y=y))
        y = y + 1
        x = 0
        highest = 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                y = y + highest
                x = 0
                highest = 0
            yield _panel(panel).grid_pos(model.GridPos(h=panel.height, w=panel.width, x=x, y=y))
            x = x + panel.width
            highest = max(highest, panel.height)
        y += highest


def _panel(panel: Panel) -> Any:
    built = (
        styled_panel(panel)
        .title(panel.title)
        .description(panel.description)
        .datasource(_SOURCE)
        .unit(panel.unit)
    )
    if panel.remedy:
        built = built.no_value(panel.remedy)
    for query, name in zip(panel.queries, "ABCDEFGHIJ", strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(name).datasource(_SOURCE)
        if panel.step:
            target = target.interval(panel.step)
        if panel.kind in ("lines", "areas", "spans", "means"):
            target = target.range()
        else:
            form = (
                PromQueryFormat.TIME_SERIES
                if panel.kind in ("number", "gauges")
                else PromQueryFormat.TABLE
            )
            target = target.instant().format(form)
        built = built.with_target(target.legend_format(query.legend) if query.legend else target)
    return built
