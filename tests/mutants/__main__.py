"""Mutation tests of the modules that calculate energies and half-widths: make mutants.

Each mutant has one changed operator, number or condition. The tests near its module run in a fork
of this process, with the mutant in memory: no file changes. A mutant survives if no test fails.
`modules.toml` names the modules and their tests, `equivalent.toml` the mutants that no test can
detect. `build/mutants/` has the survivors of the latest run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import resource
import sys
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutants.mutations import Mutant, mutants, operators

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RESULTS = ROOT / "build" / "mutants"
_CPU_RATIO = 5
_CPU_S = 10
"""Limit of the processor time of a mutant's tests: five times that of the module, and 10 s. A
mutant that reaches it has an endless loop.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """Module and the tests near it; paths are relative to the repository."""

    name: str
    path: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        """Name by which the module is imported."""
        return ".".join(Path(self.path).with_suffix("").parts[1:])

    @property
    def source(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Result:
    """Mutants of a module, and those of them that no test detected."""

    name: str
    mutants: int
    equivalent: int
    survivors: list[Mutant]
    stale: list[tuple[str, str]]
    """Entries of the list of equivalent mutants that are no mutants, or that a test detects."""

    @property
    def killed(self) -> int:
        return self.mutants - self.equivalent - len(self.survivors)

    @property
    def killed_ratio(self) -> float:
        """Share of the mutants that are not equivalent."""
        return self.killed / max(self.mutants - self.equivalent, 1)


def main() -> int:
    """Test the mutants that the arguments choose; return 1 if one survived that is not listed."""
    config = tomllib.loads((FOLDER / "modules.toml").read_text(encoding="utf-8"))
    listed = tomllib.loads((FOLDER / "equivalent.toml").read_text(encoding="utf-8"))
    arguments = _arguments(list(config["modules"]))
    ignored = re.compile("|".join(config["ignored_lines"]))
    results = []
    for name in arguments.modules or config["modules"]:
        fields = config["modules"][name]
        target = Target(name, fields["path"], tuple(fields["tests"]))
        found = [
            mutant
            for mutant in mutants(target.source, operators(config["operators"]))
            if not ignored.fullmatch(mutant.line)
        ]
        equivalent = [
            (row["line"], row["mutated"])
            for row in listed.get("mutant", ())
            if row["module"] == name
        ]
        chosen = _chosen(found, target, arguments)
        is_whole = len(chosen) == len(found)
        results.append(_tested(target, chosen, equivalent, is_whole=is_whole))
    print("\n" + _table(results))
    return int(any(result.survivors or result.stale for result in results))


def _arguments(names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="names in modules.toml; all by default")
    parser.add_argument("--again", action="store_true", help="only the latest run's survivors")
    parser.add_argument("--lines", help="only these lines of the modules: FIRST-LAST")
    arguments = parser.parse_args()
    for name in arguments.modules:
        if name not in names:
            parser.error(f"{name}: not in tests/mutants/modules.toml")
    return arguments


def _chosen(
    found: Sequence[Mutant], target: Target, arguments: argparse.Namespace
) -> Sequence[Mutant]:
    """Return the mutants that the arguments choose."""
    if arguments.again:
        path = _results_path(target)
        if not path.exists():
            raise SystemExit(f"no results of {target.name}; run: make mutants MODULE={target.name}")
        latest = {tuple(change) for change in json.loads(path.read_text(encoding="utf-8"))}
        return [mutant for mutant in found if mutant.change in latest]
    if arguments.lines:
        first, last = map(int, arguments.lines.split("-"))
        return [mutant for mutant in found if first <= mutant.number <= last]
    return found


def _tested(
    target: Target,
    found: Sequence[Mutant],
    equivalent: Sequence[tuple[str, str]],
    *,
    is_whole: bool,
) -> Result:
    """Return the result of all mutants of a module; print each survivor as soon as it is known."""
    cpu_s = _prepared(target)
    survived = []
    valid = 0
    for mutant in found:
        code = mutant.code()
        if code is None:
            continue
        valid += 1
        if _survives(target, code, cpu_s):
            survived.append(mutant)
            if mutant.change not in equivalent:
                print(f"{target.path}:{mutant.number}: {mutant.line}\n    -> {mutant.mutated}")
                sys.stdout.flush()
    changes = {mutant.change for mutant in survived}
    RESULTS.mkdir(parents=True, exist_ok=True)
    _results_path(target).write_text(json.dumps(sorted(changes), indent=1, ensure_ascii=False))
    return Result(
        target.name,
        valid,
        sum(mutant.change in equivalent for mutant in survived),
        [mutant for mutant in survived if mutant.change not in equivalent],
        [change for change in equivalent if is_whole and change not in changes],
    )


def _results_path(target: Target) -> Path:
    return RESULTS / f"{target.name}.json"


def _table(results: Iterable[Result]) -> str:
    """Return the table that CONTRIBUTING.md shows."""
    lines = ["| module | mutants | killed | equivalent | survived |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {result.name} | {result.mutants} | {result.killed} ({result.killed_ratio:.0%})"
        f" | {result.equivalent} | {len(result.survivors)} |"
        for result in results
    ]
    lines += [
        f"\nequivalent.toml: {result.name}: {line!r} -> {mutated!r}: not a mutant that survives; "
        "remove the entry"
        for result in results
        for line, mutated in result.stale
    ]
    return "\n".join(lines)


# -- tests of one mutant, in a fork


def _prepared(target: Target) -> float:
    """Test the module as it is, and import the libraries that its tests need. Return the processor
    time of these tests in seconds.
    """
    reading, writing = os.pipe()
    began_s = _children_cpu_s()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = _run_tests(target, compile(target.source, target.path, "exec"))
        with os.fdopen(writing, "w") as pipe:
            pipe.write("\n".join(_libraries()))
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        libraries = pipe.read().split("\n")
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise SystemExit(
            f"{target.name}: its tests fail without a mutant; run: pytest {' '.join(target.tests)}"
        )
    for name in libraries:
        with suppress(ImportError):
            importlib.import_module(name)
    return _children_cpu_s() - began_s


def _libraries() -> list[str]:
    """Return the imported modules that are not of this repository."""
    return [
        name
        for name, module in sys.modules.items()
        if (path := getattr(module, "__file__", None)) and "/lib/python3" in path
    ]


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _survives(target: Target, code: CodeType, cpu_s: float) -> bool:
    """Return whether all tests pass with the mutated code."""
    pid = os.fork()
    if pid == 0:
        limit_s = round(_CPU_RATIO * cpu_s + _CPU_S)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        os._exit(_run_tests(target, code))
    _, status = os.waitpid(pid, 0)
    return status == 0


def _run_tests(target: Target, code: CodeType) -> int:
    """Return the exit code of pytest with a module that has another code."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    sys.meta_path.insert(0, _Finder(target, code))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    settings.load_profile("mutants")
    options = ["-x", "-q", "--tb=no", "--noconftest", "-p", "pytest_timeout"]
    for plugin in ("cacheprovider", "threadexception", "unraisableexception"):
        options += ["-p", f"no:{plugin}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    try:
        return int(pytest.main([*options, *target.tests]))
    except BaseException:  # noqa: BLE001  # a fork must not return to the loop of its parent
        return 1


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of one module, with the code of a mutant."""

    def __init__(self, target: Target, code: CodeType) -> None:
        self._target = target
        self._code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._target.module:
            return None
        file = str(ROOT / self._target.path)
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Loader(fullname, file, self._code)
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, code: CodeType) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


settings.register_profile(
    "mutants",
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
if __name__ == "__main__":
    sys.exit(main())
