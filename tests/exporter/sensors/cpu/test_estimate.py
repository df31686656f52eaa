from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.sensors.cpu.estimate import CpuModelSource, PowerModel, parse_power_model
from wattline_exporter.sensors.processes.procfs import host_cpu_seconds
from wattline_exporter.sensors.readings import Device, Reading, SourceError

MODEL = PowerModel(40.0, 200.0)


class Node:
    """CPU times of four CPUs, of which `busy` are in use."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.busy_s, self.total_s = 500.0, 4_000.0

    def clock(self) -> float:
        return self.now_s

    def seconds(self) -> tuple[float, float]:
        return self.busy_s, self.total_s

    def run(self, seconds: float, busy: float) -> None:
        self.now_s += seconds
        self.busy_s += busy * seconds
        self.total_s += 4 * seconds


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def source(node) -> CpuModelSource:
    return CpuModelSource(MODEL, node.seconds, node.clock)


# -- the option


def test_power_model_fields_are_parsed_in_any_order():
    assert parse_power_model("idle=40,max=150.5") == PowerModel(40.0, 150.5)
    assert parse_power_model("max=150.5, idle=0") == PowerModel(0.0, 150.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "idle=40",
        "max=150",
        "40,150",
        "idle=40,max=150,idle=20",
        "idle=40,peak=150",
        "idle=forty,max=150",
        "idle=-1,max=150",
        "idle=150,max=150",
        "idle=200,max=150",
        "idle=0,max=10001",
        "idle=nan,max=150",
        "idle=0,max=inf",
    ],
)
def test_power_model_invalid_text_is_refused_with_format(text):
    with pytest.raises(
        ValueError, match=r"expected idle=W,max=W in watts with 0 <= idle < max <= 10000, such as"
    ):
        parse_power_model(text)


@given(st.text(max_size=40))
def test_power_model_any_text_is_parsed_or_value_error(text):
    try:
        model = parse_power_model(text)
    except ValueError:
        return
    assert 0 <= model.idle_w < model.max_w <= 10_000


# -- the estimate


def test_model_power_is_linear_in_utilization(node, source):
    source.read()
    node.run(1.0, busy=1)  # one CPU of four: 40 W + 160 W / 4
    (poll,) = source.read().polls
    assert (poll.device, poll.instant_w, poll.counter_j) == (Device("package", "0"), 80.0, None)
    node.run(2.0, busy=4)
    (poll,) = source.read().polls
    assert poll.instant_w == 200.0


def test_model_first_read_has_no_power(source):
    assert source.read().polls == ()


def test_model_each_read_states_the_estimate(node, source):
    source.read()
    node.run(1.0, busy=0)
    batch = source.read()
    assert batch.readings == (Reading(CPU_ENERGY_METHOD, ("0", "model"), 1),)
    assert batch.problems == (
        "CPU energy is estimated from utilization, --cpu.power-model idle=40,max=200",
    )


def test_model_half_a_minute_integrates_to_its_joules(node, source):
    line = DeviceMeter(update_s=0.001)
    source.read()
    for _ in range(31):  # 2 of 4 CPUs: 120 W, over the 30 s from the first poll
        node.run(1.0, busy=2)
        (poll,) = source.read().polls
        line.push(poll)
    assert line.totals.energy_j == pytest.approx(3_600.0)


def test_model_immediate_read_repeats_last_utilization(node, source):
    source.read()
    node.run(1.0, busy=1)
    source.read()
    node.run(0.01, busy=4)  # one tick, and all of it busy
    (poll,) = source.read().polls
    assert poll.instant_w == 80.0
    node.run(0.99, busy=1)  # 0.04 s + 0.99 s of 4 s
    (poll,) = source.read().polls
    assert poll.instant_w == pytest.approx(40 + 160 * 1.03 / 4)


def test_model_suspended_time_is_not_idle(node, source):
    source.read()
    node.run(1.0, busy=4)
    node.now_s += 600.0  # no CPU time goes by
    (poll,) = source.read().polls
    assert poll.instant_w == 200.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-5, 50), st.floats(-5, 50)), max_size=20))
def test_model_power_stays_between_idle_and_max(steps):
    node = Node()
    source = CpuModelSource(MODEL, node.seconds, node.clock)
    for elapsed_s, busy_s, total_s in steps:
        node.now_s += elapsed_s
        node.busy_s += busy_s
        node.total_s += total_s
        for poll in source.read().polls:
            assert poll.instant_w is not None
            assert 40.0 <= poll.instant_w <= 200.0


def test_model_unreadable_proc_is_a_source_error():
    def gone() -> tuple[float, float]:
        raise FileNotFoundError(2, "No such file or directory", "/proc/stat")

    with pytest.raises(
        SourceError,
        match="cannot read /proc/stat: No such file or directory; check that proc is mounted",
    ):
        CpuModelSource(MODEL, gone).read()


def test_model_real_cpus_have_a_utilization():
    busy_s, total_s = host_cpu_seconds()
    assert 0 < busy_s < total_s
