"""Checks of the overlays on a real cluster; run by name, since they need a cluster, two images and
two minutes:

    export WATTLINE_IMAGE=localhost/wattline-exporter:0.1.0
    export WATTLINE_JOB_IMAGE=localhost/wattline-job:0.1.0
    .venv/bin/python -m pytest -p no:randomly tests/deploy/check_cluster.py

They use the cluster of kubectl's context, or the one that `tests/deploy/cluster.sh FOLDER env`
makes. The first image is deploy/docker's; the second has a Python with wattline[workloads]. One
node has the label nvidia.com/gpu.present=true and no device plugin of NVIDIA's: the GPUs are
simulated. The namespaces `wattline` and `wattline-jobs` are created and deleted; the node's
/var/lib/wattline keeps the runs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.cluster import (
    JOBS,
    OVERLAYS,
    READY_S,
    SPACE,
    Cluster,
    api,
    device_plugin,
    example,
    is_registered,
    job,
    kubectl,
    list_objects,
    namespace,
    phase,
    plain_pod,
    pod_log,
    secret,
    wait_for_completion,
)
from tests.deploy.machine import REPOSITORY
from tests.polling import eventually
from tests.servers import query, victoria_metrics

RUN_S = 6
HELD_S = 15
"""Longer than the time between two readings of the kubelet's assignments."""
_STRANGER = """
import requests
response = requests.post("http://wattline-runs.wattline:9847/api/v1/runs", json={"workload": "x"})
print(response.status_code)
"""
_NEVER_ENDS = """
import os, pathlib, sys, time, requests
token = pathlib.Path(os.environ["WATTLINE_TOKEN_FILE"]).read_text().strip()
response = requests.post(
    os.environ["WATTLINE_EXPORTER"] + "/api/v1/runs",
    json={"workload": "long", "run_id": sys.argv[1], "cgroup": os.environ["WATTLINE_CGROUP"], "gpus": ["0"]},
    headers={"Authorization": f"Bearer {token}"},
)
print(response.status_code, response.text, flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    image, job_image = os.environ.get("WATTLINE_IMAGE"), os.environ.get("WATTLINE_JOB_IMAGE")
    if not image or not job_image:
        pytest.skip("WATTLINE_IMAGE and WATTLINE_JOB_IMAGE name no images that the cluster has")
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "runc",
    }
    if "runtimeclass.node.k8s.io/nvidia" not in kubectl("get", "runtimeclass", "-o=name"):
        kubectl("create", "-f", "-", manifest=runtime)
    spaces = namespace(SPACE), namespace(JOBS, runs="true")
    kubectl("apply", "-f", "-", manifest=list_objects(*spaces, secret(SPACE), secret(JOBS)))
    yield Cluster(image, job_image, tmp_path_factory.mktemp("overlay"), secrets.token_hex(8))
    kubectl("delete", "namespace", SPACE, JOBS)


@pytest.fixture(scope="module")
def metrics(cluster: Cluster) -> Cluster:
    cluster.apply("metrics")
    return cluster


@pytest.fixture(scope="module")
def runs(cluster: Cluster) -> Cluster:
    """Yield the runs, with a device plugin that gives the simulated GPUs to pods."""
    cluster.apply("runs")
    text = (REPOSITORY / "tests/deploy/device_plugin.py").read_text()
    kubectl(
        "apply",
        "-f",
        "-",
        manifest=list_objects(*device_plugin(cluster, text, list(cluster.energy_j()))),
    )
    nodes = (
        "get",
        "nodes",
        "-l",
        "nvidia.com/gpu.present=true",
        "-o=jsonpath={.items[*].status.allocatable}",
    )
    eventually(lambda: '"nvidia.com/gpu":"2"' in kubectl(*nodes), "the node offers two GPUs")
    return cluster


@pytest.mark.parametrize("overlay", ["metrics", "runs", "rapl"])
def test_overlay_is_accepted_by_the_api_server(cluster: Cluster, overlay: str) -> None:
    if overlay != "metrics" and not is_registered("service.spec.internalTrafficPolicy"):
        pytest.skip("a server before 1.21 lacks internalTrafficPolicy")
    kubectl(
        "apply",
        "--server-side",
        "--dry-run=server",
        "--warnings-as-errors",
        "-k",
        str(OVERLAYS / overlay),
    )


def test_metrics_are_scraped_from_an_unprivileged_pod(metrics: Cluster) -> None:
    assert all(value > 0 for value in metrics.energy_j().values())
    assert metrics.metric("wattline_gpu_pod_info") == []
    status = kubectl("-n", SPACE, "exec", metrics.pod(), "--", "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["65532"] * 4
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}


def test_rollout_replaces_the_pod_with_a_ready_one(metrics: Cluster) -> None:
    before = metrics.pod()
    metrics.roll_out()
    assert metrics.pod() != before
    assert metrics.energy_j()


def test_pod_starts_a_run_on_the_gpu_assigned_by_the_kubelet(runs: Cluster) -> None:
    burn = f"import time; until = time.monotonic() + {RUN_S}\nwhile time.monotonic() < until: pass"
    job(
        runs,
        "train",
        "workloads",
        "run",
        "--run-id",
        runs.mark,
        "-l",
        "model=probe",
        "--",
        "python3",
        "-c",
        burn,
    )
    assigned = eventually(
        lambda: runs.metric("wattline_gpu_pod_info"),
        "the kubelet has assigned GPUs",
        lambda: phase("train"),
    )
    ((labels, _),) = assigned
    assert (labels["namespace"], labels["pod"], labels["container"]) == (JOBS, "train", "train")
    assert wait_for_completion("train") == "Succeeded", pod_log("train")
    ended = runs.run(runs.mark)
    assert (ended["state"], ended["outcome"], ended["labels"]["model"]) == ("ended", "ok", "probe")
    assert list(ended["energy_joules"]["gpu"]) == [labels["uuid"]]
    assert ended["energy_joules"]["gpu"][labels["uuid"]] > 0
    assert ended["duration_seconds"] >= RUN_S


def test_job_without_token_is_rejected(runs: Cluster) -> None:
    job(runs, "stranger", "python3", "-c", _STRANGER, gpus=0)
    assert wait_for_completion("stranger") == "Succeeded", pod_log("stranger")
    assert pod_log("stranger").strip() == "401"


def test_open_run_and_counters_continue_over_a_rollout(runs: Cluster) -> None:
    run_id = f"{runs.mark}-long"
    job(runs, "long", "python3", "-c", _NEVER_ENDS, run_id)
    eventually(lambda: phase("long") == "Running", "its pod runs", lambda: phase("long"), READY_S)
    eventually(lambda: "201" in pod_log("long"), "it has begun", lambda: pod_log("long"))
    before_j, before = runs.energy_j(), runs.pod()
    runs.roll_out()
    assert runs.pod() != before
    after_j = runs.energy_j()
    assert all(after_j[uuid] > before_j[uuid] for uuid in before_j)
    assert runs.run(runs.mark)["state"] == "ended"
    assert runs.run(run_id)["state"] == "running"
    kubectl("-n", JOBS, "delete", "pod", "long")
    ended = eventually(
        lambda: (run := runs.run(run_id))["state"] == "ended" and run, "it ends with its pod"
    )
    assert ended["outcome"] == "interrupted"


def test_scrape_discovers_the_pod_and_continues_after_a_rollout(
    runs: Cluster, tmp_path: Path
) -> None:
    """Use the README's configuration; the pods' addresses are reachable, as on a node.

    VictoriaMetrics reads it: Debian's Prometheus is built without Kubernetes.
    """
    energy = 'wattline_gpu_energy_joules_total{job="wattline"}'
    file = tmp_path / "kubernetes.yml"
    with api() as address:
        expected = {"global": {"scrape_interval": "1s"}} | example("scrape_configs")
        expected["scrape_configs"][0]["kubernetes_sd_configs"][0]["api_server"] = address
        file.write_text(yaml.safe_dump(expected))
        at_once = ["-promscrape.kubernetesSDCheckInterval=1s", "-search.latencyOffset=1s"]
        with victoria_metrics(
            tmp_path, [], flags=[f"-promscrape.config={file}", *at_once]
        ) as server:
            eventually(lambda: len(query(server, energy)) == 2, "both GPUs are scraped")
            node = kubectl("-n", SPACE, "get", "pod", runs.pod(), "-o=jsonpath={.spec.nodeName}")
            assert query(server, f'up{{instance="{node}"}}') == [1.0]
            runs.roll_out()
            scraped = f"time() - min(timestamp({energy}))"
            eventually(
                lambda: query(server, "up") == [1.0] and query(server, scraped) < [5.0],
                "and the new pod's",
            )
            assert query(server, f"count(count_over_time({energy}[10m]))") == [2.0]
            assert query(server, f"sum(resets({energy}[10m]))") == [0.0]


def test_token_file_is_readable_by_its_owner_only(runs: Cluster) -> None:
    assert (
        kubectl(
            "-n", SPACE, "exec", runs.pod(), "--", "stat", "-Lc", "%a %u", "/etc/wattline/token"
        )
        == "400 0\n"
    )


@pytest.mark.parametrize(("code", "outcome"), [(0, "ok"), (3, "failed")])
def test_pod_without_changes_is_a_run_with_its_gpu_and_outcome(
    runs: Cluster, code: int, outcome: str
) -> None:
    runs.apply("runs", "discovery")
    before = runs.owner_joules()
    uid = plain_pod(
        runs,
        f"plain-{code}",
        "python3",
        "-c",
        f"import time; time.sleep({HELD_S}); raise SystemExit({code})",
    )
    wait_for_completion(f"plain-{code}")
    ended = eventually(
        lambda: (run := runs.run(f"pod-{uid}"))["state"] == "ended" and run, "its run ends"
    )
    assert ended["outcome"] == outcome
    assert ended["workload"] == "kubernetes"
    assert (ended["labels"]["namespace"], ended["labels"]["pod"]) == (JOBS, f"plain-{code}")
    ((uuid, joules),) = ended["energy_joules"]["gpu"].items()
    assert uuid in runs.energy_j()
    assert joules > 0
    # HELD_S of sleep, and the time in which the container starts and ends
    assert HELD_S <= ended["duration_seconds"] < HELD_S + 30
    grown = eventually(
        lambda: runs.owner_joules() - before, "the owner's counter rises", within_s=120
    )
    assert grown > 0
