"""Discovery of runs in Kubernetes: the chart's value and the component of the overlays, and their
rights.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.helm import CHART, IMAGE, by_kind, helm, object_named, template
from tests.deploy.machine import REPOSITORY
from tests.deploy.test_kubernetes import README, VERSIONS, documents, render

ENABLED = "discovery.enabled=true"
OPTIONS = (REPOSITORY / "exporter/docs/options.md").read_text()
SLICES = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]}


def with_component(mode: str, namespace: str = "wattline", patch: str = "") -> list[dict[str, Any]]:
    """Return the objects of an overlay with the component, as a user's kustomization combines
    them.
    """
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": [f"../deploy/kubernetes/overlays/{mode}"],
        "components": ["../deploy/kubernetes/components/discovery"],
    }
    if patch:
        content["patches"] = [
            {"target": {"kind": "DaemonSet", "name": "wattline-exporter"}, "patch": patch}
        ]
    with tempfile.TemporaryDirectory(dir=REPOSITORY, prefix=".overlay-") as folder:
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return list(yaml.safe_load_all(render(folder)))


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (result,) = object_named(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(result, dict)
    return result


def rules(*values: str) -> list[dict[str, Any]]:
    objects = template("mode=runs", ENABLED, *values)
    result = object_named(objects, "ClusterRole")["rules"]
    assert isinstance(result, list)
    return result


@pytest.mark.parametrize("mode", ["runs", "rapl"])
def test_chart_with_discovery_renders_the_objects_of_the_component(mode: str) -> None:
    objects = with_component(mode)
    assert by_kind(template(f"mode={mode}", ENABLED)) == by_kind(objects)
    assert {"ClusterRole", "ClusterRoleBinding"} <= {document["kind"] for document in objects}


@pytest.mark.parametrize("namespace", ["gpu-energy", "wattline"])
@pytest.mark.parametrize("mode", ["runs", "rapl"])
def test_component_binds_the_role_in_the_namespace_of_the_kustomization(
    mode: str, namespace: str
) -> None:
    objects = with_component(mode, namespace)
    (subject,) = object_named(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": "wattline-exporter",
        "namespace": namespace,
    }
    assert object_named(objects, "ServiceAccount")["metadata"]["namespace"] == namespace
    for document in objects:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(("mode", "position"), [("runs", 9), ("rapl", 10)])
def test_documented_patch_removes_the_source_of_pods(mode: str, position: int) -> None:
    (patch,) = (
        part.partition("```")[0]
        for part in README.split("```yaml\n")[1:]
        if "op: test" in part.split("```")[0]
    )
    without = with_component(mode, patch=patch.replace("args/9", f"args/{position}"))

    removed = set(container(with_component(mode))["args"]) - set(container(without)["args"])

    assert removed == {"--kubernetes.pods=api"}
    assert f"{mode}: args/{position}" in patch or position == 9


@pytest.mark.parametrize("version", VERSIONS)
def test_discovery_objects_are_valid_for_oldest_and_newest_api(version: str) -> None:
    for pods in ("api", "kubelet", "names"):
        for document in template(
            "mode=rapl", ENABLED, f"discovery.pods={pods}", "discovery.labels=pod_label:app"
        ):
            kubernetes_validate.validate(document, version, strict=True)


def test_discovery_grants_what_its_source_of_pods_needs() -> None:
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    of_node = {"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}
    assert rules() == [SLICES, pods]
    assert rules("discovery.pods=kubelet") == [SLICES, of_node]
    assert rules("discovery.pods=names") == [SLICES]


def test_role_is_bound_to_the_service_account_of_the_release() -> None:
    objects = template("mode=runs", ENABLED, namespace="power")
    (subject,) = object_named(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "wattline-exporter", "namespace": "power"}
    assert (
        object_named(objects, "DaemonSet")["spec"]["template"]["spec"][
            "automountServiceAccountToken"
        ]
        is True
    )


@pytest.mark.parametrize("mode", ["metrics", "runs", "rapl"])
def test_node_without_discovery_has_no_token_and_no_rights(mode: str) -> None:
    for objects in (template(f"mode={mode}"), documents(mode)):
        assert not {"ClusterRole", "ClusterRoleBinding"} & {
            document["kind"] for document in objects
        }
        spec = object_named(objects, "DaemonSet")["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False


def test_discovery_passes_kinds_labels_and_source_to_the_exporter() -> None:
    values = ("discovery.kinds=kubernetes\\,service", "discovery.labels=namespace\\,pod_label:app")
    of_kubelet = container(template("mode=runs", ENABLED, *values, "discovery.pods=kubelet"))
    arguments = of_kubelet["args"]
    assert "--runs.discover=kubernetes,service" in arguments
    assert "--runs.labels=namespace,pod_label:app" in arguments
    assert "--kubernetes.pods=https://$(NODE_IP):10250/pods" in arguments
    variables = {variable["name"]: variable.get("valueFrom") for variable in of_kubelet["env"]}
    assert variables["NODE_IP"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    assert variables["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    for argument in arguments[1:]:
        assert f"| `{argument.partition('=')[0]} " in OPTIONS, argument
    by_names = container(template("mode=runs", ENABLED, "discovery.pods=names"))
    assert not [
        argument for argument in by_names["args"] if argument.startswith("--kubernetes.pods")
    ]
    assert {"name": "pod-logs", "mountPath": "/var/log/pods", "readOnly": True} in by_names[
        "volumeMounts"
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ("mode=metrics",),
            "discovery.enabled needs the processes of the host: set mode to runs or rapl",
        ),
        (("mode=runs", "discovery.pods=no"), "discovery"),
        (("mode=runs", "discovery.kinds=pods"), "discovery"),
    ],
)
def test_chart_refuses_a_discovery_that_cannot_work(values: tuple[str, ...], message: str) -> None:
    sets = [part for value in (IMAGE, ENABLED, *values) for part in ("--set", value)]
    completed = helm("template", "wattline", CHART, *sets)
    assert completed.returncode != 0
    assert message in completed.stderr
