"""Slurm jobs: their environment, and the folder with the jobs of each GPU that a prolog writes."""

from pathlib import Path

from wattline_exporter.runs.discovery.slurm import JobMappingFolder, describe_job


def test_job_mapping_with_an_unreadable_file_has_the_other_jobs(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("21\n")
    (tmp_path / "1").write_bytes(b"\xff\xfe22\n")
    (tmp_path / "2").write_text("21\n23\n")
    assigned = JobMappingFolder(tmp_path, resolve=lambda name: f"/slurm/{name}").read()
    assert {owner.id: job.gpus for owner, job in assigned.items()} == {
        "21": ("0", "2"),
        "23": ("2",),
    }


def environment(tmp_path, pid, **variables):
    (tmp_path / str(pid)).mkdir()
    content = b"".join(f"{name}={value}".encode() + b"\0" for name, value in variables.items())
    (tmp_path / str(pid) / "environ").write_bytes(content)


def describe(tmp_path, pid):
    conf = tmp_path / "slurm.conf"
    conf.write_text("# ClusterName=no\nSlurmctldHost=head\n clustername = alps\n")
    return describe_job("4711", pid, tmp_path, conf)


def test_describe_job_takes_its_environment(tmp_path):
    environment(
        tmp_path,
        17,
        SLURM_CLUSTER_NAME="daint",
        SLURM_JOB_USER="ada",
        SLURM_JOB_ACCOUNT="physics",
        SLURM_JOB_PARTITION="gpu",
        SLURM_JOB_NAME="train\nllm",
        SLURM_ARRAY_JOB_ID="4700",
        SLURM_JOB_GPUS="0,2",
    )
    job = describe(tmp_path, 17)
    assert job.run_id == "slurm-daint-4711"
    assert job.gpus == ("0", "2")
    assert job.labels == {
        "user": "ada",
        "account": "physics",
        "partition": "gpu",
        "job_name": "train\nllm",
        "array_id": "4700",
    }


def test_describe_job_requeued_counts_its_attempts_as_slurm_does(tmp_path):
    environment(tmp_path, 17, SLURM_RESTART_COUNT="2", SLURM_STEP_GPUS="1,3")
    job = describe(tmp_path, 17)
    assert job.run_id == "slurm-alps-4711.3"
    assert (job.gpus, job.some_gpus) == ((), ("1", "3"))


def test_describe_job_without_environment_has_configured_cluster(tmp_path):
    job = describe(tmp_path, 17)
    assert (job.run_id, set(job.labels.values())) == ("slurm-alps-4711", {""})
