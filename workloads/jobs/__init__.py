"""The built-in jobs, one a module: its docstring, `parser()` for its options, and `main(arguments)`, a process.

The job `llm-train` is the module `llm_train`.
"""

from __future__ import annotations

import argparse
import importlib
import math
import pkgutil
import sys
from types import ModuleType
from typing import NoReturn


class Options(argparse.ArgumentParser):
    """A job's options; what is wrong with them is one line."""

    def format_help(self) -> str:
        return f"{super().format_help()}\nThe options of `workloads run` may be given, too.\n"

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def options(name: str, description: str | None) -> Options:
    return Options(prog=f"workloads job {name}", description=description, allow_abbrev=False)


def names() -> list[str]:
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def load(name: str) -> ModuleType:
    """Raises KeyError."""
    if name not in names():
        raise KeyError(name)
    return importlib.import_module(_module(name))


def command(name: str, arguments: list[str]) -> list[str]:
    """-P: a file of the user's beside their script must not be imported in place of ours."""
    return [sys.executable, "-P", "-m", _module(name), *arguments]


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no duration; give seconds, like 10 or 0.5")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value
