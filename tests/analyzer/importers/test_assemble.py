"""Names of imported GPUs: the index in a file, else the UUID."""

import json

from tests.analyzer.importers.sample_files import BEGIN_S, local_time, single_report

UUIDS = ("GPU-3f2a9c1e-0b7d-4e55-9d1a-5a6b7c8d9e00", "GPU-77aa0011-0b7d-4e55-9d1a-5a6b7c8d9e01")


def log(path, columns, cells, watts):
    """Write a log with one row per second for ten seconds."""
    rows = [f"{local_time(t, '%Y/%m/%d %H:%M:%S.000')}, {cells}{watts} W" for t in range(11)]
    path.write_text("\n".join([f"timestamp, {columns}power.draw [W]", *rows, ""]))
    return path


def labels(report):
    return [(device.label, device.device, device.energy.value) for device in report.devices]


def test_logs_of_two_gpus_without_index_stay_separate(imported, tmp_path):
    first = log(tmp_path / "a.csv", "uuid, ", f"{UUIDS[0]}, ", 100)
    second = log(tmp_path / "b.csv", "uuid, ", f"{UUIDS[1]}, ", 300)

    report = single_report(imported(first, second))

    assert labels(report) == [("GPU 3f2a9c1e", UUIDS[0], 1_000), ("GPU 77aa0011", UUIDS[1], 3_000)]


def test_log_without_gpu_names_has_one_unnamed_gpu(imported, tmp_path):
    report = single_report(imported(log(tmp_path / "log.csv", "", "", 100), "--node", "n"))

    assert labels(report) == [("GPU unnamed", "imported-n-unnamed", 1_000)]


def test_two_gpus_with_one_index_are_rejected(call, tmp_path):
    logs = [log(tmp_path / f"{at}.csv", "index, uuid, ", f"0, {UUIDS[at]}, ", 100) for at in range(2)]

    code, _, stderr = call("import", *logs, "--out", tmp_path / "history.sqlite", "--timezone", "UTC")

    assert code == 1
    assert f"two files disagree about GPU 0: it is {UUIDS[0]} and {UUIDS[1]}" in stderr
    assert stderr.count("two files") == 1
    assert "--node" in stderr


def record(folder):
    """Write a run folder with UUIDs and without index."""
    folder.mkdir()
    begin = {"run_id": "r", "workload": "w", "labels": {}, "gpus": [UUIDS[0]], "command": [], "config": {}}
    events = [
        {"event": "start", "t": BEGIN_S, **begin},
        {"event": "end", "t": BEGIN_S + 10, "outcome": "ok", "exit_code": 0, "duration_seconds": 10.0},
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    (folder / "metrics.yml").write_text(json.dumps({"energy_joules": {"gpu": {UUIDS[0]: 1_234.0}}}))
    return folder


def test_gpu_without_index_is_named_by_uuid(imported, tmp_path):
    assert labels(single_report(imported(record(tmp_path / "run")))) == [("GPU 3f2a9c1e", UUIDS[0], 1_234.0)]


def test_gpu_without_index_gets_index_of_log(imported, tmp_path):
    separate = log(tmp_path / "log.csv", "index, uuid, ", f"3, {UUIDS[0]}, ", 100)

    assert labels(single_report(imported(record(tmp_path / "run"), separate))) == [("GPU 3", UUIDS[0], 1_234.0)]
