"""Runs of a study: values of different units, and GPUs of different models."""

from dataclasses import replace

import pytest

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


@pytest.mark.parametrize(
    ("second", "name", "of", "stderr"),
    [
        ({}, "", "energy", "joules (at-1) and joules per kernel (at-0); select runs with --unit"),
        (
            {"steps": 5.0},
            "",
            "time",
            "seconds per kernel (at-0) and seconds per step (at-1); select runs with --unit",
        ),
        ({"kernels": 5.0}, "NVIDIA A100", "time", "use a separate experiment for each model"),
    ],
)
def test_variability_command_mixed_runs_are_refused(  # noqa: PLR0917  # two fixtures and one case
    analyzer, tmp_path, second, name, of, stderr
):
    gpus = [NodeGpu([(START_S - 500, 60), (START_S, 300)], index=str(index)) for index in (0, 1)]
    gpus[1] = replace(gpus[1], name=name or gpus[1].name)
    runs = [
        NodeRun(f"at-{at}", START_S, START_S + 20, "sgemm", {"experiment": "mixed"}, work=work)
        for at, work in enumerate(({"kernels": 10.0}, second))
    ]
    scrapes = []
    for t in scrape_times(1, START_S - 60, START_S + 90):
        values = list(scrape(gpus, NodeRun("other", START_S + 80, START_S + 85), t))
        for gpu, run in zip(gpus, runs, strict=True):
            values += run_series([gpu], run, t) if run.start_s <= t else []
        scrapes.append((t, values))
    history = write_history(tmp_path, series_of_scrapes(scrapes))
    command = (
        "variability",
        "--experiment",
        "mixed",
        "--source",
        history,
        "--since",
        "36500d",
        "--of",
        of,
    )

    refused, selected = analyzer(*command), analyzer(*command, "--unit", "kernels")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert stderr in refused.stderr
    if not name:
        assert selected.returncode == 0, selected.stderr
        assert "left out: run at-1" in selected.stderr


def test_variability_command_whole_runs_and_phases_are_not_pooled(analyzer, tmp_path):
    gpus = [NodeGpu([(START_S - 500, 60), (START_S, 300)], index=str(index)) for index in (0, 1)]
    in_phase = {
        "phases": {"load": (8.0, 2_400.0), "measure": (12.0, 3_600.0)},
        "phase_work": {"measure": {"kernels": 10.0}},
    }
    runs = [
        NodeRun(
            f"at-{at}",
            START_S,
            START_S + 20,
            "sgemm",
            {"experiment": "mixed"},
            work={"kernels": 10.0},
            **more,
        )
        for at, more in enumerate(({}, in_phase))
    ]
    scrapes = []
    for t in scrape_times(1, START_S - 60, START_S + 90):
        values = list(scrape(gpus, NodeRun("other", START_S + 80, START_S + 85), t))
        for gpu, run in zip(gpus, runs, strict=True):
            values += run_series([gpu], run, t) if run.start_s <= t else []
        scrapes.append((t, values))
    history = write_history(tmp_path, series_of_scrapes(scrapes))

    refused = analyzer(
        "variability", "--experiment", "mixed", "--source", history, "--since", "36500d"
    )

    assert refused.returncode == 1
    assert (
        "in measure (at-1) and of the whole run (at-0); a phase shorter than 1 s has no energy"
        in refused.stderr
    )
