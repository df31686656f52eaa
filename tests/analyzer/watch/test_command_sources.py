"""`analyzer watch` with a simulated node at each source."""

import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import ExitStack
from fcntl import ioctl
from pathlib import Path

import pytest

from tests import daemon, servers
from tests.polling import eventually
from wattline.contract import metrics as m
from wattline_analyzer.cli import main
from wattline_exporter.simulation import Constant

LOAD_W = 500.0
SOURCES = ("exporter", "history", "prometheus", "victoria-metrics")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Sources of a simulated node with two GPUs, the first at 500 W for a run."""
    servers.require("prometheus"), servers.require("victoria-metrics")
    folder = tmp_path_factory.mktemp("watch")
    with ExitStack() as stack:
        exporter = stack.enter_context(daemon.daemon(folder, "--simulate", "2xH200"))
        result = {"exporter": exporter.url, "history": str(exporter.folder)}
        for name, start in (
            ("prometheus", servers.prometheus),
            ("victoria-metrics", servers.victoria_metrics),
        ):
            (folder / name).mkdir()
            result[name] = stack.enter_context(
                start(folder / name, [exporter.url.removeprefix("http://")], "1s")
            )
        with exporter.simulation() as simulation:
            simulation.set_load(0, Constant(LOAD_W), at=time.clock_gettime(time.CLOCK_BOOTTIME))
            daemon.begin(exporter, run_id="watched", gpus=["0"])
            energy = f'/api/v1/query?query={m.RUN_ENERGY.name}{{run_id="watched"}}[30s]'
            eventually(
                lambda: "watched" in str(exporter.get(energy)),
                "the run in the history",
                exporter.log,
            )
            yield result | {"daemon": exporter}


@pytest.fixture
def watch_once(capsys, monkeypatch):
    """Return the JSON of one update, or the message on stderr."""

    def call(source, *options):
        command = ["analyzer", "watch", "--source", source, "--once", "--format", "json"]
        monkeypatch.setattr(sys, "argv", [*command, *options])
        with pytest.raises(SystemExit) as exit_info:
            main()
        stdout, stderr = capsys.readouterr()
        return json.loads(stdout) if exit_info.value.code == 0 else stderr

    return call


@pytest.mark.parametrize("source", SOURCES)
def test_watch_each_source_shows_the_same_node(sources, watch_once, source):
    result = {}

    def complete():
        answer = watch_once(sources[source])
        result.update(answer if isinstance(answer, dict) else {})
        gpus = result.get("gpus")
        of_run = gpus and result.get("runs") and gpus[0]["energy_of_run"] and not gpus[1]["runs"]
        return bool(of_run) and _is_fresh(result)

    eventually(complete, f"a run at {source}", lambda: str(result), 60)
    first, second = result["gpus"]
    assert first["power_watts"] == pytest.approx(LOAD_W, rel=0.02)
    assert second["power_watts"] < 100
    assert first["runs"] == ["watched"]
    assert first["power_limit_watts"] == 700.0
    assert result["runs"][0]["state"] == "running"
    assert not result["nodes"][0]["stale"]


def _is_fresh(result):
    return not any(node["stale"] for node in result["nodes"])


@pytest.mark.parametrize(
    ("options", "stderr"),
    [
        (("--node", "nowhere"), "this source has a single node: leave out --node"),
        (("--run-id", "nothing"), "no run 'nothing' at http"),
    ],
)
def test_watch_unknown_node_or_run_is_one_line(sources, watch_once, options, stderr):
    text = watch_once(sources["exporter"], *options)

    assert stderr in text
    assert text.count("\n") == 1


def test_watch_pipe_gets_one_table(sources, analyzer):
    completed = analyzer("watch", "--source", sources["exporter"])

    assert (completed.returncode, completed.stderr) == (0, "")
    assert "SIMULATED" in completed.stdout
    assert "watched" in completed.stdout


def test_watch_terminal_runs_until_ctrl_c_and_keeps_last_table(sources):
    screen, side = pty.openpty()
    ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [
        Path(sys.executable).with_name("analyzer"),
        "watch",
        "--source",
        sources["exporter"],
        "--interval",
        "0.3s",
    ]
    with subprocess.Popen(
        command, stdin=side, stdout=side, stderr=side, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(side)
        read = bytearray()

        def drawn():
            while select.select([screen], [], [], 0)[0]:
                read.extend(os.read(screen, 65_536))
            return read.count(b"SM MHz") >= 3

        eventually(drawn, "three tables", read.decode, 60)
        process.send_signal(signal.SIGINT)
        output = bytearray()
        while chunk := _rest(screen):
            output.extend(chunk)
        assert process.wait(30) == 0
    os.close(screen)
    after = output.decode().rpartition("\x1b[?1049l")[2]  # after the alternate screen
    assert "SM MHz" in after
    assert "watched" in after
    assert "Traceback" not in after


def _rest(screen):
    try:
        return os.read(screen, 65_536)
    except OSError:  # the reader is closed
        return b""


def test_watch_run_end_ends_table_with_outcome(sources):
    exporter = sources["daemon"]
    daemon.begin(exporter, run_id="brief", gpus=["1"])
    try:
        energy = f'/api/v1/query?query={m.RUN_ENERGY.name}{{run_id="brief"}}[30s]'
        eventually(
            lambda: "brief" in str(exporter.get(energy)), "the run in the history", exporter.log
        )
        _watch_its_end(sources)
    finally:
        exporter.post("/api/v1/runs/brief/end", {"outcome": "ok"})


def _watch_its_end(sources):
    command = [
        Path(sys.executable).with_name("analyzer"),
        "watch",
        "--run-id",
        "brief",
        "--interval",
        "0.5s",
    ]
    with subprocess.Popen(
        [*command, "--source", sources["exporter"], "--format", "json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        first = json.loads(process.stdout.readline())
        daemon.end(sources["daemon"], "brief")
        last = [json.loads(line) for line in process.stdout][-1]
        assert process.wait(60) == 0

    assert [entry["gpu"] for entry in first["gpus"]] == ["1"]
    assert first["runs"][0]["state"] == "running"
    assert last["runs"][0]["state"] == "ok"
