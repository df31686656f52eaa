"""Names of imported GPUs: the index in a file, else the UUID."""

import json

import pytest

from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    finding_texts_of,
    local_time,
    single_report,
)

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
    logs = [
        log(tmp_path / f"{at}.csv", "index, uuid, ", f"0, {UUIDS[at]}, ", 100) for at in range(2)
    ]

    code, _, stderr = call(
        "import", *logs, "--out", tmp_path / "history.sqlite", "--timezone", "UTC"
    )

    assert code == 1
    assert f"cannot import GPU 0: its UUID is {UUIDS[0]} and {UUIDS[1]}" in stderr
    assert stderr.count("cannot import") == 1
    assert "--node" in stderr


def record(folder):
    """Write a run folder with UUIDs and without index."""
    folder.mkdir()
    begin = {
        "run_id": "r",
        "workload": "w",
        "labels": {},
        "gpus": [UUIDS[0]],
        "command": [],
        "config": {},
    }
    events = [
        {"event": "start", "t": BEGIN_S, **begin},
        {
            "event": "end",
            "t": BEGIN_S + 10,
            "outcome": "ok",
            "exit_code": 0,
            "duration_seconds": 10.0,
        },
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    (folder / "metrics.yml").write_text(json.dumps({"energy_joules": {"gpu": {UUIDS[0]: 1_234.0}}}))
    return folder


def test_gpu_without_index_is_named_by_uuid(imported, tmp_path):
    assert labels(single_report(imported(record(tmp_path / "run")))) == [
        ("GPU 3f2a9c1e", UUIDS[0], 1_234.0)
    ]


def test_gpu_without_index_gets_index_of_log(imported, tmp_path):
    separate = log(tmp_path / "log.csv", "index, uuid, ", f"3, {UUIDS[0]}, ", 100)

    assert labels(single_report(imported(record(tmp_path / "run"), separate))) == [
        ("GPU 3", UUIDS[0], 1_234.0)
    ]


def rows_at(times_s, cells, watts):
    return [f"{local_time(t, '%Y/%m/%d %H:%M:%S.%f')[:-3]}, {cells}{watts} W" for t in times_s]


def table(path, *rows, columns="index, "):
    path.write_text(
        "\n".join(
            [f"timestamp, {columns}power.draw [W]", *(line for part in rows for line in part), ""]
        )
    )
    return path


TWO_NODES = [rows_at(range(121), "0, ", 300), rows_at(range(121), "0, ", 100)]
LATER_NODE = rows_at([t + 0.4 for t in range(121)], "0, ", 100)
SET_BACK = [rows_at(range(60), "0, ", 300), rows_at(range(30, 90), "0, ", 200)]


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        (
            [TWO_NODES],
            "the times of GPU 0 go back, and its samples overlap at 2024-07-19 12:00:00 UTC",
        ),
        (
            [[[line for pair in zip(*TWO_NODES, strict=True) for line in pair]]],
            "GPU 0 has two different values",
        ),
        ([[TWO_NODES[0], LATER_NODE]], "the times of GPU 0 go back"),
        ([SET_BACK], "its samples overlap at 2024-07-19 12:00:30 UTC"),
        (
            [[TWO_NODES[0]], [TWO_NODES[1]]],
            "both have GPU 0 at 2024-07-19 12:00:00 UTC with different samples",
        ),
        ([[TWO_NODES[0]], [LATER_NODE]], "both have GPU 0 at"),
    ],
    ids=[
        "appended",
        "alternating",
        "0.4 s later",
        "clock set back",
        "two files",
        "two files 0.4 s apart",
    ],
)
def test_samples_of_two_devices_in_one_series_are_refused(call, tmp_path, files, cause):
    """48,000 J of two nodes, which were read as 36,000 J or 24,080 J of one GPU."""
    logs = [table(tmp_path / f"{number}.csv", *rows) for number, rows in enumerate(files)]

    code, _, stderr = call("import", *logs, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert cause in stderr
    assert "--node" in stderr


@pytest.mark.parametrize(
    "rows", [range(120, -1, -1), [*range(60, 121), *range(60)], [*range(100), *range(50, 121)]]
)
def test_samples_in_another_order_or_twice_are_read(imported, tmp_path, rows):
    """200 W for 120 s: newest first, later part first, and 50 lines twice."""
    report = single_report(imported(table(tmp_path / "log.csv", rows_at(rows, "0, ", 200))))

    assert labels(report) == [("GPU 0", report.devices[0].device, pytest.approx(24_000))]
    assert not finding_texts_of(report, "duplicate_samples")


def test_samples_of_one_time_and_gpu_are_counted_and_reported(call, imported, tmp_path):
    """A GPU with a UUID: 300 W count, and 11 samples of 100 W do not: 3,000 J."""
    rows = [
        row
        for t in range(11)
        for watts in (300, 100)
        for row in rows_at([t], f"{UUIDS[0]}, ", watts)
    ]
    path = table(tmp_path / "log.csv", rows, columns="uuid, ")

    report = single_report(imported(path))
    _, _, stderr = call("import", path, "--out", tmp_path / "other.sqlite", "--timezone", "UTC")

    assert labels(report) == [("GPU 3f2a9c1e", UUIDS[0], pytest.approx(3_000))]
    assert "the first value counts" in finding_texts_of(report, "duplicate_samples")[0]
    assert "left out 11 samples of GPU 3f2a9c1e" in stderr
