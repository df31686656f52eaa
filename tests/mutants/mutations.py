"""Mutants of a module, by the operators of cosmic-ray."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.operators.operator import Operator


@dataclass(frozen=True, slots=True)
class Mutant:
    """Source of a module with one change."""

    number: int
    """Number of the first changed line, from 1 on."""
    line: str
    """Changed lines before, without their indents."""
    mutated: str
    """The same lines after; empty where they are removed."""
    source: str

    @property
    def change(self) -> tuple[str, str]:
        """Text of the lines before and after."""
        return self.line, self.mutated

    def code(self) -> CodeType | None:
        """Return the compiled module; None where the change is not valid Python."""
        try:
            return compile(self.source, "mutant", "exec")
        except SyntaxError:
            return None


def operators(patterns: Sequence[str]) -> list[Operator]:
    """Return the operators whose whole names match one of `patterns`."""
    pattern = re.compile("|".join(patterns))
    names = [name for name in plugins.operator_names() if pattern.fullmatch(name.split("/")[1])]
    return [plugins.get_operator(name)() for name in names]


def mutants(source: str, chosen: Sequence[Operator]) -> Iterator[Mutant]:
    """Yield the mutants of a module in the order of its text.

    One tree is changed and restored each time: to parse the module for each mutant takes minutes.
    """
    tree = get_ast(source)
    lines = source.splitlines()
    for node in list(ast_nodes(tree)):
        for operator in chosen:
            for index, _ in enumerate(list(operator.mutation_positions(node))):
                yield _mutant(lines, _mutated(tree, node, operator, index))


def _mutated(tree: Any, node: Any, operator: Operator, index: int) -> str:
    """Return the source with one mutation of a node; the tree is the same afterwards."""
    siblings = node.parent.children if node.parent else []
    children = getattr(node, "children", [])
    siblings_before = list(siblings)
    children_before = list(children)
    leaves = [(leaf, leaf.value) for leaf in [node, *children] if hasattr(leaf, "value")]
    mutated = operator.mutate(node, index)
    if mutated is not node:
        siblings[siblings.index(node)] = mutated
    source: str = tree.get_code()
    siblings[:] = siblings_before
    children[:] = children_before
    for leaf, value in leaves:
        leaf.value = value
    return source


def _mutant(before: Sequence[str], source: str) -> Mutant:
    after = source.splitlines()
    shorter = min(len(before), len(after))
    same = next((k for k in range(shorter) if before[k] != after[k]), shorter)
    rest = 0
    while rest < shorter - same and before[-1 - rest] == after[-1 - rest]:
        rest += 1
    return Mutant(
        number=same + 1,
        line=_text(before[same : len(before) - rest]),
        mutated=_text(after[same : len(after) - rest]),
        source=source,
    )


def _text(lines: Sequence[str]) -> str:
    return "\n".join(" ".join(line.split()) for line in lines)
