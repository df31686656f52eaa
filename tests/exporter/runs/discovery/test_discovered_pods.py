"""Runs of pods: real cgroups, a kubelet's socket, an API server over HTTPS, simulated GPUs with
known energy.
"""

import shutil
import time
import uuid

import pytest

pytest.importorskip("grpc", reason="needs the extra kubernetes")

from tests.daemon import daemon
from tests.exporter.runs.discovery.real_cgroups import cgroup2_mount, cgroups
from tests.exporter.runs.discovery.test_discovered_runs import (
    OPTIONS,
    SEEN_WITHIN_S,
    assert_energies_are_true,
    assert_times_are_true,
    runs,
    wait_for_run,
)
from tests.fakes import nvml
from tests.fakes.kubelet import FakeKubelet, claim, claimed, container, devices, kubelet_server, pod
from tests.fakes.kubernetes_api import (
    NODE,
    container_status,
    kubernetes_api,
    pod_object,
    resource_slice,
    slice_device,
)
from tests.polling import eventually
from wattline_exporter.sensors.readings import boottime  # after the check for grpc
from wattline_exporter.simulation import PRODUCTS, Simulation, create, make_gpus

ID = "9d4f" + "2e" * 30
GIB = 1 << 30

pytestmark = pytest.mark.skipif(
    cgroup2_mount() is None, reason="needs root and a writable cgroup v2"
)


class Node:
    """A node of a cluster with an exporter's sources: cgroups, the kubelet's socket, the API
    server.
    """

    def __init__(self, folder, groups, kubelet, api):
        self.groups, self.kubelet, self.api = groups, kubelet, api
        self.options = (
            *OPTIONS,
            "--runs.discover",
            "kubernetes",
            "--kubelet.pod-resources",
            str(folder / "k.sock"),
        )
        account = ("--kubernetes.api", api.url, "--kubernetes.credentials", str(api.credentials))
        self.of_api = (*account, "--kubernetes.pods", "api")
        self.of_kubelet = (*account, "--kubernetes.pods", f"{api.url}/pods")
        self.pause = str(shutil.copy(shutil.which("sleep"), folder / "pause"))

    def add(self, name, *gpus, claims=(), resource="nvidia.com/gpu", **metadata):
        """Create a pod that holds GPUs; return its UID."""
        uid = str(uuid.uuid4())
        made = pod_object(uid, "ml", name, containerStatuses=[container_status("main")])
        made["metadata"] |= metadata
        self.api.pods.append(made)
        self.groups.start(f"{self.path(uid)}/crio-conmon-{ID}.scope", program=self.pause)
        if gpus or claims:
            self.kubelet.pods.append(
                pod("ml", name, container("main", devices(resource, *gpus), claims=claims))
            )
        return uid

    def path(self, uid):
        return f"kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"

    def start(self, uid):
        return self.groups.start(f"{self.path(uid)}/cri-containerd-{ID}.scope")

    def exits(self, uid, code, **metadata):
        """Set the exit code of the pod's container."""
        (made,) = (made for made in self.api.pods if made["metadata"]["uid"] == uid)
        made["metadata"] |= metadata
        made["status"]["containerStatuses"] = [container_status("main", code)]


@pytest.fixture
def node(tmp_path):
    with (
        cgroups(cgroup2_mount()) as groups,
        kubelet_server(tmp_path / "k.sock", FakeKubelet()) as kubelet,
        kubernetes_api(tmp_path / "account") as api,
    ):
        yield Node(tmp_path, groups, kubelet, api)


def gpus_of(exporter):
    return {labels["gpu"]: labels["uuid"] for labels, _ in exporter.metrics()["wattline_gpu_info"]}


def owned_by(kind, name, **labels):
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": True}], "labels": labels}


def test_pods_are_runs_on_their_assigned_gpus_with_owner_and_outcome(tmp_path, node):
    labels = "namespace,pod,container,owner_kind,owner_name,pod_label:app.kubernetes.io/name,pod_annotation:team"
    options = (*node.options, *node.of_api, "--runs.labels", labels)
    environment = {"NODE_NAME": NODE}
    with (
        daemon(tmp_path, *options, env=environment) as exporter,
        exporter.simulation() as simulation,
    ):
        uuids = gpus_of(exporter)
        node.api.slices = [
            resource_slice(NODE, *(slice_device(f"gpu-{n}", uuid=id_) for n, id_ in uuids.items()))
        ]
        claims = (claim("ml", "two", claimed(NODE, "gpu-0"), claimed(NODE, "gpu-4")),)
        app = {"app.kubernetes.io/name": "llm", "pod-template-hash": "7d9f"}
        dra = node.add("llm-7d9f-x2", claims=claims, **owned_by("ReplicaSet", "llm-7d9f", **app))
        plugin = node.add(
            "train-0",
            f"{uuids['1']}::3",
            annotations={"team": "vision"},
            **owned_by("Job", "train"),
        )
        bare = node.add("debug")
        programs = {uid: node.start(uid) for uid in (dra, plugin, bare)}
        for gpu, program in enumerate(programs.values()):
            simulation.drive(gpu, 0.4 + 0.1 * gpu, program.key.pid)
        for uid in programs:
            wait_for_run(exporter, run_id=f"pod-{uid}", state="running")
        for index, name in (("0", "llm-7d9f-x2"), ("4", "llm-7d9f-x2"), ("1", "train-0")):
            exporter.wait_for_metric(
                lambda value: value == 1.0, "wattline_gpu_pod_info", gpu=index, pod=name
            )
        time.sleep(SEEN_WITHIN_S)
        for gpu, (uid, code) in enumerate(((dra, 0), (plugin, 137), (bare, 143))):
            programs[uid].stop()
            simulation.release(gpu, programs[uid].key.pid)
            node.exits(
                uid, code, **({"deletionTimestamp": "2026-11-23T10:00:00Z"} if uid == bare else {})
            )
        ended = {
            uid: wait_for_run(exporter, run_id=f"pod-{uid}", state="ended") for uid in programs
        }
    for uid, program in programs.items():
        assert_times_are_true(ended[uid], program)
        assert_energies_are_true(exporter, ended[uid])
    assert {uid: run["outcome"] for uid, run in ended.items()} == {
        dra: "ok",
        plugin: "failed",
        bare: "interrupted",
    }
    assert [gpu["gpu"] for gpu in ended[dra]["gpus"]] == ["0", "4"]
    assert [gpu["gpu"] for gpu in ended[plugin]["gpus"]] == ["1"]
    assert [gpu["gpu"] for gpu in ended[bare]["gpus"]] == ["2"]  # on which its process was seen
    kind = {"discovered": "kubernetes", "namespace": "ml", "container": "main"}
    deployment = {
        "owner_kind": "Deployment",
        "owner_name": "llm",
        "pod_label_app_kubernetes_io_name": "llm",
    }
    assert ended[dra]["labels"] == {**kind, "pod": "llm-7d9f-x2", **deployment}
    job = {"owner_kind": "Job", "owner_name": "train", "pod_annotation_team": "vision"}
    assert ended[plugin]["labels"] == {**kind, "pod": "train-0", **job}


def test_pod_with_a_gpu_is_a_run_while_its_containers_have_processes(tmp_path, node):
    with (
        daemon(tmp_path, *node.options, *node.of_kubelet) as exporter,
        exporter.simulation() as simulation,
    ):
        uid = node.add("notebook", gpus_of(exporter)["3"])
        time.sleep(2 * SEEN_WITHIN_S)
        assert runs(exporter) == []  # its pause process only
        program = node.start(uid)
        running = wait_for_run(exporter, state="running")
        assert running["labels"]["pod"] == "notebook"
        program.stop()
        time.sleep(SEEN_WITHIN_S)
        second = node.start(uid)  # restarted within the gap
        simulation.drive(3, 0.5, second.key.pid)
        time.sleep(SEEN_WITHIN_S)
        second.stop()
        simulation.release(3, second.key.pid)
        node.exits(uid, 1)
        ended = wait_for_run(exporter, state="ended")
        assert len(runs(exporter)) == 1
        assert_energies_are_true(exporter, ended)
    assert ended["outcome"] == "failed"
    assert [gpu["gpu"] for gpu in ended["gpus"]] == ["3"]
    assert ended["ended_at"] - time.time() < -4.0  # at the exit, although the pause process lives


def test_time_sliced_gpu_is_shared_by_the_runs_of_its_pods(tmp_path, node):
    with (
        daemon(tmp_path, *node.options, *node.of_kubelet) as exporter,
        exporter.simulation() as simulation,
    ):
        uuid_ = gpus_of(exporter)["2"]
        uids = [
            node.add(name, f"{uuid_}::{n}", resource="nvidia.com/gpu.shared")
            for n, name in enumerate("ab")
        ]
        for uid in uids:
            simulation.drive(2, 0.3, node.start(uid).key.pid)
        for uid in uids:
            wait_for_run(exporter, run_id=f"pod-{uid}", state="running")
        time.sleep(SEEN_WITHIN_S)
        metrics = exporter.metrics()
        (device_j,) = (
            v
            for labels, v in metrics["wattline_gpu_energy_joules_total"]
            if labels["uuid"] == uuid_
        )
        shares = {
            labels["run_id"]: joules
            for labels, joules in metrics["wattline_run_attributed_energy_joules_total"]
            if labels["device"] == uuid_ and labels["policy"] == "idle_shared"
        }
    assert {f"pod-{uid}" for uid in uids} <= shares.keys()
    assert all(shares[f"pod-{uid}"] > 0.0 for uid in uids)
    assert sum(shares.values()) == pytest.approx(device_j, rel=1e-6)


def test_pods_without_permission_are_named_by_their_log_folders(tmp_path, node):
    logs = tmp_path / "logs"
    logs.mkdir()
    with daemon(tmp_path, *node.options, "--kubernetes.pods", str(logs)) as exporter:
        uid = node.add("train-1", gpus_of(exporter)["1"])
        (logs / f"ml_train-1_{uid}").mkdir()
        program = node.start(uid)
        wait_for_run(exporter, state="running")
        program.stop()
        ended = wait_for_run(exporter, state="ended")
    assert ended["outcome"] == "unknown"
    assert ended["labels"] == {
        "discovered": "kubernetes",
        "namespace": "ml",
        "pod": "train-1",
        "container": "main",
    }
    assert [gpu["gpu"] for gpu in ended["gpus"]] == ["1"]


def test_claim_that_cannot_be_resolved_is_counted_and_logged_once(tmp_path, node):
    node.api.denied = {"resourceslices", "pods"}
    with (
        daemon(tmp_path, *node.options, *node.of_kubelet) as exporter,
        exporter.simulation() as simulation,
    ):
        uid = node.add("llm", claims=(claim("ml", "one", claimed(NODE, "gpu-0")),))
        program = node.start(uid)
        simulation.drive(0, 0.5, program.key.pid)
        name = "wattline_gpu_pod_unresolved_devices"
        exporter.wait_for_metric(lambda value: value == 1.0, name, reason="no_api")
        run = wait_for_run(exporter, state="running")  # by its process on the GPU
        assert run["labels"]["discovered"] == "kubernetes"
        exporter.wait_for_metric(
            lambda value: value == 0.0, "wattline_discovery_source_up", source="pods"
        )
        other = node.add("train-2", gpus_of(exporter)["1"])
        simulation.drive(1, 0.5, node.start(other).key.pid)
        named = wait_for_run(exporter, run_id=f"pod-{other}")
        assert (named["labels"]["namespace"], named["labels"]["pod"]) == (
            "ml",
            "train-2",
        )  # as the kubelet lists it
        assert not {"namespace", "pod"} & run["labels"].keys()
        time.sleep(11.0)  # a further read of both
        log = exporter.log()
        assert log.count("GPUs of claims are unknown") == 1
        assert log.count("runs of pods: the names of pods are unknown") == 1
        node.api.denied = set()
        node.api.slices = [resource_slice(NODE, slice_device("gpu-0", uuid=gpus_of(exporter)["0"]))]
        exporter.wait_for_metric(lambda value: value == 0.0, name, reason="no_api")
        eventually(
            lambda: "the names of pods are known again" in exporter.log(),
            "the recovery",
            exporter.log,
        )
        exporter.wait_for_metric(
            lambda value: value == 1.0, "wattline_discovery_source_up", source="pods"
        )
        simulation.release(0, program.key.pid)


def test_pods_on_mig_instances_are_runs_that_share_the_gpu(tmp_path, node):
    state = tmp_path / "mig.bin"
    create(state, make_gpus(1, PRODUCTS["H200"]), boottime())
    options = (
        "--no-collector.host",
        "--no-collector.rapl",
        *node.options[len(OPTIONS) :],
        *node.of_api,
    )
    environment = {"NODE_NAME": NODE, **nvml.environment(state)}
    with Simulation.open(state) as simulation:
        simulation.set_mig(0, ["3g.71gb", "1g.18gb"])
        large, small = (instance.uuid for instance in simulation.gpus[0].instances)
        with daemon(tmp_path, *options, env=environment) as exporter:
            exporter.wait_for_metric(bool, "wattline_gpu_mig_info", uuid=small)
            first = node.add("llm-0", large, resource="nvidia.com/mig-3g.71gb")
            second = node.add("embed-0", f"{small}::1", resource="nvidia.com/mig-1g.18gb.shared")
            programs = {uid: node.start(uid) for uid in (first, second)}
            simulation.drive_instance(0, 1, 0.3, programs[first].key.pid, 3 * GIB)
            simulation.drive_instance(0, 2, 0.3, programs[second].key.pid, GIB)
            for uid in programs:
                wait_for_run(exporter, run_id=f"pod-{uid}", state="running")
            for uuid_, name in ((large, "llm-0"), (small, "embed-0")):
                exporter.wait_for_metric(
                    lambda value: value == 1.0, "wattline_gpu_pod_info", uuid=uuid_, pod=name
                )
            share = {"run_id": f"pod-{second}", "policy": "idle_shared"}
            exporter.wait_for_metric(
                lambda joules: joules > 800.0,
                "wattline_run_attributed_energy_joules_total",
                **share,
            )
            for uid, program in programs.items():
                program.stop()
                node.exits(uid, 0)
            ended = [wait_for_run(exporter, run_id=f"pod-{uid}", state="ended") for uid in programs]
            device = exporter.metrics()["wattline_gpu_energy_joules_total"]
            gpu = simulation.gpus[0].uuid

    assert [labels["uuid"] for labels, _ in device] == [gpu]  # an instance has no energy
    for run in ended:
        assert [each["uuid"] for each in run["gpus"]] == [gpu]
        assert run["outcome"] == "ok"
        shared = run["attributed_energy_joules"]["gpu"][gpu]
        assert 0 < shared < run["energy_joules"]["gpu"][gpu]
    own = [run["attributed_energy_joules"]["gpu"][gpu] for run in ended]
    longest = max(ended, key=lambda run: run["energy_joules"]["gpu"][gpu])
    longest_j, of_two_seconds = (
        longest["energy_joules"]["gpu"][gpu],
        2.0 / longest["duration_seconds"],
    )
    assert (
        sum(own) < (1.0 + of_two_seconds) * longest_j
    )  # not after the exits, although the pause processes live
    assert (
        own[0] > own[1]
    )  # the driver reports no utilization of processes on instances: their memory divides
