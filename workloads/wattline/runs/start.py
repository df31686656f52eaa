"""Functions that start a run: `wattline.run`, `wattline.start` and `wattline.measure`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast, overload

from wattline.client.api import DEFAULT_ADDRESS
from wattline.client.gpus import GpusOfRun
from wattline.runs import open_runs
from wattline.runs.measured_function import measured, name_of
from wattline.runs.run import ActiveRun

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of a run. Raises TypeError for those of a wrong type, before the job starts."""

    labels: Mapping[str, object] | None
    gpus: GpusOfRun
    exporter: str | None
    quiet: bool
    unit: str | None

    def __post_init__(self) -> None:
        _check("labels", self.labels, Mapping, "labels={'model': 'gpt2'}")
        _check("exporter", self.exporter, str, f"exporter={DEFAULT_ADDRESS!r}")
        _check("unit", self.unit, str, "unit='samples'")

    def run(self, workload: str) -> ActiveRun:
        if not isinstance(workload, str):
            _check("workload", workload or 0, str, "wattline.run('train')")
        texts = {str(name): str(value) for name, value in (self.labels or {}).items()}
        return ActiveRun(
            workload, texts, self.gpus, self.exporter, quiet=self.quiet, unit=self.unit
        )


def _check(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(
            f"cannot start a run: {name} has the type {type(value).__name__}; use the form "
            f"{example}"
        )


def run(  # noqa: PLR0913  # the options of a run
    workload: str,
    *,
    labels: Mapping[str, object] | None = None,
    gpus: GpusOfRun = None,
    exporter: str | None = None,
    quiet: bool = False,
    unit: str | None = None,
) -> ActiveRun:
    """Return a run for a `with` statement; `gpus` has the form of `workloads run --gpus`, or is an
    index or a list: `[0, 1]`.

    Under a runner (WATTLINE_RUN_ID is set) it joins the runner's run and never ends it. Under a
    launcher (RANK is set) the first rank of the node starts and ends the run, and only its phases
    and results count; the other ranks join. Within another run of the same thread or asyncio task
    it has the GPUs of that run, unless `gpus` are given. With `quiet` it prints no summary at its
    end. `unit` is the primary unit of work, of which the energy per unit is stated first; the
    default is the first unit that the job reports.
    """
    return _Options(labels, gpus, exporter, quiet, unit).run(workload)


def start(  # noqa: PLR0913  # the options of a run
    workload: str,
    *,
    labels: Mapping[str, object] | None = None,
    gpus: GpusOfRun = None,
    exporter: str | None = None,
    quiet: bool = False,
    unit: str | None = None,
) -> ActiveRun:
    """Start a run and return it; `run.end()` ends it, at the latest the exit of Python. See
    `run`.
    """
    return run(
        workload, labels=labels, gpus=gpus, exporter=exporter, quiet=quiet, unit=unit
    ).start()


@overload
def measure(workload: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]: ...


@overload
def measure(
    workload: str | None = None,
    *,
    labels: Mapping[str, object] | None = None,
    gpus: GpusOfRun = None,
    exporter: str | None = None,
    quiet: bool = False,
    unit: str | None = None,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]: ...


def measure(  # noqa: PLR0913  # the options of a run
    workload: Callable[..., Any] | str | None = None,
    *,
    labels: Mapping[str, object] | None = None,
    gpus: GpusOfRun = None,
    exporter: str | None = None,
    quiet: bool = False,
    unit: str | None = None,
) -> Callable[..., Any]:
    """Measure each call of a function: `@wattline.measure`, or `@wattline.measure("train",
    gpus="0")`.

    A call is a run, named after the function by default. Within another run of the same thread or
    asyncio task, or of the runner, it is a phase of that run. The function may be `async`; a
    generator function raises TypeError.
    """
    options = _Options(labels, gpus, exporter, quiet, unit)
    if workload is not None and not isinstance(workload, str):
        return cast("Callable[..., Any]", _measured(workload, None, options))
    return lambda function: _measured(function, workload, options)


def _measured(function: Any, workload: str | None, options: _Options) -> Any:
    name = workload or name_of(function)
    return measured(function, lambda: _run_or_phase(name, options))


@contextlib.contextmanager
def _run_or_phase(name: str, options: _Options) -> Iterator[None]:
    outer = cast("ActiveRun | None", open_runs.enclosing_run())
    opening = contextlib.nullcontext(outer) if outer is not None else options.run(name)
    with opening as opened, contextlib.ExitStack() as phase:
        if outer is not None or not opened.is_own:
            phase.enter_context(opened.phase(name))
        yield
