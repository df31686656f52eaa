"""Checker of PromQL queries: metrics, labels, aggregations and units against the contract."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import promql_parser as ql
import yaml

from wattline.contract import metrics as m

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "wattline.rules.yml"
_TARGET = {"cluster", "instance", "job"}
_CONTRACT = {
    metric.name: metric for metric in (*m.METRICS, m.REQUEST_ENERGY_BUCKET, m.REQUEST_ENERGY_COUNT)
}
_RULES = {
    rule["record"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
}
_SAMPLE_S = 300
PRICE = "price_of_a_kilowatt_hour"
STEP_MS = "step_in_milliseconds"
NOT_ADDED = {
    m.CPU_ENERGY: {"zone"},
    m.CPU_POWER: {"zone"},
    m.HWMON_POWER: {"chip", "sensor"},
    m.HWMON_ENERGY: {"chip", "sensor"},
    m.EMISSIONS: {"basis"},
    m.RUN_ENERGY: {"run_id"},
    m.RUN_EMISSIONS: {"run_id", "basis"},
    m.RUN_PHASE_ENERGY: {"run_id"},
    m.RUN_ATTRIBUTED_ENERGY: {"policy"},
    m.OWNER_ENERGY: {"policy"},
    m.OWNER_EMISSIONS: {"basis"},
    m.RUN_WORK: {"unit"},
    m.RUN_PHASE_WORK: {"unit"},
    m.RUN_RESULT: {"name"},
}
_UNITS = {
    "watts": ({"J": 1, "s": -1}, 1.0),
    "joules": ({"J": 1}, 1.0),
    "seconds": ({"s": 1}, 1.0),
    "ratio": ({}, 1.0),
    "celsius": ({"C": 1}, 1.0),
    "hertz": ({"Hz": 1}, 1.0),
    "bytes": ({"B": 1}, 1.0),
    "grams": ({"g": 1}, 1.0),
    "grams_per_kilowatt_hour": ({"g": 1, "J": -1}, 1 / 3.6e6),
    PRICE: ({"money": 1, "J": -1}, 1 / 3.6e6),
    STEP_MS: ({"s": 1}, 1e-3),
}
"""By the end of a name: the dimension, and how much of it is 1."""
GRAFANA = {
    "watt": ({"J": 1, "s": -1}, 1.0),
    "joule": ({"J": 1}, 1.0),
    "kwatth": ({"J": 1}, 3.6e6),
    "s": ({"s": 1}, 1.0),
    "dateTimeAsIso": ({"s": 1}, 1e-3),
    "percentunit": ({}, 1.0),
    "celsius": ({"C": 1}, 1.0),
    "hertz": ({"Hz": 1}, 1.0),
    "bytes": ({"B": 1}, 1.0),
    "massg": ({"g": 1}, 1.0),
    "suffix:g/h": ({"g": 1, "s": -1}, 1 / 3_600),
    "suffix:g/kWh": ({"g": 1, "J": -1}, 1 / 3.6e6),
    "suffix:/s": ({"s": -1}, 1.0),
    "short": ({}, 1.0),
    "none": ({}, 1.0),
}


@dataclass(frozen=True)
class Meaning:
    """`labels` that each series may have (none of a number), `apart` those over which nothing may
    be added up.
    """

    labels: frozenset[str]
    apart: frozenset[str]
    dimension: Mapping[str, int]
    scale: float

    def unit(self) -> tuple[dict[str, int], float]:
        return {name: power for name, power in self.dimension.items() if power}, self.scale


def meaning(query: str) -> Meaning:
    """Return the labels and the unit of a query without variables; raise AssertionError if it
    breaks the contract.
    """
    return _of(ql.parse(query))


def _of(node: ql.Expr) -> Meaning:  # noqa: PLR0911  # one return for each kind of node
    match node:
        case ql.ParenExpr() | ql.UnaryExpr() | ql.SubqueryExpr():
            return _of(node.expr)
        case ql.NumberLiteral():
            return Meaning(frozenset(), frozenset(), {}, 1 / node.val if node.val else math.inf)
        case ql.MatrixSelector():
            return _selection(node.vector_selector)
        case ql.VectorSelector():
            return _selection(node)
        case ql.Call():
            return _function_call(node)
        case ql.AggregateExpr():
            return _aggregation(node)
        case ql.BinaryExpr():
            return _binary_operation(node)
    raise AssertionError(f"{type(node).__name__} is not supported")


_LABELLED_BY_OPTION = {
    each.name
    for each in (
        m.REQUESTS,
        m.REQUEST_ENERGY_TOTAL,
        m.REQUEST_ENERGY_BUCKET,
        m.REQUEST_ENERGY_COUNT,
    )
}


def labels_of(name: str) -> frozenset[str]:
    """Return the labels that the series of a metric can have."""
    if name in _RULES:
        rule = _RULES[name]
        expression = ql.parse(rule["expr"])
        assert isinstance(expression, ql.AggregateExpr)
        assert expression.modifier
        return frozenset({*expression.modifier.labels, *rule.get("labels", {}), "cluster"})
    assert name in _CONTRACT, f"{name} is neither in the contract nor recorded by a rule"
    chosen = {"user"} if name in _LABELLED_BY_OPTION else set()  # with --requests.labels user
    return frozenset({*_CONTRACT[name].labels, *_CONTRACT[name].optional, *_TARGET, *chosen})


def _selection(selector: ql.VectorSelector) -> Meaning:
    name = selector.name or ""
    if name in (PRICE, STEP_MS):
        return Meaning(frozenset(), frozenset(), *_UNITS[name])
    labels, open_labels = labels_of(name), name in _CONTRACT and _CONTRACT[name].open_labels
    matched = {each.name: each.op for each in selector.matchers.matchers}
    for label in matched:
        assert label in labels or (open_labels and label.startswith("label_")), (
            f"{name} has no label {label}"
        )
    if open_labels:
        labels |= {"label_…"}
    fixed = {label for label, op in matched.items() if op == ql.MatchOp.Equal}
    apart = NOT_ADDED.get(_CONTRACT[name], set()) if name in _CONTRACT else set()
    dimension, scale = _unit(name)
    return Meaning(labels, frozenset(apart - fixed), dimension, scale)


def _unit(name: str) -> tuple[Mapping[str, int], float]:
    stem, _, over = (
        name.partition(":")[2].partition(":")
        if ":" in name
        else (name.removesuffix("_total"), "", "")
    )
    fitting = [end for end in _UNITS if stem.endswith(f"_{end}")]
    dimension, scale = _UNITS[max(fitting, key=len)] if fitting else ({}, 1.0)
    if over == "increase5m":
        return _times(dimension, {"s": -1}), scale / _SAMPLE_S
    return dimension, scale


def _times(left: Mapping[str, int], right: Mapping[str, int], sign: int = 1) -> dict[str, int]:
    return {name: left.get(name, 0) + sign * right.get(name, 0) for name in {*left, *right}}


def _quantile(call: ql.Call) -> Meaning:
    """Return the meaning of histogram_quantile, which has the unit of its histogram."""
    buckets = _of(call.args[1])
    assert "le" in buckets.labels, "histogram_quantile needs the label le"
    (histogram,) = re.findall(r"(\w+)_bucket\b", str(call.args[1]))
    return Meaning(buckets.labels - {"le"}, buckets.apart, *_unit(histogram))


def _function_call(call: ql.Call) -> Meaning:  # noqa: PLR0911  # one return for each function
    name = call.func.name
    if name == "time":
        return Meaning(frozenset(), frozenset(), {"s": 1}, 1.0)
    if name == "histogram_quantile":
        return _quantile(call)
    inner = _of(call.args[0])
    if name == "timestamp":
        return replace(inner, dimension={"s": 1}, scale=1.0)
    if name == "rate":
        return replace(inner, dimension=_times(inner.dimension, {"s": -1}))
    if name == "sum_over_time":
        return replace(
            inner, dimension=_times(inner.dimension, {"s": 1}), scale=inner.scale * _SAMPLE_S
        )
    if name == "label_replace":
        assert _has(inner, call.args[3].val), (
            f"label_replace reads {call.args[3].val}, which is missing"
        )
        return replace(inner, labels=inner.labels | {call.args[1].val})
    same = ("increase", "max_over_time", "avg_over_time", "min_over_time", "last_over_time")
    assert name in same, f"{name} is not known here"
    return inner


def _has(result: Meaning, label: str) -> bool:
    return label in result.labels or ("label_…" in result.labels and label.startswith("label_"))


def _aggregation(node: ql.AggregateExpr) -> Meaning:
    inner, how = _of(node.expr), str(node.op)
    by = frozenset(node.modifier.labels if node.modifier else ())
    assert node.modifier is None or node.modifier.type == ql.AggModifierType.By, (
        "use by, which names the labels that are kept"
    )
    for label in by:
        assert _has(inner, label), f"{how} by {label}, which is missing"
    if how in ("topk", "bottomk"):
        return inner
    missing = inner.apart - by - (frozenset() if how == "sum" else {"run_id"})
    if how == "count":
        return Meaning(by, frozenset(), {}, 1.0)
    assert not missing, f"{how} over {', '.join(sorted(missing))}"
    return replace(inner, labels=by, apart=inner.apart & by)


def _binary_operation(node: ql.BinaryExpr) -> Meaning:
    left, right, how = _of(node.lhs), _of(node.rhs), str(node.op)
    many, one = left, right
    if node.modifier is not None and node.modifier.matching is not None:
        if node.modifier.card == ql.VectorMatchCardinality.OneToMany:
            many, one = right, left
        for label in node.modifier.matching.labels:
            assert _has(left, label), f"on {label}, which the left side lacks"
            assert _has(right, label), f"on {label}, which the right side lacks"
        for label in node.modifier.group_labels or ():
            assert _has(one, label), f"group with {label}, which the one side lacks"
        many = replace(many, labels=many.labels | set(node.modifier.group_labels or ()))
    labels, apart = (
        many.labels or one.labels,
        left.apart | (right.apart if how in "*/+-" else frozenset()),
    )
    if how in "*/":
        sign = 1 if how == "*" else -1
        dimension = _times(left.dimension, right.dimension, sign)
        return Meaning(labels, apart, dimension, left.scale * right.scale**sign)
    number = isinstance(node.rhs, ql.NumberLiteral)
    if how in "+-" and not number:
        assert left.unit() == right.unit(), f"{left.unit()} {how} {right.unit()}"
    return Meaning(labels, apart, left.dimension, left.scale)
