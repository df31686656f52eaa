"""Options of Kubernetes, and its lines in `exporter check`."""

import pytest

pytest.importorskip("grpc", reason="needs the extra kubernetes")

from tests.exporter.commands import SIMULATED, assert_one_line, exporter
from tests.fakes.kubelet import FakeKubelet, claim, claimed, container, devices, kubelet_server, pod
from tests.fakes.kubernetes_api import (
    NODE,
    kubernetes_api,
    pod_object,
    resource_slice,
    slice_device,
)
from wattline.contract.api import MAX_POD_LABELS
from wattline_exporter.config.values import UsageError, owner_labels  # after the check for grpc

A, B = "GPU-aaaaaaaa-1111-2222-3333-444444444444", "GPU-bbbbbbbb-1111-2222-3333-444444444444"


@pytest.fixture
def api(tmp_path):
    with kubernetes_api(tmp_path / "account") as served:
        served.pods = [pod_object("uid-1", "ml", "train-0")]
        served.slices = [resource_slice(NODE, slice_device("gpu-1", uuid=B))]
        yield served


@pytest.fixture
def check(tmp_path, api):
    """Run `exporter check` on a node with a pod of the device plugin and one with a claim; return
    its lines.
    """
    socket = tmp_path / "kubelet.sock"
    claims = (claim("ml", "gpu", claimed(NODE, "gpu-1")),)
    pods = [
        pod("ml", "train-0", container("main", devices("nvidia.com/gpu", A))),
        pod("ml", "train-1", container("main", claims=claims)),
    ]

    def lines(*options):
        account = ("--kubernetes.api", api.url, "--kubernetes.credentials", str(api.credentials))
        fixed = (
            "--idle-seconds",
            "0",
            "--state.path",
            str(tmp_path / "state"),
            "--kubelet.pod-resources",
            str(socket),
        )
        done = exporter(
            "check",
            *SIMULATED,
            *fixed,
            *account,
            "--runs.discover",
            "kubernetes",
            *options,
            NODE_NAME=NODE,
        )
        return [line for line in done.stdout.splitlines() if line.startswith(("kubelet", "runs"))]

    with kubelet_server(socket, FakeKubelet(pods)):
        yield lines


def test_check_counts_pods_and_their_gpus(check):
    lines = check("--kubernetes.pods", "api")
    assert lines[0] == "kubelet works: pods with GPUs: 2, GPUs and MIG instances: 2"
    assert lines[1].startswith("runs    discovered: kubernetes; it sees ")
    assert lines[2] == "runs    pods with names: 1"


def test_check_names_rights_that_are_missing(api, check):
    api.denied = {"pods", "resourceslices"}
    lines = check("--kubernetes.pods", f"{api.url}/pods")
    assert lines[0] == "kubelet works: pods with GPUs: 1, GPUs and MIG instances: 1"
    assert lines[1].startswith(
        f"kubelet in part: GPUs of claims are unknown: {NODE}/gpu-1; cannot read {api.url}/apis/"
    )
    assert lines[1].endswith("discovery.enabled in the Helm chart")
    assert lines[3] == (
        "runs    in part: runs of pods have no labels of --kubernetes.pods: cannot read "
        f"{api.url}/pods: 403 "
        "Forbidden; allow the service account to read pods: discovery.pods in the Helm chart"
    )


def test_check_names_a_missing_folder_of_logs(tmp_path, check):
    assert (
        f"cannot read {tmp_path}/none: No such file or directory; mount the host's folder there"
        in check("--kubernetes.pods", f"{tmp_path}/none")[2]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kubernetes.pods", "api"), "--kubernetes.pods needs --runs.discover kubernetes"),
        (
            ("--kubernetes.api", "https://127.0.0.1"),
            "--kubernetes.api needs --kubelet.pod-resources",
        ),
        (
            ("--runs.discover", "kubernetes", "--kubernetes.pods", "api"),
            "--kubernetes.pods: needs a pod's environment",
        ),
        (
            (
                "--runs.discover",
                "kubernetes",
                "--kubelet.pod-resources",
                "/k.sock",
                "--kubernetes.api",
                "10.0.0.1",
            ),
            "--kubernetes.api: expected http://HOST/PATH or https://HOST/PATH",
        ),
    ],
)
def test_option_of_kubernetes_that_cannot_work_is_one_line(tmp_path, options, words):
    assert_one_line(
        exporter("serve", "--simulate", "1xH200", "--state.path", str(tmp_path), *options), 2, words
    )


def test_labels_of_pods_are_chosen_by_name():
    assert owner_labels("namespace, pod_label:app.kubernetes.io/name,pod_annotation:team") == [
        "namespace",
        "pod_label:app.kubernetes.io/name",
        "pod_annotation:team",
    ]
    assert owner_labels("pod_label:app") == ["pod_label:app"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown name ''"),
        ("pod_labels:app", "unknown name pod_labels:app"),
        ("pod_label:", "unknown name pod_label:"),
        (
            ",".join(f"pod_label:l{n}" for n in range(MAX_POD_LABELS + 1)),
            "more than 8 labels and annotations of pods",
        ),
    ],
)
def test_labels_that_do_not_exist_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        owner_labels(text)
