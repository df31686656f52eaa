from pathlib import Path

import pytest

from wattline_workloads.plans import load as plan_file
from wattline_workloads.plans.load import PlanFile, PlanFileError
from wattline_workloads.plans.steps import PlanStep

PLANS = Path(__file__).parents[3] / "workloads" / "docs" / "examples"

SIX_LABELS = "{a: 1, b: 1, c: 1, d: 1, e: 1, f: 1}"


@pytest.fixture
def read(tmp_path):
    def read_text(text: str) -> PlanFile:
        path = tmp_path / "plan.yaml"
        path.write_text(text)
        return plan_file.read_plan(path)

    return read_text


@pytest.fixture
def plan_error(read, tmp_path):
    """Return a function that reads an invalid plan and returns its error, without the folder."""

    def error_of(text: str) -> str:
        with pytest.raises(PlanFileError) as caught:
            read(text)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return error_of


def _settings(steps: tuple[PlanStep, ...]) -> list[tuple[object, ...]]:
    return [(*step.settings.values(), step.repeat) for step in steps]


def test_plan_job_with_repeats_has_one_run_per_repeat(read):
    steps = read(
        "name: matrices\ngpus: 0\nrepeats: 2\nlabels: {site: lab}\n"
        "runs:\n  - job: sgemm\n    options: {size: 64, duration: 0.5}\n"
    ).steps

    assert [step.repeat for step in steps] == [1, 2]
    (run,) = steps[0].runs
    assert (run.job, run.arguments, run.gpus) == ("sgemm", ("--size=64", "--duration=0.5"), ("0",))
    assert run.labels == {"experiment": "matrices", "site": "lab", "case": "sgemm", "repeat": "1"}


def test_plan_sweep_is_grid_of_values_and_repeats(read):
    steps = read(
        "name: caps\nrepeats: 2\nruns: [{job: sgemm, sweep: {power_limit_watts: '300:500:100', "
        "size: [64, 128]}}]\n"
    ).steps

    assert _settings(steps)[:5] == [
        (300, 64, 1),
        (300, 64, 2),
        (300, 128, 1),
        (300, 128, 2),
        (400, 64, 1),
    ]
    assert len(steps) == 12  # three limits, two sizes, twice
    assert steps[0].runs[0].arguments == ("--size=64",)
    assert steps[0].runs[0].labels["power_limit_watts"] == "300"
    assert steps[0].runs[0].labels["size"] == "64"


def test_plan_seed_label_is_seed_of_job(read):
    product, passes = read(
        "name: a\nseed: 7\norder: shuffled\nruns: [{job: sgemm}, {job: llm-forward, options: "
        "{seed: 3}}]\n"
    ).steps

    assert "seed" not in product.runs[0].labels
    assert passes.runs[0].labels["seed"] == "3"


def test_plan_tenants_are_labeled_runs_of_one_step(read):
    (step,) = read(
        "name: pair\nruns:\n  - name: two\n    gpus: 1\n    tenants:\n"
        "      - {name: small, job: sgemm, options: {size: 64}}\n"
        "      - {name: own, command: [python, train.py], background: true}\n"
        "    sweep: {small.duration: [2]}\n"
    ).steps

    small, own = step.runs
    assert (small.labels["tenant"], small.labels["mps"], small.gpus) == ("small", "false", ("1",))
    assert small.arguments == ("--size=64", "--duration=2")
    assert (own.job, own.arguments, own.background, own.waits) == (
        None,
        ("python", "train.py"),
        True,
        False,
    )


def test_plan_placement_has_one_job_per_busy_gpu(read):
    (step,) = read(
        "name: neighbours\njobs:\n  noise: {job: sleep, options: {duration: 5}, background: true}\n"
        "runs: [{name: case-1, placement: {0: sgemm, 1: noise, 2: idle}}]\n"
    ).steps

    assert [(run.job, run.gpus, run.labels["tenant"]) for run in step.runs] == [
        ("sgemm", ("0",), "sgemm-0"),
        ("sleep", ("1",), "noise-1"),
    ]


def test_option_arguments_true_is_flag_and_list_repeats():
    from wattline_workloads.plans.steps import option_arguments

    assert option_arguments(
        {"verbose": True, "quiet": False, "seq_len": 8, "env": ["A=1", "B=2"]}
    ) == [
        "--verbose",
        "--seq-len=8",
        "--env=A=1",
        "--env=B=2",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "name: a\nrepeat: 3\nruns: [{job: sleep}]\n",
            "plan.yaml:2: repeat: unknown key; did you mean repeats?",
        ),
        (
            "name: a\nruns:\n  - job: sleep\n    optoins: {duration: 1}\n",
            "plan.yaml:4: runs.0.optoins: unknown key; did you mean options?",
        ),
        (
            (
                "name: a\nruns:\n  - tenants:\n      - name: x\n        job: sleep\n        "
                "colour: "
                "red\n"
            ),
            "plan.yaml:6: runs.0.tenants.0.colour: unknown key; known keys: job, command, options",
        ),
        ("runs: [{job: sleep}]\n", "plan.yaml:1: name: is missing; add it"),
        (
            "name: a\nruns: [{job: sleep}]\nrepeats: five\n",
            "plan.yaml:3: repeats: takes a valid integer, not 'five'",
        ),
        (
            "name: a\nruns: [{job: sleep}]\norder: random\n",
            "plan.yaml:3: order: takes 'as-given', 'shuffled' or 'interleaved', not 'random'",
        ),
        (
            "name: a\nruns: [{job: sleep}]\npause_seconds: -1\n",
            "plan.yaml:3: pause_seconds: takes greater than or equal to 0, not -1",
        ),
        (
            "name: a\nruns:\n  - job: sgemm\n    sweep:\n      power_limit_watts: 700:300:50\n",
            (
                "plan.yaml:5: runs.0.sweep.power_limit_watts: 700:300:50 has no values; give "
                "FIRST:LAST:STEP"
            ),
        ),
        (
            (
                "name: a\nruns:\n  - job: sgemm\n    sweep: {power_limit_watts: [300], "
                "sm_clock_hertz: "
                "[1.0e+9]}\n"
            ),
            (
                "plan.yaml:4: runs.0.sweep: power_limit_watts and sm_clock_hertz cannot be set "
                "together"
            ),
        ),
        (
            "name: a\nruns:\n  - job: sgemm\n    sweep: {power_limit_watts: [300, -1]}\n",
            (
                "plan.yaml:4: runs.0.sweep.power_limit_watts: takes numbers above 0, like [300, "
                "500] "
                "or 300:700:50"
            ),
        ),
        (
            "name: a\njobs:\n  idle: {job: sleep}\nruns: [{job: sleep}]\n",
            "plan.yaml:3: jobs.idle: 'idle' marks a GPU without a job; rename the job",
        ),
        (
            "name: a\nruns:\n  - job: sgem\n",
            "plan.yaml:3: runs.0.job: unknown job 'sgem'; did you mean sgemm?",
        ),
        (
            "name: a\nruns:\n  - job: sleep\n    options:\n      duratoin: 1\n",
            (
                "plan.yaml:5: runs.0.options.duratoin: job sleep: unrecognized arguments: "
                "--duratoin=1; did you mean --du"
            ),
        ),
        (
            "name: a\nruns:\n  - job: sleep\n    sweep:\n      duration: [1, -1]\n",
            (
                "plan.yaml:5: runs.0.sweep.duration: job sleep: argument --duration: -1 is not a "
                "duration"
            ),
        ),
        (
            "name: a\nruns:\n  - {name: x, job: sleep}\n  - {name: x, job: sleep}\n",
            "plan.yaml:4: runs.1.name: another run has the name 'x'; give each a unique name",
        ),
        (
            "name: a\nruns:\n  - tenants: [{name: x, job: sleep}, {name: x, job: sleep}]\n",
            "plan.yaml:3: runs.0.tenants.1.name: another tenant has the name 'x'",
        ),
        (
            "name: a\nruns:\n  - job: sleep\nname: b\n",
            "plan.yaml:4: name: duplicate of the key on line 1; remove one of the two",
        ),
        (
            "name: a\nruns:\n  - name: x\n",
            "plan.yaml:3: runs.0: the job is missing; give one of job, command, tenants, placement",
        ),
        (
            "name: a\nruns:\n  - job: sleep\n    command: [ls]\n",
            "plan.yaml:3: runs.0: job and command exclude each other",
        ),
        (
            "name: a\nruns:\n  - placement: {0: sgem}\n",
            "plan.yaml:3: runs.0.placement.0: unknown job 'sgem'; did you mean sgemm?",
        ),
        (
            "name: a\nlabels: {repeat: 1}\nruns: [{job: sleep}]\n",
            "plan.yaml:2: labels.repeat: repeat is reserved; rename the label",
        ),
        (
            "name: a\nruns:\n  - job: sleep\n    options: {duration: {x: 1}}\n",
            (
                "plan.yaml:4: runs.0.options.duration: takes a text, a number, true, false, or a "
                "list "
                "of these"
            ),
        ),
        (
            "name: a\nmps: true\nruns:\n  - command: [ls]\n",
            "plan.yaml:4: runs.0: cannot verify that the command uses MPS",
        ),
        (
            "name: a\nruns:\n  - tenants: [{name: x, job: sleep, background: true}]\n",
            (
                "plan.yaml:3: runs.0: all jobs run in the background; remove background: true from "
                "at "
                "least one"
            ),
        ),
        (
            "name: a\nruns:\n  - placement: {0: idle}\n",
            "plan.yaml:3: runs.0: all jobs run in the background",
        ),
        (
            "name: a\nruns:\n  - tenants: [{name: x, job: sleep}]\n    sweep: {duration: [1]}\n",
            (
                "plan.yaml:4: runs.0.sweep.duration: duration matches no single job; give "
                "TENANT.OPTION with tenants"
            ),
        ),
        (
            (
                f"name: a\nlabels: {SIX_LABELS}\nruns:\n"
                f"  - {{job: sgemm, labels: {SIX_LABELS.upper()}, sweep: {{size: [8]}}}}\n"
            ),
            "plan.yaml:4: runs.0: a run has at most 16 labels; remove labels or swept options",
        ),
        ("name: [a\n", "plan.yaml:2: invalid YAML: expected ',' or ']'"),
        (
            "name: a\nruns: !jobs []\n",
            "plan.yaml:2: could not determine a constructor for the tag '!jobs'",
        ),
        ("name: a\n? [b]\n: c\n", "plan.yaml:2: found unhashable key; use plain YAML only"),
        ("name: 2026-13-01\n", "plan.yaml: invalid value: month must be in 1..12; quote texts"),
        (
            "name: a\nruns: &all [*all]\n",
            "plan.yaml: invalid value: maximum recursion depth exceeded",
        ),
        ("- a\n", "plan.yaml:1: the file is no mapping; write name: and runs: as its keys"),
        ("", "plan.yaml:1: the file is no mapping; write name: and runs: as its keys"),
    ],
)
def test_plan_error_names_file_line_key_and_remedy(plan_error, text, expected):
    error = plan_error(text)

    assert error.startswith(expected)
    assert error.count("\n") == 0


def test_plan_errors_are_reported_together(plan_error):
    error = plan_error("nam: a\nruns: [{job: sleep}]\nrepeats: 0\n")

    assert [line.split(": ")[1] for line in error.splitlines()] == ["name", "repeats", "nam"]


def test_plan_missing_file_is_one_line_error(tmp_path):
    with pytest.raises(
        PlanFileError,
        match=r"none.yaml: cannot read the plan: No such file or directory; "
        r"give the path of a plan file$",
    ):
        plan_file.read_plan(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.yaml")), ids=lambda path: path.name)
def test_plan_examples_are_valid(path):
    assert plan_file.read_plan(path).steps
