"""`wattline.start` and `wattline.measure`."""

import sys

import pytest

import wattline


def test_start_end_returns_the_figures_once(exporter, script):
    done = exporter.python(
        script("""
        run = wattline.start("train", labels={"model": "gpt2"})
        run.work(steps=2)
        assert run.end() == run.end()
        """)
    )

    run = exporter.api.only_run
    assert (run.state, run.outcome, run.work, run.labels) == (
        "ended",
        "ok",
        {"steps": 2},
        {"model": "gpt2"},
    )
    assert done.stderr.count("wattline: run train-") == 1


def test_start_twice_raises(exporter, script):
    done = exporter.python(script("run = wattline.start('train')\nrun.start()"))

    assert "RuntimeError: run 'train' has already started; end it first: run.end()" in done.stderr
    assert exporter.api.only_run.outcome == "failed"


@pytest.mark.parametrize(
    ("last_line", "outcome"),
    [
        ("", "ok"),
        ("1 / 0", "failed"),
        ("raise KeyboardInterrupt", "interrupted"),
        ("sys.exit(0)", "ok"),
    ],
)
def test_start_without_end_ends_when_python_exits(exporter, script, last_line, outcome):
    done = exporter.python(script(f"run = wattline.start('train')\nrun.work(steps=3)\n{last_line}"))

    run = exporter.api.only_run
    assert (run.state, run.outcome, run.work) == ("ended", outcome, {"steps": 3})
    assert f"wattline: run {run.run_id} {outcome} in " in done.stderr


def test_start_forked_child_does_not_end_the_run(exporter, script):
    exporter.python(
        script("""
        run = wattline.start("train")
        if os.fork() == 0:
            run.work(steps=1)
            sys.exit()
        os.wait()
        assert run._api.get(f"/runs/{run.run_id}")["state"] == "running"
        run.work(steps=2)
        """)
    )

    assert (exporter.api.only_run.outcome, exporter.api.only_run.work) == ("ok", {"steps": 3})


def test_measure_each_call_is_a_run(exporter, script):
    done = exporter.python(
        script("""
        import asyncio

        @wattline.measure
        def train(steps):
            return steps + 1

        @wattline.measure("serving", labels={"model": "gpt2"})
        async def serve():
            return "served"

        print(train(1), train(2), asyncio.run(serve()), train.__name__)
        """)
    )

    assert done.stdout == "2 3 served train\n"
    assert [(run.workload, run.outcome) for run in exporter.api.runs.values()] == [
        ("train", "ok"),
        ("train", "ok"),
        ("serving", "ok"),
    ]


def test_measure_exception_fails_the_run(exporter, script):
    done = exporter.python(script("@wattline.measure\ndef train():\n    1 / 0\ntrain()"))

    assert (done.returncode, exporter.api.only_run.outcome) == (1, "failed")


@pytest.mark.parametrize("is_within_runner", [False, True])
def test_measure_within_a_run_is_a_phase(exporter, script, is_within_runner):
    opened = "" if is_within_runner else "run = wattline.start('outer')\n"
    job = script(opened + "@wattline.measure\ndef train():\n    pass\ntrain()")
    if is_within_runner:
        exporter.workloads("run", "--", sys.executable, job)
    else:
        exporter.python(job)

    assert len(exporter.api.runs) == 1
    assert [body["name"] for body in exporter.api.bodies("/phase")] == ["train", "rest"]


def test_measure_generator_raises():
    def batches():
        yield 1

    with pytest.raises(TypeError, match="cannot measure batches: it is a generator"):
        wattline.measure(batches)
