"""Unmodified programs on a node with the exporter's discovery: each has its true energy without
changes to it.

A job of a real Slurm on two GPUs, a container of Podman and a user's script run at the same time.
The GPUs belong to the stand-in driver library, whose energy is known in closed form.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.deploy.slurm.cluster import FREEZER, SlurmCluster, missing_packages
from tests.deploy.slurm.configuration import GPUS
from tests.fakes.podman import IMAGE, configured_podman, root_files
from tests.polling import eventually

SECONDS = 31.0
ERROR = 0.005
USER_ID = 65_534
JOB_GPUS, CONTAINER_GPU, SCRIPT_GPU = 2, 4, 5
LOAD = 0.6

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(FREEZER, os.W_OK) or bool(missing_packages()),
    reason="needs root, the freezer hierarchy of cgroup v1 and Slurm",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    options = {"n1": ("--runs.discover", "auto"), "n2": ()}
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), options) as started:
        yield started


@pytest.fixture(scope="module")
def podman():
    """Podman in a folder with a short path, which its storage needs."""
    with tempfile.TemporaryDirectory(prefix="podman-") as name:
        configured = configured_podman(Path(name))
        configured("import", str(root_files(configured.folder)), IMAGE)
        yield configured
        configured("rm", "--all", "--force", "--time=0")


def test_job_container_and_script_have_their_energy_within_half_a_percent(
    cluster, podman, tmp_path
):
    node = cluster.nodes["n1"]
    job = cluster.submit("-w", "n1", f"--gres=gpu:{JOB_GPUS}", script=cluster.load(SECONDS, LOAD))
    command = podman.command(
        "run", "--detach", "--network=host", IMAGE, "/bin/busybox", "sleep", "600"
    )
    started = subprocess.run(
        [*cluster.inside(node), *command],
        env=podman.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    container = started.stdout.strip()
    container_pid = podman.state(container)["Pid"]
    script = subprocess.Popen(["sleep", "600"], user=USER_ID, cwd="/")
    node.simulation.drive(CONTAINER_GPU, LOAD, container_pid)
    node.simulation.drive(SCRIPT_GPU, LOAD, script.pid)
    time.sleep(SECONDS)
    podman("kill", container)
    node.simulation.release(CONTAINER_GPU, container_pid)
    script.kill()
    script.wait()
    node.simulation.release(SCRIPT_GPU, script.pid)

    eventually(
        lambda: len(ended(node)) == 3,
        "three ended runs",
        lambda: f"{summary(node)}\n{cluster.log()}",
    )
    runs = {run["workload"]: run for run in node.runs().values()}

    assert sorted(run["workload"] for run in node.runs().values()) == [
        "container",
        "slurm",
        "user",
    ], summary(node)
    assert runs["slurm"]["run_id"] == f"slurm-lab-{job}"
    assert runs["container"]["run_id"] == f"container-{container[:12]}"
    assert runs["user"]["run_id"].startswith("user-nobody-")
    assert {kind: len(run["gpus"]) for kind, run in runs.items()} == {
        "slurm": JOB_GPUS,
        "container": 1,
        "user": 1,
    }
    for run in runs.values():
        assert run["duration_seconds"] >= 30.0
        true_j, half_j = node.true_j(run), sum(run["energy_uncertainty_joules"]["gpu"].values())
        # on a busy machine a poll at an edge may be late; the run's half-width then includes it
        assert sum(run["energy_joules"]["gpu"].values()) == pytest.approx(
            true_j, abs=max(ERROR * true_j, half_j)
        ), run
        assert half_j < 0.02 * true_j
    assert_shares_add_up(node)


def ended(node):
    return [run for run in node.runs().values() if run["state"] == "ended"]


def summary(node):
    """Return the exporter's view of each run, for messages."""
    keys = (
        "run_id",
        "workload",
        "state",
        "outcome",
        "started_at",
        "duration_seconds",
        "gpus",
        "notes",
    )
    return [{key: run[key] for key in keys} for run in node.runs().values()]


def assert_shares_add_up(node):
    """Compare the shares of each GPU, those of no run included, with its counter on the same
    page.
    """
    samples = node.samples()
    assert len(samples["wattline_gpu_energy_joules_total"]) == GPUS
    for labels, device_j in samples["wattline_gpu_energy_joules_total"]:
        for policy in ("idle_shared", "idle_apart"):
            shares_j = sum(
                value
                for share, value in samples["wattline_run_attributed_energy_joules_total"]
                if share["device"] == labels["uuid"] and share["policy"] == policy
            )
            assert shares_j == pytest.approx(device_j, rel=1e-6)
