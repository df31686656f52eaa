"""Notes on the other runs on the GPUs of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from analyzer.model.ledger import RunLedger
from analyzer.model.sample_table import RunFrames
from analyzer.model.timeline import OtherRun, other_runs
from analyzer.sources.fetch import Place
from analyzer.sources.requests.shares import RunsOnGpu


def runs_beside(frames: RunFrames, ledger: RunLedger, places: Sequence[Place]) -> Iterator[OtherRun]:
    """Yield the other runs that used these GPUs during the run."""
    for run in other_runs(frames.others, frames.run_id):
        if any(run.instance == at and uuid in run.gpus and run.overlaps(ledger.windows[at]) for at, uuid in places):
            yield run


def run_notes(
    gpus: Mapping[Place, RunsOnGpu | None], other: Collection[str], ledger: RunLedger, gap_s: float
) -> list[str]:
    """Return notes on the `other` runs during the run, its gaps, and its end."""
    notes = []
    sharing = {name for runs in gpus.values() if runs for name in runs.uses} - {ledger.run_id}
    if sharing:
        notes.append(
            f"GPUs shared with {_names(sharing)}, whose requests are reported, too: each run has the energy that is "
            "attributed to it; the error of attribution is in no half-width"
        )
    if silent := set(other) - sharing:
        notes.append(
            f"GPUs also used by {_names(silent)}, without requests: that energy is divided among these requests"
        )
    if gap_s > 0:
        notes.append(f"{gap_s:.0f} s without samples: their energy is spread evenly over that time")
    if not all(window.ended for window in ledger.windows.values()):
        notes.append("the run has not ended")
    return notes


def _names(run_ids: Collection[str]) -> str:
    first, more = sorted(run_ids)[:3], len(run_ids) - 3
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
