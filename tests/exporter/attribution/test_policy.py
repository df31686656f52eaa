import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_exporter.attribution.device_loads import NO_RUN, DeviceLoads
from wattline_exporter.attribution.policy import (
    MAX_LOAD_CHANGES,
    POLICIES,
    AttributedKey,
    Attribution,
    split_energy,
)
from wattline_exporter.sensors.readings import Device

GPU = Device("gpu", "GPU-0")
PACKAGE = Device("package", "0")

loads = st.dictionaries(st.sampled_from([NO_RUN, "a", "b", "c"]), st.floats(0, 1e6), max_size=4)


def joules(attribution, policy, run_id, device=GPU):
    return attribution.microjoules.get(AttributedKey(device, policy, run_id), 0) / 1e6


def divided(*steps, idle_w=100.0, device=GPU):
    """`steps` are (seconds, watts, loads); the idle power is known."""
    attribution = Attribution(idle_w={device: idle_w})
    now_s = energy_j = 0.0
    attribution.divide(device, 1e-6, now_s)
    for seconds, watts, loads in steps:
        attribution.hold(device, DeviceLoads(loads), now_s)
        now_s, energy_j = now_s + seconds, energy_j + watts * seconds
        attribution.divide(device, energy_j + 1e-6, now_s)
    return attribution


@given(
    st.integers(0, 10**15), st.integers(0, 10**15), loads, st.sampled_from(POLICIES), st.booleans()
)
def test_split_energy_adds_up_to_the_microjoule(energy_uj, idle_uj, loads, policy, by_load):
    shares = split_energy(energy_uj, idle_uj, DeviceLoads(loads), policy, idle_by_load=by_load)

    assert sum(shares.values()) == energy_uj
    assert min(shares.values()) >= 0


@given(
    st.lists(st.tuples(st.floats(0.001, 60), st.floats(0, 1_000), loads), max_size=30),
    st.floats(0, 500),
)
def test_attribution_any_sequence_adds_up_to_the_devices_energy(steps, idle_w):
    attribution = divided(*steps, idle_w=idle_w)
    energy_j = math.fsum([1e-6, *(seconds * watts for seconds, watts, _ in steps)])

    for policy in POLICIES:
        total = sum(
            amount for key, amount in attribution.microjoules.items() if key.policy == policy
        )
        assert total / 1e6 == pytest.approx(energy_j, abs=2e-6, rel=1e-12)


def test_split_energy_of_gpu_divides_idle_power_equally():
    # 10 s at 500 W, of which 100 W idle: 4,000 J above it, 3 to 1; 1,000 J of idle
    attribution = divided((10.0, 500.0, {"a": 0.6, "b": 0.2}))

    assert joules(attribution, "idle_apart", "a") == pytest.approx(3_000)
    assert joules(attribution, "idle_apart", "b") == pytest.approx(1_000)
    assert joules(attribution, "idle_apart", NO_RUN) == pytest.approx(1_000, abs=1e-5)
    assert joules(attribution, "idle_shared", "a") == pytest.approx(3_500)
    assert joules(attribution, "idle_shared", "b") == pytest.approx(1_500)
    assert joules(attribution, "idle_shared", NO_RUN) == pytest.approx(0, abs=1e-5)


def test_split_energy_of_cpu_divides_idle_power_by_load():
    # 10 s at 150 W, 50 W idle; the run has a fifth of the CPU time: 200 J of 1,000 above idle, 100
    # of 500 J idle
    attribution = divided((10.0, 150.0, {"a": 2.0, NO_RUN: 8.0}), idle_w=50.0, device=PACKAGE)

    assert joules(attribution, "idle_apart", "a", PACKAGE) == pytest.approx(200)
    assert joules(attribution, "idle_shared", "a", PACKAGE) == pytest.approx(300)
    assert joules(attribution, "idle_shared", NO_RUN, PACKAGE) == pytest.approx(1_200)


def test_attribution_sole_holder_gets_all_energy():
    attribution = divided((10.0, 500.0, {"a": 0.9}), (10.0, 120.0, {"a": 0.0}))

    assert joules(attribution, "idle_shared", "a") == pytest.approx(6_200)


def test_attribution_run_between_two_scans_gets_its_share_of_time():
    # 10 s at 400 W, of which run "a" used 2.5 s and run "b" the next 5 s
    attribution = Attribution()
    attribution.divide(GPU, 1e-6, 0.0)
    for from_s, loads in ((2.0, {"a": 1.0}), (4.5, {"b": 1.0}), (9.5, {})):
        attribution.hold(GPU, DeviceLoads(loads), from_s)
    attribution.divide(GPU, 4_000 + 1e-6, 10.0)

    assert joules(attribution, "idle_shared", "a") == pytest.approx(1_000)
    assert joules(attribution, "idle_shared", "b") == pytest.approx(2_000)
    assert joules(attribution, "idle_shared", NO_RUN) == pytest.approx(1_000, abs=1e-5)
    assert (
        sum(n for key, n in attribution.microjoules.items() if key.policy == "idle_apart")
        == 4_000_000_001
    )


def test_attribution_past_energy_does_not_change():
    attribution = divided((10.0, 400.0, {"a": 1.0}))
    attribution.hold(GPU, DeviceLoads({"b": 1.0}), 3.0)
    attribution.divide(GPU, 4_400 + 1e-6, 11.0)

    assert joules(attribution, "idle_shared", "a") == pytest.approx(4_000)
    assert joules(attribution, "idle_shared", "b") == pytest.approx(400)


def test_attribution_without_holders_is_unattributed():
    attribution = divided((10.0, 500.0, {}), (10.0, 300.0, {"a": 1.0}))

    assert joules(attribution, "idle_shared", NO_RUN) == pytest.approx(5_000)
    assert joules(attribution, "idle_shared", "a") == pytest.approx(3_000)


def test_attribution_below_idle_power_has_no_negative_share():
    attribution = divided((10.0, 60.0, {"a": 1.0}))

    assert joules(attribution, "idle_apart", "a") == 0
    assert joules(attribution, "idle_apart", NO_RUN) == pytest.approx(600, abs=1e-5)


@pytest.mark.parametrize(("low_s", "idle_w"), [(3, 90.0), (15, 10.0)])
def test_idle_power_is_the_lowest_power_that_lasts_for_10_s(low_s, idle_w):
    """3 s at 10 W do not lower the level of 90 W, which is known within 5 %."""
    attribution = Attribution()
    energy_j, watts = 0.0, [300.0] * 15 + [90.0] * 15 + [10.0] * low_s + [300.0] * 15
    for second, power_w in enumerate(watts, start=1):
        energy_j += power_w
        attribution.divide(GPU, energy_j, float(second))

    assert attribution.idle_w == {GPU: pytest.approx(idle_w, rel=0.05)}


def test_idle_power_ignores_energy_under_load():
    attribution, energy_j = Attribution(), 0.0
    for second in range(1, 40):
        if second > 12:
            attribution.note_busy(GPU)
        energy_j += 80.0 if second <= 12 else 60.0
        attribution.divide(GPU, energy_j, float(second))

    assert attribution.idle_w == {GPU: pytest.approx(80.0)}


def test_attribution_of_downtime_includes_idle_power():
    # 60 s away at 80 W, 75 W of them idle
    attribution = Attribution(
        {AttributedKey(GPU, "idle_apart", NO_RUN): 0}, {GPU: 0.0}, {GPU: 75.0}, saved_s=100.0
    )
    attribution.hold(GPU, DeviceLoads({"a": 0.0}), 100.0)
    attribution.divide(GPU, 4_800.0, 160.0)

    assert joules(attribution, "idle_apart", NO_RUN) == pytest.approx(4_500)
    assert joules(attribution, "idle_apart", "a") == pytest.approx(300)


def test_attribution_holder_changes_are_limited_without_energy():
    attribution = Attribution()
    for n in range(10_000):
        attribution.hold(GPU, DeviceLoads({"a": float(n)}), float(n))

    assert len(attribution._holders[GPU]) <= MAX_LOAD_CHANGES + 1


def test_idle_power_ignores_gaps():
    attribution = Attribution()
    energy_j, now_s = 0.0, 0.0
    for step_s in [1.0] * 8 + [600.0] + [1.0] * 8:  # 600 s asleep add one joule
        now_s, energy_j = now_s + step_s, energy_j + (300.0 if step_s == 1 else 1.0)
        attribution.divide(GPU, energy_j, now_s)

    assert attribution.idle_w == {}


def test_attribution_earlier_energy_is_unattributed():
    attribution = Attribution(energy_j={GPU: 1_000.0})
    attribution.hold(GPU, DeviceLoads({"a": 1.0}), 0.0)
    attribution.divide(GPU, 1_500.0, 1.0)

    assert joules(attribution, "idle_shared", NO_RUN) == 1_000
    assert joules(attribution, "idle_shared", "a") == 500


def test_attribution_continues_after_a_restart():
    first = divided((10.0, 500.0, {"a": 1.0}))
    changes = first.take_changes()
    second = Attribution(changes.microjoules, {GPU: 5_000 + 1e-6}, first.idle_w)
    second.hold(GPU, DeviceLoads({"a": 1.0}), 10.0)
    second.divide(GPU, 5_600 + 1e-6, 20.0)

    assert joules(second, "idle_shared", "a") == pytest.approx(5_600)
    assert (
        sum(n for key, n in second.microjoules.items() if key.policy == "idle_apart")
        == 5_600_000_001
    )


def test_attribution_keep_removes_other_runs_permanently():
    attribution = divided((10.0, 500.0, {"a": 1.0, "b": 1.0}), (10.0, 500.0, {"b": 1.0}))
    attribution.take_changes()
    attribution.keep({"b"})
    changes = attribution.take_changes()

    assert changes.forgotten == {"a"}
    assert {key.run_id for key in attribution.microjoules} == {NO_RUN, "b"}
    attribution.put_back(changes)
    assert attribution.take_changes().forgotten == {"a"}


def test_attribution_keep_waits_for_the_energy_of_a_device_not_read():
    attribution = divided((10.0, 500.0, {"a": 1.0}))
    attribution.hold(GPU, DeviceLoads(), 20.0)
    attribution.keep(set())
    attribution.divide(
        GPU, 15_000 + 1e-6, 30.0
    )  # 500 W for 20 s, half of it before the end of the run
    shares_j = joules(attribution, "idle_shared", "a")
    attribution.keep(set())

    assert shares_j == pytest.approx(10_000)
    assert {key.run_id for key in attribution.microjoules} == {NO_RUN}


def test_attribution_shares_never_fall():
    attribution = Attribution(idle_w={GPU: 100.0})
    before = {}
    for second in range(1, 50):
        attribution.hold(
            GPU, DeviceLoads({"a": float(second % 3), "b": float(second % 5)}), second - 1.0
        )
        attribution.divide(GPU, 300.0 * second, float(second))
        assert all(attribution.microjoules[key] >= amount for key, amount in before.items())
        before = dict(attribution.microjoules)


def test_attribution_readings_are_of_exported_devices_only():
    attribution = divided((10.0, 500.0, {"a": 1.0}))

    assert list(attribution.readings([])) == []
    values = {reading.labels: reading.value for reading in attribution.readings([GPU])}
    assert values["a", "gpu", "GPU-0", "idle_shared"] == pytest.approx(5_000)
    assert values["gpu", "GPU-0"] == 100.0
