import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.fakes.run_api import RunApi, run_api_server
from tests.workloads.plans.plan_files import read_journal, run_plan, write_file
from tests.workloads.programs import NO_TORCH, Exporter
from wattline.contract.run_files import EndEvent, IterationEvent, StartEvent
from wattline_workloads.plans import results

SMALL = "options: {size: 32, duration: 0.6, warmup: 1}"


def _pair_plan(second: str, settings: str = "") -> str:
    return (
        f"name: pair\n{settings}runs:\n  - name: two\n    tenants:\n"
        f"      - {{name: first, job: sgemm, {SMALL}}}\n      - {{name: second, {second}}}\n"
    )


LONGER_TENANT = """
import pathlib, sys, time
import wattline

def first_is_over():
    return any('"outcome"' in path.read_text() for path in pathlib.Path(sys.argv[1]).glob("*/events.jsonl"))

with wattline.run("longer") as run:
    run.barrier()
    left = 3
    while left:
        began_s = time.monotonic()
        time.sleep(0.02)
        run.iteration(time.monotonic() - began_s, flop=100)
        left -= first_is_over()
"""


def test_tenants_start_together_and_have_overlap(exporter, tmp_path):
    script = write_file(tmp_path, LONGER_TENANT, "longer.py")
    command = f"command: [{sys.executable}, {script}, {tmp_path / 'results'}], barrier: true"
    done = run_plan(
        exporter, write_file(tmp_path, _pair_plan(command)), OMP_NUM_THREADS="1", **NO_TORCH
    )

    first, second = read_journal(tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert [line["labels"]["tenant"] for line in (first, second)] == ["first", "second"]
    assert {run.labels["tenant"] for run in exporter.api.runs.values()} == {"first", "second"}
    assert (first["overlap"]["begin"], first["overlap"]["end"]) == (
        second["overlap"]["begin"],
        second["overlap"]["end"],
    )
    events = results.read_events(tmp_path / "results" / second["folder"])
    iterations = [event for event in events if isinstance(event, IterationEvent)]
    within = [
        event
        for event in iterations
        if first["overlap"]["begin"] < event.t <= first["overlap"]["end"]
    ]
    # the second tenant continued alone after the overlap
    assert 0 < second["overlap"]["iterations"] == len(within) < len(iterations)
    assert second["overlap"]["work"]["flop"] == sum(event.work["flop"] for event in within)


def test_tenants_failure_of_one_stops_others(exporter, tmp_path):
    script = write_file(
        tmp_path,
        "import pathlib, sys, time\n"
        "def measures(path): return '\"measure\"' in path.read_text()\n"
        "while not any(map(measures, pathlib.Path(sys.argv[1]).glob('*/events.jsonl'))): "
        "time.sleep(0.05)\n"
        "raise SystemExit('out of memory')",
        "train.py",
    )
    second_job = f"command: [{sys.executable}, {script}, {tmp_path / 'results'}]"
    plan = write_file(tmp_path, _pair_plan(second_job).replace("duration: 0.6", "duration: 60"))
    done = run_plan(exporter, plan, **NO_TORCH)

    first, second = read_journal(tmp_path / "results")
    assert done.returncode == 1
    assert (second["outcome"], second["exit_code"]) == ("failed", 1)
    assert (first["outcome"], first["cut_off"]) == ("interrupted", False)
    assert first["note"] == f"stopped: second failed ({second['run_id']})"
    assert {run.labels["tenant"]: run.outcome for run in exporter.api.runs.values()} == {
        "first": "interrupted",
        "second": "failed",
    }


def test_tenants_failure_before_barrier_releases_others(exporter, tmp_path):
    script = write_file(tmp_path, "raise SystemExit('no such model')", "train.py")
    plan = write_file(tmp_path, _pair_plan(f"command: [{sys.executable}, {script}], barrier: true"))
    done = run_plan(exporter, plan, **NO_TORCH)

    first, second = read_journal(tmp_path / "results")
    assert done.returncode == 1
    assert second["outcome"] == "failed"
    assert first["outcome"] in {
        "failed",
        "interrupted",
    }  # it waits at the barrier or is still loading
    assert f"second failed ({second['run_id']}): no such model" in done.stderr
    assert first["overlap"] is None


def test_tenants_without_barrier_call_are_not_measured(exporter, tmp_path):
    plan = write_file(tmp_path, _pair_plan("command: [sleep, '0.1'], barrier: true"))
    done = run_plan(exporter, plan, **NO_TORCH)

    _, second = read_journal(tmp_path / "results")
    assert done.returncode == 1
    assert second["note"] == "not measured: it ended before all tenants were ready"


def test_tenants_barrier_timeout_is_reported(exporter, tmp_path):
    plan = write_file(
        tmp_path,
        _pair_plan("command: [sleep, '60'], barrier: true", "barrier_timeout_seconds: 0.5\n"),
    )
    done = run_plan(exporter, plan, **NO_TORCH)

    first, second = read_journal(tmp_path / "results")
    assert (first["outcome"], second["outcome"]) == ("failed", "interrupted")
    assert "were ready within 0.5 s; increase barrier_timeout_seconds" in done.stderr


def test_tenants_background_job_ends_with_others(exporter, tmp_path):
    done = run_plan(
        exporter,
        write_file(tmp_path, _pair_plan("job: sleep, options: {duration: 60}, background: true")),
        **NO_TORCH,
    )

    first, second = read_journal(tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert (first["outcome"], second["outcome"], second["cut_off"]) == ("ok", "interrupted", False)
    assert second["note"] == "background job, stopped with the others"
    assert "steps remain" not in done.stderr


def test_placement_runs_see_only_their_gpu(tmp_path):
    text = (
        "name: placed\njobs:\n  show: {command: [sh, -c, 'echo sees $CUDA_VISIBLE_DEVICES']}\n"
        "runs: [{placement: {0: show, 1: idle, 2: show}}]\n"
    )
    with run_api_server(RunApi(known_gpus=("GPU-a", "GPU-b", "GPU-c"))) as address:
        exporter = Exporter(RunApi(), address)
        done = run_plan(exporter, write_file(tmp_path, text), **NO_TORCH)
        unknown_gpu = run_plan(
            exporter,
            write_file(tmp_path, text.replace("2: show", "3: show"), "other.yaml"),
            "--out",
            str(tmp_path / "none"),
        )

    lines = read_journal(tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert [line["tenant"] for line in lines] == ["show-0", "show-2"]
    for line, uuid in zip(lines, ("GPU-a", "GPU-c"), strict=True):
        folder = tmp_path / "results" / line["folder"]
        (start,) = [event for event in results.read_events(folder) if isinstance(event, StartEvent)]
        assert start.gpus == [uuid]
        assert f"sees {uuid}\n" in (folder / "output.log").read_text()
    assert unknown_gpu.returncode == 1
    assert (
        "no GPU '3' on this node; available: 0 (GPU-a), 1 (GPU-b), 2 (GPU-c)" in unknown_gpu.stderr
    )


EVENTS_A = [
    StartEvent(t=100, run_id="a", workload="w", labels={}, gpus=[], command=[], config={}),
    *(
        IterationEvent(t=110 + i, contributor="a", index=i, latency_seconds=1, work={"samples": 8})
        for i in range(5)
    ),
    EndEvent(t=130, outcome="ok", exit_code=0),
]
EVENTS_B = [
    StartEvent(t=101, run_id="b", workload="w", labels={}, gpus=[], command=[], config={}),
    *(
        IterationEvent(
            t=110 + 2 * i, contributor="b", index=i, latency_seconds=2, work={"samples": 4}
        )
        for i in range(9)
    ),
    EndEvent(t=131, outcome="ok", exit_code=0),
]


def test_find_overlap_ends_at_first_last_iteration():
    overlap_of_both = results.find_overlap([EVENTS_A, EVENTS_B], released_at=110.5)

    assert overlap_of_both == results.Overlap(110.5, 114)
    assert results.overlap_share(overlap_of_both, EVENTS_A) == {  # 111, 112, 113, 114
        "begin": 110.5,
        "end": 114,
        "seconds": 3.5,
        "iterations": 4,
        "latency_seconds_mean": 1,
        "work": {"samples": 32},
    }
    assert results.overlap_share(overlap_of_both, EVENTS_B)["iterations"] == 2  # 112, 114


def test_find_overlap_without_barrier_begins_at_last_start():
    assert results.find_overlap([EVENTS_A, EVENTS_B], released_at=None) == results.Overlap(101, 114)


@pytest.mark.parametrize(
    "second", [[], [EVENTS_B[0]], [replace(EVENTS_B[0], t=200.0), *EVENTS_B[1:]]]
)
def test_find_overlap_disjoint_tenants_is_none(second):
    assert results.find_overlap([EVENTS_A, second], released_at=None) is None


def test_read_events_skips_truncated_line(tmp_path):
    kinds = ["start", *["iteration"] * 5, "end"]
    lines = [
        json.dumps({"event": kind, **asdict(event)})
        for kind, event in zip(kinds, EVENTS_A, strict=True)
    ]
    Path(tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n" + lines[-1][:10])

    assert results.read_events(tmp_path) == EVENTS_A
