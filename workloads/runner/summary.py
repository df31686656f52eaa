"""Summary of an ended run: results, energy per unit of work, next command."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.contract.run import NO_GPU_FOUND, Outcome, Run
from workloads.client.messages import log_message

MEASURED_PHASE = "measure"
"""Name of the phase in which a built-in job counts its work."""
_PERCENTILE = re.compile(r"_p\d\d$")
_MOST_SHOWN = 6
_SECONDARY_UNITS = ("padding_tokens", "requests_failed", "cached_tokens")


def log_summary(run: Run, outcome: Outcome, source: str | None) -> None:
    for line in summary_lines(run, outcome, source):
        log_message(line)


def summary_lines(run: Run, outcome: Outcome, source: str | None) -> Iterator[str]:
    """Yield the lines of the summary; `source` is the analyzer's `--source`, where it is needed."""
    yield from run.notes
    yield from _results(run)
    if run.energy_joules:
        hint = f"analyzer report --run-id {run.run_id}" + (f" --source {source}" if source else "")
    else:
        hint = "no energy was measured"
        if NO_GPU_FOUND not in run.notes:
            hint += "; exporter check lists what this machine can measure"
    if run.outcome != outcome:
        yield f"the command ended as {outcome}, but the run had already been ended as {run.outcome}"
    yield f"run {run.run_id} {run.outcome} in {run.duration_seconds:.1f} s: {hint}"


def _results(run: Run) -> Iterator[str]:
    """Yield the job's results without percentiles, and the GPU energy per unit of work."""
    shown = {name: value for name, value in run.results.items() if not _PERCENTILE.search(name)}
    if shown:
        yield ", ".join(f"{name} {value:.4g}" for name, value in list(shown.items())[:_MOST_SHOWN])
    for phase in run.phases:
        joules = phase.energy_joules.get("gpu")
        if phase.name == MEASURED_PHASE and joules is not None:
            units = {unit: amount for unit, amount in phase.work.items() if amount > 0 and unit not in _SECONDARY_UNITS}
            if units:
                yield (
                    ", ".join(
                        f"{joules / amount:.4g} J of the GPUs per {_singular(unit)}" for unit, amount in units.items()
                    )
                    + f" during the phase {phase.name}"
                )


def _singular(unit: str) -> str:
    """`generated_tokens` → `generated token`."""
    return unit.replace("_", " ").removesuffix("s")
