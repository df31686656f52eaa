"""Messages and formats of `analyzer usage`."""

import json
import re

import pytest

from tests.analyzer.small_fleet import BEGIN_S, END_S, LATE_S


@pytest.fixture(params=["prometheus", "victoria-metrics"])
def address(request, fleet_addresses):
    return fleet_addresses[request.param]


def test_usage_table_has_top_groups_the_rest_and_no_run(address, analyzer):
    window = ("--until", END_S, "--since", "2h")
    completed = analyzer("usage", "--source", address, *window, "--by", "model,user", "--top", 2)

    assert completed.returncode == 0, completed.stderr
    row = r"^m1 +u1 +1 +0\.\d{5,} +.* +\d\d\.\d % "
    assert re.search(row, completed.stdout, re.MULTILINE)
    assert "(4 more)" in completed.stdout
    assert "(unattributed)" in completed.stdout
    assert "energy from the series of runs at" in completed.stdout
    assert "energy of GPUs without a run: " in completed.stdout


def test_usage_unknown_label_is_reported(address, analyzer):
    window = ("--until", END_S, "--since", "2h")
    completed = analyzer("usage", "--source", address, *window, "--by", "modle,user")

    assert completed.stderr == (
        "analyzer: no run in the window has the label modle; --by accepts model, namespace, user, "
        "workload, kind, node, gpu_model\n"
    )


def test_usage_window_without_runs_is_reported(address, analyzer):
    window = ("--until", END_S + 590, "--since", "3m")
    completed = analyzer("usage", "--source", address, *window, "--by", "modle")

    assert completed.stderr == (
        "analyzer: no run was active in the window; the energy of its devices is shown as "
        "(unattributed)\n"
    )
    assert "(unattributed)" in completed.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 1, "no source found: no exporter's history at http://127.0.0.1:1,"),
        (("--source", "/nowhere"), 1, "cannot read /nowhere: no such file"),
        (
            ("--since", "2026-11-02T00:00Z", "--until", "2026-11-01T00:00Z"),
            2,
            "--since: 2026-11-02T00:00Z is not before",
        ),
        (
            ("--source", "http://127.0.0.1:1", "--by", "model user"),
            2,
            "--by: expected labels of runs",
        ),
        (
            ("--source", "http://127.0.0.1:1", "--until", "soon"),
            2,
            "--until: 'soon' is neither a date nor a Unix time",
        ),
        (
            ("--source", "http://127.0.0.1:1", "--policy", "mine"),
            2,
            "--policy: expected idle_shared or idle_apart",
        ),
        (("--source", "http://127.0.0.1:1"), 1, "cannot connect to http://127.0.0.1:1"),
    ],
)
def test_usage_invalid_request_is_one_line(analyzer, arguments, code, expected):
    completed = analyzer("usage", *arguments, WATTLINE_EXPORTER="http://127.0.0.1:1")

    assert completed.returncode == code
    assert expected in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


def test_usage_window_without_samples_is_an_error(address, analyzer):
    completed = analyzer("usage", "--source", address, "--until", BEGIN_S - 90_000, "--since", "1h")

    assert completed.returncode == 1
    assert "no samples of wattline_gpu_energy_joules_total" in completed.stderr
    assert completed.stdout == ""


def test_usage_marks_simulated_gpus_of_the_window(address, analyzer):
    command = ("usage", "--source", address, "--by", "model", "--format", "json")
    late, before = (
        analyzer(*command, "--until", until_s, "--since", since)
        for until_s, since in ((LATE_S + 300, "10m"), (END_S, "2h"))
    )

    assert [json.loads(one.stdout)["simulated"] for one in (late, before)] == [True, False]
