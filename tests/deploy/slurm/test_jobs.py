"""Prolog, epilog and accounting of deploy/slurm on a real Slurm, with GPUs whose energy is known.

Node n1 has an exporter without discovery of runs, n2 one with it.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.slurm.cluster import FREEZER, GRAMS_PER_KWH, Node, SlurmCluster, missing_packages
from tests.deploy.slurm.configuration import REPOSITORY
from tests.polling import eventually

NAME = 'llama "70b" it\'s=1'
OPTIONS = {"n1": (), "n2": ("--runs.discover", "slurm")}
CAPPED_GPU, CAP_W = 5, 400.0
LATE_POLL_J = 700.0 * 0.25
"""Largest half-width of a short job: a poll of a busy machine is late by up to 0.25 s, at 700 W."""


@dataclass(frozen=True)
class Day:
    """Jobs of all kinds, which have ended, by name; the runs of each node."""

    jobs: dict[str, str]
    array_id: str
    runs: dict[str, dict[str, dict[str, Any]]]
    nodes: dict[str, Node]
    comments: dict[str, str]

    def of(self, name: str) -> list[tuple[Node, dict[str, Any]]]:
        """Return the runs of a job over all nodes, with their nodes, by run id."""
        pattern = rf"slurm-lab-{self.jobs[name]}(\.\d+)?"
        found = [
            (run_id, node)
            for node, runs in self.runs.items()
            for run_id in runs
            if re.fullmatch(pattern, run_id)
        ]
        return [(self.nodes[node], self.runs[node][run_id]) for run_id, node in sorted(found)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if os.geteuid() != 0 or not os.access(FREEZER, os.W_OK):
        pytest.skip("a Slurm cluster needs root and the freezer hierarchy of cgroup v1")
    if missing := missing_packages():
        installed = subprocess.run(
            [REPOSITORY / "deploy/apt.sh", *missing], capture_output=True, text=True, check=False
        )
        if missing_packages():
            reason = f"cannot install {', '.join(missing)}: {installed.stderr.strip()}"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), OPTIONS) as started:
        yield started


@pytest.fixture(scope="module")
def day(cluster: SlurmCluster) -> Day:
    """Run jobs of all kinds at the same time."""
    one = "--gres=gpu:1"
    first_long = (
        f'test "${{SLURM_RESTART_COUNT:-0}}" = 0 && {cluster.load(60)}; {cluster.load(1.5)}'
    )
    jobs = {
        "ok": cluster.submit("-J", NAME, "-w", "n1", "--gres=gpu:2", script=cluster.load(3)),
        "pair": cluster.submit(
            "-N2", one, script=f"srun {cluster.load(3, 0.7).removeprefix('exec ')}"
        ),
        "requeued": cluster.submit("-w", "n1", one, "--requeue", script=first_long),
        "failed": cluster.submit("-w", "n2", one, script=f"({cluster.load(2)}); exit 3"),
        "cancelled": cluster.submit("-w", "n2", one, script=cluster.load(60)),
    }
    array = cluster.submit("-w", "n2", one, "--array=5-6", script=cluster.load(2))
    for name, node in (("cancelled", "n2"), ("requeued", "n1")):
        wait_for_run(cluster, node, jobs[name])
    time.sleep(2.0)
    cluster.run("scancel", jobs["cancelled"])
    cluster.run("scontrol", "requeue", jobs["requeued"])
    listed = ("sacct", "-n", "-P", "-X", "-j", array, "-o", "jobid,jobidraw")
    tasks = eventually(
        lambda: len(found := re.findall(r"_(\d)\|(\d+)", cluster.run(*listed))) == 2 and found,
        "tasks",
        cluster.log,
    )
    jobs |= {f"array {task}": job for task, job in tasks or ()}
    for name in ("failed", "cancelled", "pair", "array 5", "array 6"):
        cluster.wait_for_state(jobs[name], "FAILED", "CANCELLED", "COMPLETED")
    # a job of all GPUs in a partition of higher priority preempts one
    jobs["preempted"] = cluster.submit("-w", "n2", "--gres=gpu:4", script=cluster.load(60))
    wait_for_run(cluster, "n2", jobs["preempted"])
    jobs["preempting"] = cluster.submit(
        "-p", "high", "-w", "n2", "--gres=gpu:6", script=cluster.load(1)
    )
    cluster.wait_for_state(jobs["preempting"], "COMPLETED")
    queued = ("squeue", "-h", "-j", jobs["requeued"], "-o", "%T")
    eventually(lambda: cluster.run(*queued).strip() == "PENDING", "the requeued job", cluster.log)
    # seconds after its first attempt: a slurmd that starts the next one in the same second runs no
    # prolog
    cluster.run("scontrol", "update", f"job={jobs['requeued']}", "StartTime=now")
    cluster.wait_for_state(jobs["requeued"], "COMPLETED")
    cluster.run("scancel", jobs["preempted"])
    all_ended = [name for name in jobs if name != "preempted"]
    eventually(
        lambda: all(cluster.comment(jobs[name]) for name in all_ended),
        "energies in sacct",
        cluster.log,
    )
    eventually(
        lambda: "attempts=2" in cluster.comment(jobs["requeued"]),
        "the energy of both attempts",
        cluster.log,
    )
    runs = {name: node.runs() for name, node in cluster.nodes.items()}
    return Day(
        jobs, array, runs, cluster.nodes, {name: cluster.comment(jobs[name]) for name in all_ended}
    )


def wait_for_run(cluster: SlurmCluster, node: str, job: str) -> None:
    eventually(
        lambda: f"slurm-lab-{job}" in cluster.nodes[node].runs(),
        f"the run of job {job}",
        cluster.log,
    )


def outcomes(day: Day, name: str) -> list[str]:
    return [run["outcome"] for _, run in day.of(name)]


def test_each_attempt_is_one_run_on_each_node(day: Day) -> None:
    expected = {
        "n1": {"ok": 1, "pair": 1, "requeued": 2},
        "n2": {
            "pair": 1,
            "failed": 1,
            "cancelled": 1,
            "array 5": 1,
            "array 6": 1,
            "preempted": 1,
            "preempting": 1,
        },
    }
    for node, attempts in expected.items():
        ids = {
            f"slurm-lab-{day.jobs[name]}{suffix}"
            for name, n in attempts.items()
            for suffix in ("", ".2")[:n]
        }
        numbers = "|".join(day.jobs.values())
        assert {
            run_id
            for run_id in day.runs[node]
            if re.fullmatch(rf"slurm-\w+-({numbers})(\.\d+)?", run_id)
        } == ids


def test_runs_have_the_labels_and_gpus_of_their_jobs(day: Day) -> None:
    ((_, run),) = day.of("ok")
    owner = {"discovered": "slurm", "user": "root", "account": "root", "partition": "main"}
    assert run["labels"] == {**owner, "job_name": NAME}
    assert run["workload"] == "slurm"
    gpus = [
        {gpu["gpu"] for gpu in run["gpus"]}
        for name in ("ok", "pair", "requeued")
        for _, run in day.of(name)
    ]
    assert [len(names) for names in gpus] == [2, 1, 1, 1, 1]
    tasks = [run for name in ("array 5", "array 6") for _, run in day.of(name)]
    assert [run["labels"]["array_id"] for run in tasks] == [day.array_id] * 2
    assert len({run["gpus"][0]["gpu"] for run in tasks}) == 2


def test_runs_have_the_outcomes_of_their_jobs(day: Day) -> None:
    assert outcomes(day, "ok") == ["ok"]
    assert outcomes(day, "pair") == ["ok", "ok"]
    assert outcomes(day, "array 5") == ["ok"]
    assert outcomes(day, "failed") == ["failed"]
    assert outcomes(day, "cancelled") == ["interrupted"]
    assert outcomes(day, "requeued") == ["interrupted", "ok"]
    assert outcomes(day, "preempted") == ["interrupted"]


def test_energies_of_runs_are_true(day: Day) -> None:
    for name in day.jobs:
        for node, run in day.of(name):
            energy_j = math.fsum(run["energy_joules"]["gpu"].values())
            half_width_j = math.fsum(run["energy_uncertainty_joules"]["gpu"].values())
            assert energy_j == pytest.approx(node.true_j(run), abs=2 * half_width_j), (name, run)
            assert half_width_j < max(0.03 * energy_j, LATE_POLL_J), (name, run)


def test_sacct_has_the_energy_of_all_nodes_and_attempts(day: Day) -> None:
    for name in ("ok", "pair", "failed", "cancelled", "requeued", "array 5", "array 6"):
        runs = [run for _, run in day.of(name)]
        nodes = 2 if name == "pair" else 1
        energy_j = math.fsum(
            joules for run in runs for joules in run["energy_joules"]["gpu"].values()
        )
        halves_j = [math.fsum(run["energy_uncertainty_joules"]["gpu"].values()) for run in runs]
        # attempts are independent, the nodes of one are not
        half_width_j = math.hypot(*halves_j) if name == "requeued" else math.fsum(halves_j)
        fields = dict(
            field.split("=") for field in day.comments[name].removeprefix("wattline: ").split()
        )
        assert float(fields["energy_joules"]) == pytest.approx(energy_j, abs=0.11), (name, runs)
        assert float(fields["uncertainty_joules"]) == pytest.approx(half_width_j, abs=0.11), name
        grams = energy_j / 3.6e6 * GRAMS_PER_KWH
        assert float(fields["emissions_gco2eq"]) == pytest.approx(grams, rel=1e-3), name
        assert fields["nodes"] == f"{nodes}/{nodes}"
        assert fields.get("attempts") == ("2" if name == "requeued" else None)


def test_task_prolog_gives_the_address_of_the_nodes_exporter(cluster: SlurmCluster) -> None:
    script = 'echo "$WATTLINE_EXPORTER"; env | grep -c WATTLINE_RUN_ID'
    job = cluster.submit("-w", "n2", script=script)
    own = cluster.submit("-w", "n2", "--export=ALL,WATTLINE_EXPORTER=http://other:1", script=script)
    for number in (job, own):
        cluster.wait_for_state(number, "COMPLETED", "FAILED")
    assert (cluster.folder / f"job-{job}.out").read_text().split() == [
        f"unix://{cluster.folder}/n2.sock",
        "0",
    ]
    assert (cluster.folder / f"job-{own}.out").read_text().split() == ["http://other:1", "0"]


def test_epilog_restores_the_power_limit_of_a_killed_sweep(cluster: SlurmCluster) -> None:
    node, holder = cluster.nodes["n1"], Path(__file__).parents[2] / "workloads/caps_holder.py"
    state = cluster.folder / "n1/simulation.state"
    command = (
        f"HOME={cluster.folder}/home SIMULATED_GPUS={state} {sys.executable} -P {holder} "
        f"{CAPPED_GPU} {CAP_W:g}"
    )
    before_w = node.simulation.gpus[CAPPED_GPU].limit_w
    job = cluster.submit(
        "-w", "n1", f"--export=ALL,PYTHONPATH={REPOSITORY}", script=f"(echo; sleep 600) | {command}"
    )
    eventually(
        lambda: node.simulation.gpus[CAPPED_GPU].limit_w == CAP_W,
        "the limit of the sweep",
        cluster.log,
    )
    programs = [
        pid
        for pid in cluster.processes(job, node)
        if "python" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    for sign in (signal.SIGSTOP, signal.SIGKILL):  # a watchdog that runs would restore the limit
        for pid in programs:
            os.kill(pid, sign)
    assert node.simulation.gpus[CAPPED_GPU].limit_w == CAP_W, (programs, cluster.log())
    cluster.run("scancel", job)
    eventually(
        lambda: node.simulation.gpus[CAPPED_GPU].limit_w == before_w,
        "the restored limit",
        cluster.log,
    )
    eventually(
        lambda: "restored: " in (cluster.folder / "wattline.log").read_text(),
        "a line in the log",
        cluster.log,
    )


def test_jobs_run_without_an_exporter(cluster: SlurmCluster) -> None:
    node = cluster.nodes["n1"]
    cluster.stop_exporter(node)
    job = cluster.submit("-w", "n1", "--gres=gpu:1", script=cluster.load(0.5))
    cluster.wait_for_state(job, "COMPLETED")
    log_file = cluster.folder / "wattline.log"
    eventually(lambda: f"epilog job {job}: " in log_file.read_text(), "the epilog", cluster.log)
    log = log_file.read_text()
    assert re.search(
        rf"wattline prolog job {job}: failed: cannot reach an exporter at unix://\S*n1.sock: ", log
    )
    assert re.search(rf"wattline epilog job {job}: failed: cannot reach an exporter", log)
    assert "Traceback" not in log
    assert cluster.run("sinfo", "-h", "-n", "n1", "-o", "%t", "-p", "main").strip() in (
        "idle",
        "comp",
    )
    cluster.start_exporter(node)
    job = cluster.submit("-w", "n1", "--gres=gpu:1", script=cluster.load(0.5))
    cluster.wait_for_state(job, "COMPLETED")
    eventually(
        lambda: node.runs()[f"slurm-lab-{job}"]["outcome"] == "ok",
        "the end of the run",
        cluster.log,
    )
