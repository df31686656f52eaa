"""Pods that discovered runs need: refresh, join with their GPUs, outcomes."""

from __future__ import annotations

import asyncio
import logging
import shutil
from dataclasses import replace

import pytest

from tests.exporter.runs.discovery.real_cgroups import cgroup2_mount, cgroups
from wattline_exporter.runs.discovery import pods as discovery
from wattline_exporter.runs.discovery.pods import AWAITED_S, KEPT_S, PodDirectory, PodProcesses
from wattline_exporter.sensors.kubernetes.pod_gpus import PodGpu, PodGpus
from wattline_exporter.sensors.kubernetes.pods import Pod
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.readings import SourceError

UID, OTHER = "c1d8f6a2-7b1e-4a53-9d1c-0f6e5b2a9c01", "c1d8f6a2-7b1e-4a53-9d1c-0f6e5b2a9c02"
A, MIG = "GPU-a", "MIG-a1"
TRAIN = Pod(
    "ml", "train", {"app": "llm"}, {"team": "vision"}, "Job", "train", {"main": None, "proxy": None}
)
OWNER = CgroupOwner("kubernetes", UID, f"/kubepods/pod{UID}")


class Cluster:
    """Pods and GPUs that a directory reads, at a time that the test sets."""

    def __init__(self):
        self.now_s = 100.0
        self.pods = {UID: TRAIN, OTHER: Pod("ml", "idle")}
        self.gpus = (
            PodGpu("ml", "train", "main", "0", MIG, A),
            PodGpu("ml", "train", "main", "0", "MIG-a2", A),
        )
        self.failure = None
        self.walks = self.reads = 0

    def read_pods(self):
        self.reads += 1
        if self.failure:
            raise self.failure
        return self.pods

    def read_gpus(self):
        return PodGpus(self.gpus)

    def cgroups(self):
        self.walks += 1
        return {UID: OWNER.path}

    def directory(self):
        return PodDirectory(
            self.read_pods,
            lambda: PodGpus(self.gpus),
            clock=lambda: self.now_s,
            find_cgroups=self.cgroups,
        )


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def directory(cluster):
    directory = cluster.directory()
    asyncio.run(directory.refresh())
    return directory


def test_pod_with_mig_instances_holds_their_gpu_once(directory):
    assert directory.find(UID).gpus == (A,)
    assert {owner: job.gpus for owner, job in directory.assigned([]).items()} == {OWNER: (A,)}


def test_pods_are_read_for_a_new_one_with_a_gpu_only(cluster, directory):
    for _ in range(3):
        asyncio.run(directory.refresh(with_pods=False))
    assert (cluster.reads, cluster.walks) == (1, 1)
    cluster.gpus = (*cluster.gpus, PodGpu("ml", "new", "main", "1", "GPU-b", "GPU-b"))
    cluster.pods = {**cluster.pods, "uid-new": Pod("ml", "new")}
    asyncio.run(directory.refresh(with_pods=False))
    assert directory.find("uid-new").gpus == ("GPU-b",)
    assert cluster.reads == 2


def test_owner_with_another_path_of_its_cgroup_is_the_same_pod(directory):
    other = replace(OWNER, path="/kubepods.slice/pod")
    assert set(directory.assigned([other])) == {other}


def test_labels_name_the_container_that_holds_the_gpus(directory):
    assert directory.find(UID).labels() == {
        "namespace": "ml",
        "pod": "train",
        "container": "main",
        "owner_kind": "Job",
        "owner_name": "train",
        "pod_label:app": "llm",
        "pod_annotation:team": "vision",
    }
    assert directory.find(OTHER).labels()["container"] == ""


def test_new_pod_is_awaited_until_it_was_read(cluster, directory):
    cluster.now_s += 5.0
    assert directory.awaits(OWNER)
    cluster.now_s += 0.5
    asyncio.run(directory.refresh())
    assert not directory.awaits(OWNER)


def test_pod_is_awaited_for_a_bounded_time(cluster, directory):
    cluster.now_s += 5.0
    assert directory.awaits(OWNER)
    cluster.now_s += AWAITED_S + 0.1
    assert not directory.awaits(OWNER)
    assert not directory.awaits(CgroupOwner("slurm", "1", "/slurm/job_1"))


def test_failure_keeps_the_pods_and_is_logged_once(cluster, directory, caplog):
    cluster.failure = SourceError("cannot read https://api", "check it")
    with caplog.at_level(logging.INFO, logger=discovery.__name__):
        for _ in range(3):
            asyncio.run(directory.refresh())
        assert directory.find(UID).pod == TRAIN
        cluster.failure = None
        asyncio.run(directory.refresh())
    assert [record.message for record in caplog.records] == [
        "runs of pods: the names of pods are unknown: cannot read https://api; check it",
        "runs of pods: the names of pods are known again",
    ]


NEW = "c1d8f6a2-7b1e-4a53-9d1c-0f6e5b2a9c03"


def test_pod_that_cannot_be_read_has_the_name_of_the_holder_of_its_gpus(cluster, directory):
    cluster.failure = SourceError("cannot read https://api", "check it")
    cluster.gpus = (
        PodGpu("ml", "sole", "main", "1", "GPU-b", "GPU-b"),
        PodGpu("ml", "sole", "main", "2", "GPU-c", "GPU-c"),
        *(PodGpu("ml", name, "main", "3", "GPU-d", "GPU-d") for name in ("first", "second")),
    )
    asyncio.run(directory.refresh())
    assert not directory.is_up
    found = directory.find(NEW, ["GPU-b"])
    assert found.labels() | {"owner_kind": "", "owner_name": ""} == {
        "namespace": "ml",
        "pod": "sole",
        "container": "main",
        "owner_kind": "",
        "owner_name": "",
    }
    assert found.gpus == ("GPU-b", "GPU-c")
    assert directory.find(NEW, ["GPU-d"]) is None  # shared by two pods
    assert directory.find(NEW, ["GPU-b", "GPU-d"]) is None
    assert directory.find(NEW, ["GPU-e"]) is None
    cluster.failure = None
    asyncio.run(directory.refresh())
    assert directory.is_up
    assert directory.find(NEW, ["GPU-b"]) is None  # the API server does not know it


def test_pods_that_cannot_be_read_have_the_names_of_their_log_folders(cluster):
    directory = PodDirectory(
        cluster.read_pods,
        cluster.read_gpus,
        read_names=lambda: {UID: Pod("ml", "train"), NEW: Pod("ml", "new")},
        clock=lambda: cluster.now_s,
        find_cgroups=cluster.cgroups,
    )
    asyncio.run(directory.refresh())
    cluster.failure = SourceError("cannot read https://api", "check it")
    cluster.gpus = (PodGpu("ml", "new", "main", "1", "GPU-b", "GPU-b"),)
    asyncio.run(directory.refresh())
    assert directory.find(UID).pod == TRAIN  # as it was read last
    assert directory.find(NEW).labels()["pod"] == "new"
    assert directory.find(NEW).gpus == ("GPU-b",)
    assert not directory.is_up


def test_deleted_pod_is_known_for_a_minute(cluster, directory):
    cluster.pods = {}
    cluster.now_s += KEPT_S - 1.0
    asyncio.run(directory.refresh())
    assert directory.find(UID)
    cluster.now_s += 2.0
    asyncio.run(directory.refresh())
    assert directory.find(UID) is None


def ended(cluster, directory, *, deleted=False):
    """Return the ended pod while the directory is read, as by its service."""

    async def found():
        if deleted:
            cluster.pods, cluster.now_s = {}, cluster.now_s + 1.0
        reader = asyncio.ensure_future(directory.run())
        try:
            async with asyncio.timeout(10):
                return await directory.ended(UID, cluster.now_s + 30.0)
        finally:
            reader.cancel()

    return asyncio.run(found())


def test_outcome_is_read_when_the_status_has_the_exit_code(cluster, directory):
    cluster.pods = {UID: replace(TRAIN, containers={"main": 0, "proxy": None})}
    known = ended(cluster, directory)
    assert known.pod.outcome(known.containers) == "ok"  # of the container with the GPUs


def test_pod_deleted_before_its_status_ends_without_an_outcome(cluster):
    cluster.pods[UID] = replace(TRAIN, is_interrupted=True)
    directory = cluster.directory()
    asyncio.run(directory.refresh())
    known = ended(cluster, directory, deleted=True)
    assert known.pod.outcome(known.containers) is None
    assert known.pod.is_interrupted


def test_pod_known_by_name_only_has_no_outcome_and_no_wait(cluster):
    cluster.pods = {UID: Pod("ml", "train")}
    directory = cluster.directory()
    asyncio.run(directory.refresh())
    assert asyncio.run(directory.ended(UID, cluster.now_s + 30.0)).pod.outcome() is None


@pytest.mark.skipif(cgroup2_mount() is None, reason="needs root and a writable cgroup v2")
def test_processes_of_the_container_runtime_are_not_the_pods(tmp_path):
    pause = str(shutil.copy(shutil.which("sleep"), tmp_path / "pause"))
    with cgroups(cgroup2_mount()) as groups:
        path = f"/{groups.top}/pod"
        processes = PodProcesses()
        assert not processes.lives_in(path)
        groups.start("pod/sandbox", program=pause)
        assert not processes.lives_in(path)
        first = groups.start("pod/container")
        assert processes.lives_in(path)
        second = groups.start("pod/container")
        first.stop()
        assert processes.lives_in(path)
        second.stop()
        assert not processes.lives_in(path)
