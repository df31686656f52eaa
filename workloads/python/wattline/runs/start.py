"""Functions that start a run: `wattline.run`, `wattline.start` and `wattline.measure`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar, cast, overload

from wattline.client.gpus import GpusOfRun
from wattline.runs import open_runs
from wattline.runs.run import Run

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def run(  # noqa: PLR0913  # the options of a run
    workload: str,
    *,
    labels: Mapping[str, object] | None = None,
    gpus: GpusOfRun = None,
    exporter: str | None = None,
    quiet: bool = False,
    unit: str | None = None,
) -> Run:
    """Return a run for a `with` statement; `gpus` has the form of `workloads run --gpus`, or is an index
    or a list: `[0, 1]`.

    Under a runner (WATTLINE_RUN_ID is set) it joins the runner's run and never ends it. Under a launcher (RANK is set)
    the first rank of the node starts and ends the run, and only its phases and results count; the other ranks join.
    Within another run of this process it has the GPUs of that run, unless `gpus` are given. With `quiet` it prints no
    summary at its end. `unit` is the primary unit of work, of which the energy per unit is stated first; the default is
    the first unit that the job reports.
    """
    texts = {name: str(value) for name, value in (labels or {}).items()}
    return Run(workload, texts, gpus, exporter, quiet=quiet, unit=unit)


def start(  # noqa: PLR0913  # the options of a run
    workload: str,
    *,
    labels: Mapping[str, object] | None = None,
    gpus: GpusOfRun = None,
    exporter: str | None = None,
    quiet: bool = False,
    unit: str | None = None,
) -> Run:
    """Start a run and return it; `run.end()` ends it, at the latest the exit of Python. See `run`."""
    return run(workload, labels=labels, gpus=gpus, exporter=exporter, quiet=quiet, unit=unit).start()


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


def measure(workload: Callable[..., Any] | str | None = None, **options: Any) -> Callable[..., Any]:
    """Measure each call of a function: `@wattline.measure`, or `@wattline.measure("train", gpus="0")`.

    A call is a run, named after the function by default. Within another run of this process or of the runner, it is a
    phase of that run. The function may be `async`; a generator raises TypeError.
    """
    if callable(workload):
        return _measured(workload, _name_of(workload), options)
    return lambda function: _measured(function, workload or _name_of(function), options)


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _measured(function: Callable[..., Any], name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"cannot measure {name}: it is a generator; measure the loop that uses it with wattline.run()")

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with _run_or_phase(name, options):
            return function(*arguments, **named)

    @functools.wraps(function)
    async def call_async(*arguments: Any, **named: Any) -> Any:
        with _run_or_phase(name, options):
            return await function(*arguments, **named)

    return call_async if inspect.iscoroutinefunction(function) else call


@contextlib.contextmanager
def _run_or_phase(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    outer = cast("Run | None", open_runs.latest())
    opening = contextlib.nullcontext(outer) if outer is not None else run(name, **options)
    with opening as opened, contextlib.ExitStack() as phase:
        if outer is not None or not opened.is_own:
            phase.enter_context(opened.phase(name))
        yield
