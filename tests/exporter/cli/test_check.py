"""Output of `exporter check` for each source and for the state folder."""

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from tests.daemon import daemon
from tests.exporter.commands import SIMULATED, assert_one_line, exporter
from tests.fakes import nvml, powercap
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import FILE_NAME, PRODUCTS, Fault, Simulation, create, make_gpus

QUICK = ("--idle-seconds", "0", "--web.listen-address", "127.0.0.1:0")
"""Options of `check` without a measurement of idle power, and at a free port."""


def test_state_path_that_is_a_file_is_one_line_in_serve_and_check(tmp_path):
    path = tmp_path / "state"
    path.write_text("")
    assert_one_line(
        exporter("serve", "--state.path", str(path)),
        1,
        f"cannot use {path}: it is a file",
        "--state.path",
    )
    checked = exporter("check", "--simulate", "1xH200", *QUICK, "--state.path", str(path))
    assert (
        f"state   cannot use {path}: it is a file; set --state.path to a folder" in checked.stdout
    )
    sealed = exporter("check", "--simulate", "1xH200", *QUICK, "--state.path", "/proc")
    assert (
        "state   cannot write to /proc: No such file or directory; let this user write there, or"
        in sealed.stdout
    )


@pytest.mark.parametrize(
    ("mounted", "error", "advice"),
    [
        ("size=32k", "No space left on device", "make room on its disk"),
        ("ro", "Read-only file system", "let this user write there"),
    ],
)
@pytest.mark.parametrize("below", ["", "/state"])
def test_check_and_serve_report_a_full_disk_alike(tmp_path, mounted, error, advice, below):
    """Run in a separate mount namespace, which ends with the command."""
    if os.geteuid() != 0:
        pytest.skip("to mount a disk takes root")
    fill = 'head -c 1M /dev/zero > "$1/full" 2>&-; ' if "size" in mounted else ""
    for command in ("check --idle-seconds 0", "serve"):
        words = (
            f"{sys.executable} -m wattline_exporter {command} --simulate 1xH200 "
            "--web.listen-address 127.0.0.1:0"
        )
        words += f' --state.path "$1{below}"'
        script = f'mount -t tmpfs -o {mounted} disk "$1"; {fill}exec {words}'
        inside = ["unshare", "--mount", "sh", "-c", script, "sh", tmp_path]
        done = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=60)
        output = done.stdout if command.startswith("check") else done.stderr
        assert (
            f"cannot write to {tmp_path}{below}: {error}; {advice}, or choose another folder"
            in output
        )
        assert done.returncode == 1


def test_check_reports_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        options = (
            "--idle-seconds",
            "0",
            "--state.path",
            str(tmp_path),
            "--web.listen-address",
            address,
        )
        done = exporter("check", "--simulate", "1xH200", *options)

    assert f"web     fails: cannot listen on {address}: " in done.stdout
    assert done.stdout.endswith(
        "result  fails: the exporter cannot start with these options; see the lines above\n"
    )
    assert done.returncode == 1


def test_check_prints_one_line_per_source(tmp_path):
    powercap.intel_two_packages(tmp_path / "sys")
    options = ("--state.path", str(tmp_path / "state"), "--path.sysfs", str(tmp_path / "sys"))
    done = exporter("check", *QUICK, "--simulate", "2xH200", "--carbon.intensity", "230", *options)
    lines = done.stdout.splitlines()

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in lines] == [
        "nvml",
        "nvml",
        "rapl",
        "host",
        "carbon",
        "state",
        "web",
        "result",
    ]
    assert "works: GPU 1, SIMULATED NVIDIA H200" in lines[1]
    assert "energy counter" in lines[1]
    assert "package 0" in lines[2]
    assert lines[4].endswith("230 gCO2eq/kWh (static, average)")
    assert lines[-1] == "result  works: energy can be measured"
    assert not (tmp_path / "state").exists()  # check creates no files


def test_check_describes_what_discovery_can_read(tmp_path):
    options = (*QUICK, "--simulate", "1xH200", "--state.path", str(tmp_path))
    done = exporter("check", *options, "--runs.discover", "user,slurm")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("runs"))
    assert line.startswith("runs    discovered: slurm, user; it sees all of the host's (")
    refused = exporter("check", *options, "--runs.discover", "slurm,pods")
    assert refused.returncode == 2
    assert (
        "--runs.discover: unknown name pods; use slurm,kubernetes,container,service,user"
        in refused.stderr
    )


def test_check_without_energy_source_exits_1(tmp_path):
    options = ("--state.path", str(tmp_path / "state"), "--path.sysfs", str(tmp_path))
    done = exporter("check", *QUICK, *options, LD_LIBRARY_PATH=str(tmp_path))

    assert done.returncode == 1
    assert "nvml    off: NVML: " in done.stdout
    assert "--simulate 2xH200" in done.stdout
    assert "rapl    off: no RAPL" in done.stdout
    assert "carbon  off" in done.stdout
    assert done.stdout.endswith("result  fails: no source measures energy; see the lines above\n")


def test_check_reports_a_worker_that_cannot_be_executed(tmp_path, monkeypatch):
    from wattline_exporter.cli.check import run_checks
    from wattline_exporter.config.settings import Settings
    from wattline_exporter.sensors.carbon.options import CarbonOptions

    interpreter = tmp_path / "python3"
    interpreter.write_text("not to be executed")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    lines = asyncio.run(
        run_checks(Settings(state_path=tmp_path / "state", sysfs=tmp_path), (), CarbonOptions())
    )

    assert lines[0].text.startswith(
        f"nvml    off: cannot run {interpreter}: Permission denied; install Wattline"
    )


def test_check_separates_failing_from_healthy_gpus(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(4, PRODUCTS["H200"]), boottime())
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_fault(1, Fault.LOST, on=True)
        simulation.set_fault(2, Fault.NO_COUNTER, on=True)
        lost = exporter(
            "check", *QUICK, "--state.path", str(tmp_path), **nvml.environment(simulation.path)
        ).stdout
        simulation.set_fault(3, Fault.HANG, on=True)
        hung = exporter(
            "check", *QUICK, "--state.path", str(tmp_path), **nvml.environment(simulation.path)
        ).stdout
        simulation.set_fault(3, Fault.HANG, on=False)

    assert "GPU 0, SIMULATED" in lost
    assert "GPU 1 fails: GPU is lost" in lost
    assert "power is integrated" in lost
    assert "no response in time" not in lost
    assert "no response in time" in hung
    assert "GPU 0, SIMULATED" in hung


def test_check_does_not_disturb_a_running_exporter(tmp_path):
    with daemon(tmp_path, *SIMULATED) as running:
        before = running.value("wattline_gpu_energy_joules_total", gpu="0")
        address = ("--web.listen-address", running.url.removeprefix("http://"))
        options = (
            "--idle-seconds",
            "0",
            "--simulate",
            "4xA100",
            "--state.path",
            str(running.folder),
            *address,
        )
        done = exporter("check", *options)
        assert done.returncode == 0
        state, web = (
            next(line for line in done.stdout.splitlines() if name in line)
            for name in ("state  ", "web  ")
        )
        assert web.startswith(f"web     works: http on {address[1]}")
        assert "A100" in done.stdout
        assert state.startswith(f"state   works: {running.folder};")
        for line in (state, web):
            assert line.endswith("; an exporter is running there: stop it before you start another")
        with running.simulation() as simulation:
            assert len(simulation.gpus) == 2
        assert running.value("wattline_gpu_energy_joules_total", gpu="0") >= before


def test_check_unreadable_pods_reports_cause_and_source_of_pod_names(tmp_path):
    options = (*QUICK, "--simulate", "1xH200", "--state.path", str(tmp_path), "--no-collector.rapl")
    pods = ("--runs.discover", "kubernetes", "--kubernetes.pods", "https://127.0.0.1:1/pods")
    lines = exporter("check", *options, *pods).stdout.splitlines()
    assert any(
        line.startswith(
            "runs    in part: runs of pods have no labels of --kubernetes.pods: cannot read "
            "https://127.0.0.1:1"
        )
        for line in lines
    )
    assert "runs    names of pods: from no source" in lines or any(
        "from /var/log/pods" in line for line in lines
    )
    assert any(line.startswith("runs    outcomes of containers: ") for line in lines)
