"""Cell magic, in IPython's own shell on a simulated GPU, and the notebook of the documentation."""

import atexit
import re
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.daemon import daemon
from wattline.client.summary import RunResult
from wattline.integrations.jupyter import _summary

NOTEBOOK = Path(__file__).parents[4] / "workloads/docs/examples/notebook.ipynb"
IDLE_W, G_PER_KWH, J_PER_KWH = 78, 400, 3.6e6
LINE = re.compile(
    r"([\d.]+) s, ([\d.]+) ± ([\d.]+) J, mean ([\d.]+) W, ([\d.]+) ± [\d.]+ mg CO₂eq; run (\S+)\n"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    options = ("--simulate", "1xH200", "--no-history", "--carbon.intensity", str(G_PER_KWH))
    with daemon(tmp_path_factory.mktemp("node"), *options) as started:
        yield started


@pytest.fixture
def shell(job, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setitem(
        sys.modules, "__main__", sys.modules["__main__"]
    )  # a shell replaces it permanently
    shell = InteractiveShell()
    shell.run_line_magic("colors", "nocolor")
    assert shell.run_cell("%load_ext wattline").success
    yield shell
    shell.atexit_operations()
    atexit.unregister(shell.atexit_operations)


def test_cell_prints_the_energy_power_and_emissions_of_its_run(shell, node, capsys):
    result = shell.run_cell(
        "%%wattline idle --gpus all --label model=none\nimport time\ntime.sleep(1.5)\n'done'"
    )

    assert result.result == "done"
    duration_s, energy_j, half_j, mean_w, milligrams, run_id = LINE.search(
        capsys.readouterr().out
    ).groups()
    _, run = node.get(f"/api/v1/runs/{run_id}")
    assert (run["workload"], run["outcome"], run["labels"]["model"]) == ("idle", "ok", "none")
    assert float(energy_j) == pytest.approx(
        sum(run["energy_joules"]["gpu"].values()), abs=float(half_j) / 10
    )
    assert abs(float(mean_w) - IDLE_W) * run["duration_seconds"] < 2 * float(half_j)
    assert float(duration_s) >= 1.5
    grams = float(milligrams) / 1_000
    assert grams == pytest.approx(float(energy_j) / J_PER_KWH * G_PER_KWH, rel=0.05)


@pytest.mark.parametrize(
    ("half_j", "total_j", "text"),
    [
        (1.8, None, "20.0 s, 2,806.0 ± 1.8 J, mean 140.30 W, 300.00 ± 0.19 mg CO₂eq; run r"),
        (1.8, 140.0, "20.0 s, 2,810 ± 140 J, mean 140 W, 300.00 ± 0.19 mg CO₂eq; run r"),
        (None, None, "20.0 s, 2,806 J, mean 140.3 W, 300.0 mg CO₂eq; run r"),
    ],
)
def test_line_below_a_cell_has_the_digits_that_are_known(half_j, total_j, text):
    """2,806 J in 20 s are 140.30 W, ± 0.09 W or, with the accuracy of the sensor, ± 7 W. The random
    error of 0.3 g is 1.8 J / 2,806 J of it: 0.19 mg.
    """
    result = RunResult(
        "r",
        "ok",
        20.0,
        2_806.0,
        half_j,
        0.3,
        total_uncertainty_joules=total_j,
        emissions_uncertainty_grams=None if half_j is None else 0.3 * half_j / 2_806.0,
    )
    assert _summary(result) == text


def test_cell_that_raises_fails_and_ends_its_run_as_failed(shell, node, capsys):
    result = shell.run_cell(
        "%%wattline broken --gpus all\nvalue = 1\nraise ValueError('bad batch')"
    )

    output = capsys.readouterr().out
    run_id = re.search(r"; run (\S+)", output).group(1)
    assert isinstance(result.error_in_exec, ValueError)
    assert shell.user_ns["value"] == 1
    assert output.count("ValueError: bad batch") == 1, "one traceback"
    assert node.get(f"/api/v1/runs/{run_id}")[1]["outcome"] == "failed"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--label model", "use --label NAME=VALUE"),
        ("--gpu", "expected one argument"),
        ('"', "No closing quotation"),
    ],
)
def test_cell_with_bad_arguments_is_refused_and_not_run(shell, capsys, line, message):
    shell.run_cell(f"%%wattline {line}\nvalue = 1")

    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert "value" not in shell.user_ns


@pytest.mark.usefixtures("closed_exporter")
def test_cell_without_an_exporter_runs_and_has_no_energy(shell, capsys):
    assert shell.run_cell("%%wattline\n6 * 7").result == 42
    assert "no energy was measured" in capsys.readouterr().out


@pytest.fixture
def closed_exporter(monkeypatch, job, closed_address):
    monkeypatch.setenv("WATTLINE_EXPORTER", closed_address)


def test_notebook_of_the_documentation_runs(shell, capsys):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    results = [shell.run_cell(cell.source) for cell in notebook.cells if cell.cell_type == "code"]

    assert all(result.success for result in results)
    assert results[1].result == sum(row * column % 7 for row in range(300) for column in range(300))
    assert LINE.search(capsys.readouterr().out)
    assert set(results[2].result) == {"steps"}
