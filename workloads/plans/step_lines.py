"""What the journal of a plan says of a step's runs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from exporter.contract.record import METRICS_FILE
from workloads.plans import overlap
from workloads.plans.child import ChildRun
from workloads.plans.results import Made
from workloads.plans.steps import Step
from workloads.plans.tenants import SideBySide

_NOT_MEASURED = "the exporter could not be told of its end, so nothing is known of its energy"


def of(number: int, attempt: int, step: Step, together: SideBySide, *, interrupted: bool) -> list[Made]:
    """`interrupted`: by something that is no matter of the jobs."""
    shares = _shares(together)
    return [
        Made(
            step=number,
            attempt=attempt,
            run_id=child.run_id,
            case=step.case,
            phase=step.phase,
            repeat=step.repeat,
            tenant=child.run.tenant,
            outcome=child.outcome,
            exit_code=child.exit_code or 0,
            started_at=child.started_at,
            ended_at=child.ended_at or time.time(),
            cut_off=interrupted or _is_cut_off(child),
            folder=child.folder.name,
            background=child.run.background,
            settings=step.settings,
            labels=child.labels,
            note=child.note or (_NOT_MEASURED if _is_not_measured(child) else None),
            overlap=share,
        )
        for child, share in zip(together.children, shares, strict=True)
    ]


def _shares(together: SideBySide) -> list[Mapping[str, object] | None]:
    """What each did while all of them ran."""
    if len(together.children) < 2 or (together.has_barrier and together.released_at is None):
        return [None] * len(together.children)
    events = [overlap.events(child.folder) for child in together.children]
    common = overlap.of(events, together.released_at)
    return [overlap.share(common, each) if common else None for each in events]


def _is_cut_off(child: ChildRun) -> bool:
    return _is_not_measured(child) or (child.outcome == "interrupted" and not child.is_stopped)


def _is_not_measured(child: ChildRun) -> bool:
    return child.outcome == "ok" and not (child.folder / METRICS_FILE).exists()
