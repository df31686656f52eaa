import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.fakes import nsys
from tests.workloads.plans.plan_files import TWO_REPEATS, read_journal, run_plan, write_file
from wattline.contract.run_files import StartEvent, parse_event


def test_plan_repeats_are_runs_with_labels_and_folders(exporter, tmp_path):
    plan = write_file(tmp_path, TWO_REPEATS)
    done = run_plan(exporter, plan)

    results = tmp_path / "results"
    lines = read_journal(results)
    assert done.returncode == 0, done.stderr
    assert (results / "plan.yaml").read_bytes() == plan.read_bytes()
    assert [(line["step"], line["repeat"], line["outcome"]) for line in lines] == [
        (1, 1, "ok"),
        (2, 2, "ok"),
    ]
    for line, run in zip(lines, exporter.api.runs.values(), strict=True):
        assert (run.run_id, run.workload, run.outcome) == (line["run_id"], "sleep", "ok")
        assert run.labels == line["labels"]
        assert run.labels == {
            "experiment": "naps",
            "plan": "results",
            "case": "sleep",
            "site": "lab",
            "repeat": str(line["repeat"]),
        }
        folder = results / line["folder"]
        start = parse_event((folder / "events.jsonl").read_text().splitlines()[0])
        assert isinstance(start, StartEvent)
        assert start.config == {"duration": 0.1}
        assert yaml.safe_load((folder / "metrics.yml").read_text())["run_id"] == run.run_id
        assert f"run {run.run_id} ok" in (folder / "output.log").read_text()


def test_plan_command_is_run_and_output_is_kept(exporter, tmp_path):
    plan = write_file(tmp_path, "name: own\nruns: [{command: [echo, hello]}]\n")
    done = run_plan(exporter, plan, "--no-live")

    (line,) = read_journal(tmp_path / "results")
    assert exporter.api.only_run.workload == "echo"
    assert "hello\n" in (tmp_path / "results" / line["folder"] / "output.log").read_text()
    assert "hello\n" in done.stdout


def test_plan_nsys_keeps_report_and_requires_program(exporter, tmp_path):
    plan = write_file(
        tmp_path, "name: traced\nruns: [{job: sleep, nsys: true, options: {duration: 0.1}}]\n"
    )
    without = run_plan(exporter, plan, "--out", str(tmp_path / "none"))
    path = f"{nsys.install_nsys(tmp_path)}:{os.environ['PATH']}"
    done = run_plan(exporter, plan, PATH=path)

    (line,) = read_journal(tmp_path / "results")
    assert without.returncode == 1
    assert "nsys is not on PATH" in without.stderr
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / line["folder"] / "nsys" / "report.nsys-rep").exists()
    assert len(exporter.api.runs) == 1


def test_plan_failed_run_is_reported_and_next_runs(exporter, tmp_path):
    script = write_file(tmp_path, "import sys; sys.exit('no memory left')", "train.py")
    plan = write_file(
        tmp_path,
        f"name: two\nruns:\n  - {{name: bad, command: [{sys.executable}, {script}]}}\n"
        "  - {name: good, job: sleep, options: {duration: 0.1}}\n",
    )
    done = run_plan(exporter, plan, "--on-failure", "continue")

    lines = read_journal(tmp_path / "results")
    assert done.returncode == 1
    assert [(line["case"], line["outcome"], line["exit_code"]) for line in lines] == [
        ("bad", "failed", 1),
        ("good", "ok", 0),
    ]
    assert f"failed ({lines[0]['run_id']}): no memory left" in done.stderr
    assert "1 failed, 1 ok" in done.stderr


def test_plan_failed_run_without_output_has_its_exit_code(exporter, tmp_path):
    plan = write_file(tmp_path, "name: a\nruns: [{name: bad, command: [sh, -c, exit 3]}]\n")
    done = run_plan(exporter, plan)

    (line,) = read_journal(tmp_path / "results")
    assert f"failed ({line['run_id']}): exit code 3, without output\n" in done.stderr
    assert done.stdout.count(f"run {line['run_id']} failed in") == 1
    assert "wattline report" not in done.stderr


def test_plan_failed_run_on_terminal_has_all_of_its_summary(exporter, tmp_path):
    """The live table does not show the output of jobs."""
    exporter.api.known_gpus = ("GPU-1",)
    script = write_file(tmp_path, "import sys; sys.exit('no memory left')", "train.py")
    plan = write_file(
        tmp_path,
        f"name: a\nruns: [{{name: {'bad' * 20}, gpus: [0], command: [{sys.executable}, {script}]}}]\n",
    )
    command = [sys.executable, "-m", "wattline_workloads", "plan", str(plan)]
    command += ["--out", str(tmp_path / "results")]
    terminal, plan_end = pty.openpty()
    with subprocess.Popen(
        command, env={**exporter.environment, "COLUMNS": "200"}, stderr=plan_end
    ) as process:
        os.close(plan_end)
        output = b"".join(read_terminal(terminal)).decode()
        assert process.wait() == 1

    (line,) = read_journal(tmp_path / "results")
    shown = [text.rpartition("wattline: ")[2].strip() for text in output.splitlines()]
    at = next(at for at, text in enumerate(shown) if text.endswith(": no memory left"))
    energy, report = (text for text in shown[at + 1 :] if line["run_id"] in text)
    assert re.match(
        rf"run {line['run_id']} failed in [\d.]+ s: 100.0 J of the GPUs \(mean [\d,.]+ W\)$", energy
    )
    assert report == f"wattline report {line['run_id']} --source {exporter.address}"


def read_terminal(terminal: int) -> Iterator[bytes]:
    """Yield the output of a terminal until its last program has closed it."""
    while True:
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # EIO: no program has the terminal
            break
        if not data:
            break
        yield data
    os.close(terminal)


@pytest.mark.parametrize(
    ("commands", "options", "outcomes"),
    [
        (["no", "yes"], [], ["failed"]),
        (["yes", "no", "yes"], [], ["ok", "failed", "ok"]),
        (["yes", "no", "yes"], ["--on-failure", "stop"], ["ok", "failed"]),
    ],
)
def test_plan_stops_after_a_failed_run(exporter, tmp_path, commands, options, outcomes):
    exit_codes = {"yes": 0, "no": 1}
    runs = [f"{{command: [sh, -c, exit {exit_codes[each]}]}}" for each in commands]
    plan = write_file(tmp_path, f"name: a\nruns: [{', '.join(runs)}]\n")
    done = run_plan(exporter, plan, *options)

    assert done.returncode == 1
    assert [line["outcome"] for line in read_journal(tmp_path / "results")] == outcomes
    is_cut = len(outcomes) < len(commands)
    assert ("failed; fix the job, or give --on-failure continue" in done.stderr) == is_cut
    assert ("--resume" in done.stderr) == is_cut


@pytest.mark.parametrize("code", [130, 255])
def test_plan_exit_code_of_signal_number_is_failure(exporter, tmp_path, code):
    done = run_plan(
        exporter, write_file(tmp_path, f"name: a\nruns: [{{command: [sh, -c, 'exit {code}']}}]\n")
    )

    (line,) = read_journal(tmp_path / "results")
    assert (line["outcome"], line["exit_code"], line["cut_off"]) == ("failed", code, False)
    assert exporter.api.only_run.outcome == "failed"
    assert "remain" not in done.stderr


def test_plan_existing_results_are_not_overwritten(exporter, tmp_path):
    plan = write_file(tmp_path, TWO_REPEATS.replace("repeats: 2", "repeats: 1"))
    run_plan(exporter, plan)
    before = read_journal(tmp_path / "results")
    again = run_plan(exporter, plan)
    other = write_file(tmp_path, TWO_REPEATS, "other.yaml")
    merged = run_plan(exporter, other, "--resume", str(tmp_path / "results"))
    missing_folder = run_plan(exporter, plan, "--resume", str(tmp_path / "none"))

    assert [done.returncode for done in (again, merged, missing_folder)] == [1, 1, 1]
    folder = tmp_path / "results"
    command = f"workloads plan {folder}/plan.yaml --resume {folder}"
    assert (
        f"{folder} is not empty; give another --out, or continue it with: {command}\n"
        in again.stderr
    )
    assert exporter.workloads(*command.split()[1:]).returncode == 0
    assert "the plan differs from the one that" in merged.stderr
    assert "none is not a results folder" in missing_folder.stderr
    assert read_journal(tmp_path / "results") == before


def test_plan_default_folder_has_name_and_time(exporter, tmp_path):
    plan = write_file(tmp_path, "name: a nap\nruns: [{job: sleep, options: {duration: 0.1}}]\n")
    done = exporter.python("-m", "wattline_workloads", "plan", str(plan), cwd=tmp_path)

    (folder,) = (tmp_path / "wattline-results").iterdir()
    assert folder.name.startswith("a-nap-20")
    assert str(folder) in done.stderr
    assert exporter.api.only_run.labels["plan"] == folder.name


def test_plan_dry_run_lists_steps_in_order(exporter, tmp_path):
    plan = write_file(
        tmp_path, "name: a\nrepeats: 2\norder: interleaved\nruns: [{job: sleep}, {command: [ls]}]\n"
    )
    done = run_plan(exporter, plan, "--dry-run")

    steps = [
        line.split(maxsplit=1) for line in done.stdout.splitlines() if line[:4].strip().isdigit()
    ]
    assert steps == [
        ["1", "sleep-1 repeat 1: about 10 s"],
        ["2", "ls-2 repeat 1: unknown duration"],
        ["3", "sleep-1 repeat 2: about 10 s"],
        ["4", "ls-2 repeat 2: unknown duration"],
    ]
    assert exporter.api.runs == {}


def test_plan_invalid_file_fails_before_run(exporter, tmp_path):
    plan = write_file(tmp_path, "name: a\nrepeat: 3\nruns: [{job: sleep}]\n")
    done = run_plan(exporter, plan)

    assert done.returncode == 2
    assert done.stderr == f"wattline: {plan}:2: repeat: unknown key; did you mean repeats?\n"
    assert exporter.api.runs == {}
    assert not (tmp_path / "results").exists()


def test_plan_unreachable_exporter_leaves_no_folder(exporter, tmp_path, closed_address):
    plan = write_file(tmp_path, TWO_REPEATS)
    done = run_plan(exporter, plan, "--exporter", closed_address)

    assert done.returncode == 1
    assert "cannot reach an exporter at" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results").exists()
    assert "Traceback" not in done.stderr
