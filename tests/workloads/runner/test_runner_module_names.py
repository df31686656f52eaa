"""Modules of a user's folder with the names of Wattline's programs."""

import pytest

STOP = "raise SystemExit('the user s own module was run')"


@pytest.fixture(params=["exporter.py", "workloads.py", "analyzer.py"])
def users_module(write, request):
    """Write a module with the name of a program to the folder of the user's scripts."""
    return write(STOP, request.param)


def test_client_works_beside_users_module_of_a_programs_name(exporter, write, users_module):
    script = write("import wattline\nwith wattline.run('train') as run:\n    run.work(steps=1)\n")
    done = exporter.python(script)

    assert done.returncode == 0
    assert done.stderr.startswith(f"wattline: run {exporter.api.only_run.run_id} ok in ")
    assert exporter.api.only_run.work == {"steps": 1}


def test_runner_works_beside_users_module_of_a_programs_name(exporter, users_module, tmp_path):
    done = exporter.python("-m", "wattline_workloads", "run", "true", cwd=tmp_path)

    assert done.returncode == 0
    assert exporter.api.only_run.workload == "true"


def test_job_works_beside_users_module_of_a_programs_name(exporter, users_module, tmp_path):
    job = ("-m", "wattline_workloads.jobs.sgemm", "--size", "8", "--repetitions", "1")
    done = exporter.python(*job, cwd="/", PYTHONPATH=str(tmp_path))

    assert (done.returncode, exporter.api.only_run.work) == (0, {"flop": 2 * 8**3})
