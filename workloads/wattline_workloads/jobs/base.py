"""Registry and interface of the job modules, and shared option types and percentiles.

Each job is one module, which also runs as `python -m wattline_workloads.jobs.NAME`.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NoReturn, Protocol, cast

from wattline.client.messages import log_message
from wattline.command_line import suggestion, with_help
from wattline.contract.api import MAX_TEXT

PERCENTILES = (50, 90, 95, 99)
MODULES: Mapping[str, str] = {
    "container": "wattline_workloads.jobs.container",
    "dgemm": "wattline_workloads.jobs.dgemm",
    "llm-forward": "wattline_workloads.jobs.llm_forward",
    "llm-generate": "wattline_workloads.jobs.llm_generate",
    "llm-server": "wattline_workloads.jobs.llm_server",
    "llm-train": "wattline_workloads.jobs.llm_train",
    "memcpy": "wattline_workloads.jobs.memcpy",
    "resnet": "wattline_workloads.jobs.resnet",
    "sgemm": "wattline_workloads.jobs.sgemm",
    "simulated-load": "wattline_workloads.jobs.simulated_load",
    "sleep": "wattline_workloads.jobs.sleep",
}
"""Module of each job, imported when the job is used."""

_INTERPRETER = re.compile(r"(i?python|pypy)[\d.]*|(ba|da|k|z)?sh")
_OPTIONS_WITH_VALUE = frozenset({"-X", "-W", "-o"})
"""Options of Python and of shells whose value is the next word."""
_MODULE = re.compile(r"-[A-Za-z]*m")
_CODE = re.compile(r"-[A-Za-z]*c|-")
"""Option of code as text, and the name of stdin."""
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "torchrun", "uv"})
"""Programs that run the script among their arguments."""
_LAUNCHER_MODULES = frozenset(
    {"accelerate.commands.launch", "torch.distributed.launch", "torch.distributed.run"}
)


_FLAG = re.compile(r"--[a-z0-9][a-z0-9-]*")
_NO_DURATION = "is not a duration; give seconds, like 10 or 0.5, or a unit, like 5m"
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class JobOptionError(ValueError):
    """Invalid options of a job; the message is the cause, with a similar option."""


class JobParser(argparse.ArgumentParser):
    """Parser of a job's options, which reports an invalid option in one line."""

    runner_options: Sequence[str] = ()
    """Options of the runner, to suggest as well."""
    raises = False
    """True: raise JobOptionError instead of exiting."""

    def format_help(self) -> str:
        return f"{super().format_help()}\nThe options of `workloads run` are accepted as well.\n"

    def error(self, message: str) -> NoReturn:
        cause = f"{message}{self._hint(message)}"
        if self.raises:
            raise JobOptionError(cause)
        log_message(with_help(cause, self.prog))
        self.exit(2)

    def _hint(self, message: str) -> str:
        flag = _FLAG.search(message)
        if flag is None or "unrecognized" not in message:
            return ""
        known = sorted(set(_FLAG.findall(self.format_help())) - {"--help"})
        return (
            suggestion(flag[0], [*known, *self.runner_options])
            or f"; known options: {', '.join(known)}"
        )


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


def parse_seconds(text: str) -> float:
    """Return the seconds of `0`, `10`, `10s` or `1.5m`. Raises ValueError."""
    unit_s = _UNIT_S.get(text[-1:])
    try:
        value = float(text) if unit_s is None else float(text[:-1]) * unit_s
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{text} {_NO_DURATION}")
    return value


def positive_seconds(text: str) -> float:
    """Return the seconds of `10`, `10s` or `1.5m`. Raises argparse.ArgumentTypeError."""
    try:
        value = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text} {_NO_DURATION}")
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


def percentile_results(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `{name}_mean`, `{name}_p50` … `_p99`, linearly interpolated (NumPy's default); empty
    without values.
    """
    if not values:
        return {}
    import numpy as np

    points = np.percentile(values, PERCENTILES)
    named = {
        f"{name}_p{percentile}": float(value)
        for percentile, value in zip(PERCENTILES, points, strict=True)
    }
    return {f"{name}_mean": float(np.mean(values)), **named}


def job_names() -> list[str]:
    return sorted(MODULES)


def load_job(name: str) -> Job:
    """Import a job's module. Raises KeyError."""
    return cast("Job", importlib.import_module(MODULES[name]))


def job_command(name: str, arguments: list[str]) -> list[str]:
    """Return the command of a job's process.

    `-P` keeps a user's file of the same name in the working directory from shadowing the module.
    """
    from wattline.command_line import (
        module_command,  # after the check for a module that hides the package
    )

    return module_command(MODULES[name], *arguments)


def workload_of(command: Sequence[str]) -> str:
    """Return the name of the command: of the script or module that an interpreter or a launcher
    runs, else of the program.
    """
    name = PurePath(command[0]).name
    arguments = command[1:]
    if name == "env":
        rest = list(itertools.dropwhile(_is_environment, arguments))
        found = workload_of(rest) if rest else name
    elif _INTERPRETER.fullmatch(name):
        found = _script(arguments) or name
    elif name in _LAUNCHERS:
        found = _first_script(arguments) or name
    else:
        found = name
    return found[:MAX_TEXT]


def _is_environment(word: str) -> bool:
    return word.startswith("-") or "=" in word


def _script(arguments: Sequence[str]) -> str | None:
    """Return the script or module of an interpreter's command line; None for code and stdin."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            return PurePath(word).name
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
        elif _CODE.fullmatch(word):
            return None
        elif _MODULE.fullmatch(word):
            module = next(words, None)
            is_launcher = module in _LAUNCHER_MODULES
            return (_first_script(list(words)) if is_launcher else None) or module
    return None


def _first_script(arguments: Sequence[str]) -> str | None:
    """Return the first Python script: the options of a launcher, and their values, precede it."""
    return next((PurePath(word).name for word in arguments if word.endswith(".py")), None)
