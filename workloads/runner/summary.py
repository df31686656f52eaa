"""What is said of a run that has ended: what it measured, and what to type next."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.contract.run import Outcome, Run
from workloads.client.messages import say

MEASURED = "measure"
"""The phase in which a built-in job counts its work."""
_PERCENTILE = re.compile(r"_p\d\d$")
_MOST_SHOWN = 6
_NO_AIM = ("padding_tokens", "requests_failed", "cached_tokens")


def say_all(run: Run, outcome: Outcome, source: str | None) -> None:
    for line in lines(run, outcome, source):
        say(line)


def lines(run: Run, outcome: Outcome, source: str | None) -> Iterator[str]:
    """Where nothing was measured, why, and what to do about it; `source` is what the analyzer has to be told."""
    yield from run.notes
    yield from _results(run)
    if run.energy_joules:
        hint = f"analyzer report --run-id {run.run_id}" + (f" --source {source}" if source else "")
    else:
        hint = "no energy was measured; what can be measured here, and how, says: exporter check"
    if run.outcome != outcome:
        yield f"the command's own end was {outcome}, but something else had ended the run before, as {run.outcome}"
    yield f"run {run.run_id} {run.outcome} in {run.duration_seconds:.1f} s: {hint}"


def _results(run: Run) -> Iterator[str]:
    """What the job measured, its percentiles apart, and what a unit of its work took of the GPUs."""
    shown = {name: value for name, value in run.results.items() if not _PERCENTILE.search(name)}
    if shown:
        yield ", ".join(f"{name} {value:.4g}" for name, value in list(shown.items())[:_MOST_SHOWN])
    for phase in run.phases:
        joules = phase.energy_joules.get("gpu")
        if phase.name == MEASURED and joules is not None:
            units = {unit: amount for unit, amount in phase.work.items() if amount > 0 and unit not in _NO_AIM}
            if units:
                yield ", ".join(
                    f"{joules / amount:.4g} J of the GPUs per {_one(unit)}" for unit, amount in units.items()
                )


def _one(unit: str) -> str:
    """`generated_tokens` → `generated token`."""
    return unit.replace("_", " ").removesuffix("s")
