"""Warnings and notes on a run whose energy is divided among requests."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from wattline.contract.run import Run
from wattline.figures import Figure, short_joules_text
from wattline_analyzer.core.fetch import TimeRange
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.requests.gpu_energy import RunGpus
from wattline_analyzer.requests.loaded_run import gpus_share_j

_LEAST_UNDIVIDED_S = 1.0
"""Least time without divided energy that is declared."""
_NO_USAGE = "requests_without_usage"
"""Result of a run: answers that the server could not report."""


class RunNotes(NamedTuple):
    """Texts for the user. Warnings concern errors that the half-widths do not include, or only in
    part.
    """

    warnings: list[str]
    notes: list[str]


def run_notes(
    gpus: RunGpus,
    other: Collection[str],
    run: Run,
    divided_j: float | None,
    *,
    is_stored: bool,
) -> RunNotes:
    """Return texts on the `other` runs during the run, on requests that are missing, and on its
    end.

    `gpus.run_id` is the run that has its requests, `divided_j` the energy that is divided among
    them and the rest, None for a part of the run. `is_stored`: the exporter divided it.
    """
    reporter = gpus.run_id
    warnings = []
    notes = []
    if reporter != run.run_id:
        notes.append(server_note(reporter))
    sharing = {name for runs in gpus.others.values() for name in runs} - {run.run_id, reporter}
    if silent := set(other) - sharing - {reporter}:
        warnings.append(_silent_warning(silent, run, reporter, divided_j))
    if missing := int(run.results.get(_NO_USAGE, 0.0)):
        warnings.append(
            f"{missing:,} answers of the server had no numbers of tokens, so they are no requests "
            "here: their energy "
            'is in that of the requests at the same time; let clients send "stream_options": '
            '{"include_usage": true}'
        )
    if sharing:
        division = (
            "each run has the energy by the loads of its processes"
            if is_stored
            else "their energy is divided by attribution"
        )
        notes.append(
            f"GPUs shared with {_names(sharing)}, whose requests are reported, too: {division}; "
            "the half-widths "
            "do not include the error of this division. If both report the same requests, each one "
            "has a part of its "
            "energy in both: stop one of the reports"
        )
    if run.state != "ended" and not is_stored:
        notes.append(
            f"run {run.run_id} has not ended: with more load, the model is fitted again, so the "
            "energies of its past requests change, too"
        )
    return RunNotes(warnings, notes)


def server_note(run_id: str) -> str:
    """Return a note on requests of a client that are in the run of its server."""
    return f"the server reported these requests, in run {run_id}: the energy is the server's"


def attributed_notes(client: str, attributed_j: float, divided: Figure) -> list[str]:
    """Return a note on the energy that is attributed to a client's run, unless it is that of its
    server at its time.
    """
    attributed = short_joules_text(attributed_j)
    figure = f"{attributed} are attributed to run {client}, as in analyzer report"
    if divided.half_width is None:
        above = short_joules_text(divided.number)
        cause = "since the uncertainty of that figure is unknown"
        return [f"{figure}: not compared with the {above} of the server at its time, {cause}"]
    if abs(attributed_j - divided.number) <= divided.half_width:
        return []
    share = "the share of its processes beside those of all other runs"
    return [f"{figure}: {share}; the figures above divide the energy of the server at its time"]


def _silent_warning(
    silent: Collection[str], run: Run, reporter: str, divided_j: float | None
) -> str:
    """Return a warning of runs on the GPUs that report no requests, with the energy that is
    attributed to the run.
    """
    own_j = gpus_share_j(run)
    attributed = ""
    if divided_j is not None and reporter == run.run_id and own_j is not None:
        attributed = (
            f" ({short_joules_text(divided_j)}, of which {short_joules_text(own_j)} are "
            "attributed to this run)"
        )
    return (
        f"GPUs also used by {_names(silent)}, without requests: all energy of the GPUs is divided "
        "among the reported "
        f"requests{attributed}, and the half-widths include only work that shows while no request "
        "is in progress; "
        "report the requests of all servers on these GPUs, or give this server its own GPUs"
    )


def gap_notes(gaps_s: FloatArray, *within_s: TimeRange | None) -> list[str]:
    """Return a note on the gaps (G, 2) within time ranges, if there are any."""
    gap_s = _seconds_within(gaps_s, within_s)
    return (
        [f"{gap_s:.0f} s without samples: their energy is spread evenly over that time"]
        if gap_s > 0
        else []
    )


def undivided_notes(gaps_s: FloatArray, *within_s: TimeRange | None, is_known: bool) -> list[str]:
    """Return a note on the parts of time ranges that the exporter did not divide (G, 2).

    `is_known`: their energy is known.
    """
    gap_s = _seconds_within(gaps_s, within_s)
    if gap_s < _LEAST_UNDIVIDED_S:
        return []
    energy = "is in the rest" if is_known else "is not known, and left out"
    return [f"the exporter divided no energy in {gap_s:.0f} s of the time: that energy {energy}"]


def _seconds_within(gaps_s: FloatArray, within_s: Sequence[TimeRange | None]) -> float:
    start_s, end_s = zip((-math.inf, math.inf), *(each for each in within_s if each), strict=True)
    return float(np.diff(gaps_s.clip(max(start_s), min(end_s))).sum())


def _names(run_ids: Collection[str]) -> str:
    first = sorted(run_ids)[:3]
    more = len(run_ids) - 3
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
