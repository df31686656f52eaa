"""Pods of a node from the API server, the kubelet and the folder of logs."""

from __future__ import annotations

import socket

import pytest

from tests.fakes.kubernetes_api import NODE, container_status, kubernetes_api, pod_object
from wattline_exporter.sensors.kubernetes import api_client
from wattline_exporter.sensors.kubernetes.api_client import KubernetesClient, api_server_url
from wattline_exporter.sensors.kubernetes.pods import Pod, PodLogFolders, pod_reader
from wattline_exporter.sensors.readings import SourceError

UID = "c1d8f6a2-7b1e-4a53-9d1c-0f6e5b2a9c01"
HASH = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def api(tmp_path):
    with kubernetes_api(tmp_path / "account") as served:
        yield served


@pytest.fixture
def read(api):
    return pod_reader("api", KubernetesClient(api.credentials), api.url, NODE)


def controlled(uid, name, kind, owner, **labels):
    found = pod_object(uid, "ml", name)
    references = [
        {"kind": "Tenant", "name": "t"},
        {"kind": kind, "name": owner, "controller": True},
    ]
    found["metadata"] |= {
        "ownerReferences": references,
        "labels": labels,
        "annotations": {"team": "vision"},
    }
    return found


def test_pods_of_the_api_server_have_owner_labels_and_annotations(api, read):
    api.pods = [
        controlled(
            "uid-1",
            "llm-7d9f-x2",
            "ReplicaSet",
            "llm-7d9f",
            **{"pod-template-hash": "7d9f", "app": "llm"},
        ),
        controlled("uid-2", "train-0", "Job", "train"),
        {**pod_object("uid-3", "ml", "other"), "spec": {"nodeName": "gpu-8"}},
    ]
    pods = read()
    assert set(pods) == {"uid-1", "uid-2"}
    assert (pods["uid-1"].namespace, pods["uid-1"].name) == ("ml", "llm-7d9f-x2")
    assert (pods["uid-1"].owner_kind, pods["uid-1"].owner_name) == ("Deployment", "llm")
    assert (pods["uid-2"].owner_kind, pods["uid-2"].owner_name) == ("Job", "train")
    assert pods["uid-1"].labels["app"] == "llm"
    assert pods["uid-2"].annotations == {"team": "vision"}


def test_kubelet_pods_are_read_by_its_url(api):
    static = pod_object(HASH, "kube-system", "proxy")
    mirror = pod_object("mirror-uid", "kube-system", "scheduler")
    mirror["metadata"]["annotations"] = {
        "kubernetes.io/config.hash": HASH.replace("0", "f"),
        "kubernetes.io/config.mirror": HASH.replace("0", "f"),
    }
    api.pods = [static, mirror]
    pods = pod_reader(f"{api.url}/pods", KubernetesClient(api.credentials), None, None)()
    assert set(pods) == {HASH, HASH.replace("0", "f")}


@pytest.mark.parametrize("names", [("hash",), ("hash", "mirror")])
def test_pod_with_annotation_of_a_static_pod_takes_no_other_uid(api, names):
    """A user can write the annotation, and could give away the energy of a pod."""
    victim, other = pod_object("uid-1", "ml", "train"), pod_object("uid-2", "web", "cheat")
    other["metadata"]["annotations"] = {f"kubernetes.io/config.{name}": "uid-1" for name in names}
    for items in ([victim, other], [other, victim]):
        api.pods = items
        pods = pod_reader(f"{api.url}/pods", KubernetesClient(api.credentials), None, None)()
        assert pods["uid-1"].namespace == "ml"
        assert ("uid-2" in pods) == (len(names) == 1)


@pytest.mark.parametrize(
    ("codes", "end", "outcome"),
    [
        ([None], "", None),
        ([0], "", "ok"),
        ([0, 0], "", "ok"),
        ([0, 3], "", "failed"),
        ([0, None], "", None),
        ([137], "", "failed"),  # OOMKilled
        ([143], "", "failed"),
        ([143], "deleted", "interrupted"),
        ([137, 0], "deleted", "interrupted"),
        ([1], "deleted", "failed"),
        ([0], "deleted", "ok"),
        ([137], "Evicted", "interrupted"),
        ([], "deleted", None),
    ],
)
def test_outcome_of_a_pod_follows_its_exit_codes(api, read, codes, end, outcome):
    statuses = [container_status(f"c{number}", code) for number, code in enumerate(codes)]
    found = pod_object(
        "uid", "ml", "one", containerStatuses=statuses, reason=end.removeprefix("deleted")
    )
    found["metadata"] |= {"deletionTimestamp": "2026-11-23T10:00:00Z"} if end == "deleted" else {}
    api.pods = [found]
    assert read()["uid"].outcome() == outcome


def test_outcome_is_that_of_the_containers_with_gpus():
    pod = Pod("ml", "one", containers={"main": 0, "proxy": 137})
    assert pod.outcome(frozenset({"main"})) == "ok"
    assert pod.outcome(frozenset({"gone"})) == "failed"


def test_container_that_waits_for_its_restart_has_its_last_exit_code(api, read):
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    last = {"terminated": {"exitCode": 2, "reason": "Error"}}
    api.pods = [
        pod_object(
            "uid", "ml", "x", containerStatuses=[{"name": "m", "state": waiting, "lastState": last}]
        )
    ]
    assert read()["uid"].outcome() == "failed"


def test_log_folders_name_pods_without_permission(tmp_path):
    for name in (f"ml_train-0_{UID}", f"kube-system_scheduler-node_{HASH}", "lost+found"):
        (tmp_path / name).mkdir()
    assert PodLogFolders(tmp_path).read() == {
        UID: Pod("ml", "train-0"),
        HASH: Pod("kube-system", "scheduler-node"),
    }


def test_missing_log_folder_names_the_remedy(tmp_path):
    with pytest.raises(
        SourceError,
        match=r"cannot read .*: No such file or directory; mount the host's folder there",
    ):
        PodLogFolders(tmp_path / "none").read()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "denied",
            (
                "403 Forbidden; allow the service account to read pods: discovery.pods in the Helm "
                "chart"
            ),
        ),
        ("token", "401 Unauthorized; allow"),
        ("path", "404 Not Found; allow"),
        ("body", "cannot parse .*: no PodList"),
        (
            "certificate",
            (
                "cannot verify the certificate of .*: .*self-signed kubelet|cannot verify the "
                "certificate"
            ),
        ),
    ],
)
def test_failure_of_the_server_is_one_line(tmp_path, api, fault, message):
    source = f"{api.url}/pods"
    if fault == "denied":
        api.denied = {"pods"}
    elif fault == "token":
        (api.credentials / "token").write_text("expired")
    elif fault == "path":
        source = f"{api.url}/pod"
    elif fault == "body":
        api.body = b'{"kind": "Status"}'
    else:
        (api.credentials / "ca.crt").unlink()
    with pytest.raises(SourceError, match=message) as caught:
        pod_reader(source, KubernetesClient(api.credentials), None, None)()
    assert "\n" not in str(caught.value)


def test_server_for_another_name_does_not_get_the_token(tmp_path):
    with kubernetes_api(tmp_path / "account", names=("other.example",)) as api:
        with pytest.raises(SourceError, match="cannot verify the certificate"):
            pod_reader(f"{api.url}/pods", KubernetesClient(api.credentials), None, None)()
        assert api.paths == []


def test_server_that_hangs_or_is_gone_costs_a_bounded_time(api, monkeypatch, read):
    monkeypatch.setattr(api_client, "TIMEOUT_S", 0.2)
    api.delay_s = 60.0
    with pytest.raises(
        SourceError, match=r"no response in time; check the address and the network policy"
    ):
        read()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{unused.getsockname()[1]}/pods"
    with pytest.raises(SourceError, match="Connection refused"):
        pod_reader(url, KubernetesClient(api.credentials), None, None)()


def test_token_is_read_for_each_request(api, read):
    (api.credentials / "token").write_text("old")
    with pytest.raises(SourceError, match="401"):
        read()
    (api.credentials / "token").write_text("ey.service.account")
    assert read() == {}


def test_pods_of_api_need_the_node_and_the_server(api):
    for server, node in ((None, NODE), (api.url, None)):
        with pytest.raises(ValueError, match="NODE_NAME"):
            pod_reader("api", KubernetesClient(api.credentials), server, node)


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443"), (None, None)],
)
def test_api_server_is_that_of_the_pods_environment(host, url):
    environment = {"KUBERNETES_SERVICE_PORT": "6443"} | (
        {"KUBERNETES_SERVICE_HOST": host} if host else {}
    )
    assert api_server_url(environment) == url
