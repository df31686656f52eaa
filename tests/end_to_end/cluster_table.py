"""Table of the figures of all runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tests.end_to_end.agreement import LONG_S, TOLERANCE, RunComparison

_HEADER = (
    "run",
    "GPUs",
    "s",
    "ledger J",
    "Prometheus J",
    "VictoriaMetrics J",
    "true J",
    "± J",
    "off",
    "",
)


def table(runs: Sequence[RunComparison]) -> str:
    rows = [_HEADER, *(_row(run) for run in sorted(runs, key=lambda run: run.run_id))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, len(_HEADER) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(run: RunComparison) -> tuple[str, ...]:
    first = next(iter(run.energies.values()))
    gpus = f"{run.gpus}" if run.nodes == 1 else f"{run.gpus} on {run.nodes} nodes"
    energies = [
        "–" if energy.joules is None else f"{energy.joules:.1f}" for energy in run.energies.values()
    ]
    remark = (
        f"{run.unseen_s:.1f} s of a GPU unseen"
        if run.unseen_s
        else "outside"
        if run.is_outside
        else ""
    )
    return (
        *(
            run.run_id,
            gpus,
            f"{run.duration_s:.1f}",
            *energies,
            f"{run.true_j:.1f}",
            f"{first.half_j:.1f}",
        ),
        *(f"{run.deviation:+.3%}", "OFF" if any(run.problems()) else remark),
    )


def summary(
    runs: Sequence[RunComparison],
    refused: Sequence[str],
    deviation: Mapping[str, float],
    reads: tuple[float, float],
) -> Iterator[str]:
    long, short = [run for run in runs if run.is_long], [run for run in runs if not run.is_long]
    sampled = [run for run in long if not run.unseen_s]
    for text, chosen in (
        (f"runs of {LONG_S:g} s or more", long),
        ("of them fully sampled", sampled),
    ):
        if chosen:
            agreeing = sum(run.agrees for run in chosen)
            yield (
                f"{len(chosen)} {text}: {agreeing} within {TOLERANCE:.1%} of the true "
                f"value{_worst(chosen)}"
            )
    if short:
        covered = sum(run.agrees for run in short)
        yield f"{len(short)} shorter: {covered} within their interval{_worst(short)}"
    bounds = [(run, bound) for run in runs for bound in run.bounds]
    covered = sum(bound.low <= run.true_j <= bound.high for run, bound in bounds)
    yield (
        f"{len(bounds)} bounds from raw samples at the servers, {covered} of which cover the "
        "true value"
    )
    yield (
        f"{sum(bool(run.unseen_s) for run in runs)} runs with unseen time of a GPU, "
        f"{len(refused)} refused"
    )
    worst = max(deviation.values(), default=math.nan)
    yield (
        f"deviation of attributed parts from counters on {len(deviation)} nodes: at most "
        f"{worst:.1e}"
    )
    yield f"{reads[0]:.0f} reads of the drivers, {reads[1]:.0f} late or failed"


def _worst(runs: Sequence[RunComparison]) -> str:
    worst = max(runs, key=lambda run: abs(run.deviation))
    return f", the worst {worst.deviation:+.3%} ({worst.run_id})"
