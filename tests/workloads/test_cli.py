import json

import pytest

from wattline_workloads.jobs.base import workload_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/train", "x.py"], "train"),
        (["python", "x.py", "--lr", "1"], "x.py"),
        (["/opt/bin/python3.11", "-u", "-X", "dev", "dir/x.py"], "x.py"),
        (["python", "-m", "pkg.train"], "pkg.train"),
        (["python", "-um", "pkg.train", "x.py"], "pkg.train"),
        (["python", "-c", "print()"], "python"),
        (["python", "-Ic", "print()", "x.py"], "python"),
        (["python", "-", "x.py"], "python"),
        (["python"], "python"),
        (["pypy3.10", "x.py"], "x.py"),
        (["bash", "-eu", "-o", "pipefail", "dir/x.sh", "y"], "x.sh"),
        (["sh", "-c", "python x.py"], "sh"),
        (["bash", "-lc", "python x.py"], "bash"),
        (["env", "A=1", "-i", "python3", "x.py"], "x.py"),
        (["env"], "env"),
        (["torchrun", "--nproc-per-node", "8", "dir/x.py", "--lr", "1"], "x.py"),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "x.py"], "x.py"),
        (["accelerate", "launch", "x.py"], "x.py"),
        (["uv", "run", "--with", "torch", "python", "x.py"], "x.py"),
        (["uv", "run", "pytest"], "uv"),
        (["python-train", "x.py"], "python-train"),
    ],
)
def test_workload_of_command_is_program_script_or_module(command, name):
    assert workload_of(command) == name


def test_run_options_after_command_belong_to_command(exporter):
    done = exporter.workloads(
        "run", "-l", "a=1", "-l", "b=x=y", "--name", "w", "echo", "--gpus", "7", "-l", "c"
    )

    run = exporter.api.only_run
    assert done.stdout == "--gpus 7 -l c\n"
    assert (run.workload, run.labels) == ("w", {"a": "1", "b": "x=y"})


def test_run_double_dash_ends_own_options(exporter):
    assert exporter.workloads("run", "--", "echo", "--", "-x").stdout == "-- -x\n"


def test_run_id_option_sets_run_id(exporter):
    exporter.workloads("run", "--run-id", "night-7", "true")

    assert exporter.api.only_run.run_id == "night-7"


def test_gpus_all_selects_whole_node(exporter):
    exporter.workloads("run", "--gpus", "all", "true")

    assert exporter.api.begun[exporter.api.only_run.run_id].gpus is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--bogus", "true"], "wattline: unknown option --bogus; did you mean --gpus?\n"),
        (["run"], "wattline: COMMAND is missing; see workloads run --help"),
        (["run", "-l", "novalue", "true"], "-l novalue: a label has the form key=value"),
        (
            ["run", "-l", "a-b=1", "true"],
            "labels.a-b: expected letters, digits and '_', the first one no digit",
        ),
        (
            ["run", "-l", f"a={'x' * 129}", "true"],
            "labels.a: expected at most 128 characters",
        ),
        (
            ["run", *(f"-ll{i}=1" for i in range(17)), "true"],
            "labels: 17 labels, at most 16 are allowed",
        ),
        (["run", "--gpus", "x", "true"], "--gpus x: 'x' is not a GPU"),
        (
            ["run", "--run-id", "a/b", "true"],
            "run_id: expected 1 to 64 letters, digits, '.', '_' or '-'",
        ),
        (["job", "nothing"], "unknown job 'nothing'; the jobs are container, dgemm, "),
        (["job", "sgemm", "--size", "0"], "argument --size: 0 is less than 1"),
        (["job", "sgemm", "--bogus"], "unrecognized arguments: --bogus"),
        (
            ["job", "sleep", "--duratoin", "1"],
            "wattline: unrecognized arguments: --duratoin 1; did you mean --duration?\n",
        ),
        (
            ["job", "sleep", "--gpu", "0"],
            "wattline: unrecognized arguments: --gpu 0; did you mean --gpus?\n",
        ),
        (
            ["job", "sleep", "--power-limit", "300"],
            "--power-limit 300; known options: --duration; see",
        ),
        (["job", "sleep", "--duration", "x"], "argument --duration: x is not a duration"),
        (["list", "--format", "xml"], "'xml' is not one of 'table', 'json'"),
        (["bogus"], "wattline: unknown command 'bogus'; see workloads --help"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(exporter, arguments, message):
    done = exporter.workloads(*arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert exporter.api.runs == {}


def test_exporter_address_invalid_is_one_line_error(exporter):
    done = exporter.workloads("run", "--exporter", "ftp://node", "true")

    assert done.returncode == 1
    assert (
        done.stderr
        == "wattline: 'ftp://node' of --exporter is not an exporter address; use the form http://127.0.0.1:9847\n"
    )


def test_list_prints_all_jobs(exporter):
    table = exporter.workloads("list").stdout.splitlines()
    as_json = json.loads(exporter.workloads("list", "--format", "json").stdout)

    names = [line.split()[0] for line in table]
    assert {"llm-train", "sgemm", "sleep"} < set(names)
    assert [row["name"] for row in as_json] == names


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["job", "--help"], ["job", "sgemm", "--help"]]
)
def test_help_is_printed_on_stdout(exporter, arguments):
    done = exporter.workloads(*arguments)

    assert done.returncode == 0
    assert "usage: workloads" in done.stdout.lower()
    assert done.stderr == ""
