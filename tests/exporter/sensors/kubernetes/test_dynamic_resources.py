"""GPUs of pods by Dynamic Resource Allocation: a kubelet's socket, and ResourceSlices over
HTTPS.
"""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="needs the extra kubernetes")

from tests.fakes.kubelet import (
    FakeKubelet,
    claim,
    claimed,
    claimed_by_cdi,
    container,
    devices,
    kubelet_server,
    pod,
)
from tests.fakes.kubernetes_api import NODE, kubernetes_api, resource_slice, slice_device
from wattline.contract.metrics import (  # after the check for grpc
    GPU_POD_INFO,
    POD_UNRESOLVED_DEVICES,
)
from wattline_exporter.sensors.kubernetes.api_client import KubernetesClient
from wattline_exporter.sensors.kubernetes.kubelet import KubeletSource
from wattline_exporter.sensors.kubernetes.pod_gpus import PodGpuAssignments
from wattline_exporter.sensors.kubernetes.pod_resources import PodResources
from wattline_exporter.sensors.kubernetes.resource_slices import REFRESH_S, RETRY_S, ResourceSlices

A, B = "GPU-aaaaaaaa-1111-2222-3333-444444444444", "GPU-bbbbbbbb-1111-2222-3333-444444444444"
MIG = "MIG-cccccccc-1111-2222-3333-444444444444"
GPUS = {A: "0", B: "1", MIG: "1"}
SLICE = resource_slice(
    NODE,
    slice_device("gpu-0", type="gpu", uuid=A),
    slice_device("gpu-1", type="gpu", uuid=B),
    slice_device("gpu-1-mig-0-3", type="mig", uuid=MIG, parentUUID=B, profile="1g.18gb"),
    slice_device("gpu-1-mig-9-4", type="mig", parentUUID=B, profile="1g.18gb"),
    slice_device("gpu-vfio-2", type="vfio"),
)


@pytest.fixture
def api(tmp_path):
    with kubernetes_api(tmp_path / "account") as served:
        served.slices = [SLICE]
        yield served


class Clock:
    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s

    def tick(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def kubelet(tmp_path):
    with kubelet_server(tmp_path / "kubelet.sock", FakeKubelet()) as served:
        yield served


@pytest.fixture
def source(tmp_path, api, clock, kubelet):
    slices = ResourceSlices(KubernetesClient(api.credentials), api.url, NODE, clock)
    return KubeletSource(
        PodGpuAssignments(PodResources(tmp_path / "kubelet.sock"), lambda: GPUS, slices)
    )


def claim_of(*names, pool=NODE):
    return (claim("ml", "gpus-x2", *(claimed(pool, name) for name in names)),)


def pods_of(batch):
    """(gpu, uuid, namespace, pod, container)"""
    return {r.labels for r in batch.readings if r.metric is GPU_POD_INFO}


def unresolved_of(batch):
    return {
        r.labels[0]: r.value
        for r in batch.readings
        if r.metric is POD_UNRESOLVED_DEVICES and r.value
    }


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_claims_resolve_to_gpus_by_each_version_of_slices(source, kubelet, api, version):
    api.versions = (version,)
    kubelet.pods = [
        pod("ml", "train-0", container("main", claims=claim_of("gpu-0", "gpu-1"))),
        pod("ml", "plugin", container("main", devices("nvidia.com/gpu", f"{A}::1"))),
        pod("web", "llm", container("server", claims=claim_of("gpu-1-mig-0-3"))),
        pod(
            "net",
            "dpdk",
            container("main", claims=(claim("net", "nic", claimed(NODE, "nic-0", "dra.net")),)),
        ),
    ]
    batch = source.read()
    assert pods_of(batch) == {
        ("0", A, "ml", "train-0", "main"),
        ("1", B, "ml", "train-0", "main"),
        ("0", A, "ml", "plugin", "main"),
        ("1", MIG, "web", "llm", "server"),
    }
    assert batch.problems == ()
    assert unresolved_of(batch) == {}
    assert api.paths[-1].endswith(
        f"/{version}/resourceslices?fieldSelector=spec.driver%3Dgpu.nvidia.com%2Cspec.nodeName%3D{NODE}"
        "&resourceVersion=0"
    )


def test_claim_shared_by_pods_is_exported_for_each(source, kubelet):
    kubelet.pods = [
        pod("ml", name, container("main", claims=claim_of("gpu-0"))) for name in ("one", "two")
    ]
    assert pods_of(source.read()) == {("0", A, "ml", "one", "main"), ("0", A, "ml", "two", "main")}


def test_mig_device_without_uuid_has_the_gpu_of_its_parent(source, kubelet):
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-1-mig-9-4")))]
    assert pods_of(source.read()) == {("1", B, "ml", "one", "main")}


def test_device_without_uuid_is_counted_and_named(source, kubelet):
    kubelet.pods = [pod("vm", "one", container("main", claims=claim_of("gpu-vfio-2", "gpu-0")))]
    batch = source.read()
    assert pods_of(batch) == {("0", A, "vm", "one", "main")}
    assert unresolved_of(batch) == {"no_slice": 1}
    assert batch.problems == (
        (
            f"GPUs of claims without a UUID: {NODE}/gpu-vfio-2; compare with kubectl get "
            "resourceslices -o yaml"
        ),
    )


def test_claim_of_an_old_kubelet_is_counted_by_its_name(source, kubelet):
    old = claim(
        "ml",
        "gpu-claim",
        claimed_by_cdi("k8s.gpu.nvidia.com/claim=7f3a-gpu-0"),
        claimed_by_cdi("dra.net/nic=0"),
    )
    kubelet.pods = [pod("ml", "one", container("main", claims=(old,)))]
    batch = source.read()
    assert unresolved_of(batch) == {"no_slice": 1}
    assert "ml/gpu-claim" in batch.problems[0]


def test_slices_that_are_forbidden_are_one_problem_with_the_remedy(source, kubelet, api):
    api.denied = {"resourceslices"}
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-0")))]
    batch = source.read()
    assert pods_of(batch) == set()
    assert unresolved_of(batch) == {"no_api": 1}
    (problem,) = batch.problems
    assert problem.startswith(
        f"GPUs of claims are unknown: {NODE}/gpu-0; cannot read {api.url}/apis/"
    )
    assert problem.endswith(
        "403 Forbidden; allow the service account to list resourceslices of resource.k8s.io: "
        "discovery.enabled in the "
        "Helm chart"
    )


def test_claims_without_an_api_server_are_counted(tmp_path, kubelet):
    source = KubeletSource(PodGpuAssignments(PodResources(tmp_path / "kubelet.sock"), lambda: GPUS))
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-0")))]
    batch = source.read()
    assert unresolved_of(batch) == {"no_api": 1}
    assert "no address of the Kubernetes API server" in batch.problems[0]


def test_node_without_claims_reads_no_slices(source, kubelet, api):
    kubelet.pods = [pod("ml", "one", container("main", devices("nvidia.com/gpu", A)))]
    assert pods_of(source.read()) == {("0", A, "ml", "one", "main")}
    assert api.paths == []


def test_slices_are_read_again_for_a_new_device_and_when_they_are_old(source, kubelet, api, clock):
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-0")))]
    for _ in range(3):
        source.read()
    assert len(api.paths) == 1
    # the MIG layout changes: the newest generation of the pool counts, an older slice may still be
    # listed
    api.slices = [SLICE, resource_slice(NODE, slice_device("gpu-0", uuid=B), generation=2)]
    clock.tick(REFRESH_S + 1)
    assert pods_of(source.read()) == {("1", B, "ml", "one", "main")}
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-5")))]
    assert unresolved_of(source.read()) == {"no_slice": 1}
    api.slices = [resource_slice(NODE, slice_device("gpu-5", uuid=A), generation=3)]
    clock.tick(RETRY_S + 1)
    assert pods_of(source.read()) == {("0", A, "ml", "one", "main")}


def test_known_gpus_stay_while_the_api_server_is_down(source, kubelet, api, clock):
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-0")))]
    source.read()
    api.denied = {"resourceslices"}
    clock.tick(REFRESH_S + 1)
    batch = source.read()
    assert pods_of(batch) == {("0", A, "ml", "one", "main")}
    assert batch.problems == ()


def test_old_api_server_without_slices_is_named(source, kubelet, api):
    api.versions = ()
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-0")))]
    assert (
        "it serves none of v1, v1beta2, v1beta1; enable the API group resource.k8s.io"
        in source.read().problems[0]
    )


@pytest.mark.parametrize("body", [b"", b"{}x", b'{"items": [{"spec": {}}]}', b"[]"])
def test_slices_that_cannot_be_parsed_are_one_line(source, kubelet, api, body):
    api.body = body
    kubelet.pods = [pod("ml", "one", container("main", claims=claim_of("gpu-0")))]
    (problem,) = source.read().problems
    assert "cannot parse" in problem
    assert "\n" not in problem
