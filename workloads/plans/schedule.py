"""The order in which a plan's steps are made; the same each time for the same plan and seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from workloads.plans.model import Plan
from workloads.plans.steps import Step, idle

Order = Literal["as-given", "shuffled", "interleaved"]


def ordered(steps: Sequence[Step], order: Order, seed: int) -> tuple[Step, ...]:
    """`interleaved`: the first repeat of everything, then the second; `shuffled` mixes all of them."""
    if order == "interleaved":
        return tuple(sorted(steps, key=lambda step: step.repeat))
    if order == "shuffled":
        mixed = list(steps)
        random.Random(seed).shuffle(mixed)  # noqa: S311  # to be repeated, not to be secret
        return tuple(mixed)
    return tuple(steps)


def whole(plan: Plan, in_file_order: Sequence[Step]) -> tuple[Step, ...]:
    """All that is to be made, with the warm-up and the idle baselines."""
    measured = ordered(in_file_order, plan.order, plan.seed or 0)
    warm_up = [_as_warm_up(measured[0])] * plan.warm_up_runs
    at_rest = [idle(plan)] if plan.idle_seconds else []
    return (*at_rest, *warm_up, *measured, *at_rest)


def _as_warm_up(step: Step) -> Step:
    runs = tuple(
        replace(run, labels={**{k: v for k, v in run.labels.items() if k != "repeat"}, "phase": "warm-up"})
        for run in step.runs
    )
    return replace(step, runs=runs, phase="warm-up", repeat=0)
