"""Model of a plan file: its jobs, settings, order and repeats.

Durations are in seconds, power limits in watts, clocks in hertz. Invalid content raises pydantic's
ValidationError, which `load` turns into a message with file and line.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    model_validator,
)

from wattline.command_line import suggestion
from wattline.contract.api import (
    LABEL_NAME_PATTERN,
    MAX_LABEL_NAME,
    MAX_LABEL_VALUE,
    TEXT_PATTERN,
)
from wattline_workloads.jobs.base import JobOptionError, load_job, parse_seconds

POWER_LIMIT = "power_limit_watts"
SM_CLOCK = "sm_clock_hertz"
CAPS = (POWER_LIMIT, SM_CLOCK)
RESERVED_LABELS = frozenset(
    (
        "experiment",
        "plan",
        "tenant",
        "repeat",
        POWER_LIMIT,
        SM_CLOCK,
        "mps",
        "batch_size",
        "seed",
        "case",
        "phase",
    )
)
IDLE = "idle"
_MOST_VALUES = 1_000
_RANGE = re.compile(r"(\d+):(\d+):(\d+)")

Scalar = str | int | float | bool
Value = Scalar | list[Scalar]
Name = Annotated[str, Field(min_length=1, max_length=128)]
_FLAG = re.compile(r"--[a-z0-9][a-z0-9-]*")


def parse_range(value: object) -> object:
    """Expand `300:700:50` to 300, 350 … 700 and return a list unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _RANGE.fullmatch(value)
    if not match:
        raise ValueError(
            f"{value!r} is not a range; give FIRST:LAST:STEP like 300:700:50, or a list like [300, "
            "500]"
        )
    first, last, step = (int(part) for part in match.groups())
    if not step or last < first:
        raise ValueError(
            f"{value} has no values; give FIRST:LAST:STEP with FIRST up to LAST and a STEP above 0"
        )
    return list(range(first, last + 1, step))


def _texts(value: object) -> object:
    """Convert the notations 0, [0, 1] and all to a list of texts."""
    entries = value if isinstance(value, list) else [value]
    return [
        str(each) if isinstance(each, int) and not isinstance(each, bool) else each
        for each in entries
    ]


def _text_of(value: object) -> object:
    return str(value) if isinstance(value, int | float) else value


def _by_text(value: object) -> object:
    return {str(gpu): job for gpu, job in value.items()} if isinstance(value, dict) else value


Swept = Annotated[
    list[Scalar], BeforeValidator(parse_range), Field(min_length=1, max_length=_MOST_VALUES)
]
Gpus = Annotated[list[str], BeforeValidator(_texts), Field(min_length=1)]
LabelName = Annotated[str, Field(max_length=MAX_LABEL_NAME, pattern=LABEL_NAME_PATTERN)]
LabelValue = Annotated[str, Field(max_length=MAX_LABEL_VALUE, pattern=TEXT_PATTERN)]
Labels = Annotated[
    dict[LabelName, Annotated[LabelValue, BeforeValidator(_text_of)]],
    Field(max_length=6),
]


OnFailure = Literal["stop-at-first", "stop", "continue"]
"""Reaction to a failed run: stop if the first one of the plan fails, stop at any, or run the
others.
"""


class PlanError(Exception):
    """Plan that cannot continue; one line with the remedy."""


class PlanPart(BaseModel):
    """Strict base of all parts of a plan."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JobSpec(PlanPart):
    """Built-in job, or a command."""

    job: str | None = None
    command: Annotated[list[str], Field(min_length=1)] | None = None
    options: dict[str, Value] = {}
    """Job options by name, `batch-size` or `batch_size`; true is a flag, a list repeats the option.
    """
    arguments: list[str] = []
    """Arguments after the job's options."""
    gpus: Gpus | None = None
    labels: Labels = {}
    nsys: bool = False


class ConcurrentJob(JobSpec):
    """Job that can run concurrently with others."""

    background: bool = False
    """Background load, stopped once every other job of the step has ended."""
    barrier: bool = False
    """True if the command calls `run.barrier()` of wattline; every built-in job does."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> ConcurrentJob:
        require_one_of(self, "job", "command")
        return self


class Tenant(ConcurrentJob):
    """Named job of a step with several jobs."""

    name: Name


class PlanEntry(JobSpec):
    """Job, command, tenants or placement to measure, once per point of the `sweep` grid."""

    name: Name | None = None
    tenants: Annotated[list[Tenant], Field(min_length=1)] | None = None
    placement: Annotated[dict[str, str], BeforeValidator(_by_text), Field(min_length=1)] | None = (
        None
    )
    """Name of one of the plan's `jobs`, of a built-in job, or `idle`, by GPU."""
    sweep: dict[str, Swept] = {}
    """Values by `power_limit_watts`, `sm_clock_hertz`, an option of the job, or `TENANT.option`."""
    repeats: Annotated[int, Field(ge=1, le=10_000)] | None = None
    mps: bool | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> PlanEntry:
        require_one_of(self, "job", "command", "tenants", "placement")
        return self


class CoolDown(PlanPart):
    """Wait before each run until the hottest GPU is at `to_celsius`, else at its temperature before
    the first run.
    """

    to_celsius: PositiveFloat | None = None
    tolerance_celsius: NonNegativeFloat = 2.0
    at_most_seconds: PositiveFloat = 600.0


class WorkloadPlan(PlanPart):
    """Content of a plan file."""

    name: Name
    experiment: Name | None = None
    """Name shared by the plans of one experiment; default: the plan's name."""
    runs: Annotated[list[PlanEntry], Field(min_length=1)]
    jobs: dict[str, ConcurrentJob] = {}
    """Jobs that placements refer to."""
    gpus: Gpus | None = None
    labels: Labels = {}
    repeats: Annotated[int, Field(ge=1, le=10_000)] = 1
    order: Literal["as-given", "shuffled", "interleaved"] = "as-given"
    seed: Annotated[int, Field(ge=0)] | None = None
    warm_up_runs: Annotated[int, Field(ge=0, le=100)] = 0
    """Repetitions of the first run before the measurement, labelled phase=warm-up."""
    pause_seconds: NonNegativeFloat = 0.0
    """Pause before each run."""
    cool_down: CoolDown | None = None
    idle_seconds: NonNegativeFloat = 0.0
    """Duration of the idle runs (job `sleep`, label phase=idle) before the first and after the last
    run.
    """
    mps: bool = False
    barrier_timeout_seconds: PositiveFloat = 600.0


def require_one_of(spec: BaseModel, *names: str) -> None:
    """Check that exactly one of the fields is set. Raises ValueError."""
    given = [name for name in names if getattr(spec, name) is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} exclude each other" if given else "the job is missing"
        raise ValueError(f"{problem}; give one of {', '.join(names)}")


class OptionError(ValueError):
    """Invalid option of a job; `flag` is its name, None if the error concerns no single option."""

    def __init__(self, message: str, flag: str | None) -> None:
        super().__init__(message)
        self.flag = flag


@functools.cache
def parse_job_options(job: str, arguments: tuple[str, ...]) -> Mapping[str, Any]:
    """Return all options of the job, defaults included. Raises OptionError, and KeyError for an
    unknown job.
    """
    parser = load_job(job).parser()
    parser.raises = True
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            options: dict[str, Any] = vars(parser.parse_args(list(arguments)))
            return options
    except JobOptionError as error:
        flag = next(iter(_FLAG.findall(str(error))), None)
        raise OptionError(str(error), flag) from error
    except SystemExit as error:
        raise OptionError("options like --help start no run; remove them", None) from error


class SweepError(ValueError):
    """Invalid options of a sweep; one line."""


def parse_numbers(option: str, text: str) -> list[int]:
    """Parse `300:700:50` or `300,500`. Raises SweepError."""
    try:
        if ":" in text:
            values = parse_range(text)
            assert isinstance(values, list)
            return values
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        reason = (
            str(error)
            if ":" in text
            else f"{text!r} is not a list of whole numbers; give 300,500 or 300:700:50"
        )
        raise SweepError(f"{option}: {reason}") from error


def parse_pause(option: str, text: str) -> float:
    """Parse `30`, `30s` or `2m` to seconds. Raises SweepError."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise SweepError(f"{option}: {error}") from error


def parse_labels(pairs: Sequence[str]) -> dict[str, str] | None:
    """Parse `model=gpt2`; return None without labels. Raises SweepError."""
    for pair in pairs:
        if "=" not in pair:
            raise SweepError(f"-l {pair}: a label is key=value, like -l model=gpt2")
    return dict(pair.split("=", 1) for pair in pairs) or None


def parse_variations(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Parse `batch-size=1,8` to {"batch-size": ["1", "8"]}. Raises SweepError."""
    values: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name or "" in (texts := text.split(",")):
            raise SweepError(f"--vary {pair}: give OPTION=VALUE,VALUE like --vary batch-size=1,8")
        values[name.removeprefix("--")] = texts
    return values


def sweep_document(
    job: str,
    arguments: Sequence[str],
    command: Sequence[str],
    grid: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the document of the equivalent plan file, without unset settings. Raises SweepError.

    `command` is the command line in place of a built-in job; empty for a job.
    """
    if not grid:
        for argument in arguments:
            hint = suggestion(
                argument.partition("=")[0], ["--power-limits", "--sm-clocks", "--vary"]
            )
            if hint:
                raise SweepError(f"unknown option {argument}{hint}")
        raise SweepError(
            "no setting to sweep; give --power-limits 300:700:50, --sm-clocks, or --vary OPTION=…"
        )
    if {POWER_LIMIT, SM_CLOCK} <= grid.keys():
        raise SweepError(
            "--power-limits and --sm-clocks cannot be set together; give one of the two"
        )
    what = (
        {"name": job, "command": list(command)}
        if command
        else {"job": job, "arguments": list(arguments)}
    )
    entry = {**what, "sweep": {name: list(each) for name, each in grid.items()}}
    set_options = {
        name: value for name, value in settings.items() if value is not None and value != []
    }
    return {"name": f"{job}-sweep", **set_options, "runs": [entry]}


def parse_grid(
    power_limits: str | None, sm_clocks: str | None, vary: list[str]
) -> dict[str, list[Any]]:
    """Return the values of each setting of a sweep. Raises SweepError."""
    grid: dict[str, list[Any]] = parse_variations(vary)
    if power_limits is not None:
        grid["power_limit_watts"] = parse_numbers("--power-limits", power_limits)
    if sm_clocks is not None:
        grid["sm_clock_hertz"] = [
            clock * 1_000_000 for clock in parse_numbers("--sm-clocks", sm_clocks)
        ]
    return grid
