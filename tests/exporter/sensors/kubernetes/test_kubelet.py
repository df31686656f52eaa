from __future__ import annotations

import socket as sockets
import subprocess
import sys
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc", reason="needs the extra kubernetes")

from tests.fakes.kubelet import FakeKubelet, container, devices, kubelet_server, pod  # noqa: E402
from wattline.contract.metrics import GPU_POD_INFO, POD_UNRESOLVED_DEVICES  # noqa: E402  # after the check for grpc
from wattline_exporter.sensors.kubernetes import pod_resources as source  # noqa: E402
from wattline_exporter.sensors.kubernetes.kubelet import KubeletSource  # noqa: E402
from wattline_exporter.sensors.kubernetes.pod_gpus import PodGpuAssignments  # noqa: E402
from wattline_exporter.sensors.kubernetes.pod_resources import PodResources  # noqa: E402
from wattline_exporter.sensors.readings import SourceError  # noqa: E402

A, B = "GPU-aaaaaaaa-1111-2222-3333-444444444444", "GPU-bbbbbbbb-1111-2222-3333-444444444444"
MIG = "MIG-cccccccc-1111-2222-3333-444444444444"
GPUS = {A: "0", B: "1", MIG: "1"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kubelet.sock"


@pytest.fixture
def reader(path):
    return KubeletSource(PodGpuAssignments(PodResources(path), lambda: GPUS))


def pods_of(batch):
    """(gpu, uuid, namespace, pod, container)"""
    pods = [reading for reading in batch.readings if reading.metric is GPU_POD_INFO]
    assert all(reading.value == 1 for reading in pods)
    assert len({reading.labels for reading in pods}) == len(pods)
    return {reading.labels for reading in pods}


def unresolved_of(batch):
    return {
        r.labels[0]: r.value
        for r in batch.readings
        if r.metric is POD_UNRESOLVED_DEVICES and r.value
    }


def test_kubelet_containers_are_exported_with_their_gpus(path, reader):
    pods = [
        pod(
            "ml",
            "train-0",
            container("main", devices("nvidia.com/gpu", A, B)),
            container("sidecar"),
        ),
        pod("web", "llm-7f", container("server", devices("nvidia.com/mig-1g.10gb", MIG))),
        pod("net", "dpdk", container("main", devices("intel.com/sriov", "0000:03:02.0"))),
        pod("kube-system", "dns", container("dns")),
    ]
    with kubelet_server(path, FakeKubelet(pods)):
        batch = reader.read()
    assert batch.problems == ()
    assert pods_of(batch) == {
        ("0", A, "ml", "train-0", "main"),
        ("1", B, "ml", "train-0", "main"),
        ("1", MIG, "web", "llm-7f", "server"),
    }


def test_kubelet_time_sliced_gpu_is_exported_once_per_pod(path, reader):
    pods = [
        pod("ml", "one", container("main", devices("nvidia.com/gpu.shared", f"{A}::0", f"{A}::2"))),
        pod("ml", "two", container("main", devices("nvidia.com/gpu", f"{A}::11"))),
        pod(
            "ml", "three", container("main", devices("nvidia.com/mig-1g.10gb.shared", f"{MIG}::1"))
        ),
    ]
    with kubelet_server(path, FakeKubelet(pods)):
        batch = reader.read()
    assert pods_of(batch) == {
        ("0", A, "ml", "one", "main"),
        ("0", A, "ml", "two", "main"),
        ("1", MIG, "ml", "three", "main"),
    }


@pytest.mark.parametrize("device", ["1", "nvidia1", "nvidia1/vgpu0"])
def test_kubelet_numbered_gpu_is_exported_by_uuid(path, reader, device):
    with kubelet_server(
        path, FakeKubelet([pod("ml", "one", container("main", devices("nvidia.com/gpu", device)))])
    ):
        assert pods_of(reader.read()) == {("1", B, "ml", "one", "main")}


def test_kubelet_unknown_device_is_a_problem_and_hides_no_other(path, reader):
    other = "GPU-dddddddd"
    with kubelet_server(
        path,
        FakeKubelet([pod("ml", "one", container("main", devices("nvidia.com/gpu", other, A)))]),
    ):
        batch = reader.read()
    assert pods_of(batch) == {("0", A, "ml", "one", "main")}
    assert batch.problems == (
        (
            "unknown GPUs assigned to pods: GPU-dddddddd; compare with nvidia-smi -L, and check "
            "that "
            "NVML works"
        ),
    )
    assert unresolved_of(batch) == {"unknown_gpu": 1}


def test_kubelet_node_without_gpu_pods_is_up_and_empty(path, reader):
    with kubelet_server(path, FakeKubelet([])):
        assert pods_of(reader.read()) == set()


def test_kubelet_started_later_is_found(path, reader):
    with pytest.raises(
        SourceError,
        match=r"cannot open .*: no such socket; check that the kubelet runs; in a pod, mount",
    ):
        reader.read()
    with kubelet_server(
        path, FakeKubelet([pod("ml", "one", container("main", devices("nvidia.com/gpu", A)))])
    ):
        assert pods_of(reader.read()) == {("0", A, "ml", "one", "main")}


def test_kubelet_restarted_is_called_on_its_new_socket(path, reader):
    with kubelet_server(
        path, FakeKubelet([pod("ml", "one", container("main", devices("nvidia.com/gpu", A)))])
    ):
        assert pods_of(reader.read()) == {("0", A, "ml", "one", "main")}
    with pytest.raises(SourceError, match="no such socket"):
        reader.read()
    with kubelet_server(
        path, FakeKubelet([pod("ml", "two", container("main", devices("nvidia.com/gpu", B)))])
    ):
        assert pods_of(reader.read()) == {("1", B, "ml", "two", "main")}


def test_kubelet_stale_socket_is_reported(path, reader):
    left = sockets.socket(sockets.AF_UNIX)
    left.bind(str(path))
    left.close()
    with pytest.raises(SourceError, match=r"cannot connect to .*: no process listens; see"):
        reader.read()


def test_kubelet_hanging_times_out_and_is_called_again(path, reader, monkeypatch):
    monkeypatch.setattr(source, "TIMEOUT_S", 0.2)
    with kubelet_server(path, FakeKubelet([], delay_s=60)) as fake:
        with pytest.raises(
            SourceError,
            match=r"cannot read .*: no response from the kubelet within 0.2 s; see: journalctl -u "
            r"kubelet",
        ):
            reader.read()
        fake.delay_s = 0
        monkeypatch.setattr(source, "TIMEOUT_S", 30)
        assert pods_of(reader.read()) == set()
        assert fake.calls == 2


def test_kubelet_refusal_is_one_line(path, reader):
    refusing = FakeKubelet(refusal=grpc.StatusCode.UNIMPLEMENTED)
    with (
        kubelet_server(path, refusing),
        pytest.raises(
            SourceError, match="the kubelet answered UNIMPLEMENTED the API is switched off; see"
        ),
    ):
        reader.read()


def test_kubelet_invalid_response_is_reported(path, reader):
    with (
        kubelet_server(path, FakeKubelet(answer=b"\xff\xff\xff")),
        pytest.raises(SourceError) as caught,
    ):
        reader.read()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_kubelet_pods_are_exported_by_the_daemon(path, start):
    gpu_pod = pod("ml", "train-0", container("main", devices("nvidia.com/gpu", "1")))
    with (
        kubelet_server(path, FakeKubelet([gpu_pod])),
        start("--kubelet.pod-resources", str(path)) as exporter,
    ):
        exporter.wait_for_metric(lambda value: value == 1, "wattline_gpu_pod_info")
        metrics = exporter.metrics()
    ((labels, _),) = metrics["wattline_gpu_pod_info"]
    uuid = next(
        labels["uuid"] for labels, _ in metrics["wattline_gpu_info"] if labels["gpu"] == "1"
    )
    assert labels == {
        "gpu": "1",
        "uuid": uuid,
        "namespace": "ml",
        "pod": "train-0",
        "container": "main",
    }


def test_kubelet_without_extra_names_the_package(tmp_path):
    code = (
        "import sys; sys.modules['grpc'] = None; from wattline_exporter.cli.main import main; "
        "sys.argv = sys.argv[1:]; main()"
    )
    options = [
        "exporter",
        "serve",
        "--state.path",
        str(tmp_path),
        "--kubelet.pod-resources",
        "/run/kubelet.sock",
    ]
    result = subprocess.run(
        [sys.executable, "-c", code, *options], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr == (
        "exporter: --kubelet.pod-resources: grpc is not installed; in the clone of Wattline, run: "
        "pip install "
        "'.[kubernetes]'\n"
    )


def _open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_kubelet_hundred_reads_leave_no_file_open(path, reader):
    with kubelet_server(path, FakeKubelet([])):
        for _ in range(3):
            reader.read()
        before = _open_files()
        for _ in range(100):
            reader.read()
        assert _open_files() <= before + 5
