import re
import signal
import sys

import pytest

import wattline
from tests.polling import eventually
from wattline.contract.run import Emissions


def test_run_of_python_job_reports_work_phase_and_result(exporter, script):
    done = exporter.python(
        script("""
        with wattline.run("train", labels={"model": "gpt2", "layers": 12}) as run:
            run.work(generated_tokens=1000)
            run.work(generated_tokens=234, steps=1)
            run.phase("measure")
            run.result(loss=0.25)
        """)
    )

    run = exporter.api.only_run
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(
        rf"wattline: loss 0.25\nwattline: run {run.run_id} ok in \d\.\d s: no energy was measured; "
        r"exporter check .*\n",
        done.stderr,
    )
    assert (run.workload, run.outcome, run.labels) == (
        "train",
        "ok",
        {"model": "gpt2", "layers": "12"},
    )
    assert run.work == {"generated_tokens": 1234, "steps": 1}
    assert run.results == {"loss": 0.25}
    assert exporter.api.bodies("/phase") == [{"name": "measure"}]
    assert len(exporter.api.pids[run.run_id]) == 1


def test_run_has_energy_after_its_end(exporter, script):
    exporter.api.known_gpus = ("GPU-0", "GPU-1")  # 100 J each
    done = exporter.python(
        script("""
        with wattline.run("train", gpus="0,1") as run:
            print(run.energy_joules)
        print(run.energy_joules, run.uncertainty_joules, run.emissions_grams)
        """)
    )

    run_id = exporter.api.only_run.run_id
    assert done.stdout == "None\n200.0 None None\n"
    assert "200.0 J of the GPUs" in done.stderr
    assert done.stderr.endswith(f"wattline report {run_id} --source {exporter.address}\n")


def test_run_that_joined_has_no_energy_and_logs_nothing(exporter, script):
    exporter.api.known_gpus = ("GPU-0",)
    exporter.api.answer("POST", "/api/v1/runs", b'{"workload": "outer", "run_id": "outer"}')
    done = exporter.python(
        script('with wattline.run("train") as run:\n    pass\nprint(run.energy_joules)'),
        WATTLINE_RUN_ID="outer",
    )

    assert (done.stdout, done.stderr) == ("None\n", "")


def test_run_with_run_id_in_environment_joins_without_ending(exporter, script):
    job = script("""
        for epoch in range(2):
            with wattline.run("train") as run:
                run.work(steps=3)
        """)
    exporter.api.answer("POST", "/api/v1/runs", b'{"workload": "outer", "run_id": "outer"}')
    exporter.python(job, WATTLINE_RUN_ID="outer")

    assert exporter.api.only_run.state == "running"
    assert exporter.api.only_run.work == {"steps": 6}
    assert len(exporter.api.totals["outer"]) == 1


def test_unknown_run_id_in_environment_is_one_message(exporter, script):
    job = script("""
        with wattline.run("train") as run:
            run.work(steps=3)
            run.request(started_at=1.0, ended_at=2.0, prompt_tokens=1, generated_tokens=1)
        """)
    done = exporter.python(job, WATTLINE_RUN_ID="nope")

    cause = "the exporter has no run 'nope'; correct WATTLINE_RUN_ID or WATTLINE_EXPORTER"
    assert done.stderr == f"wattline: this run is not measured: {cause}\n"


def test_run_under_runner_adds_work_to_runners_run(exporter, script):
    exporter.run(
        sys.executable, script('with wattline.run("inner") as run:\n    run.work(samples=5)')
    )

    run = exporter.api.only_run
    assert (run.outcome, run.work) == ("ok", {"samples": 5})
    assert run.workload == "train.py"


@pytest.mark.parametrize(
    ("last_line", "code", "outcome"),
    [
        ("sys.exit(0)", 0, "ok"),
        ("sys.exit(4)", 4, "failed"),
        ("raise RuntimeError('diverged')", 1, "failed"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "interrupted"),
    ],
)
def test_run_exception_sets_outcome_and_propagates(exporter, script, last_line, code, outcome):
    done = exporter.python(
        script(f"with wattline.run('train') as run:\n    run.work(steps=1)\n    {last_line}")
    )

    assert done.returncode == code
    assert exporter.api.only_run.outcome == outcome
    assert exporter.api.only_run.work == {"steps": 1}


def test_run_without_exporter_logs_once_and_continues(exporter, script, closed_address):
    job = script("""
        for _ in range(3):
            with wattline.run("train") as run:
                run.work(steps=1)
                run.phase("measure")
                run.result(loss=1)
        print("trained")
        """)
    done = exporter.python(job, WATTLINE_EXPORTER=closed_address)

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1
    assert done.stderr == (
        f"wattline: this run is not measured: cannot reach an exporter at {closed_address}: "
        "Connection refused; "
        "start an exporter with exporter serve, or start the job with workloads run\n"
    )


def test_run_exporter_lost_continues(exporter, script):
    job = script("""
        import wattline.client.api
        import wattline.runs.end_report
        wattline.runs.end_report.EXIT_WITHIN_S = 0
        with wattline.run("train") as run:
            run._api = run._contributor()._api = wattline.client.api.JobApi("http://127.0.0.1:1")
            run.work(steps=1)
        print("trained")
        """)
    done = exporter.python(job)

    assert (done.returncode, done.stdout) == (0, "trained\n")
    cause = "cannot reach an exporter at http://127.0.0.1:1: Connection refused"
    run_id = exporter.api.only_run.run_id
    assert sorted(done.stderr.splitlines()) == [
        f"wattline: cannot end run {run_id} now: {cause}; the end is sent later, with its time",
        f"wattline: cannot report work: {cause}",
        (
            f"wattline: run {run_id} was not ended: {cause}; the exporter ends it as interrupted "
            "after "
            "this process"
        ),
    ]


def test_run_rejected_labels_logs_once_and_continues(exporter, script):
    done = exporter.python(
        script("with wattline.run('train', labels={'a-b': 1}):\n    print('trained')")
    )

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.startswith("wattline: this run is not measured: ")
    assert done.stderr.count("\n") == 1


def test_run_killed_job_stays_running_with_lease(exporter, script):
    done = exporter.python(script("with wattline.run('train'):\n    os.kill(os.getpid(), 9)"))

    assert done.returncode == -signal.SIGKILL
    assert exporter.api.only_run.state == "running"
    assert exporter.api.begun[exporter.api.only_run.run_id].lease_seconds == 300


def test_client_import_loads_only_standard_library(exporter, script):
    done = exporter.python(
        script(
            "print([m for m in ('pydantic', 'exporter', 'typer', 'psutil') if m in sys.modules])"
        )
    )

    assert done.stdout == "[]\n"


def test_run_idle_job_renews_lease(exporter, script, tmp_path):
    job = script(f"""
        import wattline.client.api
        wattline.client.api.LEASE_S = 0.6
        with wattline.run("train"):
            while not os.path.exists("{tmp_path}/go"):
                time.sleep(0.05)
        """)
    with exporter.start(job):
        try:
            eventually(lambda: len(exporter.api.bodies("/work")) >= 2)
        finally:
            (tmp_path / "go").touch()

    assert exporter.api.bodies("/work")[:2] == [{}, {}]


@pytest.mark.parametrize(
    "call", ["phase('train')", "work(steps=3)", "result(loss=1)", "energy()", "end()"]
)
def test_run_that_has_not_started_raises(exporter, script, call):
    done = exporter.python(script(f"run = wattline.run('nb')\nrun.{call}"))

    assert (done.returncode, exporter.api.runs) == (1, {})
    error = (
        "run 'nb' has not started; use `with wattline.run('nb')`, or `run = wattline.start('nb')`"
    )
    assert f"RuntimeError: {error}\n" in done.stderr


def test_run_that_never_starts_is_reported(exporter, script):
    done = exporter.python(script("run = wattline.run('nb')\nprint('trained')"))

    assert (done.stdout, exporter.api.runs) == ("trained\n", {})
    assert done.stderr.startswith("wattline: nothing was measured: run 'nb' has not started")


def test_run_within_another_has_its_gpus(exporter, script):
    exporter.api.known_gpus = ("GPU-0", "GPU-1")
    exporter.python(
        script("""
        with wattline.run("outer", gpus="1"):
            with wattline.run("inner"):
                pass
        """)
    )

    inner = next(run for run in exporter.api.runs.values() if run.workload == "inner")
    assert [gpu.uuid for gpu in inner.gpus] == ["GPU-1"]


def test_run_takes_an_index_or_several_gpus(exporter, script):
    exporter.api.known_gpus = ("GPU-0", "GPU-1")
    done = exporter.python(
        script("""
        with wattline.run("outer", gpus="1"):
            for number, gpus in enumerate((0, [1], (0, "GPU-1"))):
                with wattline.run(f"inner-{number}", gpus=gpus):
                    pass
        """)
    )

    assert (done.returncode, done.stderr.count("not measured")) == (0, 0), done.stderr
    found = {run.workload: [gpu.uuid for gpu in run.gpus] for run in exporter.api.runs.values()}
    assert found == {
        "outer": ["GPU-1"],
        "inner-0": ["GPU-0"],
        "inner-1": ["GPU-1"],
        "inner-2": ["GPU-0", "GPU-1"],
    }


@pytest.mark.parametrize("gpus", ["[]", "''", "1.5", "['x']"])
def test_run_of_what_is_no_gpu_logs_once_and_continues(exporter, script, gpus):
    done = exporter.python(
        script(f"with wattline.run('train', gpus={gpus}):\n    print('trained')")
    )

    assert (done.returncode, done.stdout, exporter.api.runs) == (0, "trained\n", {})
    assert "is not a GPU; use indices (0,1)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_energy_is_that_of_now_and_of_the_end(exporter, script):
    exporter.api.known_gpus = ("GPU-0",)
    done = exporter.python(
        script("""
        run = wattline.start("train", gpus="0")
        print(run.energy())
        result = run.end()
        print(run.energy().joules, result.energy_joules, result.uncertainty_joules, result.outcome)
        """)
    )

    assert done.stdout == "100.0 J\n100.0 100.0 None ok\n"


def test_energy_after_the_end_has_duration_and_emissions(api):
    run = wattline.start("train", gpus="0", quiet=True)
    api.change(run.run_id, emissions=(Emissions("gpu", "average", "", 2.5),))
    result = run.end()

    energy = run.energy()
    assert (energy.joules, energy.emissions_grams) == (100.0, 2.5)
    assert energy.duration_seconds == result.duration_seconds
    assert energy.metrics() == run.metrics() == result.metrics()


def test_summary_is_silent_on_request(exporter, script):
    job = script("with wattline.run('train'): pass")

    assert exporter.python(job, WATTLINE_QUIET="1").stderr == ""
    assert exporter.python(job).stderr != ""
