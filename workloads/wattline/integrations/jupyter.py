"""Cell magic for Jupyter and IPython: `%load_ext wattline`, then `%%wattline` as the first line of
a cell.
"""

from __future__ import annotations

import ast
import shlex
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

import wattline
from wattline.client.summary import RunResult, outcome_of
from wattline.figures import Figure, joules_text, mass_text, mean_power_text


def energy_magic(shell: Any, line: str, cell: str) -> Any:
    """Run a cell as a run, print its energy in one line, and return the value of its last
    expression.

    The outcome is `failed` if the cell raises, `interrupted` after an interrupt of the kernel; the
    exception is raised again. Raises UsageError for arguments that are not valid.
    """
    arguments = _arguments(line)
    code = _compiled(shell, cell)
    run = wattline.start(
        arguments.workload, labels=_labels(arguments.label), gpus=arguments.gpus, quiet=True
    )
    try:
        value = None
        for part in code:
            value = eval(part, shell.user_ns)  # noqa: S307  # the user's own cell
    except BaseException as error:
        print(_summary(run.end(outcome_of(error))))
        raise
    print(_summary(run.end()))
    return value


def _arguments(line: str) -> Any:
    parser = MagicArgumentParser("%%wattline", description="Measure the energy of a cell.")
    parser.add_argument("workload", nargs="?", default="notebook", help="Name of the run.")
    parser.add_argument("--gpus", help="GPUs of the run, such as 0,1 or all.")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="Label of the run."
    )
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"cannot read the arguments of %%wattline: {error}") from error


def _labels(texts: list[str]) -> dict[str, object]:
    pairs = [text.partition("=") for text in texts]
    if not all(name and equals for name, equals, _ in pairs):
        raise UsageError(
            "cannot read --label of %%wattline: it has no name or no value; use --label NAME=VALUE"
        )
    return {name: value for name, _, value in pairs}


def _compiled(shell: Any, cell: str) -> list[Any]:
    """Return the code objects of the statements and of the last expression. Raises SyntaxError."""
    text = shell.transform_cell(cell)
    name = shell.compile.cache(text, shell.execution_count)
    statements = ast.parse(text, name).body
    last = [statements.pop()] if statements and isinstance(statements[-1], ast.Expr) else []
    parts = [shell.compile(ast.Module(statements, []), name, "exec")]
    return parts + [
        shell.compile(ast.Expression(one.value), name, "eval")
        for one in last
        if isinstance(one, ast.Expr)
    ]


def _summary(result: RunResult) -> str:
    """Return the line below a cell."""
    duration_s = result.duration_seconds
    parts = [] if duration_s is None else [f"{duration_s:.1f} s"]
    energy = result.energy_j
    if energy is None:
        parts.append("no energy was measured; exporter check lists what this machine can measure")
    else:
        parts.append(joules_text(energy))
        if duration_s:
            parts.append(mean_power_text(energy, duration_s))
    if result.emissions_grams is not None:
        emissions = Figure(result.emissions_grams, result.emissions_uncertainty_grams)
        parts.append(mass_text(emissions))
    return ", ".join(parts) + ("" if result.run_id is None else f"; run {result.run_id}")
