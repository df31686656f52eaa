"""Command `recommend` on a sweep of a simulated GPU."""

import json
import subprocess
import sys

import pytest

from tests import daemon


@pytest.fixture(scope="module")
def exporter_with_sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    with daemon.daemon(folder, "--simulate", "1xH200") as exporter:
        command = [
            "sweep",
            "simulated-load",
            "--power-limits",
            "300,450,700",
            "--repeats",
            "1",
            "--duration",
            "2",
        ]
        completed = subprocess.run(
            [
                sys.executable,
                "-m",
                "wattline_workloads",
                *command,
                "--gpus",
                "0",
                "--no-live",
                "--out",
                str(folder / "results"),
            ],
            env=daemon.environment(
                {"WATTLINE_EXPORTER": exporter.url, "XDG_STATE_HOME": str(folder / "state")}
            ),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        yield exporter


def test_recommend_one_run_per_cap_is_too_few(exporter_with_sweep, analyzer, tmp_path):
    options = (
        "--experiment",
        "simulated-load-sweep",
        "--source",
        exporter_with_sweep.url,
        "--format",
        "json",
    )
    completed = analyzer(
        "recommend", *options, "--out", tmp_path, MPLCONFIGDIR=str(tmp_path / "fonts")
    )

    assert completed.returncode == 0, completed.stderr
    (sweep,) = json.loads(completed.stdout)["sweeps"]
    assert (sweep["verdict"], sweep["unit"], sweep["simulated"]) == (
        "too_few_repeats",
        "steps",
        True,
    )
    assert [each["power_limit_watts"] for each in sweep["settings"]] == [300, 450, 700]
    assert all(each["binds"] for each in sweep["settings"][:2])
    assert sweep["commands"] == []
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) == 4


def test_recommend_unknown_experiment_names_known_ones(exporter_with_sweep, analyzer):
    completed = analyzer("recommend", "--experiment", "other", "--source", exporter_with_sweep.url)

    assert (completed.returncode, completed.stdout) == (1, "")
    assert "no run with experiment=other" in completed.stderr
    assert "known experiments: simulated-load-sweep" in completed.stderr


@pytest.mark.parametrize(
    ("options", "stderr"),
    [
        ((), "give --experiment NAME, or --run-id"),
        (("--experiment", "x", "--objective", "fastest"), "--objective: expected one of energy"),
        (("--experiment", "x", "--slo", "ttft"), "--slo ttft: give NAME=VALUE"),
        (("--experiment", "x", "--slo", "ttft=soon"), "give RESULT=NUMBER"),
    ],
)
def test_recommend_wrong_options_are_one_line(analyzer, options, stderr):
    completed = analyzer("recommend", *options)

    assert completed.returncode == 2
    assert stderr in completed.stderr
    assert completed.stderr.count("\n") == 1
