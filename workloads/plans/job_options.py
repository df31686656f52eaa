"""Whether a built-in job takes what is given to it, before anything runs."""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import re
from collections.abc import Mapping
from typing import Any

from workloads import jobs

_FLAG = re.compile(r"--[a-z0-9][a-z0-9-]*")


class OptionError(ValueError):
    """One line; `flag` is the option that it is about, where it is about one."""

    def __init__(self, message: str, flag: str | None) -> None:
        super().__init__(message)
        self.flag = flag


@functools.cache
def parsed(job: str, arguments: tuple[str, ...]) -> Mapping[str, Any]:
    """All options of the job with their defaults. Raises OptionError, and KeyError where there is no such job."""
    parser = jobs.load(job).parser()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            options: dict[str, Any] = vars(parser.parse_args(list(arguments)))
            return options
    except SystemExit as error:
        text = said.getvalue().strip()
        message = text.removeprefix(f"{parser.prog}: ").partition(f"; see {parser.prog}")[0]
        if not error.code:
            raise OptionError("--help and the like run nothing; leave them out", None) from error
        flag = next(iter(_FLAG.findall(message)), None)
        raise OptionError(message + _hint(message, flag, parser.format_help()), flag) from error


def closest(given: str, known: list[str]) -> str:
    """`; did you mean x?`, or nothing."""
    found = difflib.get_close_matches(given, known, 1, 0.6)
    return f"; did you mean {found[0]}?" if found else ""


def _hint(message: str, flag: str | None, help_text: str) -> str:
    if flag is None or "unrecognized" not in message:
        return ""
    known = sorted(set(_FLAG.findall(help_text)) - {"--help"})
    return closest(flag, known) or f"; there are {', '.join(known)}"
