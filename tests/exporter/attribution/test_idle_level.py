import random

import pytest

from wattline_exporter.attribution.device_loads import DeviceLoads
from wattline_exporter.attribution.idle_level import IdleLevel
from wattline_exporter.attribution.policy import AttributedKey, Attribution
from wattline_exporter.sensors.readings import Device

GPU = Device("gpu", "GPU-0")


class Counter:
    """Energy counter of a GPU that is updated every 0.1 s, read once a second with a delay of up to
    50 ms.
    """

    def __init__(self, level):
        self.level, self.t_s, self.energy_j, self._rng = level, 0.0, 0.0, random.Random(1)

    def run(self, seconds, watts):
        for _ in range(seconds):
            self.t_s, self.energy_j = self.t_s + 1.0, self.energy_j + watts
            delay_s = self._rng.uniform(0.0, 0.05)
            update_j = watts * self._rng.uniform(0.0, 0.1)
            self.level.update(self.t_s + delay_s, self.energy_j + watts * delay_s - update_j)


@pytest.mark.parametrize("minutes", [2, 60])
def test_idle_level_noisy_counter_gives_true_power(minutes):
    level = IdleLevel(None)
    Counter(level).run(60 * minutes, 78.0)
    assert level.watts == pytest.approx(78.0, abs=0.15)


def test_idle_level_low_saved_value_rises_to_true_power():
    level = IdleLevel(76.8)
    Counter(level).run(600, 78.0)
    assert level.watts == pytest.approx(78.0, abs=0.1)


def test_idle_level_higher_level_of_a_context_is_ignored():
    level = IdleLevel(None)
    counter = Counter(level)
    counter.run(120, 78.0)
    counter.run(3600, 118.0)
    assert level.watts == pytest.approx(78.0, abs=0.15)


@pytest.mark.parametrize("late_s", [0.9, 1.8])
@pytest.mark.parametrize("at", [11, 60])
def test_idle_level_late_reading_does_not_lower_the_level(late_s, at):
    """One energy is read in time, and has the time at which a busy machine continued with it."""
    level = IdleLevel(None)
    for second in range(120):
        level.update(second + (late_s if second == at else 0.0), 78.0 * second)
    assert level.watts == pytest.approx(78.0, abs=0.05 * 78)


def test_idle_level_energy_that_stands_still_does_not_lower_the_level():
    """After a load, the energy is 240 J ahead of the counter, so that it stands still for 3 s."""
    level = IdleLevel(None)
    for second in range(120):
        level.update(float(second), max(240.0, 78.0 * second))
    assert level.watts == pytest.approx(78.0, abs=0.05 * 78)


@pytest.mark.parametrize(("watts", "least_w"), [(None, 0.0), (80.0, 76.0)])
def test_idle_level_lowest_power_is_the_width_of_the_level_lower(watts, least_w):
    # 5 % of 80 W
    assert IdleLevel(watts).least_w == pytest.approx(least_w)


def test_idle_level_falls_to_a_lower_level():
    level = IdleLevel(None)
    counter = Counter(level)
    counter.run(3600, 118.0)
    counter.run(120, 78.0)
    assert level.watts == pytest.approx(78.0, abs=0.3)


def test_idle_level_rising_power_stays_on_the_lowest_level():
    level = IdleLevel(None)
    counter = Counter(level)
    for watts in range(80, 121):
        counter.run(120, float(watts))
    assert 79.0 < level.watts < 84.0


def test_idle_apart_idle_holder_gets_almost_no_energy():
    attribution = Attribution(energy_j={GPU: 100.0}, idle_w={GPU: 78.0})
    attribution.hold(GPU, DeviceLoads({"a": 0.0}), 0.0)
    rng = random.Random(2)
    t_s = 0.0
    attribution.divide(GPU, 100.0, t_s)
    for _ in range(
        400
    ):  # 30 s at 78 W, polled each 50 to 100 ms; the counter is updated every 100 ms
        t_s += rng.uniform(0.05, 0.1)
        attribution.divide(GPU, 100.0 + 78.0 * (int(t_s * 10) / 10), t_s)
    apart_j = attribution.microjoules[AttributedKey(GPU, "idle_apart", "a")] / 1e6

    assert attribution.microjoules[AttributedKey(GPU, "idle_shared", "a")] / 1e6 == pytest.approx(
        78.0 * t_s, rel=0.01
    )
    assert apart_j < 78.0 * 0.1 + 0.5  # one update of the counter
