"""Notes on the other runs on the GPUs of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from analyzer.model.ledger import RunLedger
from analyzer.sources.fetch import Place
from analyzer.sources.requests.shares import RunsOnGpu


def run_notes(
    gpus: Mapping[Place, RunsOnGpu | None], other: Collection[str], ledger: RunLedger, gap_s: float, reporter: str
) -> list[str]:
    """Return notes on the `other` runs during the run, its gaps, and its end; `reporter` has its requests."""
    notes = []
    if reporter != ledger.run_id:
        notes.append(f"the server reported these requests, in run {reporter}: the energy is that of the server")
    sharing = {name for runs in gpus.values() if runs for name in runs.uses} - {ledger.run_id, reporter}
    if sharing:
        notes.append(
            f"GPUs shared with {_names(sharing)}, whose requests are reported, too: each run has the energy that is "
            "attributed to it; the error of attribution is in no half-width. If both report the same requests, each "
            "one has a part of its energy in both: stop one of the reports"
        )
    if silent := set(other) - sharing - {reporter}:
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
