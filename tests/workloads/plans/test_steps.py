from itertools import product

from wattline_workloads.plans.model import WorkloadPlan
from wattline_workloads.plans.steps import PlanStep, complete_schedule, expand_steps, order_steps

SIX_STEPS = tuple(PlanStep(case, repeat, ()) for case, repeat in product("ab", (1, 2, 3)))


def _names(steps: tuple[PlanStep, ...]) -> str:
    return " ".join(f"{step.case}{step.repeat}" for step in steps)


def test_order_steps_as_given_keeps_file_order():
    assert _names(order_steps(SIX_STEPS, "as-given", 0)) == "a1 a2 a3 b1 b2 b3"


def test_order_steps_interleaved_cycles_repeats():
    assert _names(order_steps(SIX_STEPS, "interleaved", 0)) == "a1 b1 a2 b2 a3 b3"


def test_order_steps_shuffled_depends_on_seed():
    first = _names(order_steps(SIX_STEPS, "shuffled", 7))

    assert first == _names(order_steps(SIX_STEPS, "shuffled", 7))
    assert first != _names(order_steps(SIX_STEPS, "shuffled", 8))
    assert sorted(first.split()) == ["a1", "a2", "a3", "b1", "b2", "b3"]


def test_complete_schedule_adds_idle_and_warm_up():
    plan = WorkloadPlan.model_validate(
        {
            "name": "x",
            "runs": [{"job": "sleep", "gpus": [1]}],
            "warm_up_runs": 2,
            "idle_seconds": 3,
            "repeats": 2,
        }
    )
    steps = complete_schedule(plan, expand_steps(plan))

    assert [step.phase for step in steps] == [
        "idle",
        "warm-up",
        "warm-up",
        "measure",
        "measure",
        "idle",
    ]
    idle, warm_up = steps[0].runs[0], steps[1].runs[0]
    assert (idle.job, idle.arguments, idle.gpus, idle.labels["phase"]) == (
        "sleep",
        ("--duration=3",),
        ("1",),
        "idle",
    )
    assert warm_up.labels == {"experiment": "x", "case": "sleep", "phase": "warm-up"}
