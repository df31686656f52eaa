import os
from pathlib import Path

import pytest

from wattline_workloads.slurm.job import JobDetails, PrologJob, SlurmError, slurm_outcome

ENVIRON = {
    "SLURM_JOB_ID": "4711",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_GPUS": "0,3",
    "SLURM_JOB_RESTART_COUNT": "0",
}
# of slurmctld 22.05
LINE = (
    "JobId=4711 ArrayJobId=4700 ArrayTaskId=5 JobName=it's a=b UserId=c UserId=ada(1000) "
    "GroupId=ada(1000) "
    "Priority=42 Account=physics QOS=normal JobState=COMPLETING Reason=TimeLimit Dependency=(null) "
    "ExitCode=0:15 "
    "RunTime=00:00:02\n"
)


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the output of scontrol."""
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat {tmp_path}/output\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "output"


def test_details_of_the_task_with_the_id_of_its_array_are_its_own(scontrol: Path) -> None:
    """For such an id, scontrol lists all tasks, of which others may have failed."""
    own = LINE.replace("ExitCode=0:15", "ExitCode=0:0").replace("TimeLimit", "None")
    for other in (
        LINE.replace("JobId=4711", "JobId=4710"),
        LINE.replace("JobId=4711", "JobId=47110"),
    ):
        for lines in ((own, other), (other, own)):
            scontrol.write_text("".join(lines))
            details = PrologJob.of(ENVIRON).details()
            assert (details.exit_code, details.reason) == ("0:0", "None")


def test_details_of_a_job_whose_name_is_no_utf8_are_read(scontrol: Path) -> None:
    scontrol.write_bytes(LINE.encode().replace(b"it's", b"caf\xe9"))
    job = PrologJob.of(ENVIRON)
    assert job.labels(job.details())["job_name"] == "caf\ufffd a=b UserId=c"


def test_job_has_the_run_id_that_discovery_gives_it() -> None:
    assert PrologJob.of(ENVIRON).run_id(0) == "slurm-lab-4711"
    assert (
        PrologJob.of({**ENVIRON, "SLURM_CLUSTER_NAME": "my lab!" + "x" * 80}).run_id(0)
        == f"slurm-my_lab_{'x' * 46}-4711"
    )
    assert PrologJob.of({"SLURM_JOB_ID": "5"}).run_id(0) == "slurm-cluster-5"


def test_requeued_job_has_a_number_in_its_run_id() -> None:
    job = PrologJob.of({**ENVIRON, "SLURM_JOB_RESTART_COUNT": "2"})
    assert job.run_id(job.restarts) == "slurm-lab-4711.3"
    assert job.ending_run_ids() == ["slurm-lab-4711.3", "slurm-lab-4711.2"]
    assert [job.attempt_of(run_id) for run_id in job.ending_run_ids()] == [3, 2]
    assert PrologJob.of(ENVIRON).ending_run_ids() == ["slurm-lab-4711"]


def test_environment_without_a_job_is_an_error() -> None:
    with pytest.raises(SlurmError, match="SLURM_JOB_ID is not set"):
        PrologJob.of({"SLURM_JOB_ID": "4711; rm"})


def test_details_are_parsed_with_any_job_name() -> None:
    details = JobDetails.parse(LINE)
    assert details == JobDetails("it's a=b UserId=c", "4700", "0:15", "TimeLimit")
    assert JobDetails.parse("") == JobDetails()


def test_labels_have_printable_values_and_those_allowed() -> None:
    job = PrologJob.of({**ENVIRON, "SLURM_JOB_ACCOUNT": "phy\nsics\x1b"})
    labels = {"discovered": "slurm", "user": "ada", "account": "physics", "partition": "gpu"}
    assert job.labels(JobDetails()) == labels
    assert job.labels(JobDetails(job_name="n" * 200))["job_name"] == "n" * 128
    assert job.labels(JobDetails(array_id="4700"), ["user", "array_id"]) == {
        "discovered": "slurm",
        "user": "ada",
        "array_id": "4700",
    }
    assert job.gpus() == ["0", "3"]
    assert PrologJob.of({"SLURM_JOB_ID": "5"}).gpus() == []


@pytest.mark.parametrize(
    ("exit_code", "reason", "outcome"),
    [
        ("0:0", "None", "ok"),
        ("3:0", "NonZeroExitCode", "failed"),
        ("0:9", "JobLaunchFailure", "failed"),
        ("0:125", "OutOfMemory", "failed"),
        ("0:15", "None", "interrupted"),  # scancel
        ("143:0", "None", "interrupted"),  # a shell whose program was stopped by scancel
        ("0:0", "TimeLimit", "interrupted"),
        ("0:0", "Preempted", "interrupted"),
        ("", "", "unknown"),
    ],
)
def test_outcome_follows_exit_code_signal_and_reason(
    exit_code: str, reason: str, outcome: str
) -> None:
    assert slurm_outcome(exit_code, reason) == outcome
