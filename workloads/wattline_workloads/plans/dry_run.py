"""Preview of a plan: its runs in order, and its changes to the machine."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence

import typer

from wattline.client.api import Api, ExporterError
from wattline.contract.api import Gpus
from wattline_workloads.caps.apply import check_caps
from wattline_workloads.caps.gpu_set import CapsError, open_gpu_set
from wattline_workloads.plans.gpus import cap_of, capped_uuids, caps_of
from wattline_workloads.plans.model import (
    POWER_LIMIT,
    SM_CLOCK,
    PlanError,
    WorkloadPlan,
    parse_job_options,
)
from wattline_workloads.plans.steps import PlannedRun, PlanStep, step_gpus

_COUNTS = ("repetitions", "iterations", "epochs", "requests", "steps")
_INDENT = " " * 8


def check_caps_of_gpus(
    all_steps: Sequence[PlanStep], address: str, environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line with the result of the check of all caps against the limits of their GPUs.

    Raises typer.BadParameter for a cap on an unclear GPU, or one that its GPU does not support.
    """
    caps = caps_of(all_steps)
    if not caps:
        return
    try:
        here = Gpus.parse(Api(address).get("/gpus"))
        uuids: Sequence[str] = capped_uuids(all_steps, here, environ)
        simulation = here.simulation
    except ExporterError:
        named = [step_gpus(step) for step in all_steps if cap_of(step) is not None]
        uuids = list(dict.fromkeys(gpu for gpus in named for gpu in gpus or ()))
        simulation = None
    except PlanError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        gpus = open_gpu_set(None if not uuids or "all" in uuids else uuids, simulation)
    except CapsError as error:
        yield f"limits of the GPUs not checked: {error}"
        return
    with contextlib.closing(gpus):
        try:
            check_caps(gpus, caps)
        except CapsError as error:
            raise typer.BadParameter(str(error)) from error
        yield f"limits checked on {', '.join(gpus.name(uuid) for uuid in gpus.uuids)}"


def lines(
    plan: WorkloadPlan,
    all_steps: Sequence[PlanStep],
    results: str,
    exporter: str,
    checked: Sequence[str],
) -> Iterator[str]:
    """Yield the preview.

    `results` is the folder, `exporter` the way in which an exporter is found, `checked` the result
    of the check of caps.
    """
    runs = sum(len(step.runs) for step in all_steps)
    steps = "" if runs == len(all_steps) else f"{_amount(len(all_steps), 'step')}, "
    yield f"{plan.name}: {steps}{_amount(runs, 'run')}; {_total(plan, all_steps)}"
    for number, step in enumerate(all_steps, 1):
        yield f"{number:>4}  {step.title}: {_length(_seconds(step))}"
        yield from _step(step)
    yield "changes to this machine:"
    for change in (*_changes(plan, all_steps), exporter, f"writes to {results}"):
        yield f"{_INDENT}{change}"
    yield from checked
    yield "dry run: nothing was changed"


def _step(step: PlanStep) -> Iterator[str]:
    for run in step.runs:
        program = ["workloads job", run.job] if run.job else []
        command = " ".join(part for part in (*program, shlex.join(run.arguments)) if part)
        notes = [f"tenant {run.tenant}"] if run.tenant else []
        notes += ["in the background"] if run.background else []
        notes += ["under nsys"] if run.nsys else []
        yield f"{_INDENT}{command}{''.join(f' ({note})' for note in notes)} on {_on(run.gpus)}"
        labels = ", ".join(f"{name}={value}" for name, value in run.labels.items())
        yield f"{_INDENT}  labels: {labels}"
    for cap in _caps(step):
        yield f"{_INDENT}under {cap}{' and MPS' if step.mps else ''}"
    if step.mps and not _caps(step):
        yield f"{_INDENT}under MPS"


def _caps(step: PlanStep) -> list[str]:
    caps = []
    if POWER_LIMIT in step.settings:
        caps.append(f"a power limit of {step.settings[POWER_LIMIT]} W")
    if SM_CLOCK in step.settings:
        caps.append(f"an SM clock of {_megahertz(step)} MHz")
    return caps


def _changes(plan: WorkloadPlan, all_steps: Sequence[PlanStep]) -> Iterator[str]:
    limited = [step for step in all_steps if POWER_LIMIT in step.settings]
    locked = [step for step in all_steps if SM_CLOCK in step.settings]
    if limited:
        values = ", ".join(dict.fromkeys(str(step.settings[POWER_LIMIT]) for step in limited))
        yield (
            f"sets the power limit of {_of_all(limited)}: {values} W, and restores the previous "
            "limits"
        )
    if locked:
        values = ", ".join(dict.fromkeys(_megahertz(step) for step in locked))
        yield f"locks the SM clock of {_of_all(locked)}: {values} MHz, and unlocks it at the end"
    if any(step.mps for step in all_steps):
        yield "starts an MPS daemon for each step under MPS, and stops it"
    if plan.cool_down is not None:
        yield (
            f"waits before each run for at most {plan.cool_down.at_most_seconds:g} s until the "
            "GPUs have cooled down"
        )
    if plan.pause_seconds:
        yield f"pauses for {plan.pause_seconds:g} s before each step"


def _megahertz(step: PlanStep) -> str:
    return f"{float(step.settings[SM_CLOCK]) / 1e6:g}"


def _on(gpus: Sequence[str] | None) -> str:
    if gpus is None:
        return "the GPUs of CUDA_VISIBLE_DEVICES, else those that the job uses"
    return "all GPUs" if "all" in gpus else f"GPU {', '.join(gpus)}"


def _of_all(chosen: Sequence[PlanStep]) -> str:
    named = [step_gpus(step) for step in chosen]
    if any(gpus is None for gpus in named):
        return "the GPU here"
    return _on(list(dict.fromkeys(gpu for gpus in named for gpu in gpus or ())))


def _amount(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _total(plan: WorkloadPlan, all_steps: Sequence[PlanStep]) -> str:
    known_s = [seconds for step in all_steps if (seconds := _seconds(step)) is not None]
    unknown = len(all_steps) - len(known_s)
    total = _length(sum(known_s) + plan.pause_seconds * len(all_steps)) if known_s else ""
    if not unknown:
        return f"{total}, plus loading, warm-up and cool-down"
    if unknown == len(all_steps):
        return "unknown duration"
    rest = f"{_amount(unknown, 'step')} of unknown duration"
    return f"{total}, and {rest}" if total else rest


def _length(seconds: float | None) -> str:
    if seconds is None:
        return "unknown duration"
    return f"about {seconds:g} s" if seconds < 120 else f"about {seconds / 60:.0f} min"


def _seconds(step: PlanStep) -> float | None:
    """Return the duration of the longest run, None if a run has no fixed duration."""
    lengths_s = [_seconds_of(run) for run in step.runs if not run.background]
    known_s = [length_s for length_s in lengths_s if length_s is not None]
    return max(known_s) if len(known_s) == len(lengths_s) else None


def _seconds_of(run: PlannedRun) -> float | None:
    """Return the duration, None if a count of work replaces the default duration."""
    if run.job is None:
        return None
    options = parse_job_options(run.job, run.arguments)
    is_given = any(argument.startswith("--duration") for argument in run.arguments)
    duration_s = options.get("duration")
    if duration_s is None or not (is_given or not any(options.get(name) for name in _COUNTS)):
        return None
    return float(duration_s)
