import yaml

from tests.fakes.run_api import RunApi, run_api_server
from tests.workloads.programs import Exporter
from wattline.contract.run_files import parse_event


def test_run_folder_events_have_command_labels_and_exit_code(exporter, tmp_path):
    exporter.workloads(
        "run", "--out", str(tmp_path), "--run-id", "a", "-l", "model=gpt2", "sh", "-c", "exit 3"
    )

    start, end = _events(tmp_path / "a")
    assert (start.run_id, start.workload, start.labels) == ("a", "sh", {"model": "gpt2"})
    assert (start.command, start.config) == (["sh", "-c", "exit 3"], {})
    assert (end.outcome, end.exit_code) == ("failed", 3)
    assert end.duration_seconds == exporter.api.only_run.duration_s


def test_run_folder_records_job_options(exporter, tmp_path):
    exporter.workloads(
        "job", "sleep", "--out", str(tmp_path), "--run-id", "a", "--duration", "0.01"
    )

    start, _ = _events(tmp_path / "a")
    assert start.config == {"duration": 0.01}


def test_run_folder_metrics_sum_energy_per_component(tmp_path):
    api = RunApi(known_gpus=("GPU-a", "GPU-b"))
    with run_api_server(api) as address:
        Exporter(api, address).workloads(
            "run", "--out", str(tmp_path), "--run-id", "a", "--gpus", "all", "true"
        )

    metrics = yaml.safe_load((tmp_path / "a" / "metrics.yml").read_text())
    assert metrics["total_energy_joules"] == {
        "gpu": 200.0
    }  # the fake run API gives 100 J for each of two GPUs
    assert metrics["energy_joules"] == {"gpu": {"GPU-a": 100.0, "GPU-b": 100.0}}
    assert (metrics["run_id"], metrics["outcome"], metrics["exit_code"]) == ("a", "ok", 0)
    assert _events(tmp_path / "a")[0].gpus == ["GPU-a", "GPU-b"]


def test_run_folder_existing_is_kept_and_no_run_starts(exporter, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "events.jsonl").write_text("mine\n")
    done = exporter.workloads(
        "run", "--out", str(tmp_path), "--run-id", "a", "touch", str(tmp_path / "ran")
    )

    assert done.returncode == 1
    assert done.stderr == (
        f"wattline: cannot create {tmp_path}/a: it already exists; set another --out or --run-id\n"
    )
    assert (tmp_path / "a" / "events.jsonl").read_text() == "mine\n"
    assert not (tmp_path / "ran").exists()
    assert exporter.api.runs == {}


def test_run_folder_not_creatable_fails_before_run(exporter, tmp_path):
    (tmp_path / "file").write_text("")
    done = exporter.workloads("run", "--out", str(tmp_path / "file"), "true")

    assert done.returncode == 1
    assert done.stderr.startswith(f"wattline: cannot create {tmp_path}/file/true-")
    assert done.stderr.endswith(": Not a directory; set another --out\n")
    assert exporter.api.runs == {}


def test_run_folder_of_failed_start_is_removed(exporter, closed_address, tmp_path):
    failed = exporter.workloads(
        "run", "--exporter", closed_address, "--out", str(tmp_path), "--run-id", "a", "true"
    )
    again = exporter.workloads("run", "--out", str(tmp_path), "--run-id", "a", "true")

    assert (failed.returncode, again.returncode) == (1, 0)
    assert [event.event for event in _events(tmp_path / "a")] == ["start", "end"]


def test_run_folder_exporter_lost_records_end_without_metrics(tmp_path):
    api = RunApi()
    with run_api_server(api) as address:
        process = Exporter(api, address).start(
            *("-m", "wattline_workloads", "run", "--out", str(tmp_path), "--run-id", "a"),
            *("sh", "-c", "echo ready; sleep 1; exit 3"),
        )
        assert process.stdout.readline() == "ready\n"
    with process:
        process.communicate(timeout=60)

    _, end = _events(tmp_path / "a")
    assert (end.outcome, end.exit_code, end.duration_seconds) == ("failed", 3, None)
    assert not (tmp_path / "a" / "metrics.yml").exists()


def test_run_folder_metrics_write_error_keeps_exit_code(exporter, tmp_path):
    done = exporter.workloads(
        *(
            "run",
            "--out",
            str(tmp_path),
            "--run-id",
            "a",
            "sh",
            "-c",
            f"mkdir {tmp_path}/a/metrics.yml; exit 3",
        )
    )

    assert done.returncode == 3
    assert (
        f"wattline: cannot write {tmp_path}/a/metrics.yml: File exists; the exporter still has the "
        "run\n" in done.stderr
    )


def _events(folder):
    return [parse_event(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
