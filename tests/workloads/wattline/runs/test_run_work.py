"""Work, phases and results that a program reports with the client."""

import itertools

import pytest

import wattline
from wattline.contract.api import MAX_RESULTS, MAX_UNITS


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
    assert {name: value for name, value in first.items() if name != "contributor"} == {
        "samples": 0.0
    }
    assert sum(body.get("steps") == 2 for body in bodies) == 2


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
    "call", ["run.work(steps=-1)", "run.work(steps='x')", "run.result(loss=float('nan'))"]
)
def test_run_invalid_amount_logs_once_and_is_ignored(exporter, script, call):
    done = exporter.python(script(f"with wattline.run('train') as run:\n    {call}\n    {call}"))

    assert done.returncode == 0
    assert done.stderr.count("wattline: cannot ") == 1
    assert exporter.api.only_run.work == {}
    assert exporter.api.only_run.results == {}


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
    assert run.results == {
        "loss": 0.125,
        **{f"r{index}": index for index in range(MAX_RESULTS - 1)},
    }
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

    assert exporter.api.only_run.work == {
        "u0": 3,
        **{f"u{index}": 1 for index in range(1, MAX_UNITS)},
    }
    assert "cannot count work u16: a run has at most 16 units" in done.stderr


@pytest.mark.parametrize(
    ("unit", "amounts"),
    [
        ("sums", (1e300, 1e300)),
        ("infinities", (float("inf"),)),
        ("integers", (10**400,)),
        ("nans", (float("nan"),)),
    ],
)
def test_work_that_is_not_finite_keeps_the_other_work(api, capfd, unit, amounts):
    with wattline.run("train", quiet=True) as run:
        for amount in amounts:
            run.work(**{unit: amount})
        run.work(steps=3)

    assert {name: total for name, total in api.only_run.work.items() if name != unit} == {
        "steps": 3
    }
    assert capfd.readouterr().err.count(f"cannot count work {unit}: ") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.result(x=10**400),
        lambda run: run.iteration(10**400),
        lambda run: run.iteration(1, [1]),
        lambda run: run.request(
            started_at=1, ended_at=2, prompt_tokens=1, generated_tokens=1, labels=[1]
        ),
    ],
)
def test_run_value_of_a_wrong_type_does_not_stop_the_job(api, monkeypatch, tmp_path, capfd, call):
    monkeypatch.setenv("WATTLINE_RECORD", str(tmp_path))
    with wattline.run("train", quiet=True) as run:
        call(run)

    assert (api.only_run.outcome, api.only_run.results) == ("ok", {})
    assert capfd.readouterr().err.count("wattline: cannot re") == 1
