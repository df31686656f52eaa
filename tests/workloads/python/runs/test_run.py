import itertools
import re
import signal
import sys

import pytest

from exporter.contract.run import MAX_RESULTS, MAX_UNITS
from tests.polling import eventually


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
        rf"wattline: loss 0.25\nwattline: run {run.run_id} ok in \d\.\d s: no energy was measured; exporter check .*\n",
        done.stderr,
    )
    assert (run.workload, run.outcome, run.labels) == ("train", "ok", {"model": "gpt2", "layers": "12"})
    assert run.work == {"generated_tokens": 1234, "steps": 1}
    assert run.results == {"loss": 0.25}
    assert exporter.api.bodies("/phase") == [{"name": "measure"}]
    assert len(exporter.api.pids[run.run_id]) == 1


def test_run_declares_its_unit_of_work_before_its_work(exporter, script):
    done = exporter.python(
        script("""
        for _ in range(2):
            with wattline.run("train", unit="samples") as run:
                run.work(steps=1)
                run.work(samples=64, steps=1)
        """),
        WATTLINE_RUN_ID="",
    )
    first, *_ = bodies = exporter.api.bodies("/work")

    assert (done.returncode, done.stderr.count("cannot")) == (0, 0)
    assert {name: value for name, value in first.items() if name != "contributor"} == {"samples": 0.0}
    assert sum(body.get("steps") == 2 for body in bodies) == 2


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
    assert done.stderr.endswith(f"analyzer report --run-id {run_id} --source {exporter.address}\n")


def test_run_that_joined_has_no_energy_and_logs_nothing(exporter, script):
    exporter.api.known_gpus = ("GPU-0",)
    exporter.api.answer("POST", "/api/v1/runs", b'{"workload": "outer", "run_id": "outer"}')
    done = exporter.python(
        script('with wattline.run("train") as run:\n    pass\nprint(run.energy_joules)'), WATTLINE_RUN_ID="outer"
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


def test_run_under_runner_adds_work_to_runners_run(exporter, script):
    exporter.run(sys.executable, script('with wattline.run("inner") as run:\n    run.work(samples=5)'))

    run = exporter.api.only_run
    assert (run.outcome, run.work) == ("ok", {"samples": 5})
    assert run.workload == "train.py"


def test_work_posts_totals_at_most_four_times_a_second(exporter, script):
    exporter.python(
        script("""
        with wattline.run("train") as run:
            for _ in range(2000):
                run.work(steps=1)
                time.sleep(0.0005)
        """)
    )

    posts = [request for request in exporter.api.requests if request.path.endswith("/work")]
    totals = [post.body["steps"] for post in posts]
    assert totals == sorted(totals)
    assert totals[-1] == 2000
    assert exporter.api.only_run.work == {"steps": 2000}
    # all posts but the last, at the exit, are at least 0.25 s apart
    assert all(later.at_s - earlier.at_s > 0.2 for earlier, later in itertools.pairwise(posts[:-1]))


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
    done = exporter.python(script(f"with wattline.run('train') as run:\n    run.work(steps=1)\n    {last_line}"))

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
        f"wattline: this run is not measured: cannot reach an exporter at {closed_address}: Connection refused; "
        "start an exporter with exporter serve, or start the job with workloads run\n"
    )


def test_run_exporter_lost_continues(exporter, script):
    job = script("""
        with wattline.run("train") as run:
            run._api = run._contributor()._api = wattline.client.api.Api("http://127.0.0.1:1")
            run.work(steps=1)
        print("trained")
        """)
    done = exporter.python(job)

    assert (done.returncode, done.stdout) == (0, "trained\n")
    cause = "cannot reach an exporter at http://127.0.0.1:1: Connection refused"
    assert done.stderr == (
        f"wattline: cannot report work: {cause}\nwattline: cannot end run {exporter.api.only_run.run_id}: {cause}\n"
    )


@pytest.mark.parametrize("call", ["run.work(steps=-1)", "run.work(steps='x')", "run.result(loss=float('nan'))"])
def test_run_invalid_amount_logs_once_and_is_ignored(exporter, script, call):
    done = exporter.python(script(f"with wattline.run('train') as run:\n    {call}\n    {call}"))

    assert done.returncode == 0
    assert done.stderr.count("wattline: cannot ") == 1
    assert exporter.api.only_run.work == {}
    assert exporter.api.only_run.results == {}


def test_run_rejected_labels_logs_once_and_continues(exporter, script):
    done = exporter.python(script("with wattline.run('train', labels={'a-b': 1}):\n    print('trained')"))

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
        script("print([m for m in ('pydantic', 'exporter', 'typer', 'psutil') if m in sys.modules])")
    )

    assert done.stdout == "[]\n"


def test_run_idle_job_renews_lease(exporter, script, tmp_path):
    job = script(f"""
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


def test_phase_as_context_manager_restores_previous_phase(exporter, script):
    exporter.python(
        script("""
        with wattline.run("train") as run:
            run.phase("train")
            with run.phase("validation"):
                with run.phase("metrics"):
                    pass
            run.phase("test")
        """)
    )

    names = [body["name"] for body in exporter.api.bodies("/phase")]
    assert names == ["train", "validation", "metrics", "validation", "train", "test"]


def test_phase_first_context_manager_returns_to_rest_on_exception(exporter, script):
    exporter.python(
        script("""
        with wattline.run("train") as run:
            try:
                with run.phase("validation"):
                    raise RuntimeError
            except RuntimeError:
                pass
        """)
    )

    assert exporter.api.bodies("/phase") == [{"name": "validation"}, {"name": "rest"}]


def test_result_invalid_or_excess_keeps_other_results(exporter, script):
    done = exporter.python(
        script("""
        with wattline.run("train") as run:
            run.result(loss=0.25, **{"top-1": 0.5})
            run.result(**{f"r{index}": index for index in range(70)})
            run.result(loss=0.125)
        """)
    )

    run = exporter.api.only_run
    assert run.outcome == "ok"
    assert run.results == {"loss": 0.125, **{f"r{index}": index for index in range(MAX_RESULTS - 1)}}
    assert "cannot report result top-1: use a name of at most 64 ASCII letters" in done.stderr
    assert "cannot report result r69: a run has at most 64 results" in done.stderr


def test_work_excess_unit_keeps_other_units(exporter, script):
    done = exporter.python(
        script("""
        with wattline.run("train") as run:
            run.work(**{f"u{index}": 1 for index in range(17)})
            run.work(u0=2)
        """)
    )

    assert exporter.api.only_run.work == {"u0": 3, **{f"u{index}": 1 for index in range(1, MAX_UNITS)}}
    assert "cannot count work u16: a run has at most 16 units" in done.stderr


@pytest.mark.parametrize("call", ["phase('train')", "work(steps=3)", "result(loss=1)", "energy()", "end()"])
def test_run_that_has_not_started_raises(exporter, script, call):
    done = exporter.python(script(f"run = wattline.run('nb')\nrun.{call}"))

    assert (done.returncode, exporter.api.runs) == (1, {})
    error = "run 'nb' has not started; use `with wattline.run('nb')`, or `run = wattline.start('nb')`"
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
    assert found == {"outer": ["GPU-1"], "inner-0": ["GPU-0"], "inner-1": ["GPU-1"], "inner-2": ["GPU-0", "GPU-1"]}


@pytest.mark.parametrize("gpus", ["[]", "''", "1.5", "['x']"])
def test_run_of_what_is_no_gpu_logs_once_and_continues(exporter, script, gpus):
    done = exporter.python(script(f"with wattline.run('train', gpus={gpus}):\n    print('trained')"))

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


def test_request_posts_batch_with_optional_fields(exporter, script):
    exporter.python(
        script("""
        with wattline.run("serve") as run:
            run.request(started_at=10, ended_at=12.5, prompt_tokens=7, generated_tokens=3)
            run.request(
                request_id="r-1", started_at=10, first_token_at=10.5, ended_at=12, prompt_tokens=7, cached_tokens=4,
                generated_tokens=3, labels={"user": "ann", "tier": 2},
            )
        """)
    )

    first, second = exporter.api.served.values()
    assert {name: value for name, value in first.items() if name != "id"} == {
        "started_at": 10,
        "ended_at": 12.5,
        "prompt_tokens": 7,
        "generated_tokens": 3,
    }
    assert second == {
        "id": "r-1",
        "started_at": 10,
        "first_token_at": 10.5,
        "ended_at": 12,
        "prompt_tokens": 7,
        "cached_tokens": 4,
        "generated_tokens": 3,
        "labels": {"user": "ann", "tier": "2"},
    }
    assert exporter.api.only_run.results == {}


def test_request_that_is_refused_is_declared_in_the_results(exporter, script):
    done = exporter.python(
        script("""
        with wattline.run("serve") as run:
            for tokens in (1, -1, 2):
                run.request(started_at=1, ended_at=2, prompt_tokens=1, generated_tokens=tokens)
        """)
    )

    assert [one["generated_tokens"] for one in exporter.api.served.values()] == [1, 2]
    assert exporter.api.only_run.results == {"requests_not_recorded": 1}
    assert "wattline: 1 requests were not recorded" in done.stderr


def test_request_with_numbers_of_numpy_or_nan_does_not_stop_the_others(exporter, script):
    done = exporter.python(
        script("""
        import numpy
        with wattline.run("serve") as run:
            run.request(started_at=float("nan"), ended_at=2, prompt_tokens=1, generated_tokens=1)
            run.request(started_at=numpy.float64(1.5), ended_at=2, prompt_tokens=numpy.int64(4), generated_tokens=3)
        """)
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert [(one["started_at"], one["prompt_tokens"]) for one in exporter.api.served.values()] == [(1.5, 4)]
    assert exporter.api.only_run.results == {"requests_not_recorded": 1}


def test_summary_is_silent_on_request(exporter, script):
    job = script("with wattline.run('train'): pass")

    assert exporter.python(job, WATTLINE_QUIET="1").stderr == ""
    assert exporter.python(job).stderr != ""
