import collections
import json
import subprocess
import sys
import textwrap

import pytest

from tests.workloads.programs import ROOT
from wattline.client import recorder
from wattline.client.recorder import Recorder
from wattline.contract.run_files import IterationEvent, PhaseEvent, parse_event

_BEGIN = "import multiprocessing, os, sys\nimport wattline\n"


@pytest.fixture
def record(exporter, write, tmp_path):
    """Return a function that runs a script under the runner and returns its validated events."""

    def run(text: str, *more: str):
        script = write(_BEGIN + textwrap.dedent(text))
        done = exporter.workloads(
            "run", "--out", str(tmp_path / "out"), "--run-id", "a", *more, sys.executable, script
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        return events(tmp_path / "out" / "a")

    return run


def events(folder):
    return [parse_event(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]


def iterations(recorded):
    return [event for event in recorded if isinstance(event, IterationEvent)]


def test_iteration_records_phase_latency_work_and_values(record, exporter):
    one, two = iterations(
        record("""
        with wattline.run("train") as run:
            run.phase("train")
            run.iteration(0.25, {"loss": 1.5}, samples=64, steps=1)
            run.phase("test")
            run.iteration(0.5, samples=32)
        """)
    )

    assert (one.index, one.phase, one.latency_seconds) == (0, "train", 0.25)
    assert (one.work, one.values) == ({"samples": 64, "steps": 1}, {"loss": 1.5})
    assert (two.index, two.phase, two.work, two.values) == (1, "test", {"samples": 32}, {})
    assert exporter.api.only_run.work == {"samples": 96, "steps": 1}


def test_events_file_orders_start_phase_iteration_end(record):
    recorded = record("""
        with wattline.run("train") as run:
            run.phase("train")
            run.iteration(0.1, steps=1)
            run.result(loss=0.5)
        """)

    assert [event.event for event in recorded] == ["start", "phase", "iteration", "end"]
    assert [event.t for event in recorded] == sorted(event.t for event in recorded)
    assert (recorded[-1].work, recorded[-1].results) == ({"steps": 1}, {"loss": 0.5})


def test_iteration_rejoined_run_continues_indices(record):
    recorded = iterations(
        record("""
        for epoch in range(3):
            with wattline.run("train") as run:
                run.iteration(0.1, steps=1)
        """)
    )

    assert [event.index for event in recorded] == [0, 1, 2]
    assert len({event.contributor for event in recorded}) == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_recorder_child_processes_record_separately(record, exporter, method):
    recorded = iterations(
        record(f"""
        def work(run):
            for _ in range(200):
                run.iteration(0.001, samples=2)

        if __name__ == "__main__":
            with wattline.run("train") as run:
                run.iteration(0.5, steps=1)
                context = multiprocessing.get_context({method!r})
                children = [context.Process(target=work, args=(run,)) for _ in range(3)]
                for child in children:
                    child.start()
                for child in children:
                    child.join()
                assert [child.exitcode for child in children] == [0, 0, 0]
        """)
    )

    indices = collections.defaultdict(list)
    for event in recorded:
        indices[event.contributor].append(event.index)
    assert sorted(indices.values(), key=len) == [[0], *([list(range(200))] * 3)]
    assert exporter.api.only_run.work == {"samples": 1200, "steps": 1}
    assert exporter.api.totals["a"].keys() == indices.keys()


def test_recorder_forked_child_does_not_write_parents_buffer(record):
    recorded = record("""
        with wattline.run("train") as run:
            run.iteration(0.1, steps=1)
            run.iteration(0.2, steps=1)
            run.phase("train")
            run.iteration(0.4, steps=1)
            if os.fork() == 0:
                run.iteration(0.3, steps=1)
                sys.exit(0)
            os.wait()
        """)

    assert sorted(event.latency_seconds for event in iterations(recorded)) == [0.1, 0.2, 0.3, 0.4]
    assert [event.name for event in recorded if isinstance(event, PhaseEvent)] == ["train"]


def test_phase_set_by_spawned_child_is_not_recorded(record, exporter):
    record("""
        def work(run):
            with run.phase("validation"):
                run.work(samples=1)

        if __name__ == "__main__":
            with wattline.run("train") as run:
                run.phase("train")
                child = multiprocessing.get_context("spawn").Process(target=work, args=(run,))
                child.start()
                child.join()
        """)

    assert exporter.api.bodies("/phase") == [{"name": "train"}]
    assert exporter.api.only_run.work == {"samples": 1}


@pytest.mark.parametrize("latency", ["-1", "float('nan')", "'x'", "None"])
def test_iteration_invalid_latency_counts_work_without_record(exporter, write, tmp_path, latency):
    script = write(f"{_BEGIN}with wattline.run('x') as run:\n    run.iteration({latency}, steps=1)")
    done = exporter.workloads(
        "run", "--out", str(tmp_path), "--run-id", "a", sys.executable, script
    )

    assert "cannot record an iteration: " in done.stderr
    assert iterations(events(tmp_path / "a")) == []
    assert exporter.api.only_run.work == {"steps": 1}


def test_iteration_invalid_numbers_are_left_out(exporter, write, tmp_path):
    call = "run.iteration(0.1, {'loss': float('inf'), 'norm': 2}, steps=-1, samples=3)"
    script = write(f"{_BEGIN}with wattline.run('x') as run:\n    {call}")
    exporter.workloads("run", "--out", str(tmp_path), "--run-id", "a", sys.executable, script)

    (event,) = iterations(events(tmp_path / "a"))
    assert (event.work, event.values) == ({"samples": 3}, {"norm": 2})
    assert exporter.api.only_run.work == {"samples": 3}


_WRITES = """
import pathlib, sys
from wattline.client.recorder import Recorder
writer = Recorder(pathlib.Path(sys.argv[1]))
for _ in range(3000):
    writer.iteration(contributor=sys.argv[2] * 100, phase=None, latency_seconds=0.1, work={}, values={})
writer.flush()
"""


def test_recorder_concurrent_processes_write_whole_lines(tmp_path):
    command = [sys.executable, "-c", _WRITES, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], cwd=ROOT) for name in ("a", "b", "c")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]

    recorded = events(tmp_path)
    assert len(recorded) == 9000
    assert [event.index for event in recorded if event.contributor == "b" * 100] == list(
        range(3000)
    )


def test_recorder_write_error_logs_once_and_continues(tmp_path, capsys):
    writer = Recorder(tmp_path / "gone")
    for _ in range(3):
        writer.write("phase", name="x")

    assert capsys.readouterr().err.count("\n") == 1


def test_recorder_buffers_iterations_until_phase(tmp_path):
    writer = Recorder(tmp_path)
    writer.iteration(contributor="a", phase=None, latency_seconds=0.1, work={}, values={})
    assert not (tmp_path / "events.jsonl").exists()
    writer.write("phase", name="x")

    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["iteration", "phase"]


def test_recorder_for_run_without_folder_is_none():
    assert recorder.recorder_for({}) is None
