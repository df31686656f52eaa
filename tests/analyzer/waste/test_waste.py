"""Classes of waste on simulated nodes whose joules are known."""

from dataclasses import replace

import numpy as np
import pytest

from tests.analyzer.waste.nodes import (
    BEGIN_S,
    DEEP_IDLE_W,
    Node,
    NodeSource,
    Run,
    State,
    busy,
    by_class,
    deep_idle,
    found_waste,
    loaded,
)
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.waste.fetch import WasteRequest, fetch_waste
from wattline_analyzer.waste.model import (
    GpuEvidence,
    GpuKey,
    Waste,
    WasteClass,
    WasteFinding,
)

HOUR = 3_600.0
STUCK = State(HOUR, 110.0, clock=0.9)
HELD = State(HOUR, 75.0)
HOT = busy(
    HOUR, watts=400.0, clock=0.6, events={"hw_thermal_slowdown": 1.0, "sw_thermal_slowdown": 0.4}
)
BRAKED = busy(HOUR, watts=350.0, clock=0.4, events={"hw_power_brake_slowdown": 1.0})
CAPPED = busy(HOUR, watts=400.0, limit_w=400.0)
LOCKED = busy(HOUR, watts=300.0, clock=0.5, events={"applications_clocks_setting": 1.0})
ALWAYS = Run("always", -60.0)
CASES = {
    "execution_idle": (loaded(HOUR), [ALWAYS]),
    "held_idle": (HELD, [ALWAYS]),
    "clocks_stuck": (STUCK, []),
    "throttled": (HOT, [ALWAYS]),
    "limit_left": (CAPPED, [ALWAYS]),
    "unclaimed": (busy(HOUR), []),
}


@pytest.mark.parametrize(
    ("kind", "half_j", "limits_j"),
    [
        (WasteClass.HELD_IDLE, 30.0, (70.0, 130.0)),
        (WasteClass.HELD_IDLE, None, None),
        (WasteClass.UNCLAIMED, 30.0, (0.0, 100.0)),
    ],
)
def test_waste_of_idle_gpu_with_unknown_half_width_has_no_limits(kind, half_j, limits_j):
    """500 J, of which 400 J are of deep idle."""
    gpu = GpuEvidence(GpuKey("n", "GPU-0"), "0", 10.0, 500.0, 400.0, half_j, None, 0, 10, True)

    assert WasteFinding(kind, "n", (), (gpu,)).limits_j == limits_j


@pytest.mark.parametrize("interval_s", [1.0, 15.0, 60.0])
@pytest.mark.parametrize("kind", CASES)
def test_waste_of_one_class_is_within_two_percent(kind, interval_s):
    state, runs = CASES[kind]
    between = busy(1_800.0) if runs else deep_idle(1_800.0)
    states = [deep_idle(600.0), between, state, between]
    held = [Run("always", 600.0)] if runs else []

    found = by_class(found_waste(Node([states], held, interval_s=interval_s, offset_s=0.4)))

    assert set(found) == {kind}
    assert found[kind].waste_j == pytest.approx(state.excess_j, rel=0.02)
    assert found[kind].energy_j == pytest.approx(state.watts * state.seconds, rel=0.02)
    assert found[kind].seconds == pytest.approx(HOUR, rel=0.02)
    assert found[kind].grams == pytest.approx(state.excess_j / 3.6e6 * 200, rel=0.02)


@pytest.mark.parametrize("interval_s", [1.0, 15.0, 60.0])
def test_waste_of_all_classes_together_counts_no_second_twice(interval_s):
    states = [
        deep_idle(600.0),
        loaded(HOUR),
        HELD,
        busy(HOUR),
        HOT,
        CAPPED,
        deep_idle(600.0),
        STUCK,
        busy(HOUR),
    ]
    runs = [Run("job", 600.0, 600.0 + 5 * HOUR)]

    waste = found_waste(Node([states], runs, interval_s=interval_s))
    found = by_class(waste)

    expected = {
        "execution_idle": loaded(HOUR).excess_j,
        "held_idle": HELD.excess_j,
        "throttled": HOT.excess_j,
        "limit_left": CAPPED.excess_j,
        "clocks_stuck": STUCK.excess_j,
        "unclaimed": busy(HOUR).excess_j,
    }
    assert {kind: finding.waste_j for kind, finding in found.items()} == pytest.approx(
        expected, rel=0.02
    )
    assert sum(finding.seconds for finding in waste.findings) <= waste.gpu_seconds
    assert sum(finding.energy_j for finding in waste.findings) <= waste.energy_j


def test_waste_of_half_throttled_gpu_with_limit_divides_each_second():
    state = busy(2 * HOUR, watts=400.0, limit_w=400.0, events={"hw_power_brake_slowdown": 0.5})

    found = by_class(found_waste(Node([[deep_idle(600.0), state]], [ALWAYS])))

    assert found["throttled"].seconds == pytest.approx(HOUR, rel=0.01)
    assert found["limit_left"].seconds == pytest.approx(HOUR, rel=0.01)
    assert found["throttled"].waste_j + found["limit_left"].waste_j == pytest.approx(
        state.excess_j, rel=0.01
    )


def test_waste_of_power_brake_and_locked_clock_is_found():
    locked = Run("locked-on-purpose", 600.0, 600.0 + HOUR, labels={"sm_clock_hertz": "990000000"})
    plain = Run("plain", 600.0 + HOUR)

    found = by_class(
        found_waste(Node([[deep_idle(600.0), LOCKED, LOCKED, BRAKED]], [locked, plain]))
    )

    assert set(found) == {"limit_left", "throttled"}
    assert found["limit_left"].waste_j == pytest.approx(LOCKED.excess_j, rel=0.02)
    assert found["throttled"].waste_j == pytest.approx(BRAKED.excess_j, rel=0.02)
    assert not found["limit_left"].ongoing
    assert found["throttled"].command == "nvidia-smi -i GPU-a0 -q -d PERFORMANCE,TEMPERATURE,POWER"


def clean_node(number, rng):
    """Node with work of random length in runs, short pauses, a sweep, brief throttling, and free
    GPUs in between.
    """
    states, runs, at_s = [], [], 0.0
    for job in range(12):
        pause = deep_idle(float(rng.uniform(60, 4_000)))
        work = busy(float(rng.uniform(900, 7_000)), watts=float(rng.uniform(200, 690)))
        wait = loaded(float(rng.uniform(5, 500)))
        hot = busy(20.0, events={"sw_thermal_slowdown": 1.0})
        sweep = job % 4 == 3
        limited = busy(1_200.0, watts=390.0, limit_w=400.0) if sweep else busy(1_200.0)
        tail = busy(
            float(rng.uniform(60, 900)), utilization=float(rng.uniform(0.03, 1.0)), watts=180.0
        )
        own = [work, wait, hot, limited, tail] if not sweep else [limited]
        seconds = sum(state.seconds for state in own)
        labels = {"power_limit_watts": "400"} if sweep else {"user": "ann"}
        runs.append(
            Run(
                f"job-{number}-{job}",
                at_s + pause.seconds,
                at_s + pause.seconds + seconds,
                labels=labels,
            )
        )
        states += [pause, *own]
        at_s += pause.seconds + seconds
    return Node(
        [states],
        runs,
        instance=f"{chr(97 + number % 26)}{number}:9847",
        offset_s=float(rng.uniform(0, 15)),
    )


def test_waste_of_thousand_clean_gpu_hours_has_no_finding():
    rng = np.random.default_rng(5)
    nodes = [clean_node(number, rng) for number in range(60)]
    hours = 0.0
    for node in nodes:
        waste = found_waste(node)
        hours += waste.gpu_seconds / 3_600
        assert not waste.findings, (node.instance, waste.findings)

    assert hours > 1_000


@pytest.mark.parametrize("work_s", [2.0, 5.0])
def test_waste_of_rare_requests_between_samples_is_not_idle(work_s):
    """Work that no sample of utilization shows, every five minutes: 480 W more for 2 of 60 s are 16
    W on average.
    """
    quiet = State(300.0 - work_s, 120.0, memory_gib=60, clock=1)
    states = [deep_idle(570.0), *[quiet, busy(work_s)] * 24]

    waste = found_waste(Node([states], [Run("service", 570.0)], interval_s=60, offset_s=20.0))

    assert not waste.findings


def test_waste_at_two_rates_of_samples_with_noise_is_within_two_percent():
    """Samples each second during the run and each 15 s otherwise, as in the local history, with 2 %
    of noise.
    """
    states = [deep_idle(900.0), loaded(HOUR), busy(HOUR), deep_idle(900.0), STUCK, deep_idle(900.0)]
    end_s = 900.0 + 2 * HOUR
    node = Node(
        [states], [Run("job", 900.0, end_s)], fast=[(900.0, end_s)], noise=0.02, offset_s=0.37
    )

    found = by_class(found_waste(node))

    assert {kind: finding.waste_j for kind, finding in found.items()} == pytest.approx(
        {"execution_idle": loaded(HOUR).excess_j, "clocks_stuck": STUCK.excess_j}, rel=0.02
    )


def test_waste_of_short_runs_without_series_is_not_unclaimed():
    """Half of the hour is work of runs below --runs.min-seconds, the other half that of no run."""
    begins_s = np.arange(600.0, 600.0 + HOUR / 2, 50.0)
    short = [
        Run(f"short-{begin_s:.0f}", begin_s, begin_s + 50.0, hidden=True) for begin_s in begins_s
    ]

    found = by_class(found_waste(Node([[deep_idle(600.0), busy(HOUR), deep_idle(600.0)]], short)))

    assert set(found) == {"unclaimed"}
    assert found["unclaimed"].energy_j == pytest.approx(600.0 * HOUR / 2, rel=0.02)


def test_waste_of_short_state_needs_minimum_duration():
    node = Node(
        [[deep_idle(600.0), busy(900.0), loaded(500.0), busy(900.0), loaded(700.0), busy(900.0)]],
        [ALWAYS],
    )

    (long,) = found_waste(node).findings
    both = found_waste(node, min_s=300.0).findings

    assert long.waste_j == pytest.approx(50 * 700, rel=0.05)
    assert [str(one.kind) for one in both] == ["execution_idle", "held_idle"]
    assert both[0].waste_j == pytest.approx(50 * 1_200, rel=0.05)
    assert both[1].waste_j == pytest.approx(0, abs=0.001 * both[1].energy_j)
    assert by_class(found_waste(node, min_s=300.0))["execution_idle"].waste_j == pytest.approx(
        50 * 1_200, rel=0.05
    )


def test_waste_of_site_limit_is_no_finding():
    node = Node([[deep_idle(600.0), CAPPED]], [ALWAYS])

    assert by_class(found_waste(node))["limit_left"].command == "nvidia-smi -i GPU-a0 -pl 700"
    assert "limit_left" not in by_class(found_waste(node, site_limits_w=(400.0,)))


@pytest.mark.parametrize(
    ("absent", "kind", "line"),
    [
        ([m.GPU_UTILIZATION], "execution_idle", "no utilization or power of a:9847 GPU 0"),
        ([m.GPU_POWER], "held_idle", "no utilization or power of a:9847 GPU 0"),
        ([m.GPU_MEMORY_USED], "clocks_stuck", "no memory or clocks of a:9847 GPU 0"),
        ([m.GPU_CLOCK_EVENT_SECONDS], "throttled", "no clock event times of a:9847 GPU 0"),
        ([m.GPU_POWER_LIMIT], "limit_left", "no power limit or its default of a:9847 GPU 0"),
        ([m.GPU_UTILIZATION], "unclaimed", "no utilization or power of a:9847 GPU 0"),
        ([m.GPU_ENERGY], "execution_idle", "no energy counter of a:9847 GPU 0"),
    ],
)
def test_waste_without_data_has_no_finding_and_names_what_is_missing(absent, kind, line):
    state, runs = CASES[kind]

    waste = found_waste(Node([[state]], runs, absent=absent))

    assert not waste.findings
    assert any(text.startswith(line) for text in waste.missing), waste.missing


def test_waste_without_deep_idle_power_has_unknown_joules():
    (finding,) = found_waste(Node([[loaded(HOUR)]], [ALWAYS], idle_power_w=None)).findings
    late = Run("late", 120.0)
    known = found_waste(
        Node([[deep_idle(120.0), loaded(HOUR)]], [late], idle_power_w=None)
    ).findings[0]

    assert finding.waste_j is None
    assert finding.energy_j == pytest.approx(120 * HOUR, rel=0.01)
    assert known.waste_j == pytest.approx(50 * HOUR, rel=0.02)


def test_idle_waste_with_an_unknown_part_is_a_lower_limit():
    (unknown,) = found_waste(Node([[loaded(HOUR)]], [ALWAYS], idle_power_w=None)).findings
    evidence = replace(unknown.gpus[0], energy_j=1_000.0, idle_j=400.0, half_j=30.0)
    known = replace(unknown, gpus=(evidence, evidence))

    complete = Waste((known,), 2, 0.0, 0.0).idle_waste
    partial = Waste((known, unknown), 3, 0.0, 0.0).idle_waste

    # two GPUs of 600 ± 30 J, whose errors add
    assert (complete.state, complete.value, complete.half_width) == ("known", 1_200.0, 60.0)
    assert (partial.state, partial.value, partial.half_width) == ("partial", 1_200.0, 60.0)
    assert Waste((), 0, 0.0, 0.0).idle_waste == Figure(0.0, 0.0)


def test_waste_does_not_count_time_without_samples():
    node = Node(
        [[deep_idle(600.0), loaded(3 * HOUR)]],
        [Run("late", 600.0)],
        lost=[(600.0 + HOUR, 600.0 + 2 * HOUR)],
    )

    (finding,) = found_waste(node).findings

    assert finding.seconds == pytest.approx(2 * HOUR, rel=0.02)
    assert finding.waste_j == pytest.approx(50 * 2 * HOUR, rel=0.02)


def test_waste_of_free_gpu_is_nothing_and_of_loaded_free_gpu_has_no_holder():
    free = found_waste(Node([[deep_idle(5 * HOUR)]]))
    (finding,) = found_waste(Node([[deep_idle(600.0), loaded(HOUR)]])).findings

    assert not free.findings
    assert free.missing == ("no run and no pod in the window: all work counts as unclaimed",)
    assert finding.kind == "execution_idle"
    assert finding.holders == ()
    assert finding.command.endswith("--query-compute-apps=pid,name,used_memory --format=csv")
    assert finding.gpus[0].idle_j == pytest.approx(DEEP_IDLE_W * HOUR, rel=0.01)


def test_waste_of_window_without_gpu_names_the_remedy():
    with pytest.raises(FetchError, match="no GPU of node 'x' at nodes"):
        fetch_waste(
            NodeSource(Node([[deep_idle(60.0)]])),
            WasteRequest(BEGIN_S, BEGIN_S + 60, BEGIN_S, node="x"),
        )


def test_waste_of_held_gpu_at_deep_idle_is_time_only():
    """The exporter's idle power is the lowest of many means, here 1 % below the mean of 70 W."""
    late = Run("late", 600.0)
    (held,) = found_waste(
        Node([[deep_idle(2 * HOUR)]], [late], idle_power_w=0.99 * DEEP_IDLE_W)
    ).findings
    (lower,) = found_waste(Node([[deep_idle(2 * HOUR)]], [late], idle_power_w=50.0)).findings

    assert (held.kind, lower.kind) == ("held_idle", "held_idle")
    assert held.waste_j == pytest.approx(0, abs=1e-3 * held.energy_j)
    assert held.seconds == pytest.approx(2 * HOUR - 600, rel=0.01)
    assert lower.waste_j == pytest.approx(20 * (2 * HOUR - 600), rel=0.01)


def test_waste_below_deep_idle_power_has_no_negative_energy_or_emissions():
    """GPU 0 is held at 60 W, below its 70 W of deep idle; GPU 1 of the same run wastes 50 W."""
    low = [deep_idle(HOUR), State(HOUR, 60.0)]
    job = Run("job", HOUR, gpus=(0, 1))

    (alone,) = found_waste(Node([low], [Run("job", HOUR)])).findings
    (finding,) = found_waste(Node([low, [deep_idle(HOUR), State(HOUR, 120.0)]], [job])).findings

    assert (alone.waste_j, alone.grams) == (0, 0)
    assert [gpu.index for gpu in finding.gpus] == ["0", "1"]
    assert finding.grams == pytest.approx(50 * HOUR / 3.6e6 * 200, rel=0.02)


def test_waste_of_short_requests_is_the_same():
    """One GPU at once: the requests of three GPUs cover two hours, and the intervals continue over
    the borders.
    """
    states = [deep_idle(600.0), loaded(8 * HOUR), busy(HOUR)]
    node = Node([states] * 3, [Run("late", 600.0, gpus=range(3))])
    request = WasteRequest(BEGIN_S - 1, BEGIN_S + node.seconds + 60, BEGIN_S + node.seconds)

    long, short = (
        fetch_waste(NodeSource(node), replace(request, gpus_at_once=gpus))[0] for gpus in (256, 1)
    )

    assert short == long
