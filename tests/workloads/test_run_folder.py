import yaml

from exporter.contract.record import RECORD_EVENT
from tests.fakes.run_api import RunApi, serving
from tests.workloads.conftest import Exporter


def test_the_folder_has_what_is_needed_to_do_the_same_again(exporter, tmp_path):
    exporter.workloads("run", "--out", str(tmp_path), "--run-id", "a", "-l", "model=gpt2", "sh", "-c", "exit 3")

    start, end = _events(tmp_path / "a")
    assert (start.run_id, start.workload, start.labels) == ("a", "sh", {"model": "gpt2"})
    assert (start.command, start.config) == (["sh", "-c", "exit 3"], {})
    assert (end.outcome, end.exit_code) == ("failed", 3)
    assert end.duration_seconds == exporter.api.only_run.duration_seconds


def test_a_jobs_options_are_recorded_with_their_defaults(exporter, tmp_path):
    exporter.workloads("job", "sleep", "--out", str(tmp_path), "--run-id", "a", "--duration", "0.01")

    start, _ = _events(tmp_path / "a")
    assert start.config == {"duration": 0.01}


def test_metrics_yml_is_the_exporters_answer_with_the_joules_of_each_component(tmp_path):
    api = RunApi(known_gpus=("GPU-a", "GPU-b"))
    with serving(api) as address:
        Exporter(api, address).workloads("run", "--out", str(tmp_path), "--run-id", "a", "--gpus", "all", "true")

    metrics = yaml.safe_load((tmp_path / "a" / "metrics.yml").read_text())
    assert metrics["total_energy_joules"] == {"gpu": 200.0}  # the run API's 100 J for each of two GPUs
    assert metrics["energy_joules"] == {"gpu": {"GPU-a": 100.0, "GPU-b": 100.0}}
    assert (metrics["run_id"], metrics["outcome"], metrics["exit_code"]) == ("a", "ok", 0)
    assert _events(tmp_path / "a")[0].gpus == ["GPU-a", "GPU-b"]


def test_a_folder_that_is_there_is_left_as_it_is_and_no_run_begins(exporter, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "events.jsonl").write_text("mine\n")
    done = exporter.workloads("run", "--out", str(tmp_path), "--run-id", "a", "touch", str(tmp_path / "ran"))

    assert done.returncode == 1
    assert done.stderr == (
        f"wattline: {tmp_path}/a is there already and is left as it is; give another --out or --run-id\n"
    )
    assert (tmp_path / "a" / "events.jsonl").read_text() == "mine\n"
    assert not (tmp_path / "ran").exists()
    assert exporter.api.runs == {}


def test_a_folder_that_cannot_be_made_is_an_error_before_the_run(exporter, tmp_path):
    (tmp_path / "file").write_text("")
    done = exporter.workloads("run", "--out", str(tmp_path / "file"), "true")

    assert done.returncode == 1
    assert "cannot be made: Not a directory; give another --out" in done.stderr
    assert exporter.api.runs == {}


def test_the_same_may_be_tried_again_where_the_run_did_not_begin(exporter, nowhere, tmp_path):
    failed = exporter.workloads("run", "--exporter", nowhere, "--out", str(tmp_path), "--run-id", "a", "true")
    again = exporter.workloads("run", "--out", str(tmp_path), "--run-id", "a", "true")

    assert (failed.returncode, again.returncode) == (1, 0)
    assert [event.event for event in _events(tmp_path / "a")] == ["start", "end"]


def test_without_the_exporter_at_the_end_the_end_is_recorded_and_there_are_no_metrics(tmp_path):
    api = RunApi()
    with serving(api) as address:
        process = Exporter(api, address).start(
            *("-m", "workloads", "run", "--out", str(tmp_path), "--run-id", "a"),
            *("sh", "-c", "echo ready; sleep 1; exit 3"),
        )
        assert process.stdout.readline() == "ready\n"
    with process:
        process.communicate(timeout=60)

    _, end = _events(tmp_path / "a")
    assert (end.outcome, end.exit_code, end.duration_seconds) == ("failed", 3, None)
    assert not (tmp_path / "a" / "metrics.yml").exists()


def test_metrics_that_cannot_be_written_do_not_change_the_exit_code(exporter, tmp_path):
    done = exporter.workloads(
        *("run", "--out", str(tmp_path), "--run-id", "a", "sh", "-c", f"mkdir {tmp_path}/a/metrics.yml; exit 3")
    )

    assert done.returncode == 3
    assert "metrics.yml cannot be written: File exists; the exporter has the run all the same" in done.stderr


def _events(folder):
    return [RECORD_EVENT.validate_json(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
