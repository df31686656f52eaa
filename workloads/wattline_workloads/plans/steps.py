"""Steps of a plan: one run, or several concurrent runs, under one setting."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from wattline.command_line import suggestion
from wattline.contract.api import MAX_LABEL_VALUE, MAX_LABELS
from wattline_workloads.jobs.base import job_names
from wattline_workloads.plans.model import (
    CAPS,
    IDLE,
    ConcurrentJob,
    JobSpec,
    OptionError,
    PlanEntry,
    Scalar,
    Tenant,
    Value,
    WorkloadPlan,
    parse_job_options,
)

StepPath = tuple[str | int, ...]
Order = Literal["as-given", "shuffled", "interleaved"]


class StepError(ValueError):
    """Step that cannot be run; `path` is its location in the plan."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Run of a built-in job or of a command."""

    job: str | None
    arguments: tuple[str, ...]
    """Arguments of the job, or the whole command."""
    tenant: str | None = None
    gpus: tuple[str, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    waits: bool = False
    """True if the run waits at the tenants' barrier."""
    background: bool = False
    nsys: bool = False

    @property
    def title(self) -> str:
        return self.tenant or self.job or self.arguments[0]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One run, or several concurrent runs, under one setting."""

    case: str
    """Name of the plan's entry."""
    repeat: int
    runs: tuple[PlannedRun, ...]
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    """Values of the sweep's settings for this step."""
    mps: bool = False
    phase: Literal["measure", "warm-up", "idle"] = "measure"

    @property
    def title(self) -> str:
        if self.phase != "measure":
            return self.phase
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return " ".join([self.case, *settings, f"repeat {self.repeat}"])


def expand_steps(plan: WorkloadPlan) -> tuple[PlanStep, ...]:
    """Return the steps in file order: entries, points of the sweep, repeats. Raises StepError."""
    return tuple(
        step
        for index, entry in enumerate(plan.runs)
        for step in _entry_steps(plan, entry, _case(plan, index), index)
    )


def idle_step(plan: WorkloadPlan) -> PlanStep:
    """Return the step that measures idle power."""
    labels = {"experiment": plan.experiment or plan.name, **plan.labels, "phase": "idle"}
    gpus = tuple(plan.gpus or _all_gpus(plan)) or ("all",)
    run = PlannedRun("sleep", (f"--duration={plan.idle_seconds:g}",), None, gpus, labels)
    return PlanStep("idle", 0, (run,), phase="idle")


def step_gpus(step: PlanStep) -> tuple[str, ...] | None:
    """Return the GPUs of all runs of the step, None if a run names none."""
    named = [run.gpus for run in step.runs]
    if any(gpus is None for gpus in named):
        return None
    return tuple(dict.fromkeys(gpu for gpus in named for gpu in gpus or ()))


def option_arguments(options: Mapping[str, Value]) -> list[str]:
    """Convert `{"batch-size": 8, "verbose": true}` to `--batch-size=8 --verbose`."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = option_flag(name)
        for each in value if isinstance(value, list) else [value]:
            if each is True:
                arguments.append(flag)
            elif each is not False:
                arguments.append(f"{flag}={each}")
    return arguments


def option_flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _all_gpus(plan: WorkloadPlan) -> list[str]:
    """Return the GPUs that any entry names."""
    named: list[str] = []
    for entry in plan.runs:
        named += [*(entry.gpus or ()), *(entry.placement or ())]
        named += [gpu for tenant in entry.tenants or () for gpu in tenant.gpus or ()]
    return list(dict.fromkeys(named))


def _case(plan: WorkloadPlan, index: int) -> str:
    entry = plan.runs[index]
    kind = entry.job or (entry.command or [""])[0] or ("tenants" if entry.tenants else "placement")
    taken = {each.name for each in plan.runs}
    plain = sum(each.name is None for each in plan.runs) == 1 and kind not in taken
    return entry.name or (kind if plain else f"{kind}-{index + 1}")


def _entry_steps(plan: WorkloadPlan, entry: PlanEntry, case: str, index: int) -> Iterator[PlanStep]:
    mps = plan.mps if entry.mps is None else entry.mps
    for point in _grid(entry.sweep):
        for repeat in range(1, (entry.repeats or plan.repeats) + 1):
            labels = _labels(plan, entry, case, repeat, point)
            named = _runs(plan, entry, point, ("runs", index))
            runs = tuple(_labelled(run, labels, mps=mps) for run in named)
            if all(run.background for run in runs):
                raise StepError(
                    "all jobs run in the background; remove background: true from at least one",
                    "runs",
                    index,
                )
            if mps and not all(run.waits for run in runs):
                raise StepError(
                    "cannot verify that the command uses MPS: it does not wait at the barrier; "
                    "make it a tenant with "
                    "barrier: true that calls run.barrier() of wattline",
                    *("runs", index),
                )
            if any(
                len(run.labels) >= MAX_LABELS for run in runs
            ):  # the label `plan` is added later
                raise StepError(
                    f"a run has at most {MAX_LABELS} labels; remove labels or swept options",
                    "runs",
                    index,
                )
            yield PlanStep(case, repeat, runs, point, mps)


def _grid(sweep: Mapping[str, list[Scalar]]) -> Iterator[dict[str, Scalar]]:
    for point in itertools.product(*sweep.values()):
        yield dict(zip(sweep, point, strict=True))


def _runs(
    plan: WorkloadPlan, entry: PlanEntry, point: Mapping[str, Scalar], at: StepPath
) -> Iterator[PlannedRun]:
    known: set[str] = set(CAPS)
    if entry.tenants:
        for position, tenant in enumerate(entry.tenants):
            prefix = f"{tenant.name}."
            own = {
                name.removeprefix(prefix): value
                for name, value in point.items()
                if name.startswith(prefix)
            }
            known |= {prefix + name for name in own}
            yield _run(
                tenant, own, tenant.gpus or entry.gpus or plan.gpus, (*at, "tenants", position)
            )
    elif entry.placement:
        yield from _placed(plan, entry.placement, at)
    else:
        own = {name: value for name, value in point.items() if name not in CAPS}
        known |= own.keys()
        yield _run(entry, own, entry.gpus or plan.gpus, at)
    for name in point:
        if name not in known:
            raise StepError(
                f"{name} matches no single job; give TENANT.OPTION with tenants; with a placement "
                "only "
                f"{' or '.join(CAPS)}",
                *(*at, "sweep", name),
            )


def _placed(plan: WorkloadPlan, placement: Mapping[str, str], at: StepPath) -> Iterator[PlannedRun]:
    for gpu, name in placement.items():
        if name == IDLE:
            continue
        spec = plan.jobs.get(name) or ConcurrentJob(job=name)
        where: StepPath = ("jobs", name) if name in plan.jobs else (*at, "placement", gpu)
        yield replace(_run(spec, {}, [gpu], where), tenant=f"{name}-{gpu}")


def _run(
    spec: JobSpec, swept: Mapping[str, Scalar], gpus: Iterable[str] | None, at: StepPath
) -> PlannedRun:
    neighbour = spec if isinstance(spec, ConcurrentJob) else None
    labels = dict(spec.labels)
    if spec.command is not None:
        for key, values in (("options", spec.options), ("sweep", swept)):
            if values:
                raise StepError(f"a command takes no {key}; add them to the command line", *at, key)
        arguments = (*spec.command, *spec.arguments)
    else:
        arguments = (*option_arguments(spec.options), *spec.arguments, *option_arguments(swept))
        labels |= _checked(str(spec.job), arguments, {*spec.options}, {*swept}, at)
    return PlannedRun(
        job=spec.job,
        arguments=arguments,
        tenant=spec.name if isinstance(spec, Tenant) else None,
        gpus=tuple(gpus) if gpus else None,
        labels=labels,
        waits=spec.job is not None or (neighbour is not None and neighbour.barrier),
        background=neighbour is not None and neighbour.background,
        nsys=spec.nsys,
    )


def _checked(
    job: str, arguments: tuple[str, ...], options: set[str], swept: set[str], at: StepPath
) -> dict[str, str]:
    """Check the job's options and return the reserved labels that they set. Raises StepError."""
    try:
        parsed = parse_job_options(job, arguments)
    except KeyError as error:
        names = job_names()
        hint = suggestion(job, names) or f"; known jobs: {', '.join(names)}"
        where = at if "placement" in at else (*at, "job")
        raise StepError(f"unknown job {job!r}{hint}", *where) from error
    except OptionError as error:
        for key, names_of_key in (("sweep", swept), ("options", options)):
            for name in names_of_key:
                if option_flag(name) == error.flag:
                    raise StepError(f"job {job}: {error}", *at, key, name) from error
        raise StepError(f"job {job}: {error}", *at) from error
    return {
        name: str(parsed[name])
        for name in ("batch_size", "seed")
        if isinstance(parsed.get(name), int)
    }


def _labels(
    plan: WorkloadPlan, entry: PlanEntry, case: str, repeat: int, point: Mapping[str, Scalar]
) -> dict[str, str]:
    labels = {
        "experiment": plan.experiment or plan.name,
        **plan.labels,
        **entry.labels,
        "case": case,
    }
    labels |= {
        re.sub(r"\W", "_", name, flags=re.ASCII): str(value)[:MAX_LABEL_VALUE]
        for name, value in point.items()
    }
    return {**labels, "repeat": str(repeat)}


def _labelled(run: PlannedRun, labels: Mapping[str, str], *, mps: bool) -> PlannedRun:
    own = {**labels, **run.labels}
    if run.tenant is not None:
        own["tenant"] = run.tenant
    if run.tenant is not None or mps:
        own["mps"] = str(mps).lower()
    return replace(run, labels=own)


def order_steps(steps: Sequence[PlanStep], order: Order, seed: int) -> tuple[PlanStep, ...]:
    """Sort the steps: `interleaved` runs the first repeat of each entry, then the second;
    `shuffled` is random.
    """
    if order == "interleaved":
        return tuple(sorted(steps, key=lambda step: step.repeat))
    if order == "shuffled":
        mixed = list(steps)
        random.Random(seed).shuffle(mixed)  # noqa: S311  # reproducible order, not a secret
        return tuple(mixed)
    return tuple(steps)


def complete_schedule(
    plan: WorkloadPlan, in_file_order: Sequence[PlanStep]
) -> tuple[PlanStep, ...]:
    """Return all steps of the plan in execution order, with warm-up and idle steps."""
    measured = order_steps(in_file_order, plan.order, plan.seed or 0)
    warm_up = [_as_warm_up(measured[0])] * plan.warm_up_runs
    at_rest = [idle_step(plan)] if plan.idle_seconds else []
    return (*at_rest, *warm_up, *measured, *at_rest)


def _as_warm_up(step: PlanStep) -> PlanStep:
    runs = tuple(
        replace(
            run,
            labels={**{k: v for k, v in run.labels.items() if k != "repeat"}, "phase": "warm-up"},
        )
        for run in step.runs
    )
    return replace(step, runs=runs, phase="warm-up", repeat=0)
