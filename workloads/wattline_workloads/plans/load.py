"""Plan files in YAML, with errors that name file, line, key and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from wattline.command_line import suggestion
from wattline_workloads.plans import multitenant_format
from wattline_workloads.plans.model import (
    CAPS,
    IDLE,
    POWER_LIMIT,
    RESERVED_LABELS,
    SM_CLOCK,
    ConcurrentJob,
    CoolDown,
    PlanEntry,
    Tenant,
    WorkloadPlan,
)
from wattline_workloads.plans.steps import PlanStep, StepError, StepPath, expand_steps

_MODELS: Mapping[str, type[BaseModel]] = {
    "": WorkloadPlan,
    "runs": PlanEntry,
    "tenants": Tenant,
    "jobs": ConcurrentJob,
    "cool_down": CoolDown,
}
_KEY_ERRORS = {"extra_forbidden", "missing"}
_LONGEST_SHOWN = 100
_FIX = "correct it there or shortly before"
_NO_MAPPING = "the file is no mapping; write name: and runs: as its keys"


def check_plan(plan: WorkloadPlan) -> None:
    """Check names, labels and caps. Raises StepError."""
    _unique("run", ((entry.name, ("runs", index, "name")) for index, entry in enumerate(plan.runs)))
    if IDLE in plan.jobs:
        raise StepError(f"{IDLE!r} marks a GPU without a job; rename the job", "jobs", IDLE)
    for labels, path in _labels(plan):
        for name in labels:
            if name in RESERVED_LABELS:
                raise StepError(f"{name} is reserved; rename the label", *path, name)
    for index, entry in enumerate(plan.runs):
        tenants = entry.tenants or []
        _unique(
            "tenant",
            (
                (each.name, ("runs", index, "tenants", at, "name"))
                for at, each in enumerate(tenants)
            ),
        )
        _check_caps(entry, ("runs", index, "sweep"))


def _check_caps(entry: PlanEntry, path: StepPath) -> None:
    if set(CAPS) <= entry.sweep.keys():
        raise StepError(
            f"{POWER_LIMIT} and {SM_CLOCK} cannot be set together; sweep one of the two", *path
        )
    for cap in CAPS:
        if any(isinstance(value, bool | str) or value <= 0 for value in entry.sweep.get(cap, ())):
            raise StepError("takes numbers above 0, like [300, 500] or 300:700:50", *path, cap)


def _unique(kind: str, names: Iterable[tuple[str | None, StepPath]]) -> None:
    earlier: set[str] = set()
    for name, path in names:
        if name in earlier:
            raise StepError(f"another {kind} has the name {name!r}; give each a unique name", *path)
        if name is not None:
            earlier.add(name)


def _labels(plan: WorkloadPlan) -> Iterator[tuple[Mapping[str, str], StepPath]]:
    yield plan.labels, ("labels",)
    for name, spec in plan.jobs.items():
        yield spec.labels, ("jobs", name, "labels")
    for index, entry in enumerate(plan.runs):
        yield entry.labels, ("runs", index, "labels")
        for at, tenant in enumerate(entry.tenants or ()):
            yield tenant.labels, ("runs", index, "tenants", at, "labels")


class PlanFileError(Exception):
    """Invalid plan file; one line per error: file:line: key: cause and remedy."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """Parsed plan file."""

    plan: WorkloadPlan
    steps: tuple[PlanStep, ...]
    """Steps in the order of the file."""
    content: bytes
    notes: tuple[str, ...] = ()


def read_plan(path: Path) -> PlanFile:
    """Read a plan file. Raises PlanFileError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PlanFileError(
            f"{path}: cannot read the plan: {error.strerror}; give the path of a plan file"
        ) from error
    return parse_plan(content, str(path))


def parse_plan(content: bytes, path: str) -> PlanFile:
    """Parse the content of a plan file; messages refer to it as `path`. Raises PlanFileError."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise PlanFileError(f"{path}: invalid UTF-8; save the file as UTF-8") from error
    node = _compose(text, path)
    document = _constructed(node, path)
    if not isinstance(document, dict):
        raise PlanFileError(f"{path}:1: {_NO_MAPPING}")
    is_seeds = multitenant_format.is_multitenant_file(document)
    try:
        if is_seeds:
            plan, notes = multitenant_format.convert_multitenant(document)
        else:
            plan = WorkloadPlan.model_validate(document)
            notes = ()
        check_plan(plan)
        return PlanFile(plan, expand_steps(plan), content, notes)
    except ValidationError as error:
        models = multitenant_format.MODELS if is_seeds else _MODELS
        raise PlanFileError("\n".join(_lines(error, node, path, models))) from error
    except StepError as error:
        where = multitenant_format.original_path(error.path) if is_seeds else error.path
        raise PlanFileError(_located(path, node, where, str(error))) from error


def _compose(text: str, path: str) -> yaml.MappingNode:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PlanFileError(f"{path}:{line}: invalid YAML: {error.problem}; {_FIX}") from error
    except yaml.YAMLError as error:
        text = " ".join(str(error).split())
        raise PlanFileError(f"{path}: invalid YAML: {text}; {_FIX}") from error
    if not isinstance(node, yaml.MappingNode):
        raise PlanFileError(f"{path}:1: {_NO_MAPPING}")
    return node


def _constructed(node: yaml.Node, path: str) -> Any:
    try:
        _reject_duplicate_keys(node, path)
        return yaml.SafeLoader("").construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PlanFileError(f"{path}:{line}: {error.problem}; use plain YAML only") from error
    except (ValueError, RecursionError) as error:  # an invalid date; a recursive anchor
        raise PlanFileError(f"{path}: invalid value: {error}; quote texts") from error


def _reject_duplicate_keys(node: yaml.Node, path: str) -> None:
    """Reject duplicate keys, of which YAML's own loader silently takes the last."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _reject_duplicate_keys(item, path)
    if isinstance(node, yaml.MappingNode):
        earlier: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in earlier:
                raise PlanFileError(
                    f"{path}:{line}: {key.value}: duplicate of the key on line "
                    f"{earlier[key.value]}; remove one of "
                    "the two"
                )
            earlier[str(key.value)] = line
            _reject_duplicate_keys(value, path)


def _lines(
    error: ValidationError, node: yaml.Node, path: str, models: Mapping[str, type[BaseModel]]
) -> Iterator[str]:
    """Yield one message per location; a union reports an error for each of its types."""
    reported: set[tuple[str | int, ...]] = set()
    for detail in error.errors():
        where = tuple(part for part in detail["loc"] if part != "[key]")
        reached = where if detail["type"] in _KEY_ERRORS else where[: _depth(node, where)]
        if reached not in reported:
            reported.add(reached)
            is_union = reached != where and detail["type"] != "value_error"
            yield _located(path, node, reached, _message(detail, where, models, is_union=is_union))


def _message(
    detail: ErrorDetails,
    where: Sequence[str | int],
    models: Mapping[str, type[BaseModel]],
    *,
    is_union: bool,
) -> str:
    if detail["type"] == "extra_forbidden":
        parents = [part for part in where[:-1] if part in models]
        known = list(models[str(parents[-1]) if parents else ""].model_fields)
        return "unknown key" + (
            suggestion(str(where[-1]), known) or f"; known keys: {', '.join(known)}"
        )
    if detail["type"] == "missing":
        return "is missing; add it" if len(where) == 1 else "is missing here"
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    if is_union:
        return (
            "takes a text, a number, true, false, or a list of these, not "
            f"{_shown(detail['input'])}"
        )
    message = detail["msg"].replace("Input should be", "takes", 1)
    return f"{message}, not {_shown(detail['input'])}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _located(path: str, node: yaml.Node, where: Sequence[str | int], message: str) -> str:
    line = _mark(node, where).line + 1
    key = ".".join(str(part) for part in where)
    return f"{path}:{line}: {key}: {message}" if key else f"{path}:{line}: {message}"


def _mark(node: yaml.Node, where: Sequence[str | int]) -> yaml.Mark:
    """Return the position of the key, else of the innermost parent that exists."""
    mark = node.start_mark
    for part in where:
        child = _child(node, part)
        if child is None:
            break
        mark, node = child
    return mark


def _depth(node: yaml.Node, where: Sequence[str | int]) -> int:
    for depth, part in enumerate(where):
        child = _child(node, part)
        if child is None:
            return depth
        node = child[1]
    return len(where)


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Mark, yaml.Node] | None:
    """Return position and value of a child node."""
    if isinstance(node, yaml.SequenceNode):
        if isinstance(part, int) and part < len(node.value):
            return node.value[part].start_mark, node.value[part]
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark, value
    return None


def plan_as_yaml(document: Mapping[str, Any]) -> str:
    """Render a plan's document as YAML."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)
