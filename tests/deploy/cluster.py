"""Real cluster of `kubectl`'s context, and the objects of the overlays' checks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.machine import REPOSITORY
from tests.polling import eventually
from tests.servers import free_port, require

OVERLAYS = REPOSITORY / "deploy" / "kubernetes" / "overlays"
SPACE, JOBS = "wattline", "wattline-jobs"
TOKEN = "0123456789abcdef0123456789abcdef"  # of a temporary cluster
READY_S = 180.0


def kubectl(*arguments: str, manifest: object = None, within_s: float = READY_S) -> str:
    """Return kubectl's output; `given` are objects on its stdin."""
    document = None if manifest is None else json.dumps(manifest)
    command = [require("kubectl", "kubernetes-client"), *arguments]
    completed = subprocess.run(
        command, input=document, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert completed.returncode == 0, f"{arguments}: {completed.stderr}"
    return completed.stdout


def list_objects(*objects: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    marks = {f"wattline/{label}": value for label, value in labels.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": marks}}


def secret(space: str) -> dict[str, Any]:
    metadata = {"name": "wattline-token", "namespace": space}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "stringData": {"token": TOKEN},
    }


@dataclass(frozen=True)
class Cluster:
    image: str
    job_image: str
    folder: Path
    mark: str
    """Suffix of run ids, because the node's ledger outlives a cluster."""

    def apply(self, overlay: str, *components: str) -> None:
        """Apply the overlay and components with simulated GPUs, and wait until each node's pod is
        ready.
        """
        name, _, tag = self.image.rpartition(":")
        simulated = [
            {
                "op": "add",
                "path": "/spec/template/spec/containers/0/args/-",
                "value": "--simulate=2xH200",
            }
        ]
        patches = [{"target": {"kind": "DaemonSet"}, "patch": json.dumps(simulated)}]
        if overlay != "metrics" and not is_registered("service.spec.internalTrafficPolicy"):
            older = [{"op": "remove", "path": "/spec/internalTrafficPolicy"}]
            patches.append({"target": {"kind": "Service"}, "patch": json.dumps(older)})
        expected = {
            "resources": [os.path.relpath(OVERLAYS / overlay, self.folder)],
            "components": [
                os.path.relpath(OVERLAYS.parent / "components" / name, self.folder)
                for name in components
            ],
            "images": [{"name": "wattline-exporter", "newName": name, "newTag": tag}],
            "patches": patches,
        }
        (self.folder / "kustomization.yaml").write_text(yaml.safe_dump(expected))
        kubectl("apply", "-k", str(self.folder))
        self.rolled_out()

    def rolled_out(self) -> None:
        kubectl(
            "-n",
            SPACE,
            "rollout",
            "status",
            "daemonset/wattline-exporter",
            f"--timeout={READY_S:g}s",
            within_s=200,
        )

    def roll_out(self) -> None:
        """Replace all pods."""
        kubectl("-n", SPACE, "rollout", "restart", "daemonset/wattline-exporter")
        self.rolled_out()

    def pod(self) -> str:
        """Return the pod that is not terminating."""
        pods = json.loads(
            kubectl(
                "-n",
                SPACE,
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/name=wattline-exporter",
                "-o=json",
            )
        )
        (name,) = [
            p["metadata"]["name"] for p in pods["items"] if "deletionTimestamp" not in p["metadata"]
        ]
        return str(name)

    def get(self, path: str) -> str:
        """Return the pod's response through the API server."""
        return kubectl(
            "get", "--raw", f"/api/v1/namespaces/{SPACE}/pods/{self.pod()}:9847/proxy{path}"
        )

    def run(self, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = json.loads(self.get(f"/api/v1/runs/{run_id}"))
        return run

    def metric(self, name: str) -> list[tuple[dict[str, str], float]]:
        families = text_string_to_metric_families(self.get("/metrics"))
        return [
            (sample.labels, sample.value)
            for family in families
            for sample in family.samples
            if sample.name == name
        ]

    def owner_joules(self) -> float:
        """Return the attributed energy of all pods of the jobs."""
        found = self.metric("wattline_owner_energy_joules_total")
        return sum(
            value
            for labels, value in found
            if labels["owner"] == JOBS and labels["policy"] == "idle_shared"
        )

    def energy_j(self) -> dict[str, float]:
        """Return the energy of each GPU once all are read."""
        result = eventually(
            lambda: {
                labels["uuid"]: value
                for labels, value in self.metric("wattline_gpu_energy_joules_total")
            },
            "the GPUs' energy",
        )
        assert len(result) == 2
        return result


def is_registered(field: str) -> bool:
    command = [require("kubectl", "kubernetes-client"), "explain", field]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def device_plugin(
    cluster: Cluster, text: str, uuids: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata = {"name": "device-plugin", "namespace": SPACE}
    folder = "/var/lib/kubelet/device-plugins"
    spec = {
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "plugin",
                "image": cluster.image,
                "command": ["python3", "/plugin/device_plugin.py", *uuids],
                "securityContext": {"runAsUser": 0},
                "volumeMounts": [
                    {"name": "code", "mountPath": "/plugin"},
                    {"name": "sockets", "mountPath": folder},
                ],
            }
        ],
        "volumes": [
            {"name": "code", "configMap": {"name": "device-plugin"}},
            {"name": "sockets", "hostPath": {"path": folder, "type": "Directory"}},
        ],
    }
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"device_plugin.py": text},
    }
    return code, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def example(key: str) -> dict[str, Any]:
    """Return the README's example that begins with this text."""
    blocks = (OVERLAYS.parent / "README.md").read_text().split("```yaml\n")[1:]
    (result,) = [block.partition("```")[0] for block in blocks if block.startswith(f"{key}:")]
    content: dict[str, Any] = yaml.safe_load(result)
    return content


@contextmanager
def api() -> Iterator[str]:
    """Yield an address of the API server for programs without kubectl's credentials."""
    command = [require("kubectl", "kubernetes-client"), "proxy", f"--port={(port := free_port())}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as proxy:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            proxy.terminate()


def job(cluster: Cluster, name: str, *command: str, gpus: int = 1) -> None:
    """Start a job's pod from the README; its service has an address, for a cluster without DNS."""
    service = kubectl(
        "-n", SPACE, "get", "service", "wattline-runs", "-o=jsonpath={.spec.clusterIP}"
    )
    spec = example("containers")
    (container,) = spec["containers"]
    container |= {"image": cluster.job_image, "command": list(command)}
    container["resources"] = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    spec |= {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "hostAliases": [{"ip": service, "hostnames": ["wattline-runs.wattline"]}],
    }
    metadata = {"name": name, "namespace": JOBS}
    kubectl(
        "apply",
        "-f",
        "-",
        manifest={"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    )


def plain_pod(cluster: Cluster, name: str, *command: str) -> str:
    """Start a pod with one GPU that knows nothing of Wattline; return its UID."""
    container = {
        "name": "main",
        "image": cluster.job_image,
        "command": list(command),
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    metadata = {"name": name, "namespace": JOBS, "labels": {"app": "probe"}}
    spec = {"restartPolicy": "Never", "containers": [container]}
    kubectl(
        "apply",
        "-f",
        "-",
        manifest={"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    )
    return kubectl("-n", JOBS, "get", "pod", name, "-o=jsonpath={.metadata.uid}")


def phase(name: str) -> str:
    return kubectl("-n", JOBS, "get", "pod", name, "-o=jsonpath={.status.phase}")


def pod_log(name: str) -> str:
    return kubectl("-n", JOBS, "logs", name)


def wait_for_completion(name: str) -> str:
    """Return the final phase: Succeeded or Failed."""
    eventually(
        lambda: phase(name) in ("Succeeded", "Failed"),
        f"{name} is over",
        lambda: pod_log(name),
        within_s=READY_S,
    )
    return phase(name)
