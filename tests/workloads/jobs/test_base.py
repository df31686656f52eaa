import argparse
from pathlib import Path

import pytest

from wattline_workloads.jobs import base, llm_train


def test_percentile_results_interpolate_linearly():
    # Five values have four steps: 90 % of the way is 3.6 steps, between the fourth (4) and the
    # fifth (10).
    assert base.percentile_results("latency_seconds", [10, 1, 3, 2, 4]) == pytest.approx(
        {
            "latency_seconds_mean": 4.0,
            "latency_seconds_p50": 3.0,
            "latency_seconds_p90": 4 + 0.6 * 6,
            "latency_seconds_p95": 4 + 0.8 * 6,
            "latency_seconds_p99": 4 + 0.96 * 6,
        }
    )


def test_percentile_results_without_values_are_empty():
    assert base.percentile_results("latency_seconds", []) == {}


@pytest.mark.parametrize(
    ("text", "duration_s"), [("10", 10), ("10s", 10), ("0.5", 0.5), ("1.5m", 90), ("2h", 7_200)]
)
def test_positive_seconds_accepts_a_number_or_a_unit(text, duration_s):
    assert base.positive_seconds(text) == duration_s


@pytest.mark.parametrize("text", ["0s", "-1", "s", "inf", "nanm", "10 years", ""])
def test_positive_seconds_refuses_other_texts(text):
    with pytest.raises(
        argparse.ArgumentTypeError, match="is not a duration; give seconds, like 10"
    ):
        base.positive_seconds(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["memcpy", "--size", "much"],
            "argument --size: much is not a size; give bytes, like 1GiB, 500MB or 4096",
        ),
        (["memcpy", "--size", "0"], "argument --size: 0 is not a size"),
        (["memcpy", "--direction", "up"], "argument --direction: invalid choice: 'up'"),
        (["dgemm", "--warmup", "0"], "argument --warmup: 0 is less than 1"),
        (["dgemm", "--duration", "1", "--repetitions", "1"], "not allowed with argument"),
    ],
)
def test_kernel_job_invalid_options_are_one_line_error(exporter, arguments, message):
    done = exporter.workloads("job", *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert exporter.api.runs == {}


def test_job_registry_has_one_module_for_each_job():
    root = Path(base.__file__).parent
    modules = {path.stem for path in root.glob("*.py")} - {"__init__", "base"}

    assert [f"wattline_workloads.jobs.{module}" for module in sorted(modules)] == [
        base.MODULES[each] for each in base.job_names()
    ]
    assert {name.replace("-", "_") for name in base.job_names()} == modules
    assert base.load_job("llm-train").__doc__ == llm_train.__doc__
    assert base.job_command("llm-train", ["-x"])[1:] == [
        "-P",
        "-m",
        "wattline_workloads.jobs.llm_train",
        "-x",
    ]
    with pytest.raises(KeyError):
        base.load_job("llm_train")
