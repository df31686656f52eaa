"""Rules that have one home: no second place may add half-widths or choose a counter's increase."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "exporter/wattline_exporter",
    "analyzer/wattline_analyzer",
    "workloads/wattline",
    "workloads/wattline_workloads",
)
HALF_WIDTH = re.compile(r"hal[fv]|uncertaint")
SUMS = {"fsum", "sum", "sqrt", "hypot", "sum_known"}
DIVISION = "exporter/wattline_exporter/requests/division"
HOMES_OF_SUMS = {
    "workloads/wattline/figures.py": "sums of figures",
    "exporter/wattline_exporter/meter/uncertainty.py": "errors between two marks of one device",
    f"{DIVISION}/divide.py": "errors of the division, in arrays",
    f"{DIVISION}/roles.py": "errors of the division over prefill and decode servers",
    f"{DIVISION}/sums.py": "errors of the division, in arrays",
}
HOMES_OF_COUNTERS = {
    "workloads/wattline/counter_arrays.py": "steps of counters in arrays",
}


@cache
def product_trees() -> tuple[tuple[str, ast.AST], ...]:
    """Return path and syntax tree of the product's modules, without generated ones."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return tuple(
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in paths
        if not path.stem.endswith("_pb2")
    )


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names of the variables and attributes in an expression."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def has_half_width(node: ast.AST) -> bool:
    return any(HALF_WIDTH.search(name) for name in names_in(node))


def sums_of_half_widths(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that add half-widths, or their squares."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            if has_half_width(node.left) and has_half_width(node.right):
                yield node.lineno
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            added = list(node.args)
            if called == "sum" and isinstance(node.func, ast.Attribute):
                added.append(node.func.value)
            if called in SUMS and any(map(has_half_width, added)):
                yield node.lineno


def choices_of_increase(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that choose between a counter's step and its value after a fall."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "where":
            if any(re.search(r"fell|fall|wrap", name) for name in names_in(node.args[0])):
                yield node.lineno
        elif isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare):
            is_counter = any(re.fullmatch(r"raw|raw_j|counter_j", name) for name in names_in(node))
            is_step = isinstance(node.body, ast.BinOp) and isinstance(node.body.op, ast.Sub)
            if is_counter and is_step:
                yield node.lineno


RULES = [
    pytest.param(sums_of_half_widths, HOMES_OF_SUMS, id="sum-of-half-widths"),
    pytest.param(choices_of_increase, HOMES_OF_COUNTERS, id="increase-of-a-counter"),
]


@pytest.mark.parametrize(("search", "homes"), RULES)
def test_rule_stands_in_its_homes_only(
    search: Callable[[ast.AST], Iterator[int]], homes: dict[str, str]
) -> None:
    """Call the home instead of repeating its rule; a home without the rule leaves the list."""
    found = {name: lines for name, tree in product_trees() if (lines := list(search(tree)))}
    assert found.keys() == homes.keys(), found


@pytest.mark.parametrize(
    ("search", "line"),
    [
        (sums_of_half_widths, "half_j = math.hypot(energy.half_width, idle_j)"),
        (sums_of_half_widths, "half_j = sum(halves)"),
        (sums_of_half_widths, "half_j = group_half_j[:3].sum()"),
        (sums_of_half_widths, "half_j = begin.half_width_j + end.half_width_j"),
        (sums_of_half_widths, "half_j = math.sqrt(a.uncertainty**2 + b**2)"),
        (choices_of_increase, "step = np.where(fell, now, now - before)"),
        (choices_of_increase, "step = raw - before if raw >= before else raw"),
    ],
)
def test_search_notices_second_place(search: Callable[[ast.AST], Iterator[int]], line: str) -> None:
    assert list(search(ast.parse(f"import math\n{line}\n"))) == [2]


@pytest.mark.parametrize("search", [sums_of_half_widths, choices_of_increase])
def test_search_ignores_call_of_home(search: Callable[[ast.AST], Iterator[int]]) -> None:
    calls = "half_j = sum_of_independent([a, b]).half_width\nstep = counter_step(before, raw)\n"
    assert list(search(ast.parse(calls))) == []
