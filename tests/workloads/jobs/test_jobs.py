from pathlib import Path

import pytest

from workloads.jobs import base as jobs
from workloads.jobs import llm_train


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["memcpy", "--size", "much"], "argument --size: much is not a size; give bytes, like 1GiB, 500MB or 4096"),
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
    root = Path(jobs.__file__).parent
    modules = {path.stem for path in root.glob("*.py")} - {"__init__", "base"}

    assert [f"workloads.jobs.{module}" for module in sorted(modules)] == [
        jobs.MODULES[each] for each in jobs.job_names()
    ]
    assert {name.replace("-", "_") for name in jobs.job_names()} == modules
    assert jobs.load_job("llm-train").__doc__ == llm_train.__doc__
    assert jobs.job_command("llm-train", ["-x"])[1:] == ["-P", "-m", "workloads.jobs.llm_train", "-x"]
    with pytest.raises(KeyError):
        jobs.load_job("llm_train")
