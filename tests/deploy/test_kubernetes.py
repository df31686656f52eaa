"""Kubernetes manifests: valid for every supported version, with the documented restrictions."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.machine import REPOSITORY
from tests.servers import require

FOLDER = REPOSITORY / "deploy" / "kubernetes"
README = (FOLDER / "README.md").read_text()
LEVELS = {"metrics": "restricted", "runs": "privileged", "rapl": "privileged"}
VERSIONS = ("1.25.0", "1.37.0")
_LINTER = "checkov==3.3.30"
_LINT = """
import contextlib, io, json, sys
from checkov.main import Checkov
results = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = Checkov(arguments).run()
    results.append({"code": code, "output": output.getvalue()})
print(json.dumps(results))
"""
_ACCEPTED = {
    "CKV_K8S_11": "with a limit on CPU it would be throttled and sample late",
    "CKV_K8S_15": "a tag is never pushed twice, and a node that is cut off must start it",
    "CKV_K8S_43": "only the builder of the image knows its digest: kustomize edit set image",
}
_ACCEPTED_OF_RUNS = {
    "CKV_K8S_17": "the pids of runs and of NVML are the host's",
    "CKV_K8S_23": "the kubelet's socket is root's; root has no capability here",
    "CKV_K8S_40": "the same",
}


@cache
def render(overlay: str) -> str:
    kubectl = require("kubectl", "kubernetes-client")
    completed = subprocess.run(
        [kubectl, "kustomize", FOLDER / "overlays" / overlay],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def documents(overlay: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(overlay)))


def single_object(overlay: str, kind: str) -> dict[str, Any]:
    (result,) = [document for document in documents(overlay) if document["kind"] == kind]
    return result


def pod(overlay: str) -> dict[str, Any]:
    spec: dict[str, Any] = single_object(overlay, "DaemonSet")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("overlay", LEVELS)
@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid_for_oldest_and_newest_api(overlay: str, version: str) -> None:
    result = documents(overlay)
    assert {"DaemonSet", "NetworkPolicy", "PriorityClass", "ServiceAccount"} <= {
        d["kind"] for d in result
    }
    for document in result:
        kubernetes_validate.validate(document, version, strict=True)


def test_api_validation_detects_a_misspelled_field() -> None:
    broken = single_object("metrics", "DaemonSet")
    broken["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


@pytest.mark.parametrize(("overlay", "level"), LEVELS.items())
def test_pods_meet_the_documented_pod_security_level(overlay: str, level: str) -> None:
    reached = "privileged" if above_restricted(pod(overlay)) else "restricted"
    assert reached == level
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `{overlay}` |")]
    assert row.endswith(f"| {level} |")


@pytest.mark.parametrize("overlay", LEVELS)
def test_overlays_leave_the_namespace_unchanged(overlay: str) -> None:
    assert "Namespace" not in {document["kind"] for document in documents(overlay)}


def test_readme_overlay_is_rendered_with_its_options() -> None:
    own, ops = (part.partition("```")[0] for part in README.split("```yaml\n")[1:3])
    content = yaml.safe_load(own)
    content["patches"][0]["patch"] += "\n" + ops
    with tempfile.TemporaryDirectory(dir=REPOSITORY, prefix=".overlay-") as folder:
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(content))
        spec = pod(folder)
    (container,) = spec["containers"]
    assert container["args"][-2:] == ["--carbon.provider=gb", "--carbon.region=GB"]
    assert container["image"] == "registry.example.org/wattline-exporter:0.1.0"
    assert spec["nodeSelector"] == {"accelerator": "gpu"}
    assert "runtimeClassName" not in spec
    assert [each["key"] for each in spec["tolerations"]] == ["nvidia.com/gpu", "dedicated"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert container["resources"]["limits"] == {"memory": "1Gi"}


def above_restricted(spec: dict[str, Any]) -> list[str]:
    """Yield the violations of Pod Security's level "restricted".

    Source: https://kubernetes.io/docs/concepts/security/pod-security-standards
    """
    own = spec["securityContext"]
    volumes = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    broken = [
        f"host namespace {name}" for name in ("hostPID", "hostIPC", "hostNetwork") if spec.get(name)
    ]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    broken += [f"volume {kind}" for kind in volumes - allowed]
    broken += [] if own.get("runAsNonRoot") is True and own.get("runAsUser") != 0 else ["root"]
    broken += (
        [] if own["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost") else ["seccomp"]
    )
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        context = container["securityContext"]
        broken += (
            ["privilege escalation"] if context.get("allowPrivilegeEscalation") is not False else []
        )
        broken += ["capabilities"] if context.get("capabilities") != {"drop": ["ALL"]} else []
        broken += ["privileged"] if context.get("privileged") else []
        broken += ["host port" for port in container.get("ports", []) if port.get("hostPort")]
    return broken


@pytest.mark.parametrize("overlay", LEVELS)
def test_containers_have_no_privileges_and_reserve_no_gpu(overlay: str) -> None:
    spec = pod(overlay)
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert not any(
        "nvidia.com" in name for requested in container["resources"].values() for name in requested
    )
    written = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"state", "tmp"}


@pytest.mark.parametrize("overlay", ["runs", "rapl"])
def test_token_is_readable_by_the_owner_only(overlay: str) -> None:
    """Check that no fsGroup is set: it would open the file to a group, even with mode 0400."""
    (token,) = [volume["secret"] for volume in pod(overlay)["volumes"] if volume["name"] == "token"]
    assert token["defaultMode"] == 0o400
    assert "fsGroup" not in pod(overlay)["securityContext"]


def test_state_is_stored_outside_the_pod() -> None:
    volumes = {volume["name"]: volume for volume in pod("runs")["volumes"]}
    assert volumes["state"] == {
        "name": "state",
        "hostPath": {"path": "/var/lib/wattline", "type": "DirectoryOrCreate"},
    }
    assert "emptyDir" in {v["name"]: v for v in pod("metrics")["volumes"]}["state"]


def test_job_reaches_its_nodes_exporter_by_an_allowed_name() -> None:
    service = single_object("runs", "Service")
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    arguments = pod("runs")["containers"][0]["args"]
    addressed = {
        name,
        f"{name}.{namespace}",
        f"{name}.{namespace}.svc",
        f"{name}.{namespace}.svc.cluster.local",
    }
    assert addressed == {
        text.partition("=")[2] for text in arguments if text.startswith("--web.allowed-host=")
    }


@pytest.mark.parametrize("beside", LEVELS)
@pytest.mark.parametrize("component", ["prometheus-operator", "victoriametrics-operator"])
def test_operator_scrape_selects_pods_and_labels_the_node(
    component: str, beside: str, tmp_path: Path
) -> None:
    kinds = {
        "prometheus": ("PodMonitor", "relabelings"),
        "victoriametrics": ("VMPodScrape", "relabelConfigs"),
    }
    kind, relabels = kinds[component.partition("-")[0]]
    overlay = FOLDER / "overlays" / f"test-{component}-{tmp_path.name}"
    overlay.mkdir()
    try:
        expected = {"resources": [f"../{beside}"], "components": [f"../../components/{component}"]}
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(expected))
        scrape = single_object(overlay.name, kind)
        template = single_object(overlay.name, "DaemonSet")["spec"]["template"]
    finally:
        (overlay / "kustomization.yaml").unlink()
        overlay.rmdir()
    assert (
        scrape["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    )
    (endpoint,) = scrape["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert endpoint[relabels] == [
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
        {"action": "labeldrop", "regex": "pod|container|endpoint"},
    ]
    assert scrape["metadata"]["namespace"] == "wattline"


@pytest.fixture(scope="module")
def linter_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return exit code and output of the linter by overlay, from one process, because its start
    takes seconds.
    """
    folder = tmp_path_factory.mktemp("rendered")
    calls = []
    for overlay in LEVELS:
        (folder / overlay).mkdir()
        (folder / overlay / "rendered.yaml").write_text(render(overlay))
        accepted = _ACCEPTED | (_ACCEPTED_OF_RUNS if overlay != "metrics" else {})
        options = [
            "--framework",
            "kubernetes",
            "--compact",
            "--quiet",
            "--skip-download",
            "--skip-check",
            ",".join(accepted),
        ]
        calls.append(["-d", str(folder / overlay), *options])
    command = [_linter(), "-c", _LINT, json.dumps(calls)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return dict(zip(LEVELS, json.loads(completed.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("overlay", LEVELS)
def test_policy_linter_reports_only_intended_exceptions(
    overlay: str, linter_results: dict[str, dict[str, Any]]
) -> None:
    assert linter_results[overlay]["code"] == 0, linter_results[overlay]["output"]


def _linter() -> Path:
    """Return the Python of a separate environment with the linter, because it brings a hundred
    packages.
    """
    folder = REPOSITORY / "build" / "checkov"
    if not (folder / "bin" / "checkov").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(
            [REPOSITORY / "deploy" / "install.sh", folder, _LINTER], check=True, timeout=500
        )
    return folder / "bin" / "python"
