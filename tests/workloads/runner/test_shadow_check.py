import sys


def test_client_works_beside_users_exporter_module(exporter, write):
    write("raise SystemExit('the user s own module was run')", "exporter.py")
    script = write("import wattline\nwith wattline.run('train') as run:\n    run.work(steps=1)\n")
    done = exporter.python(script)

    assert done.returncode == 0
    assert done.stderr.startswith(f"wattline: run {exporter.api.only_run.run_id} ok in ")
    assert exporter.api.only_run.work == {"steps": 1}


def test_shadow_check_users_module_is_named_and_not_run(exporter, write, tmp_path):
    hiding = write("raise SystemExit('the user s own module was run')", "exporter.py")
    done = exporter.python("-m", "workloads", "run", "true", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr == (
        f"cannot import Wattline's package exporter: {hiding} hides it; rename it, or run from another folder\n"
    )


def test_shadow_check_users_package_is_named(exporter, tmp_path):
    (tmp_path / "exporter").mkdir()
    (tmp_path / "exporter" / "__init__.py").touch()
    done = exporter.python("-m", "workloads", "list", cwd=tmp_path)

    assert done.returncode == 1
    assert f"package exporter: {tmp_path}/exporter hides it" in done.stderr


def test_shadow_check_plain_folder_is_ignored(exporter, tmp_path):
    (tmp_path / "exporter").mkdir()
    done = exporter.python("-m", "workloads", "run", "true", cwd=tmp_path)

    assert done.returncode == 0


def test_shadow_check_built_in_job_ignores_current_folder(exporter, write, tmp_path):
    write("raise SystemExit('the user s own module was run')", "exporter.py")
    done = exporter.python("-P", "-m", "workloads", "job", "sgemm", "--size", "8", "--repetitions", "1", cwd=tmp_path)

    assert (done.returncode, exporter.api.only_run.work) == (0, {"flop": 2 * 8**3})


def test_shadow_check_job_with_pythonpath_fails(exporter, write, tmp_path):
    write("", "exporter.py")
    done = exporter.python("-m", "workloads.jobs.sgemm", "--size", "8", cwd="/", PYTHONPATH=str(tmp_path))

    assert done.returncode == 1
    assert done.stderr.endswith("rename it, or run from another folder\n")
    assert sys.executable not in done.stderr
