"""Unit from deploy/systemd/README.md on a real systemd."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.deploy.machine import REPOSITORY, SOURCE, Machine
from tests.fakes import nvml
from tests.polling import eventually
from wattline_exporter import simulation
from wattline_exporter.simulation import Constant, Simulation
from wattline_exporter.storage.file_versions import STATE_SCHEMA_VERSION

UNIT = "wattline-exporter"
FILES = f"{SOURCE}/deploy/systemd"
README = (REPOSITORY / "deploy" / "systemd" / "README.md").read_text()
POWER_W = 300.0
CORE_W = 50.0
SOCKET = "/run/wattline/api.sock"
_FOLDER = Path("build/machine")
GPUS = f"""[Service]
Environment=LD_LIBRARY_PATH={SOURCE / nvml.library().parent.relative_to(REPOSITORY)}
Environment={simulation.ENVIRONMENT}={SOURCE / _FOLDER / simulation.FILE_NAME}
ReadWritePaths={SOURCE / _FOLDER}
"""


@pytest.fixture(scope="module")
def node(machine: Machine) -> Iterator[Machine]:
    """Yield a machine with the unit running and the driver library of two GPUs of 300 W each."""
    folder = REPOSITORY / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / simulation.FILE_NAME
    simulation.create(
        path, simulation.make_gpus(2, simulation.PRODUCTS["H200"]), simulation.clock_s()
    )
    path.chmod(0o666)
    simulated = Simulation.open(path)
    for gpu in range(2):
        simulated.set_load(gpu, Constant(POWER_W))
    completed = machine.run(f"{FILES}/install.sh")
    assert completed.returncode == 0, completed.stderr
    machine.write(f"/etc/systemd/system/{UNIT}.service.d/gpus.conf", GPUS)
    model = f"--cpu.power-model idle=10,max={10 + CORE_W * (os.cpu_count() or 1):g}"
    machine.run("sed", "-i", f's/^\\(WATTLINE_ARGS=".*\\)"/\\1 {model}"/', f"/etc/default/{UNIT}")
    for name in ("ann", "bob"):
        machine.run("useradd", "--create-home", name)
    machine.run("usermod", "--append", "--groups", "gpu-users", "ann")
    machine.run("systemctl", "daemon-reload")
    started = machine.run("systemctl", "start", UNIT)
    assert started.returncode == 0, log(machine)
    eventually(
        lambda: sum(metric(machine, "wattline_gpu_up")) == 2,
        "both GPUs are up",
        lambda: log(machine),
    )
    eventually(
        lambda: metric(machine, "wattline_cpu_energy_joules_total") != [],
        "and the CPU",
        lambda: log(machine),
    )
    yield machine
    machine.run("systemctl", "stop", UNIT)
    simulated.close()
    shutil.rmtree(folder)


def log(machine: Machine) -> str:
    return machine.run("journalctl", "-u", UNIT, "--no-pager").stdout


def page(machine: Machine) -> str:
    read = (
        "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9847/metrics', "
        "timeout=10).read().decode())"
    )
    return machine.run("/opt/wattline/bin/python3", "-c", read).stdout


def metric(machine: Machine, name: str) -> list[float]:
    """Return the values of series by name, or of those that match the regular expression."""
    pattern = name if "{" in name else rf"{name}[{{ ]"
    return [
        float(line.split()[-1]) for line in page(machine).splitlines() if re.match(pattern, line)
    ]


def unit_property(machine: Machine, *properties: str) -> dict[str, str]:
    command = ["systemctl", "show", UNIT, *(f"--property={name}" for name in properties)]
    return dict(line.split("=", 1) for line in machine.run(*command).stdout.splitlines())


def run_workload(
    machine: Machine, around: Sequence[str], run_id: str, command: str
) -> CompletedProcess[str]:
    """Run `workloads run` through the socket by the command `around`; start the exporter if
    needed.
    """
    eventually(
        lambda: machine.run("test", "-S", SOCKET).returncode == 0,
        "the socket",
        lambda: log(machine),
    )
    eventually(
        lambda: metric(machine, "wattline_cpu_energy_joules_total") != [],
        "the CPU",
        lambda: log(machine),
    )
    words = [
        "/opt/wattline/bin/workloads",
        "run",
        "--gpus",
        "0",
        "--run-id",
        run_id,
        "--",
        "sh",
        "-c",
        command,
    ]
    return machine.run(*around, "env", f"WATTLINE_EXPORTER=unix://{SOCKET}", *words)


def exposure(machine: Machine) -> float:
    judged = machine.run("systemd-analyze", "security", "--no-pager", UNIT).stdout
    match = re.search(r"Overall exposure level for .*: ([\d.]+)", judged)
    assert match, judged
    return float(match[1])


def test_unit_is_valid_and_as_restricted_as_documented(node: Machine) -> None:
    verified = node.run("systemd-analyze", "verify", f"{UNIT}.service")
    assert (verified.returncode, verified.stderr) == (0, "")
    assert exposure(node) <= 2.0
    assert f"reports an exposure level of {exposure(node)} (" in README


def test_process_collector_needs_one_capability(node: Machine) -> None:
    dropped_in = f"/etc/systemd/system/{UNIT}.service.d/processes.conf"
    node.run("cp", f"{FILES}/{UNIT}.service.d/processes.conf.example", dropped_in)
    node.run("systemctl", "daemon-reload")
    try:
        assert exposure(node) <= 2.4
        assert f"`--collector.processes`; {exposure(node)})" in README
        assert unit_property(node, "AmbientCapabilities") == {
            "AmbientCapabilities": "cap_sys_ptrace"
        }
    finally:
        node.run("rm", dropped_in)
        node.run("systemctl", "daemon-reload")


def test_service_reads_gpus_as_unprivileged_user(node: Machine) -> None:
    eventually(
        lambda: len(metric(node, "wattline_gpu_power_watts")) == 2,
        "both are read",
        lambda: log(node),
    )
    assert metric(node, "wattline_gpu_power_watts") == pytest.approx([POWER_W, POWER_W], rel=0.01)
    pid = unit_property(node, "MainPID")["MainPID"]
    status = dict(
        line.split(":\t", 1)
        for line in node.run("cat", f"/proc/{pid}/status").stdout.splitlines()
        if ":\t" in line
    )
    assert int(status["Uid"].split()[0]) == int(node.run("id", "-u", "wattline").stdout)
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["Seccomp"] == "2"
    assert node.run("stat", "-c", "%U %a", "/var/lib/wattline").stdout.split() == [
        "wattline",
        "750",
    ]


def test_check_runs_with_the_services_rights_and_options(node: Machine) -> None:
    """Use the README's command. The driver library is visible to the service only, so no GPU is
    found.
    """
    script = README.partition("with the service's rights and options:\n")[2].partition("```")[0]
    quick = script.replace("check ", "check --idle-seconds 0 ")
    checked = node.run("sh", "-c", f". /etc/default/wattline-exporter; {quick}")
    assert "state   works: /var/lib/wattline" in checked.stdout, checked
    assert f"run API: unix://{SOCKET}" in checked.stdout, checked


def test_socket_accepts_runs_from_its_group_only(node: Machine) -> None:
    """Check that changes over TCP are rejected when a socket is configured."""
    completed = run_workload(node, ["runuser", "-u", "ann", "--"], "of-ann", "sleep 1")
    assert completed.returncode == 0, completed.stderr
    assert metric(node, r'wattline_run_duration_seconds\{run_id="of-ann"\}')[0] > 1
    completed = run_workload(node, ["runuser", "-u", "bob", "--"], "of-bob", "sleep 1")
    assert completed.returncode != 0
    assert SOCKET in completed.stderr
    assert "Traceback" not in completed.stderr
    assert metric(node, r'wattline_run_duration_seconds\{run_id="of-bob"\}') == []


def test_job_in_the_slice_includes_short_lived_children(node: Machine) -> None:
    """Children live for milliseconds, much less than the second between two process scans."""
    moments = "for i in $(seq 300); do /usr/bin/env true; done; times; sleep 2"
    scope = ["systemd-run", "--scope", "--slice=wattline.slice", "--quiet", "--"]
    completed = run_workload(node, scope, "moments", moments)
    assert completed.returncode == 0, completed.stderr
    assert "control group" not in completed.stderr
    spent_s = sum(
        60 * float(minutes) + float(rest)
        for minutes, rest in re.findall(r"(\d+)m([\d.]+)s", completed.stdout)
    )
    share = r'wattline_run_attributed_energy_joules_total\{component="cpu",.*policy="idle_apart",run_id="moments"\}'
    assert spent_s > 0.1
    assert sum(metric(node, share)) > 0.5 * spent_s * CORE_W


def has_run(node: Machine) -> bool:
    return 'wattline_run_start_timestamp_seconds{run_id="long"' in page(node)


def test_run_continues_after_sigkill_and_restart(node: Machine) -> None:
    """The run ends with its job."""
    started = run_workload(
        node, ["systemd-run", "--unit=job", "--quiet", "--"], "long", "sleep 600"
    )
    assert started.returncode == 0, started.stderr
    eventually(
        lambda: has_run(node),
        "the run has begun",
        lambda: log(node),
    )
    before = unit_property(node, "NRestarts")
    node.run("systemctl", "kill", "--signal=KILL", UNIT)
    again = str(int(before["NRestarts"]) + 1)
    eventually(
        lambda: unit_property(node, "NRestarts")["NRestarts"] == again,
        "it is started again",
        lambda: log(node),
    )
    eventually(lambda: has_run(node), "the run goes on", lambda: log(node))
    assert metric(node, r'wattline_run_end_timestamp_seconds\{run_id="long"\}') == []
    node.run("systemctl", "stop", "job")
    outcome = 'wattline_run_outcome_info{outcome="interrupted",run_id="long"}'
    eventually(lambda: outcome in page(node), "the run has ended", lambda: log(node))


def test_service_stops_cleanly(node: Machine) -> None:
    node.run("systemctl", "stop", UNIT)
    assert unit_property(node, "Result", "ExecMainStatus") == {
        "Result": "success",
        "ExecMainStatus": "0",
    }
    node.run("systemctl", "start", UNIT)


@pytest.mark.parametrize("version", [1, 9])
def test_state_of_another_version_ends_the_service_without_restarts(
    node: Machine, version: int
) -> None:
    node.run("systemctl", "stop", UNIT)
    change = "UPDATE meta SET value = {} WHERE key = 'schema_version'"
    path = "/var/lib/wattline/state.sqlite"
    command = (
        f"import sqlite3, sys\nwith sqlite3.connect('{path}') as state: state.execute(sys.argv[1])"
    )
    node.run("/opt/wattline/bin/python3", "-c", command, change.format(version))
    try:
        node.run("systemctl", "start", UNIT)
        state = ("ActiveState", "ExecMainStatus", "NRestarts")
        failed = {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
        eventually(
            lambda: unit_property(node, *state) == failed,
            "the service has failed",
            lambda: log(node),
        )
        assert f"mv /var/lib/wattline /var/lib/wattline.schema-{version}" in log(node)
    finally:
        node.run("systemctl", "stop", UNIT)
        node.run("/opt/wattline/bin/python3", "-c", command, change.format(STATE_SCHEMA_VERSION))
        node.run("systemctl", "reset-failed", UNIT)
    assert node.run("systemctl", "start", UNIT).returncode == 0
    eventually(
        lambda: sum(metric(node, "wattline_gpu_up")) == 2, "both GPUs are up", lambda: log(node)
    )


def test_rapl_files_are_readable_by_the_group_only(node: Machine) -> None:
    zone = "/root/tree/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0"
    for path in (f"{zone}/energy_uj", f"{zone}/intel-rapl:0:0/energy_uj"):
        node.write(path, "1\n", "0400")
    node.run("mkdir", "/root/tree/etc")
    node.run("cp", "/etc/passwd", "/etc/group", "/root/tree/etc/")
    completed = node.run(
        "systemd-tmpfiles",
        "--create",
        "--root=/root/tree",
        "/usr/lib/tmpfiles.d/wattline-rapl.conf",
    )
    assert completed.returncode == 0, completed.stderr
    for path in (f"{zone}/energy_uj", f"{zone}/intel-rapl:0:0/energy_uj"):
        assert node.run("stat", "-c", "%U %G %a", path).stdout.split() == [
            "root",
            "wattline",
            "440",
        ]
