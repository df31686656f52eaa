import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from exporter.contract.simulation import FILE_NAME, PRODUCTS, Fault, Simulation, create, make_gpus
from exporter.reading import boottime
from tests.daemon import begin, daemon, end, environment, start, wait_until_it_serves
from tests.fakes import nvml, powercap
from tests.forked import Nursery

SIMULATED = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")


NURSERY = Nursery("exporter.cli", "exporter.serve", "exporter.check", "exporter.regions")


def exporter(*arguments, **env):
    return NURSERY.run(["-m", "exporter", *arguments], environment(env), timeout_s=60)


def one_line(done, code, *words):
    """It says one line on stderr with these words, and ends with this code."""
    assert (done.returncode, done.stdout) == (code, ""), done
    (line,) = done.stderr.splitlines()
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--simulate", "8xB9000"], ["--simulate", "B9000", "H200"]),
        (["--simulate", "0xH200"], ["--simulate", "1 to 64"]),
        (["--simulate", "65xH200"], ["--simulate", "1 to 64"]),
        (["--web.listen-address", "localhost"], ["--web.listen-address", "HOST:PORT", "127.0.0.1:9847"]),
        (["--web.listen-address", "127.0.0.1:99999"], ["--web.listen-address"]),
        (["--web.listen-address", "127.0.0.1:http"], ["--web.listen-address"]),
        (["--carbon.provider", "us"], ["--carbon.provider", "'us'", "gb, static"]),
        (["--carbon.provider", "static"], ["--carbon.region"]),
        (["--carbon.region", "Germny"], ["Germny", "did you mean Germany"]),
        (["--carbon.provider", "gb", "--carbon.region", "Atlantis"], ["Atlantis"]),
        (["--carbon.intensity", "-5"], ["-5"]),
        (["--carbon.intensity", "nan"], ["--carbon"]),
        (["--carbon.intensity", "230", "--carbon.region", "DE"], ["--carbon.intensity", "leave out"]),
        (["--carbon.intensity", "much"], ["--carbon.intensity"]),
        (["--log.level", "loud"], ["--log.level", "'loud'", "info"]),
        (["--log.format", "xml"], ["--log.format", "'xml'", "json"]),
        (["--path.sysfs", "/no/such"], ["--path.sysfs", "/no/such"]),
        (["--simulate", "1xH200", "--no-collector.nvml"], ["--simulate does nothing with --no-collector.nvml"]),
        (["--collector.processes.pid"], ["--collector.processes.pid does nothing without --collector.processes"]),
        (["--collector.processes.group", "name"], ["--collector.processes.group does nothing without"]),
        (["--no-such-option"], ["--no-such-option", "--help"]),
        (["extra"], ["extra"]),
    ],
)
def test_an_option_that_cannot_be_is_one_line(tmp_path, options, words):
    one_line(exporter("serve", "--state.path", str(tmp_path / "state"), *options), 2, *words)
    assert not (tmp_path / "state" / "state.sqlite").exists() or "--simulate" in options


def test_an_unknown_command_is_one_line():
    one_line(exporter("sevre"), 2, "sevre", "--help")


@pytest.mark.parametrize("folder", ["/dev/null/state", "/proc/wattline"])
def test_a_state_folder_that_cannot_be_written_is_one_line(folder):
    one_line(exporter("serve", "--simulate", "1xH200", "--state.path", folder), 1, folder, "--state.path")


def test_a_state_path_that_is_a_file_is_one_line_and_check_says_so_too(tmp_path):
    path = tmp_path / "state"
    path.write_text("")
    one_line(exporter("serve", "--state.path", str(path)), 1, f"cannot use {path}: it is a file", "--state.path")
    checked = exporter("check", "--simulate", "1xH200", "--idle-seconds", "0", "--state.path", str(path))
    assert f"state   cannot use {path}: it is a file; name a folder with --state.path" in checked.stdout
    sealed = exporter("check", "--simulate", "1xH200", "--idle-seconds", "0", "--state.path", "/proc")
    assert "state   cannot write to /proc: No such file or directory; let this user write there, or" in sealed.stdout


@pytest.mark.parametrize(
    ("mounted", "said", "advice"),
    [
        ("size=32k", "No space left on device", "make room on its disk"),
        ("ro", "Read-only file system", "let this user write there"),
    ],
)
@pytest.mark.parametrize("below", ["", "/state"])
def test_check_and_serve_say_the_same_of_a_disk_that_takes_nothing(tmp_path, mounted, said, advice, below):
    """In a mount namespace of its own, which goes with the command."""
    if os.geteuid() != 0:
        pytest.skip("to mount a disk takes root")
    fill = 'head -c 1M /dev/zero > "$1/full" 2>&-; ' if "size" in mounted else ""
    for command in ("check --idle-seconds 0", "serve --web.listen-address 127.0.0.1:0"):
        words = f'{sys.executable} -m exporter {command} --simulate 1xH200 --state.path "$1{below}"'
        script = f'mount -t tmpfs -o {mounted} disk "$1"; {fill}exec {words}'
        inside = ["unshare", "--mount", "sh", "-c", script, "sh", tmp_path]
        done = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=60)
        shown = done.stdout if command.startswith("check") else done.stderr
        assert f"cannot write to {tmp_path}{below}: {said}; {advice}, or choose another folder" in shown


def test_a_busy_port_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--simulate", "1xH200", "--state.path", str(tmp_path), "--web.listen-address", address)
        one_line(exporter("serve", *options), 1, address, "in use", "ss -ltnp", "--web.listen-address")


@pytest.mark.parametrize("address", ["192.0.2.1:9847", "no-such-host.invalid:9847"])
def test_an_address_of_another_machine_is_one_line(tmp_path, address):
    options = ("--simulate", "1xH200", "--state.path", str(tmp_path), "--web.listen-address", address)
    done = exporter("serve", *options)

    one_line(done, 1, address, "--web.listen-address")
    assert "ss -ltnp" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["check", "--help"]])
def test_help_is_data(arguments):
    done = exporter(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout


def test_help_imports_nothing_heavy():
    program = (
        "import sys, exporter.cli; print([m for m in ('aiohttp', 'pydantic', 'psutil', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


# -- check


def test_check_has_a_line_for_each_source(tmp_path):
    powercap.intel_two_packages(tmp_path / "sys")
    options = ("--state.path", str(tmp_path / "state"), "--path.sysfs", str(tmp_path / "sys"))
    done = exporter("check", "--idle-seconds", "0", "--simulate", "2xH200", "--carbon.intensity", "230", *options)
    lines = done.stdout.splitlines()

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in lines] == ["nvml", "nvml", "rapl", "host", "carbon", "state", "web"]
    assert "works: GPU 1, SIMULATED NVIDIA H200" in lines[1]
    assert "energy counter" in lines[1]
    assert "package 0" in lines[2]
    assert "230 gCO2eq/kWh" in lines[4]
    assert not (tmp_path / "state").exists()  # it looks, and makes nothing


def test_check_without_any_energy_says_why_and_fails(tmp_path):
    options = ("--state.path", str(tmp_path / "state"), "--path.sysfs", str(tmp_path))
    done = exporter("check", "--idle-seconds", "0", *options, LD_LIBRARY_PATH=str(tmp_path))

    assert done.returncode == 1
    assert "nvml    off: NVML: " in done.stdout
    assert "--simulate 2xH200" in done.stdout
    assert "rapl    off: no RAPL" in done.stdout
    assert "carbon  off" in done.stdout


def test_check_says_it_where_its_child_may_not_be_executed(tmp_path, monkeypatch):
    from exporter.check import check
    from exporter.settings import Settings

    interpreter = tmp_path / "python3"
    interpreter.write_text("not to be executed")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    lines = asyncio.run(check(Settings(state_path=tmp_path / "state", sysfs=tmp_path)))

    assert lines[0].text.startswith(f"nvml    off: cannot run {interpreter}: Permission denied; install Wattline")


def test_check_tells_the_sick_gpus_from_the_well(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(4, PRODUCTS["H200"]), boottime())
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_fault(1, Fault.LOST, on=True)
        simulation.set_fault(2, Fault.NO_COUNTER, on=True)
        lost = exporter(
            "check", "--idle-seconds", "0", "--state.path", str(tmp_path), **nvml.environment(simulation.path)
        ).stdout
        simulation.set_fault(3, Fault.HANG, on=True)
        hung = exporter(
            "check", "--idle-seconds", "0", "--state.path", str(tmp_path), **nvml.environment(simulation.path)
        ).stdout
        simulation.set_fault(3, Fault.HANG, on=False)

    assert "GPU 0, SIMULATED" in lost
    assert "GPU 1 fails: GPU is lost" in lost
    assert "power is integrated" in lost
    assert "no answer in time" not in lost
    assert "no answer in time" in hung
    assert "GPU 0, SIMULATED" in hung


def test_check_leaves_a_running_exporter_alone(tmp_path):
    with daemon(tmp_path, *SIMULATED) as running:
        before = running.value("wattline_gpu_energy_joules_total", gpu="0")
        done = exporter("check", "--idle-seconds", "0", "--simulate", "4xA100", "--state.path", str(running.folder))
        assert done.returncode == 0
        assert "A100" in done.stdout
        assert "state   works" in done.stdout
        with running.simulation() as simulation:
            assert len(simulation.gpus) == 2
        assert running.value("wattline_gpu_energy_joules_total", gpu="0") >= before


def test_regions_are_listed_by_provider():
    countries, britain = exporter("regions"), exporter("regions", "--carbon.provider", "gb")

    assert any(line.startswith("DEU  Germany: ") for line in countries.stdout.splitlines())
    assert {"GB Great Britain", "13 London"} <= set(britain.stdout.splitlines())
    one_line(exporter("regions", "--carbon.provider", "us"), 2, "--carbon.provider", "gb, static")


# -- the end


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0_and_no_child_is_left(tmp_path, sign):
    with daemon(tmp_path, *SIMULATED) as running:
        begin(running)
        assert running.children()
        assert running.stop(sign) == 0
        assert "Traceback" not in running.log()
        assert "stopped" in running.log()


def test_ctrl_c_reaches_the_whole_group_and_leaves_no_traceback(tmp_path):
    with daemon(tmp_path, *SIMULATED) as running:
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.process.wait(15) == 0
        assert "Traceback" not in running.log()


STOPPED_AT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{sign})

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {arguments!r}
runpy.run_module("exporter", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["typer", "aiohttp", "exporter.state", "exporter.web.server"])
@pytest.mark.parametrize(("sign", "code"), [("SIGINT", 130), ("SIGTERM", -signal.SIGTERM)])
def test_a_signal_while_it_still_imports_ends_it_without_a_word(tmp_path, module, sign, code):
    arguments = ["serve", "--simulate", "1xH200", "--state.path", str(tmp_path / "state")]
    program = STOPPED_AT.format(module=module, sign=sign, arguments=arguments)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_it_serves_ends_it_too(tmp_path, sign):
    running = start(tmp_path, *SIMULATED)
    wait_until_it_serves(running)
    assert running.stop(sign) == 0
    assert "Traceback" not in running.log()


def test_it_leaves_no_sampler_behind_when_it_is_killed(tmp_path):
    with daemon(tmp_path, *SIMULATED) as running:
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL


def test_it_ends_with_its_last_run_where_that_is_asked(tmp_path):
    with daemon(tmp_path, *SIMULATED, "--exit-when-idle") as running:
        first, second = begin(running)["run_id"], begin(running)["run_id"]
        end(running, first)
        time.sleep(2.0)
        assert running.process.poll() is None
        assert end(running, second)["outcome"] == "ok"
        assert running.process.wait(15) == 0
        assert "Traceback" not in running.log()


def test_log_lines_may_be_json(tmp_path):
    import json

    with daemon(tmp_path, *SIMULATED, "--log.format", "json", ready=False) as running:
        lines = [json.loads(line) for line in running.log().splitlines()]
    assert lines[0]["level"] == "info"
    assert "serving on" in lines[0]["msg"]
