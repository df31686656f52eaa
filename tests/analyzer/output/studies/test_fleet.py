"""Output of a fleet whose runs started before the first scrape of their exporter."""

import pytest

from analyzer.output.studies.fleet import fleet_output
from analyzer.studies.fleet import Counts, Means
from analyzer.studies.fleet_groups import fleet

GPU = ("gpu",)


def small_fleet_text(counters_j):
    """Return the text of runs with 4,500 J and 3,000 J without a run; the devices' counters show `counters_j`."""
    counts = Counts(
        devices={(("(no run)",), GPU): counters_j},
        unclaimed={(("(no run)",), GPU): 3_000.0},
        claimed={(("a",), GPU): 4_500.0},
        work={},
        working={},
        grams={},
        device_grams={((), ("average", "actual")): 1.0},
        runs={(("a",), ()): 1.0},
        idle={(("(no run)",), GPU): 3_000.0},
        means=Means("raw samples", 0.0, 600.0, "server", 1, 1, 0),
    )
    result = fleet(("model",), "idle_shared", counts)
    shares = [result.share(group) for group in (*result.groups, *result.unattributed)]
    return shares, "\n".join(part for part in fleet_output(result, 50).parts if isinstance(part, str))


def test_fleet_energy_beyond_counters_has_one_total_and_one_share():
    """The parts are 7,500 J, the counters 6,000 J: 60 % and 40 % of the parts."""
    shares, text = small_fleet_text(6_000.0)

    assert shares == [pytest.approx(0.6), pytest.approx(0.4)]
    assert "all devices: 2.083 Wh (GPU 2.083 Wh)" in text
    assert "the devices' counters show 1.667 Wh of it; see the warning" in text
    assert "energy of GPUs without a run: 3,000 J, 40.0 % of the energy of all GPUs" in text


def test_fleet_energy_of_counters_is_the_total_where_parts_agree():
    shares, text = small_fleet_text(7_500.0)

    assert shares == [pytest.approx(0.6), pytest.approx(0.4)]
    assert "all devices: 2.083 Wh (GPU 2.083 Wh)" in text
    assert "counters show" not in text


def test_fleet_emissions_state_what_running_runs_lack():
    _, text = small_fleet_text(7_500.0)

    assert "which lack the last 6 s of runs that go on at the end of the window" in text


def test_fleet_difference_that_rounds_to_zero_has_no_sign():
    """The parts are 7,500 J; a ten-millionth of it is 0.00001 %."""
    for counters_j in (7_500.0 * (1 + 1e-7), 7_500.0 * (1 - 1e-7)):
        assert "the sum differs from the devices' counters by 0.00 %" in small_fleet_text(counters_j)[1]
    assert "the sum differs from the devices' counters by -0.50 %" in small_fleet_text(7_500 / 0.995)[1]
