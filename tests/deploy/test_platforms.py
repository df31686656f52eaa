"""Values of the Helm chart for managed clusters, OpenShift, the GPU operator and DRA."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.helm import CHART, IMAGE, helm, object_named
from tests.deploy.machine import REPOSITORY
from tests.deploy.test_kubernetes import above_restricted

README = (REPOSITORY / "deploy" / "helm" / "platforms.md").read_text()
NAMES = sorted(path.stem for path in (CHART / "values").glob("*.yaml"))
GKE_DRIVER = "/home/kubernetes/bin/nvidia"


@cache
def render(name: str, mode: str, *values: str) -> list[dict[str, Any]]:
    sets = [part for value in (IMAGE, f"mode={mode}", *values) for part in ("--set", value)]
    completed = helm(
        "template",
        "wattline",
        CHART,
        "--namespace",
        "wattline",
        "--values",
        CHART / "values" / f"{name}.yaml",
        *sets,
    )
    assert completed.returncode == 0, completed.stderr
    return [document for document in yaml.safe_load_all(completed.stdout) if document]


def pod(name: str, mode: str = "metrics", *values: str) -> dict[str, Any]:
    spec: dict[str, Any] = object_named(render(name, mode, *values), "DaemonSet")["spec"][
        "template"
    ]["spec"]
    return spec


def environment(spec: dict[str, Any]) -> dict[str, str]:
    return {
        variable["name"]: variable.get("value", "") for variable in spec["containers"][0]["env"]
    }


def host_paths(spec: dict[str, Any]) -> dict[str, str]:
    """Return the path on the node of each mount path in the container."""
    paths = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in spec["volumes"]
        if "hostPath" in volume
    }
    mounts = spec["containers"][0]["volumeMounts"]
    return {mount["mountPath"]: paths[mount["name"]] for mount in mounts if mount["name"] in paths}


def node_terms(spec: dict[str, Any]) -> list[str]:
    """Return the alternative conditions on labels of nodes."""
    node = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expressions = [
        expression for term in node["nodeSelectorTerms"] for expression in term["matchExpressions"]
    ]
    return [
        "=".join((each["key"], *each.get("values", [each["operator"]]))) for each in expressions
    ]


@pytest.mark.parametrize("mode", ["metrics", "runs"])
@pytest.mark.parametrize("name", NAMES)
def test_platform_objects_are_valid_and_reserve_no_gpu(name: str, mode: str) -> None:
    for document in render(name, mode):
        if document["kind"] != "SecurityContextConstraints":
            kubernetes_validate.validate(document, "1.37.0", strict=True)
    resources = pod(name, mode)["containers"][0]["resources"]
    assert not {key for part in ("requests", "limits") for key in resources[part]} - {
        "cpu",
        "memory",
    }


def test_each_platform_is_documented() -> None:
    rows = [
        line.split("`")[1].removesuffix(".yaml")
        for line in README.splitlines()
        if line.startswith("| `") and ".yaml`" in line
    ]
    assert sorted(rows) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_platform_has_the_documented_pod_security_level(name: str) -> None:
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `{name}.yaml` |")]
    assert row.endswith(f"| {'privileged' if above_restricted(pod(name)) else 'restricted'} |")


def test_gke_has_the_driver_of_the_node_and_its_devices() -> None:
    spec = pod("gke", "runs")
    (container,) = spec["containers"]
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert host_paths(spec)["/usr/local/nvidia"] == GKE_DRIVER
    assert environment(spec)["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert environment(spec)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "runtimeClassName" not in spec
    assert "nodeSelector" not in spec
    assert node_terms(spec) == ["cloud.google.com/gke-accelerator=Exists"]
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert pod("gke")["securityContext"]["runAsUser"] == 65532


def test_eks_names_all_gpus_by_a_mount() -> None:
    spec = pod("eks")
    assert host_paths(spec) == {"/var/run/nvidia-container-devices/all": "/dev/null"}
    assert environment(spec)["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "runtimeClassName" not in spec
    assert "privileged" not in spec["containers"][0]["securityContext"]
    assert node_terms(spec) == [
        "eks.amazonaws.com/instance-gpu-manufacturer=nvidia",
        "karpenter.k8s.aws/instance-gpu-manufacturer=nvidia",
        "nvidia.com/gpu.present=true",
    ]


def test_aks_selects_its_label_and_tolerates_its_taint() -> None:
    spec = pod("aks")
    assert spec["nodeSelector"] == {"kubernetes.azure.com/accelerator": "nvidia"}
    assert {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"} in spec[
        "tolerations"
    ]
    assert "runtimeClassName" not in spec
    assert host_paths(spec) == {}


def test_gpu_operator_uses_its_runtime_class_and_label() -> None:
    spec = pod("gpu-operator")
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert host_paths(spec) == {}


@pytest.mark.parametrize(
    ("mode", "user", "host"), [("metrics", 65532, False), ("runs", 0, True), ("rapl", 0, True)]
)
def test_openshift_constraints_allow_the_pod_and_no_more(mode: str, user: int, host: bool) -> None:
    objects = render("openshift", mode)
    scc = object_named(objects, "SecurityContextConstraints")
    template = object_named(objects, "DaemonSet")["spec"]["template"]
    spec, (container,) = template["spec"], template["spec"]["containers"]
    assert template["metadata"]["annotations"] == {"openshift.io/required-scc": "wattline-exporter"}
    assert scc["users"] == ["system:serviceaccount:wattline:wattline-exporter"]
    assert scc["runAsUser"] == {"type": "MustRunAs", "uid": user}
    assert spec["securityContext"]["runAsUser"] == user
    assert (scc["allowHostPID"], scc["allowHostDirVolumePlugin"]) == (host, host)
    assert spec.get("hostPID", False) is host
    assert bool(host_paths(spec)) is host
    assert spec["securityContext"].get("seLinuxOptions") == ({"type": "spc_t"} if host else None)
    assert (
        not scc["allowPrivilegedContainer"]
        | scc["allowPrivilegeEscalation"]
        | scc["allowHostNetwork"]
    )
    assert (
        container["securityContext"]["capabilities"]["drop"]
        == scc["requiredDropCapabilities"]
        == ["ALL"]
    )
    kinds = {next(key for key in volume if key != "name") for volume in spec["volumes"]}
    assert kinds <= {"emptyDir", "hostPath", "secret"} & set(scc["volumes"])


def test_openshift_reaches_its_dns_and_others_have_no_such_rule() -> None:
    for name, opened in (("openshift", True), ("gpu-operator", False)):
        rules = object_named(render(name, "metrics"), "NetworkPolicy")["spec"]["egress"]
        assert (
            {"port": 5353, "protocol": "UDP"} in [p for rule in rules for p in rule["ports"]]
        ) is opened
        kinds = {document["kind"] for document in render(name, "metrics")}
        assert ("SecurityContextConstraints" in kinds) is opened


def test_dra_claims_all_gpus_with_admin_access() -> None:
    objects = render("dra", "metrics")
    spec = pod("dra")
    (claim,) = spec["resourceClaims"]
    template = object_named(objects, "ResourceClaimTemplate", claim["resourceClaimTemplateName"])
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "All",
        "adminAccess": True,
    }
    assert spec["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]
    assert environment(spec)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "runtimeClassName" not in spec
    assert node_terms(spec) == [
        "feature.node.kubernetes.io/pci-10de.present=true",
        "nvidia.com/gpu.present=true",
    ]


def test_kubelet_in_another_folder_is_mounted_at_the_same_path() -> None:
    paths = host_paths(pod("gpu-operator", "runs", "kubeletRoot=/var/lib/k0s/kubelet"))
    assert paths["/var/lib/kubelet/pod-resources"] == "/var/lib/k0s/kubelet/pod-resources"
    assert (
        host_paths(pod("gpu-operator", "runs"))["/var/lib/kubelet/pod-resources"]
        == "/var/lib/kubelet/pod-resources"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("gpuAccess=claim",), 'set runtimeClassName to ""'),
        (("driver.hostPath=/run/nvidia/driver",), "driver.hostPath is for gpuAccess=privileged"),
        (("gpuAccess=env",), "gpuAccess"),
    ],
)
def test_contradicting_access_to_gpus_is_refused(values: tuple[str, ...], message: str) -> None:
    sets = [part for value in (IMAGE, *values) for part in ("--set", value)]
    completed = helm("template", "wattline", CHART, *sets)
    assert completed.returncode != 0
    assert message in completed.stderr
