"""Stop of the exporter by a signal, SIGKILL, or the end of its last run."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.daemon import begin, daemon, end, environment, start, wait_until_it_serves
from tests.exporter.commands import SIMULATED


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_with_exit_code_0_and_no_child(tmp_path, sign):
    with daemon(tmp_path, *SIMULATED) as running:
        begin(running)
        assert running.children()
        assert running.stop(sign) == 0
        assert "Traceback" not in running.log()
        assert "stopped" in running.log()


def test_ctrl_c_in_the_process_group_prints_no_traceback(tmp_path):
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
runpy.run_module("wattline_exporter", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module",
    ["typer", "aiohttp", "wattline_exporter.storage.state_file", "wattline_exporter.web.server"],
)
@pytest.mark.parametrize(("sign", "code"), [("SIGINT", 130), ("SIGTERM", -signal.SIGTERM)])
def test_signal_during_import_stops_silently(tmp_path, module, sign, code):
    arguments = ["serve", "--simulate", "1xH200", "--state.path", str(tmp_path / "state")]
    program = STOPPED_AT.format(module=module, sign=sign, arguments=arguments)
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_signal_right_after_start_stops(tmp_path, sign):
    running = start(tmp_path, *SIMULATED)
    wait_until_it_serves(running)
    assert running.stop(sign) == 0
    assert "Traceback" not in running.log()


def test_sigkill_leaves_no_worker_behind(tmp_path):
    with daemon(tmp_path, *SIMULATED) as running:
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL


def test_exit_when_idle_stops_if_the_first_run_cannot_begin(tmp_path):
    with daemon(tmp_path, *SIMULATED, "--exit-when-idle") as running:
        assert running.post("/api/v1/runs", {"workload": "train", "gpus": ["7"]})[0] == 422
        assert running.process.wait(15) == 0
        assert "Traceback" not in running.log()


def test_exit_when_idle_stops_after_the_last_run(tmp_path):
    with daemon(tmp_path, *SIMULATED, "--exit-when-idle") as running:
        first, second = begin(running)["run_id"], begin(running)["run_id"]
        end(running, first)
        time.sleep(2.0)
        assert running.process.poll() is None
        assert end(running, second)["outcome"] == "ok"
        assert running.process.wait(15) == 0
        assert "Traceback" not in running.log()
