"""The live table: what nodes do now, from every source, and never what they did a while ago."""

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

import numpy as np
import pytest

from analyzer.cli import main
from analyzer.live.watch import live_state, lost_state
from analyzer.model.samples import tidy
from analyzer.output.live import live_table
from analyzer.output.terminal import console
from exporter.contract import metrics as m
from exporter.simulation import Constant
from tests import daemon, servers
from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes

LOAD_W = 500.0
SOURCES = ("exporter", "history", "prometheus", "victoria-metrics")
OPEN = NodeRun(end_s=None)
NOW_S = START_S + 10.0


def frame_of(gpus, run, times, more=lambda _: (), instance="node:9847"):
    series = series_of_scrapes(((t, [*scrape(gpus, run, t, intensity=200.0), *more(t)]) for t in times), instance)
    return tidy((one.labels, *np.array(one.samples, dtype=np.float64).T) for one in series)


def gpu(index="0", watts=300.0):
    return NodeGpu([(START_S - 100, 60), (START_S, watts)], index=index, limit_w=400.0, utilization=0.5)


def capped(t):
    """The power cap held for 0.8 s of each second, heat for 0.01 s, and the card was idle once."""
    for reason, share in (("sw_power_cap", 0.8), ("sw_thermal_slowdown", 0.01), ("gpu_idle", 1.0)):
        yield m.GPU_CLOCK_EVENT_SECONDS, {"gpu": "0", "uuid": "GPU-00000000", "reason": reason}, share * (t - START_S)


def seconds(first, last):
    return [START_S + t for t in range(first, last + 1)]


def text_of(found, width=80, trouble=""):
    shown = console(plain_columns=width)
    with shown.capture() as captured:
        shown.print(live_table(found, "here", width, trouble))
    return captured.get()


def test_live_gpu_has_values_of_the_newest_scrape():
    found = live_state(frame_of([gpu()], OPEN, seconds(0, 10), capped), NOW_S, {})
    (one,) = found.gpus

    assert (one.power_w, one.limit_w, one.utilization) == (300.0, 400.0, 0.5)
    assert (one.energy_j, one.energy_of, one.runs) == (3_000.0, "train-1", ("train-1",))  # 300 W x 10 s
    assert one.clock_events == ("sw_power_cap",)


def test_live_run_has_energy_per_unit_and_recent_rate():
    def work(t):  # 10 tokens a second, 30 in the last ten seconds
        return [(m.RUN_WORK, {"run_id": "train-1", "unit": "generated_tokens"}, 10 * min(t, 10) + 30 * max(t - 10, 0))]

    run = NodeRun(end_s=None, work={})
    frame = frame_of([gpu()], run, seconds(0, 20), lambda t: work(t - START_S))
    (found,) = live_state(frame, START_S + 20, {}).runs

    assert (found.state, found.duration_s, found.amount) == ("running", 20.0, 400.0)
    assert found.energy["gpu"].value == 6_000.0  # 300 W x 20 s
    assert found.energy_per_unit_j == 15.0  # 6,000 J / 400
    assert found.per_second == 30.0


def test_live_energy_without_run_counts_from_table_start():
    idle = NodeRun(start_s=START_S + 9_999)
    first = live_state(frame_of([gpu()], idle, seconds(0, 4)), START_S + 4, {})
    (one,) = live_state(frame_of([gpu()], idle, seconds(0, 10)), NOW_S, first.counters_j).gpus

    assert (one.energy_j, one.energy_of) == (1_800.0, "")  # 300 W x 6 s
    assert first.gpus[0].energy_j is None


def test_live_carbon_is_present_power_times_intensity():
    found = live_state(frame_of([gpu("0"), gpu("1", 100.0)], OPEN, seconds(0, 10)), NOW_S, {})

    assert [(one.grams_per_kwh, one.component) for one in found.carbon] == [(200.0, "gpu")]
    assert found.carbon[0].grams_per_hour == pytest.approx(80.0)  # 0.4 kW x 200 g/kWh


def test_live_state_stale_node_has_no_values():
    found = live_state(frame_of([gpu()], OPEN, seconds(0, 10)), NOW_S + 42, {})
    shown = text_of(found)

    assert found.nodes[0].stale
    assert (found.gpus[0].power_w, found.power_w, found.runs[0].state) == (None, None, "stale")
    assert "no sample for 42 s" in shown
    assert "300" not in shown


def test_live_state_vanished_node_is_kept_as_stale():
    before = live_state(frame_of([gpu()], OPEN, seconds(0, 10)), NOW_S, {})
    empty = frame_of([gpu()], OPEN, seconds(0, 10)).iloc[:0]

    assert live_state(empty, NOW_S + 600, {}, before).gpus[0].gpu == "0"
    assert "no sample for 10 min" in text_of(live_state(empty, NOW_S + 600, {}, before))
    assert lost_state(before, NOW_S + 1).power_w is None


def test_live_gpu_without_response_is_down_and_has_no_power():
    def ups(t):
        yield m.GPU_UP, {"gpu": "0", "uuid": "GPU-00000000"}, float(t < START_S + 8)
        yield m.GPU_UP, {"gpu": "1", "uuid": "GPU-00000001"}, 1.0

    whole = frame_of([gpu("0"), gpu("1", 100.0)], OPEN, seconds(0, 10), ups)
    gone = (whole["uuid"] == "GPU-00000000") & (whole["metric"] == m.GPU_POWER.name) & (whole["t"] >= START_S + 8)
    found = live_state(whole[~gone], NOW_S, {})

    assert [(one.up, one.power_w) for one in found.gpus] == [(False, None), (True, 100.0)]
    assert found.power_w == 100.0
    assert "no response from GPU 0" in text_of(found)


def test_live_state_run_id_shows_that_run_and_its_gpus():
    def beside(t):
        yield m.RUN_START, {"run_id": "other"}, START_S
        yield m.RUN_GPU_INFO, {"run_id": "other", "gpu": "7", "uuid": "GPU-00000007"}, 1.0
        yield m.GPU_POWER, {"gpu": "7", "uuid": "GPU-00000007"}, 50.0

    found = live_state(frame_of([gpu()], OPEN, seconds(0, 10), beside), NOW_S, {}, None, "train-1")

    assert [run.run_id for run in found.runs] == ["train-1"]
    assert [one.gpu for one in found.gpus] == ["0"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_live_table_fits_width_and_keeps_figures_whole(width):
    long = NodeRun("a-run-with-a-name-of-a-length-that-no-terminal-of-80-columns-has", end_s=None)
    lines = text_of(live_state(frame_of([gpu()], long, seconds(0, 10), capped), NOW_S, {}), width).splitlines()

    assert max(map(len, lines)) <= width
    row = next(line for line in lines if line.startswith("0 "))
    assert "300 / 400" in row
    assert "3,000 J" in row
    assert "power cap" in row


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A simulated node of two GPUs, of which the first draws 500 W for a run, in all sources."""
    servers.require("prometheus"), servers.require("victoria-metrics")
    folder = tmp_path_factory.mktemp("watch")
    with ExitStack() as stack:
        exporter = stack.enter_context(daemon.daemon(folder, "--simulate", "2xH200"))
        found = {"exporter": exporter.url, "history": str(exporter.folder)}
        for name, start in (("prometheus", servers.prometheus), ("victoria-metrics", servers.victoria_metrics)):
            (folder / name).mkdir()
            found[name] = stack.enter_context(start(folder / name, [exporter.url.removeprefix("http://")], "1s"))
        with exporter.simulation() as simulation:
            simulation.set_load(0, Constant(LOAD_W), at=time.clock_gettime(time.CLOCK_BOOTTIME))
            daemon.begin(exporter, run_id="watched", gpus=["0"])
            energy = f'/api/v1/query?query={m.RUN_ENERGY.name}{{run_id="watched"}}[30s]'
            daemon.eventually(lambda: "watched" in str(exporter.get(energy)), "the run in the history", exporter.log)
            yield found | {"daemon": exporter}


@pytest.fixture
def looked(capsys, monkeypatch):
    """One look as JSON, or what was said on stderr."""

    def look(place, *options):
        command = ["analyzer", "watch", "--source", place, "--once", "--format", "json"]
        monkeypatch.setattr(sys, "argv", [*command, *options])
        with pytest.raises(SystemExit) as left:
            main()
        shown, said = capsys.readouterr()
        return json.loads(shown) if left.value.code == 0 else said

    return look


@pytest.mark.parametrize("source", SOURCES)
def test_watch_each_source_shows_the_same_node(places, looked, source):
    found = {}

    def complete():
        answer = looked(places[source])
        found.update(answer if isinstance(answer, dict) else {})
        first, second = found.get("gpus") or ({}, {})
        return bool(found.get("runs")) and first.get("energy_of_run") and not second["runs"]

    daemon.eventually(complete, f"a run at {source}", lambda: str(found), 60)
    first, second = found["gpus"]
    assert first["power_watts"] == pytest.approx(LOAD_W, rel=0.02)
    assert second["power_watts"] < 100
    assert first["runs"] == ["watched"]
    assert first["power_limit_watts"] == 700.0
    assert found["runs"][0]["state"] == "running"
    assert not found["nodes"][0]["stale"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--node", "nowhere"), "this source has a single node: leave out --node"),
        (("--run-id", "nothing"), "no active run 'nothing'"),
    ],
)
def test_watch_unknown_node_or_run_is_one_line(places, looked, options, said):
    text = looked(places["exporter"], *options)

    assert said in text
    assert text.count("\n") == 1


def test_watch_pipe_gets_one_table(places, analyzer):
    done = analyzer("watch", "--source", places["exporter"])

    assert (done.returncode, done.stderr) == (0, "")
    assert "SIMULATED" in done.stdout
    assert "watched" in done.stdout


def test_watch_terminal_runs_until_ctrl_c_and_keeps_last_table(places):
    screen, side = pty.openpty()
    ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [
        Path(sys.executable).with_name("analyzer"),
        "watch",
        "--source",
        places["exporter"],
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

        daemon.eventually(drawn, "three tables", read.decode, 60)
        process.send_signal(signal.SIGINT)
        left = bytearray()
        while chunk := _rest(screen):
            left.extend(chunk)
        assert process.wait(30) == 0
    os.close(screen)
    after = left.decode().rpartition("\x1b[?1049l")[2]  # back from the other screen
    assert "SM MHz" in after
    assert "watched" in after
    assert "Traceback" not in after


def _rest(screen):
    try:
        return os.read(screen, 65_536)
    except OSError:  # the other side is closed
        return b""


def test_watch_run_end_ends_table_with_outcome(places):
    exporter = places["daemon"]
    daemon.begin(exporter, run_id="brief", gpus=["1"])
    try:
        energy = f'/api/v1/query?query={m.RUN_ENERGY.name}{{run_id="brief"}}[30s]'
        daemon.eventually(lambda: "brief" in str(exporter.get(energy)), "the run in the history", exporter.log)
        _watch_its_end(places)
    finally:
        exporter.post("/api/v1/runs/brief/end", {"outcome": "ok"})


def _watch_its_end(places):
    command = [Path(sys.executable).with_name("analyzer"), "watch", "--run-id", "brief", "--interval", "0.5s"]
    with subprocess.Popen(
        [*command, "--source", places["exporter"], "--format", "json"], stdout=subprocess.PIPE, text=True
    ) as process:
        first = json.loads(process.stdout.readline())
        daemon.end(places["daemon"], "brief")
        last = [json.loads(line) for line in process.stdout][-1]
        assert process.wait(60) == 0

    assert [one["gpu"] for one in first["gpus"]] == ["1"]
    assert first["runs"][0]["state"] == "running"
    assert last["runs"][0]["state"] == "ok"
