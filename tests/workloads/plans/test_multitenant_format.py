import time

import pytest

from tests.workloads.jobs import llm_models
from tests.workloads.plans.plan_files import read_journal, run_plan, write_file
from wattline_workloads.plans import load as plan_file
from wattline_workloads.plans import results
from wattline_workloads.plans.load import PlanFileError

# verbatim template of the older format
TENANTS = """\
experiment_name: "experiment_name" # Name of data output directory
mps: True/ False # Whether or not to run with Nvidia MPS
sleep_duration: 120
device: "cuda" # Currently only supports cuda

# TODO make sure this is consistent with scripts and solo model config format

tenants:
  - model_name: "model name as found on Hugging Face"
    name: "name shorthand or same as above" # Name of this model's directory in the output data
    batch_size: 16
    seq_len: 128
    num_iters: 200
    num_warmup: 10

  # If multiple tenants are the same model, ensure the name fields are different
  #   to prevent overwriting the output file.
  # For example:
  - model_name: "mistralai/Mistral-7B-Instuct-v0.2"
    name: "mistral7b_1"
    batch_size: 8
    seq_len: 512
    num_iters: 200
    num_warmup: 10

  - model_name: "mistralai/Mistral-7B-Instuct-v0.2"
    name: "mistral7b_2"
    batch_size: 8
    seq_len: 512
    num_iters: 200
    num_warmup: 10
"""
SOLO = """\
experiment_name: "data output directory"

single_model:
  model_name: "model anme as found on Hugging Face"
  name: "shorthand or same as model_name"
  batch_size: 8
  seq_len: 128
  num_warmup: 10
  num_iters: 100
  device: "cuda"
  tag: "template"
"""


def _read_template(tmp_path, text):
    path = tmp_path / "template.yaml"
    path.write_text(text)
    return plan_file.read_plan(path)


def test_multitenant_template_of_tenants_is_read(tmp_path):
    plan_file = _read_template(tmp_path, TENANTS)

    (step,) = plan_file.steps
    assert plan_file.plan.pause_seconds == 120
    assert step.mps
    assert plan_file.notes == ("mps: 'True/ False' is read as true; give true or false",)
    assert [run.tenant for run in step.runs] == [
        "name shorthand or same as above",
        "mistral7b_1",
        "mistral7b_2",
    ]
    assert {run.job for run in step.runs} == {"llm-forward"}
    assert [run.labels["batch_size"] for run in step.runs] == ["16", "8", "8"]
    assert {run.labels["mps"] for run in step.runs} == {"true"}


def test_multitenant_template_of_one_model_is_read(tmp_path):
    plan_file = _read_template(tmp_path, SOLO)

    (step,) = plan_file.steps
    (run,) = step.runs
    assert (step.case, run.job, run.tenant) == (
        "shorthand or same as model_name",
        "llm-forward",
        None,
    )
    assert (run.labels["experiment"], run.labels["tag"]) == ("data output directory", "template")


@pytest.mark.parametrize(
    ("text", "is_on"),
    [('"True"', True), ("true", True), ('"False"', False), ("False", False), ("yes", True)],
)
def test_multitenant_mps_accepts_text(tmp_path, text, is_on):
    plan_file = _read_template(tmp_path, TENANTS.replace("True/ False", text))

    assert plan_file.steps[0].mps is is_on
    assert plan_file.notes == ()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("True/ False", '"perhaps"', ":2: mps: 'perhaps' is not a flag; give true or false"),
        (
            "seq_len: 128",
            "seq_lne: 128",
            "12: tenants.0.seq_lne: unknown key; did you mean seq_len?",
        ),
        (
            "batch_size: 16",
            "batch_size: many",
            "11: tenants.0.batch_size: takes a valid integer, not 'many'",
        ),
        (
            "mistral7b_2",
            "mistral7b_1",
            ":27: tenants.2.name: another tenant has the name 'mistral7b_1'",
        ),
    ],
)
def test_multitenant_error_names_line_and_remedy(tmp_path, before, after, expected):
    with pytest.raises(PlanFileError) as caught:
        _read_template(tmp_path, TENANTS.replace(before, after, 1))

    assert expected in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_multitenant_run_waits_and_has_overlap(exporter, tmp_path):
    model = llm_models.uniform_model(tmp_path / "model")
    text = (
        f"experiment_name: pair\nmps: 'False'\nsleep_duration: 2\ndevice: cpu\ntenants:\n"
        f"  - &one {{model_name: {model}, name: a, batch_size: 2, seq_len: 8, num_iters: 20, "
        f"num_warmup: 1}}\n"
        f"  - {{<<: *one, name: b}}\n"
    )
    plan = write_file(tmp_path, text)
    begin_s = time.time()
    done = run_plan(exporter, plan, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

    a, b = read_journal(tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert a["started_at"] - begin_s >= 2
    assert {run.labels["tenant"]: run.workload for run in exporter.api.runs.values()} == {
        "a": "llm-forward",
        "b": "llm-forward",
    }
    assert {run.labels["batch_size"] for run in exporter.api.runs.values()} == {"2"}
    assert a["overlap"]["begin"] == b["overlap"]["begin"]
    for line in (a, b):
        events = results.read_events(tmp_path / "results" / line["folder"])
        assert sum(event.event == "iteration" for event in events) == 20
