"""What is wrong in a plan as a whole: names and labels that clash, caps that hold each other back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from workloads.plans.model import CAPS, IDLE, POWER_LIMIT, RESERVED_LABELS, SM_CLOCK, Entry, Plan
from workloads.plans.steps import Path, StepError


def check(plan: Plan) -> None:
    """Raises StepError."""
    _unique("run", ((entry.name, ("runs", index, "name")) for index, entry in enumerate(plan.runs)))
    if IDLE in plan.jobs:
        raise StepError(f"{IDLE!r} stands for a GPU on which nothing runs; give the job another name", "jobs", IDLE)
    for labels, path in _labels(plan):
        for name in labels:
            if name in RESERVED_LABELS:
                raise StepError(f"{name} is set by the plan itself; give the label another name", *path, name)
    for index, entry in enumerate(plan.runs):
        tenants = entry.tenants or []
        _unique("tenant", ((each.name, ("runs", index, "tenants", at, "name")) for at, each in enumerate(tenants)))
        _check_caps(entry, ("runs", index, "sweep"))


def _check_caps(entry: Entry, path: Path) -> None:
    if set(CAPS) <= entry.sweep.keys():
        raise StepError(f"{POWER_LIMIT} and {SM_CLOCK} hold each other back; sweep one of the two", *path)
    for cap in CAPS:
        if any(isinstance(value, bool | str) or value <= 0 for value in entry.sweep.get(cap, ())):
            raise StepError("takes numbers above 0, like [300, 500] or 300:700:50", *path, cap)


def _unique(what: str, names: Iterable[tuple[str | None, Path]]) -> None:
    seen: set[str] = set()
    for name, path in names:
        if name in seen:
            raise StepError(f"another {what} has the name {name!r}; give each a name of its own", *path)
        if name is not None:
            seen.add(name)


def _labels(plan: Plan) -> Iterator[tuple[Mapping[str, str], Path]]:
    yield plan.labels, ("labels",)
    for name, spec in plan.jobs.items():
        yield spec.labels, ("jobs", name, "labels")
    for index, entry in enumerate(plan.runs):
        yield entry.labels, ("runs", index, "labels")
        for at, tenant in enumerate(entry.tenants or ()):
            yield tenant.labels, ("runs", index, "tenants", at, "labels")
