import sys


def test_a_users_own_exporter_py_does_not_break_the_client(exporter, write):
    write("raise SystemExit('the user s own module was run')", "exporter.py")
    script = write("from workloads import client\nwith client.run('train') as run:\n    run.work(steps=1)\n")
    done = exporter.python(script)

    assert (done.returncode, done.stderr) == (0, "")
    assert exporter.api.only_run.work == {"steps": 1}


def test_the_command_line_says_which_file_hides_the_exporter_and_does_not_run_it(exporter, write, tmp_path):
    hiding = write("raise SystemExit('the user s own module was run')", "exporter.py")
    done = exporter.python("-m", "workloads", "run", "true", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr == (
        f"{hiding} hides Wattline's own package exporter: rename it, or run this from another folder\n"
    )


def test_a_folder_of_that_name_is_named_too(exporter, tmp_path):
    (tmp_path / "exporter").mkdir()
    (tmp_path / "exporter" / "__init__.py").touch()
    done = exporter.python("-m", "workloads", "list", cwd=tmp_path)

    assert done.returncode == 1
    assert f"{tmp_path}/exporter hides Wattline's own package" in done.stderr


def test_a_folder_that_is_no_package_hides_nothing(exporter, tmp_path):
    (tmp_path / "exporter").mkdir()
    done = exporter.python("-m", "workloads", "run", "true", cwd=tmp_path)

    assert done.returncode == 0


def test_a_built_in_job_is_not_hidden_by_what_lies_beside_it(exporter, write, tmp_path):
    write("raise SystemExit('the user s own module was run')", "exporter.py")
    done = exporter.python("-P", "-m", "workloads", "job", "sgemm", "--size", "8", "--repetitions", "1", cwd=tmp_path)

    assert (done.returncode, exporter.api.only_run.work) == (0, {"flop": 2 * 8**3})


def test_a_path_in_pythonpath_hides_it_in_a_job_too(exporter, write, tmp_path):
    write("", "exporter.py")
    done = exporter.python("-m", "workloads.jobs.sgemm", "--size", "8", cwd="/", PYTHONPATH=str(tmp_path))

    assert done.returncode == 1
    assert done.stderr.endswith("rename it, or run this from another folder\n")
    assert sys.executable not in done.stderr
