"""Energy of jobs in a database that is a folder of text files; tests/deploy/slurm has the real
one.
"""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.run_api import RunApi, run_api_server
from wattline.client.api import Api
from wattline.contract.run import RunDevice
from wattline.figures import Figure, unknown
from wattline_workloads.slurm import accounting
from wattline_workloads.slurm.accounting import write_energy
from wattline_workloads.slurm.job import PrologJob, SlurmError

SCONTROL = """#!/bin/sh
echo "NodeName=n1 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=n1"
"""
SACCT = """#!/bin/sh
cat {folder}/records
"""
SACCTMGR = """#!/bin/sh
test -e {folder}/records || exit 1
echo "$@" >>{folder}/calls
"""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("scontrol", SCONTROL), ("sacct", SACCT), ("sacctmgr", SACCTMGR)):
        (programs / name).write_text(text.format(folder=tmp_path))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("WATTLINE_SLURM_LOG", str(tmp_path / "log"))
    return tmp_path


@pytest.fixture
def api() -> Iterator[tuple[RunApi, str]]:
    served = RunApi(("GPU-1",))
    with run_api_server(served) as address:
        yield served, address


def measure(api: tuple[RunApi, str], run_id: str, joules: float) -> None:
    calls = Api(api[1])
    calls.post("/runs", {"workload": "slurm", "run_id": run_id, "gpus": ["0"]})
    calls.post(f"/runs/{run_id}/end", {"outcome": "ok"})
    change_device(api, run_id, Figure(joules, 1.0))


def change_device(api: tuple[RunApi, str], run_id: str, energy_j: Figure) -> None:
    device = RunDevice("gpu", "GPU-1", energy_j)
    api[0].runs[run_id] = replace(api[0].runs[run_id], devices=(device,))


def job(address: str, job_id: str = "7", restarts: int = 0) -> PrologJob:
    environ = {
        "SLURM_JOB_ID": job_id,
        "SLURM_CLUSTER_NAME": "lab",
        "SLURM_JOB_RESTART_COUNT": str(restarts),
    }
    port = address.rpartition(":")[2]
    return PrologJob.of(
        {**environ, "SLURM_JOB_NODELIST": "n1", "WATTLINE_NODE_URL": f"http://{{address}}:{port}"}
    )


def test_energy_is_written_to_the_record_of_the_job(database, api) -> None:
    measure(api, "slurm-lab-7", 100.0)
    (database / "records").write_text("7|\n")
    comment = "wattline: energy_joules=100.0 uncertainty_joules=1.0 nodes=1/1"
    assert write_energy(job(api[1]), print) == comment
    call = f"-i modify job where jobid=7 cluster=lab set AdminComment={comment}\n"
    assert (database / "calls").read_text() == call


def test_energy_of_a_task_is_written_to_its_record_only(database, api) -> None:
    """The task with the id of its array would change the records of all tasks (seen with Slurm
    22.05).
    """
    measure(api, "slurm-lab-7", 100.0)
    (database / "records").write_text("7|\n")
    task = job(api[1])
    environ = {**task.environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "6"}
    assert write_energy(PrologJob.of(environ), print)
    assert "where jobid=7_6 cluster=lab" in (database / "calls").read_text()


def test_comment_of_another_task_of_the_array_is_not_added(database, api) -> None:
    """The first attempt of this task has no comment, so that its energy is unknown."""
    measure(api, "slurm-lab-7.2", 100.0)
    other = "wattline: energy_joules=5000.0 uncertainty_joules=1.0 nodes=1/1"
    (database / "records").write_text(f"6|{other}\n7|\n8|{other}\n")
    assert write_energy(job(api[1], restarts=1), print) == (
        "wattline: energy_joules=100.0 uncertainty_joules=1.0 nodes=0/1 attempts=2"
    )


def test_attempts_of_a_requeued_job_add_up_once(database, api) -> None:
    measure(api, "slurm-lab-7.2", 40.0)
    first = "wattline: energy_joules=100.0 uncertainty_joules=1.0 nodes=1/1"
    (database / "records").write_text(f"7|{first}\n7|\n")
    total = "wattline: energy_joules=140.0 uncertainty_joules=1.4 nodes=1/1 attempts=2"
    assert write_energy(job(api[1], restarts=1), print) == total
    (database / "records").write_text(f"7|{first}\n7|{total}\n")  # the epilog runs again
    assert write_energy(job(api[1], restarts=1), print) == total


def test_attempt_without_run_makes_the_sum_a_lower_limit(database, api) -> None:
    """The exporter was down in the prolog of the second attempt, so the latest run belongs to the
    first one. `nodes=0/1` says that the energy of the second one is not known.
    """
    measure(api, "slurm-lab-7", 100.0)
    first = "wattline: energy_joules=100.0 uncertainty_joules=1.0 nodes=1/1"
    messages: list[str] = []
    for records in (f"7|{first}\n7|\n", f"7|{first}\n"):
        (database / "records").write_text(records)
        assert write_energy(job(api[1], restarts=1), messages.append) == (
            "wattline: energy_joules=100.0 uncertainty_joules=1.0 nodes=0/1 attempts=2"
        )
    assert set(messages) == {"no energy of attempt 2: no node has a run of it"}


def test_late_comment_of_the_first_attempt_keeps_that_of_the_second(database, api) -> None:
    measure(api, "slurm-lab-7", 100.0)
    second = "wattline: energy_joules=40.0 uncertainty_joules=1.0 nodes=0/1 attempts=2"
    (database / "records").write_text(f"7|\n7|{second}\n")
    assert write_energy(job(api[1], restarts=1), print) == second
    assert not (database / "calls").exists()


def test_invalid_comment_of_an_earlier_attempt_is_not_added(database, api) -> None:
    measure(api, "slurm-lab-7.2", 40.0)
    (database / "records").write_text("7|wattline: energy_joules=1e999 nodes=1/1\n7|\n")
    assert write_energy(job(api[1], restarts=1), print) == (
        "wattline: energy_joules=40.0 uncertainty_joules=1.0 nodes=0/1 attempts=2"
    )


def test_node_of_unknown_energy_writes_nothing(database, api) -> None:
    measure(api, "slurm-lab-7", 100.0)
    change_device(api, "slurm-lab-7", unknown("the counter failed"))
    (database / "records").write_text("7|\n")
    messages: list[str] = []
    assert write_energy(job(api[1]), messages.append) is None
    assert messages == ["no energy of node n1: the counter failed"]
    assert not (database / "calls").exists()


def test_partial_energy_of_a_node_is_a_lower_limit(database, api) -> None:
    measure(api, "slurm-lab-7", 100.0)
    partial = Figure(100.0, 1.0, rest=(0.0, math.inf), reason="the GPU was lost")
    change_device(api, "slurm-lab-7", partial)
    (database / "records").write_text("7|\n")
    messages: list[str] = []
    assert write_energy(job(api[1]), messages.append) == (
        "wattline: energy_joules=100.0 uncertainty_joules=1.0 nodes=0/1"
    )
    assert messages == ["only a part of the energy of node n1: the GPU was lost"]


def test_answer_that_is_no_run_is_one_line(database, api, monkeypatch) -> None:
    measure(api, "slurm-lab-7", 100.0)
    change_device(api, "slurm-lab-7", Figure(math.inf, 1.0))
    monkeypatch.setattr(accounting, "WAIT_S", 0.0)
    messages: list[str] = []
    assert write_energy(job(api[1]), messages.append) is None
    assert messages == [
        (
            "no energy of node n1: cannot read the exporter's response: "
            "energy_joules.gpu.GPU-1: not a finite number; install the same version of wattline "
            "on all nodes and the controller"
        )
    ]


def test_earlier_attempt_on_another_node_is_not_added_again(database, api) -> None:
    served = RunApi(("GPU-1",))
    with run_api_server(served) as other:
        measure(api, "slurm-lab-7.2", 40.0)
        measure((served, other), "slurm-lab-7", 60.0)
        ports = [address.rpartition(":")[2] for address in (api[1], other)]
        nodes = "\n".join(
            f'echo "NodeName=n{port} Arch=x86_64 NodeAddr={port} X=1"' for port in ports
        )
        (database / "bin" / "scontrol").write_text(f"#!/bin/sh\n{nodes}\n")
        first = "wattline: energy_joules=100.0 uncertainty_joules=1.0 nodes=2/2"
        (database / "records").write_text(f"7|{first}\n7|\n")
        environ = {
            **job(api[1], restarts=1).environ,
            "WATTLINE_NODE_URL": "http://127.0.0.1:{address}",
        }
        messages: list[str] = []
        assert write_energy(PrologJob.of(environ), messages.append) == (
            "wattline: energy_joules=140.0 uncertainty_joules=1.4 nodes=1/2 attempts=2"
        )
    assert messages == [
        (
            f"no energy of node n{ports[1]}: its latest run of the job, slurm-lab-7, is an earlier "
            "attempt"
        )
    ]


def test_comment_of_another_program_is_kept(database, api) -> None:
    measure(api, "slurm-lab-7", 100.0)
    (database / "records").write_text("7|JS1:H4sIAAAA\n")
    messages: list[str] = []
    assert write_energy(job(api[1]), messages.append) is None
    assert not (database / "calls").exists()
    assert (
        "AdminComment of another program, which is kept; its energy: wattline: energy_joules=100.0"
        in messages[0]
    )


def test_energy_waits_for_the_record_of_the_job(database, api) -> None:
    measure(api, "slurm-lab-7", 100.0)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            (database / "records").write_text("7|\n")

    assert write_energy(job(api[1]), print, sleep)
    assert len(waits) == 2


def test_run_that_does_not_end_is_logged(database, api, monkeypatch) -> None:
    Api(api[1]).post("/runs", {"workload": "slurm", "run_id": "slurm-lab-7", "gpus": ["0"]})
    monkeypatch.setattr(accounting, "WAIT_S", 0.0)
    messages: list[str] = []
    assert write_energy(job(api[1]), messages.append) is None
    assert messages == ["no energy of node n1: the run slurm-lab-7 has not ended"]


def test_comment_waits_for_another_writer_of_the_log(database, api):
    """A second process holds the lock until it has written its comment."""
    measure(api, "slurm-lab-7", 100.0)
    (database / "records").write_text("7|\n")
    hold = f"""
import fcntl, pathlib, time
log = open({str(database / "log")!r}, "a")
fcntl.lockf(log, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(1)
pathlib.Path({str(database / "records")!r}).write_text("7|by another program\\n")
"""
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"

        comment = write_energy(job(api[1]), print)

    assert comment is None


def test_unwritable_log_is_named(database, api, monkeypatch):
    measure(api, "slurm-lab-7", 100.0)
    (database / "records").write_text("7|\n")
    monkeypatch.setenv("WATTLINE_SLURM_LOG", "/nonexistent/log")
    monkeypatch.setattr(accounting, "RECORD_WAIT_S", 0.0)

    with pytest.raises(
        SlurmError, match="set WATTLINE_SLURM_LOG to a file that SlurmUser can write"
    ):
        write_energy(job(api[1]), print)
