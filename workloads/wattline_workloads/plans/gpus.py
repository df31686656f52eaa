"""GPUs of a plan's steps, and the caps that are set on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wattline.client.gpus import GpusError, choose_gpus
from wattline.contract.api import Gpus, unknown_gpu
from wattline_workloads.caps.gpu_set import Cap
from wattline_workloads.plans.model import POWER_LIMIT, SM_CLOCK, PlanError
from wattline_workloads.plans.steps import PlanStep, step_gpus


def cap_of(step: PlanStep) -> Cap | None:
    """Return the power limit or the clock that a step sets, None without one."""
    if POWER_LIMIT in step.settings:
        return Cap("power_limit_watts", float(step.settings[POWER_LIMIT]))
    if SM_CLOCK in step.settings:
        return Cap("sm_clock_hertz", float(step.settings[SM_CLOCK]))
    return None


def caps_of(all_steps: Iterable[PlanStep]) -> list[Cap]:
    """Return each cap of the steps once."""
    return list(dict.fromkeys(cap for step in all_steps if (cap := cap_of(step)) is not None))


def capped_gpus(step: PlanStep, here: Gpus, environ: Mapping[str, str]) -> Sequence[str] | None:
    """Return the GPUs that a step with a cap names; None is the only GPU of the node. Raises
    PlanError.
    """
    named = step_gpus(step)
    if named is None:
        named = choose_gpus(None, environ).gpus or None
    if named is None and len(here.gpus) != 1:
        raise PlanError(
            f"{step.case}: cannot choose one of {len(here.gpus)} GPUs for the cap; give gpus: [0] "
            "in the plan, or "
            "--gpus 0"
        )
    return named


def capped_uuids(
    all_steps: Iterable[PlanStep], here: Gpus, environ: Mapping[str, str]
) -> list[str]:
    """Return each GPU once on which a step sets a cap. Raises PlanError."""
    capped = [capped_gpus(step, here, environ) for step in all_steps if cap_of(step) is not None]
    return list(
        dict.fromkeys(uuid for named in capped for uuid in resolve_gpus(named, here, environ))
    )


def resolve_gpus(named: Sequence[str] | None, here: Gpus, environ: Mapping[str, str]) -> list[str]:
    """Return UUIDs of GPU names as the runs resolve them; None means all, in the exporter's order.
    Raises PlanError.
    """
    if named is None or "all" in named:
        return [gpu.uuid for gpu in here.gpus]
    try:
        chosen = choose_gpus(",".join(named), environ).gpus or ()
    except GpusError as error:
        raise PlanError(str(error)) from error
    return [_uuid(name, here) for name in chosen]


def _uuid(name: str, here: Gpus) -> str:
    for gpu in here.gpus:
        if name == gpu.gpu or gpu.uuid.startswith(name):
            return gpu.uuid
    raise PlanError(unknown_gpu(name, [f"{gpu.gpu} ({gpu.uuid})" for gpu in here.gpus]))
