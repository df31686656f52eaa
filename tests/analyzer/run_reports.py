"""Reports of runs whose history a test writes."""

from __future__ import annotations

import io
from dataclasses import replace

from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline_analyzer.core.run_report import UserInputs
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.terminal import console
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.terminal import terminal_report

POWER_STEPS = [(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)]
RUN_GPU = NodeGpu(POWER_STEPS)
SCRAPE_TIMES = scrape_times(1, START_S - 60.5, START_S + 60)


def load_frames(folder, series, run_id="train-1"):
    source = HistorySource(write_history(folder, series))
    try:
        return load_run(
            source, run_id, 86_400, Clock(lambda: START_S + 3_600, lambda _: None), lambda _: None
        )
    finally:
        source.close()


def run_frames(
    folder,
    run=None,
    *,
    gpus=(RUN_GPU,),
    times=SCRAPE_TIMES,
    other_runs=(),
    extra=lambda _: (),
    intensity=None,
):
    """`other_runs` are on the same node; `extra(t)` gives further (metric, labels, value) of the
    scrape at `t`.
    """
    run = run or NodeRun()
    scrapes = []
    for t in times:
        values = [*scrape(gpus, run, t, intensity=intensity), *extra(t)]
        for other in other_runs:
            values += run_series(gpus, other, t) if other.start_s <= t else []
        scrapes.append((t, values))
    return load_frames(folder, series_of_scrapes(scrapes), run.run_id)


def without_half_width(frames, *components):
    """Return the run with unknown half-widths of these components' energies."""
    devices = tuple(
        replace(device, energy_j=replace(device.energy_j, half_width=None))
        if device.component in components
        else device
        for device in frames.run.devices
    )
    return replace(frames, run=replace(frames.run, devices=devices))


def run_report(folder, run=None, *, carbon=None, calibrations=(), **options):
    """Report of a run; `carbon` is in g/kWh, `options` go to `run_frames`."""
    return assess(
        run_frames(folder, run, **options),
        UserInputs(grams_per_kwh=carbon, calibrations=tuple(calibrations)),
    )


def terminal_text(report):
    """Return the report as text of 140 columns."""
    target = io.StringIO()
    console(target, plain_columns=140).print(terminal_report(report))
    return target.getvalue()


def finding_codes(report):
    return [finding.code for finding in report.findings]


def finding_texts(report, code):
    """(subject, text) of each finding with this code."""
    return [(finding.subject, finding.text) for finding in report.findings if finding.code == code]
