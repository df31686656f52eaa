"""Options of a time window and of the policy of attribution."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from wattline_analyzer.core.options import duration_option, moment_option

POLICIES = ("idle_shared", "idle_apart")


_DURATION = re.compile(r"[\d.]+[a-zA-Z]")


WindowStartOption = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Length of the window before --until (90m, 12h, 7d), or its start: 2026-11-01.",
    ),
]


WindowEndOption = Annotated[
    str,
    typer.Option(
        "--until",
        metavar="WHEN",
        help="End of the window: now, -2h, Unix seconds, or 2026-11-20T10:15[+01:00].",
    ),
]


PolicyOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(POLICIES),
        help="Attribution of an allocated device's idle power: idle_shared (to its runs) or "
        "idle_apart (to none).",
    ),
]


def policy_option(text: str) -> str:
    """Return the policy. Raises typer.BadParameter."""
    if text not in POLICIES:
        raise typer.BadParameter(f"--policy: expected {' or '.join(POLICIES)}, not {text!r}")
    return text


def window_options(since: str, until: str, now_s: float) -> tuple[float, float]:
    """Return start and end of the window in Unix seconds; `since` is a duration or a date.

    Raises typer.BadParameter.
    """
    if not since[:1].isdigit() or _DURATION.fullmatch(since):
        try:
            since_s = duration_option(since)
        except typer.BadParameter as error:
            raise typer.BadParameter(
                f"{error.message}; or give a time such as 2026-11-20T10:15Z"
            ) from error
        end_s = moment_option(until, "--until", now_s)
        return end_s - since_s, end_s
    start_s = moment_option(since, "--since", now_s)
    end_s = moment_option(until, "--until", now_s)
    if start_s >= end_s:
        raise typer.BadParameter(
            f"--since: {since} is not before --until {until}; give an earlier time"
        )
    return start_s, end_s
