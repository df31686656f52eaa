"""Run ids and labels of discovered runs."""

import pytest

from tests.fakes.cgroup_tree import ID, UID
from wattline_exporter.runs.admission import RunStart
from wattline_exporter.runs.discovery.labels import OwnerLabels
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner

JOB = CgroupOwner("slurm", "4711", "/slurm/job_4711")
STARTED_AT = 1_795_420_549.4


@pytest.fixture
def labels(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("# ClusterName=no\nSlurmctldHost=head\n clustername = alps\n")
    return OwnerLabels(
        proc=tmp_path, slurm_conf=conf, login_name=lambda uid: {1000: "ada"}.get(uid, str(uid))
    )


def environment(tmp_path, pid, **variables):
    (tmp_path / str(pid)).mkdir()
    content = b"".join(f"{name}={value}".encode() + b"\0" for name, value in variables.items())
    (tmp_path / str(pid) / "environ").write_bytes(content)


def test_describe_slurm_job_takes_its_environment(labels, tmp_path):
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
    described = labels.describe(JOB, 17, STARTED_AT)
    assert described.run_id == "slurm-daint-4711"
    assert described.gpus == ("0", "2")
    assert described.labels == {
        "discovered": "slurm",
        "user": "ada",
        "account": "physics",
        "partition": "gpu",
        "job_name": "train\nllm",
        "array_id": "4700",
    }


def test_describe_requeued_slurm_job_counts_its_attempts_as_slurm_does(labels, tmp_path):
    environment(tmp_path, 17, SLURM_RESTART_COUNT="2", SLURM_STEP_GPUS="1,3")
    described = labels.describe(JOB, 17, STARTED_AT)
    assert described.run_id == "slurm-alps-4711.3"
    assert (described.gpus, described.some_gpus) == ((), ("1", "3"))


def test_describe_slurm_job_replaces_bidirectional_characters(labels, tmp_path):
    environment(tmp_path, 17, SLURM_JOB_NAME="train\u202egpj.exe\u2069 é")
    assert labels.describe(JOB, 17, STARTED_AT).labels["job_name"] == "train\ufffdgpj.exe\ufffd é"


def test_describe_slurm_job_without_environment_has_configured_cluster(labels):
    described = labels.describe(JOB, 17, STARTED_AT)
    assert (described.run_id, described.labels) == ("slurm-alps-4711", {"discovered": "slurm"})


@pytest.mark.parametrize(
    ("owner", "run_id", "kept"),
    [
        (CgroupOwner("kubernetes", UID, "/kubepods/pod"), f"pod-{UID}", {}),
        (CgroupOwner("container", ID, "/docker"), f"container-{ID[:12]}", {}),
        (CgroupOwner("user", "1000", ""), "user-ada-1795420549", {"user": "ada"}),
        (CgroupOwner("user", "4242", ""), "user-4242-1795420549", {"user": "4242"}),
        (
            CgroupOwner("service", "vllm@big model.service", "/system.slice"),
            "unit-vllm_big_model-1795420549",
            {"unit": "vllm@big model.service"},
        ),
    ],
)
def test_describe_owner_returns_run_id_and_labels(labels, owner, run_id, kept):
    described = labels.describe(owner, 17, STARTED_AT)
    assert described.run_id == run_id
    assert described.labels == {"discovered": owner.kind, **kept}


def test_describe_long_names_make_valid_requests(labels, tmp_path):
    environment(tmp_path, 17, SLURM_CLUSTER_NAME="x" * 90, SLURM_JOB_NAME="n" * 500 + "\x1b")
    for owner, end in (
        (JOB, "-4711"),
        (CgroupOwner("service", "s" * 200 + ".service", "/"), "-1795420549"),
    ):
        described = labels.describe(owner, 17, STARTED_AT)
        RunStart(workload=owner.kind, run_id=described.run_id, labels=described.labels)
        assert described.run_id.endswith(end)


def test_describe_exports_allowed_labels_only(tmp_path):
    environment(tmp_path, 17, SLURM_JOB_USER="ada", SLURM_JOB_NAME="secret")
    described = OwnerLabels(["user"], proc=tmp_path, slurm_conf=tmp_path / "none").describe(
        JOB, 17, STARTED_AT
    )
    assert described.labels == {"discovered": "slurm", "user": "ada"}
    assert described.run_id == "slurm-cluster-4711"
