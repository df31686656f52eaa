"""Run ids and labels of discovered runs."""

import pytest

from tests.exporter.runs.discovery.test_slurm import environment
from tests.fakes.cgroup_tree import ID, UID
from wattline_exporter.runs.admission import RunStart
from wattline_exporter.runs.discovery.labels import OwnerLabels
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner

JOB = CgroupOwner("slurm", "4711", "/slurm/job_4711")
STARTED_AT = 1_795_420_549.4


@pytest.fixture
def labels(tmp_path):
    return OwnerLabels(
        proc=tmp_path,
        slurm_conf=tmp_path / "none",
        login_name=lambda uid: {1000: "ada"}.get(uid, str(uid)),
    )


def test_describe_slurm_job_replaces_bidirectional_characters(labels, tmp_path):
    environment(tmp_path, 17, SLURM_JOB_NAME="train\u202egpj.exe\u2069 é")
    assert labels.describe(JOB, 17, STARTED_AT).labels["job_name"] == "train\ufffdgpj.exe\ufffd é"


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
