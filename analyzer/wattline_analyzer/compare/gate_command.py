"""`analyzer gate`: an exit code for an increase of the energy, for continuous integration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.compare.group_options import load_group
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
)
from wattline_analyzer.core.printing import OutputFormat, exit_with_error

COMMAND = {
    "name": "gate",
    "help": "Fail if the energy of repeated runs increased.",
    "group": "Compare and decide",
}

_EXIT_CODES = {"pass": 0, "regression": 3, "cannot_tell": 4}
_REPEATS = 8


def _ratio_option(text: str) -> float:
    """Return the ratio of a percentage. A number without the sign is refused, since 0.5 may mean
    0.5 % or 50 %.
    """
    number, sign, rest = text.strip().partition("%")
    try:
        ratio = float(number) / 100
    except ValueError:
        ratio = 0.0
    if not sign or rest or not 0 < ratio <= 1:
        raise typer.BadParameter(f"--max-increase: expected a percentage such as 3%, not {text!r}")
    return ratio


@with_option_groups
def gate_command(
    *,
    baseline: Annotated[
        str,
        typer.Option(
            metavar="RUNS", help="Runs of the baseline: labels such as variant=main, or a run ID."
        ),
    ],
    candidate: Annotated[
        str, typer.Option(metavar="RUNS", help="Runs of the candidate, in the same form.")
    ],
    max_increase: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="Increase that counts as a regression, such as 3%."),
    ] = "3%",
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Figure to judge, as compare names it in JSON (default: energy per unit of work, "
            "else GPU energy).",
        ),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=2,
            max=100,
            metavar="N",
            help="Largest number of repeats; it must not change meanwhile.",
        ),
    ] = _REPEATS,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with summaries in Markdown: that of the same groups and figure is replaced, "
            "else one is appended.",
        ),
    ] = None,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    force: Annotated[
        bool,
        typer.Option(
            help="Judge runs even if their hosts, drivers, GPUs, units or boundaries differ.",
            show_default=False,
        ),
    ] = False,
    connection: ConnectionOptions,
) -> None:
    """Test for an increase of the energy: exit code 0 pass, 3 regression, 4 cannot tell."""
    limit = _ratio_option(max_increase)
    since_s = duration_option(since)
    from wattline_analyzer.compare import gate
    from wattline_analyzer.compare.comparison import (
        MixedRunsError,
        RepeatedRunError,
        group_warnings,
    )
    from wattline_analyzer.compare.gate_output import (
        gate_mark,
        gate_markdown,
        gate_output,
    )
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.core.run_catalog import SelectionError, parse_selector
    from wattline_analyzer.core.runs.load import Clock

    try:
        selectors = [parse_selector(text) for text in (baseline, candidate)]
    except SelectionError as error:
        raise typer.BadParameter(str(error)) from error
    warnings: list[str] = []
    clock = Clock(time.time, time.sleep, wait, time.time())
    with connection.open() as source:
        groups = [load_group(source, one, since_s, None, warnings, clock) for one in selectors]
    try:
        warnings = group_warnings(groups, warnings, force=force)
        chosen = gate.gate_figure(groups, figure)
    except MixedRunsError as error:
        exit_with_error(f"{error}; compare similar runs, or judge them with --force")
    except RepeatedRunError as error:
        raise typer.BadParameter(f"{error}; give groups that have no run in common") from error
    except gate.GateError as error:
        exit_with_error(str(error))
    warnings = [*warnings, *gate.selection_warnings(groups, repeats)]
    result = gate.judge(groups, chosen, limit, repeats)
    print_output(gate_output(result, groups, limit, warnings), form)
    if summary is not None:
        text = gate_markdown(result, groups, limit, warnings)
        _write_summary(summary, gate_mark(result, groups), text)
    raise typer.Exit(_EXIT_CODES[result.verdict])


def _write_summary(path: Path, mark: str, section: str) -> None:
    """Write a section between two marks in place of that of an earlier repeat, or append it."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        first, _, rest = before.partition(mark)
        _, _, after = rest.partition(mark)
        path.write_text(f"{first}{after}{mark}{section}{mark}", encoding="utf-8")
    except OSError as error:
        exit_with_error(
            f"cannot write to {path}: {error.strerror}; give --summary a file with write permission"
        )
