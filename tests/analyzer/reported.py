"""A run's report from a history that a test writes."""

from __future__ import annotations

from analyzer.assess.run import assess
from analyzer.model.user_inputs import Given
from analyzer.sources.history import HistorySource
from analyzer.sources.runs.load import Clock, load_run
from tests.analyzer.node import START_S, Gpu, Run, every, run_series, scrape, scraped, write_history

BOX = [(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)]
BOXED = Gpu(BOX)
TIMES = every(1, START_S - 60.5, START_S + 60)


def frames_of(folder, series, run_id="train-1"):
    source = HistorySource(write_history(folder, series))
    try:
        return load_run(source, run_id, 86_400, Clock(lambda: START_S + 3_600, lambda _: None), lambda _: None)
    finally:
        source.close()


def frames_with(folder, run=None, *, gpus=(BOXED,), times=TIMES, beside=(), more=lambda _: (), intensity=None):
    """`beside` are other runs on the same node; `more` gives (metric, labels, value) of a scrape at that time."""
    run = run or Run()
    scrapes = []
    for t in times:
        values = [*scrape(gpus, run, t, intensity=intensity), *more(t)]
        for other in beside:
            values += run_series(gpus, other, t) if other.start_s <= t else []
        scrapes.append((t, values))
    return frames_of(folder, scraped(scrapes), run.run_id)


def report_of(folder, run=None, *, carbon=None, calibrations=(), **options):
    """`carbon` in g/kWh and the calibrations as the user gives them; see `frames_with`."""
    return assess(frames_with(folder, run, **options), Given(grams_per_kwh=carbon, calibrations=tuple(calibrations)))


def codes(report):
    return [finding.code for finding in report.findings]


def found(report, code):
    """The texts of the findings of that code, each with what it is about."""
    return [(finding.subject, finding.text) for finding in report.findings if finding.code == code]
