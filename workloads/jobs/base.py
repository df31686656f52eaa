"""Interface of the job modules, and the option types that they share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import NoReturn, Protocol


class JobParser(argparse.ArgumentParser):
    """Parser of a job's options, which reports an invalid option in one line."""

    def format_help(self) -> str:
        return f"{super().format_help()}\nThe options of `workloads run` are accepted as well.\n"

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class Job(Protocol):
    """Module of a job; its docstring is the job's description."""

    __doc__: str | None

    def parser(self) -> JobParser:
        """Return the parser of the job's options."""
        ...

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the job in this process and return its exit code."""
        ...


def job_parser(name: str, description: str | None) -> JobParser:
    return JobParser(prog=f"workloads job {name}", description=description, allow_abbrev=False)


def positive_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a duration; give seconds, like 10 or 0.5")
    return value


def positive_int(text: str) -> int:
    return _whole_number(text, 1)


def non_negative_int(text: str) -> int:
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return value
