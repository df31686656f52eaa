"""The division of a server that runs, second by second in virtual time, against the known energy of
each request.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.exporter.requests.division.server import serve
from wattline_exporter.requests.division.division import Division, divide_all
from wattline_exporter.requests.division.spans import RequestSpans
from wattline_exporter.requests.watermark import Watermark

WINDOW_S = 60.0
WIDTH_S = 0.25


def columns(spans, chosen):
    names = (
        "arrived_s",
        "first_token_s",
        "ended_s",
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
    )
    return RequestSpans(*(getattr(spans, name)[chosen] for name in names))


def stream(served, slots, until_s=None, estimates=None):
    """Report each request at the second of its end; return joules by request, and the division.

    The estimates at the reports are added to `estimates`, and the final energies with their idle
    energy.
    """
    division, found = Division(), {}
    watermark = Watermark(WINDOW_S)
    total_j = np.concatenate([[0.0], np.cumsum(slots.joules)])
    last_s = float(slots.edges_s[-1])
    division.extend(slots.edges_s[:1], total_j[:1], np.zeros(1))
    for now_s in np.arange(1.0, last_s + WINDOW_S + 2, 1.0):
        added = np.flatnonzero((served.spans.ended_s > now_s - 1) & (served.spans.ended_s <= now_s))
        if len(added):
            ended = columns(served.spans, added)
            watermark.report(ended.arrived_s, ended.ended_s, now_s)
        estimated = division.estimate(columns(served.spans, added))
        division.add(columns(served.spans, added), added)
        new = (slots.edges_s > now_s - 1) & (slots.edges_s <= now_s)
        division.extend(slots.edges_s[new], total_j[new], np.zeros(np.count_nonzero(new)))
        done = division.divide(watermark.closed_s(now_s), slots.idle_w)
        found |= {
            key: (joules, half)
            for key, joules, half in zip(
                done.keys, done.prefill_j + done.decode_j, done.half_j, strict=True
            )
        }
        if estimates is not None:
            estimates |= (
                {key: [joules] for key, joules in zip(added, estimated[0], strict=True)}
                if estimated
                else {}
            )
            for key, final_j in zip(done.keys, done.total_j, strict=True):
                estimates.setdefault(key, [np.nan]).append(final_j)
        if until_s is not None and now_s >= until_s:
            break
    return found, division


@pytest.mark.parametrize("traffic", ["conversation", "chat"])
def test_requests_get_nearly_the_energy_of_the_whole_run(traffic):
    rng = np.random.default_rng(4)
    served = serve(rng, traffic, 0.5, 200.0)
    slots = served.slots(WIDTH_S, rng)

    found, _ = stream(served, slots)

    count = len(served.spans)
    assert sorted(found) == list(range(count))
    joules, half_j = np.array([found[k] for k in range(count)]).T
    true_j = served.shapley_j
    whole_j = divide_all(served.spans, slots).dynamic_j
    error, whole_error = (
        np.abs(each - true_j).mean() / true_j.mean() for each in (joules, whole_j)
    )
    assert error <= 1.5 * whole_error + 0.02
    assert np.mean(np.abs(joules - true_j) <= half_j) >= 0.93


def test_requests_and_rest_add_up_to_the_meter_at_each_second():
    rng = np.random.default_rng(5)
    served = serve(rng, "chat", 0.6, 60.0)
    slots = served.slots(WIDTH_S, rng)

    for until_s in (20.0, 45.0, None):
        _, division = stream(served, slots, until_s)
        held_j = division.open_j
        final_j = division.measured_j - division.rest_j - held_j
        assert division.measured_j == pytest.approx(
            slots.joules[slots.edges_s[1:] <= division.divided_s].sum(), rel=1e-9
        )
        assert final_j >= -1e-6
    found, division = stream(served, slots)
    idle_j = 0.0
    assert len(division) == 0
    assert len(found) == len(served.spans)
    assert (
        sum(each for each, _ in found.values()) + idle_j
        <= division.measured_j - division.rest_j + 1e-6
    )


def test_total_of_requests_and_rest_is_the_energy_of_the_meter():
    spans = RequestSpans(
        *(
            np.array(each, dtype=float)
            for each in ([1, 2], [1.5, 2.5], [4, 6], [100, 100], [0, 0], [50, 80])
        )
    )
    division = Division()
    edges_s = np.arange(0.0, 10.25, 0.25)
    total_j = np.cumsum(np.random.default_rng(1).uniform(20, 100, len(edges_s)))
    division.extend(edges_s, total_j, np.zeros(len(edges_s)))
    division.add(spans, np.array([7, 9]))

    found = division.divide(8.0, 80.0)

    assert found.keys.tolist() == [7, 9]
    assert division.measured_j == pytest.approx(total_j[32] - total_j[0], rel=1e-12)
    assert found.total_j.sum() + division.rest_j == pytest.approx(division.measured_j, rel=1e-9)
    assert found.missing_s == pytest.approx([0.0, 0.0])


def test_time_before_the_first_slot_is_missing_and_in_the_half_width():
    """5 s at 200 W are measured, of which 100 W are idle power, and 6 s are missing: 1,200 J more
    in the half-width.
    """
    division = Division()
    division.extend(np.arange(10.0, 20.0, 0.25), np.arange(40) * 50.0, np.zeros(40))
    division.add(
        RequestSpans(*(np.array([each]) for each in (4.0, 5.0, 15.0, 10.0, 0.0, 10.0))),
        np.array([1]),
    )

    found = division.divide(19.0, 100.0)

    assert found.missing_s == pytest.approx([6.0])
    assert found.total_j == pytest.approx([1_000.0])
    assert 1_200.0 < found.half_j[0] <= 2_200.0


def test_errors_of_the_meter_at_begin_and_end_are_in_the_half_width():
    """One request at 200 W, all of it idle power; the energy is known to ± 3 J at each instant."""
    division = Division()
    edges_s = np.arange(0.0, 10.25, 0.25)
    division.extend(edges_s, 200.0 * edges_s, np.full(len(edges_s), 3.0))
    division.add(
        RequestSpans(*(np.array([each]) for each in (2.1, 2.2, 4.1, 10.0, 0.0, 10.0))),
        np.array([1]),
    )

    found = division.divide(9.0, 200.0)

    assert found.total_j == pytest.approx([400.0])
    assert found.half_j == pytest.approx([np.hypot(3.0 * np.sqrt(2), 0.05 * 400)])


def test_assumed_idle_energy_is_in_the_half_width_of_requests_in_its_time():
    """Requests at 200 W; the idle power is assumed to be 150 W up to 10 s, and known to be 150 W
    later.
    """
    division = Division()
    edges_s = np.arange(0.0, 20.25, 0.25)
    division.extend(edges_s, 200.0 * edges_s, np.zeros(len(edges_s)))
    columns_of = (
        [2.0, 9.0, 12.0],
        [2.5, 9.5, 12.5],
        [4.0, 11.0, 14.0],
        [10.0] * 3,
        [0.0] * 3,
        [10.0] * 3,
    )
    division.add(RequestSpans(*map(np.array, columns_of)), np.arange(3))

    parts = division.divide(10.0, 150.0, idle_known=False), division.divide(20.0, 150.0)

    first, later = (
        np.concatenate([each.half_j - 0.05 * each.idle_j for each in parts])[k]
        for k in (slice(2), 2)
    )
    assert np.all(first >= 300.0 * 0.95), "2 s of 150 W may be energy above idle"
    assert later < 200.0
    assert not np.concatenate([each.separable for each in parts])[:2].any()


def test_power_without_requests_is_in_the_rest_also_in_slots_with_requests():
    """A GPU at 700 W, of which 78 W are idle power; requests of 0.4 s, one each 4 s, divided second
    by second.
    """
    division = Division()
    edges_s = np.arange(0.0, 100.25, 0.25)
    division.extend(edges_s, 700.0 * edges_s, np.zeros(len(edges_s)))
    starts = np.arange(4.1, 98.0, 4.0)
    columns_of = (
        starts,
        starts + 0.1,
        starts + 0.4,
        np.full(24, 10.0),
        np.zeros(24),
        np.full(24, 10.0),
    )
    division.add(RequestSpans(*columns_of), np.arange(24))

    parts = [division.divide(float(second), 78.0) for second in range(1, 101)]

    total_j = np.concatenate([each.total_j for each in parts])
    assert total_j == pytest.approx(np.full(24, 280.0))
    assert total_j.sum() + division.rest_j == pytest.approx(70_000.0)
    assert not np.concatenate([each.separable for each in parts]).any()


@pytest.mark.parametrize(
    ("traffic", "load", "separable"), [("chat", 0.3, False), ("conversation", 0.5, True)]
)
def test_phases_have_energies_if_the_whole_run_separates_them(traffic, load, separable):
    """Chats vary independently of decode, but the error of their prefills is more than half of
    it.
    """
    rng = np.random.default_rng(0)
    served = serve(rng, traffic, load, 60.0)
    slots = served.slots(WIDTH_S, rng)

    _, division = stream(served, slots)
    whole = divide_all(served.spans, slots)

    assert division._separable == (whole.prefill is not None) == separable


def test_estimates_come_near_the_final_energies():
    rng = np.random.default_rng(8)
    served = serve(rng, "chat", 0.4, 120.0)
    slots = served.slots(WIDTH_S, rng)
    _, division = stream(served, slots)

    joules, half_j = division.estimate(served.spans)

    true_j = served.shapley_j
    idle_j = joules - division.estimate(served.spans)[0]
    assert np.abs(idle_j).max() == 0.0
    dynamic_j = (
        joules - (served.spans.ended_s - served.spans.arrived_s) * division._estimates.idle_w
    )
    assert np.median(np.abs(dynamic_j - true_j) / true_j) < 0.3
    assert (half_j > 0).all()


def test_estimate_half_width_is_quantile_of_errors_of_reported_estimates():
    """With the model of later requests, an estimate would be nearer to the final energy than at the
    report.
    """
    served = serve(np.random.default_rng(3), "long", 0.5, 60.0)
    slots = served.slots(WIDTH_S, np.random.default_rng(3))
    estimates = {}

    _, division = stream(served, slots, estimates=estimates)

    estimated_j, final_j = np.array(list(estimates.values())).T
    errors = np.sort((np.abs(final_j - estimated_j) / estimated_j)[~np.isnan(estimated_j)])
    joules, half_j = division.estimate(served.spans)
    assert len(errors) >= 20
    assert half_j / joules == pytest.approx(max(0.3, errors[int(0.95 * len(errors))]))


def test_idle_power_is_shared_at_each_instant_within_a_slot():
    """At 78 W, requests of 0.1 s, each of which shares 0.05 s with the one before and the one after
    it.
    """
    division = Division()
    edges_s = WIDTH_S * np.arange(1 + 4 * 60)
    arrived_s = 1.03 + 0.05 * np.arange(400)
    spans = RequestSpans(
        arrived_s, arrived_s + 0.02, arrived_s + 0.1, *np.full((3, 400), [[100.0], [0.0], [10.0]])
    )
    division.extend(edges_s, 78.0 * edges_s, np.zeros(len(edges_s)))
    division.add(spans, np.arange(400))

    found = [division.divide(until_s, 78.0) for until_s in (10.1, 30.0)]

    true_s = np.full(400, 0.05)
    true_s[[0, -1]] = 0.075
    assert np.concatenate([each.idle_j for each in found]) == pytest.approx(78.0 * true_s)
    total_j = sum(float(each.total_j.sum()) for each in found)
    assert total_j == pytest.approx(78.0 * (0.05 * 399 + 0.1))
    assert total_j + division.rest_j + division.open_j == pytest.approx(
        division.measured_j, rel=1e-12
    )


def lone_requests(count, seconds, every_s):
    """Return equal requests, each of which is the only one of its time."""
    arrived_s = 2.0 + every_s * np.arange(count)
    tokens = np.full((3, count), [[100.0], [0.0], [30.0]])
    return RequestSpans(arrived_s, arrived_s + 0.1, arrived_s + seconds, *tokens)


def division_of(spans, power_w, half_j=0.0):
    """Return a division with requests, and slots of a power (K,)."""
    division = Division()
    edges_s = WIDTH_S * np.arange(len(power_w) + 1)
    joules = np.append(0.0, np.cumsum(power_w * WIDTH_S))
    division.extend(edges_s, joules, np.full(len(edges_s), half_j))
    division.add(spans, np.arange(len(spans)))
    return division


def test_noise_of_the_meter_counts_in_each_slot_of_a_request():
    """Slots without requests have 20 J, 2 J more or 2 J less: a standard error of 1.4826 · 2 J. A
    request of 2 s is alone in 8 slots.
    """
    spans = lone_requests(10, 2.0, 8.0)
    slot = np.arange(4 * 90)
    busy = (slot >= 8) & (slot % 32 >= 8) & (slot % 32 < 16) & (slot < 4 * 82)
    noise_w = 8.0 * (slot % 3 - 1.0)
    steady, noisy = (
        division_of(spans, np.where(busy, 300.0, 80.0 + part * noise_w)).divide(90.0, 80.0)
        for part in (0.0, 1.0)
    )

    assert steady.energies.meter_j2 == pytest.approx(np.zeros(10))
    assert noisy.energies.meter_j2 == pytest.approx(np.full(10, 8 * (1.4826 * 2.0) ** 2), rel=1e-4)
    added_j2 = noisy.half_j**2 - steady.half_j**2
    assert added_j2 == pytest.approx(np.full(10, 8 * (1.96 * 1.4826 * 2.0) ** 2), rel=1e-4)


def test_noise_in_one_slot_counts_with_the_part_of_the_slot():
    """Of a slot with two requests of 0.05 s, one has half of the time with requests and half of the
    energy.
    """
    arrived_s = np.concatenate([2.0 + 4.0 * np.arange(20), 2.05 + 4.0 * np.arange(20)])
    tokens = np.full((3, 40), [[100.0], [0.0], [1.0]])
    spans = RequestSpans(arrived_s, arrived_s + 0.05, arrived_s + 0.05, *tokens)
    slot = np.arange(4 * 90)
    noise_w = 8.0 * (slot % 3 - 1.0)
    busy = (slot % 16 == 8) & (slot < 4 * 80)
    found = division_of(spans, np.where(busy, 80.0 + 100.0, 80.0 + noise_w)).divide(90.0, 80.0)

    share = found.total_j / (180.0 * 0.05)
    expected_j2 = np.minimum(share, 1.0) ** 2 * 0.5**2 * (1.4826 * 2.0) ** 2
    assert found.energies.meter_j2 == pytest.approx(expected_j2, rel=1e-4)


def test_other_work_counts_for_the_seconds_with_requests():
    """Other work of 100 W in a tenth of the slots without requests; a request of 0.4 s in two slots
    of 0.25 s may have 40 J of it.
    """
    spans = lone_requests(12, 0.4, 8.0)
    slot = np.arange(4 * 100)
    busy = (slot >= 8) & (slot % 32 >= 8) & (slot % 32 < 10) & (slot < 4 * 92)
    power_w = np.where(busy, 300.0, np.where(slot % 10, 80.0, 180.0))

    found = division_of(spans, power_w).divide(100.0, 80.0)

    assert found.energies.dynamic_j == pytest.approx(np.full(12, 2 * 0.25 * 220.0))
    assert found.energies.limit_j == pytest.approx(np.full(12, 100.0 * 0.4))


def test_energy_without_a_model_may_be_that_of_others():
    """A request of 1 s has too few slots for a model: its half-width is its energy above idle, with
    the least error of 2 %.
    """
    spans = lone_requests(1, 1.0, 8.0)
    slot = np.arange(4 * 10)
    power_w = np.where((slot >= 8) & (slot < 12), 300.0, 80.0)

    found = division_of(spans, power_w).divide(10.0, 80.0)

    assert found.energies.dynamic_j == pytest.approx([220.0])
    assert found.energies.errors_j[:, 0] == pytest.approx([0.0, 0.0, 0.0, 220.0 / 1.96])
    expected_j = np.hypot(np.hypot(220.0, 1.96 * 0.02 * 220.0), 0.05 * 80.0)
    assert found.half_j == pytest.approx([expected_j])


def test_requests_at_the_end_have_the_energy_up_to_the_last_slot():
    """A request of 4 s, of which 1.5 s at 300 W are in the slots; the meter has an error of 3 J at
    its begin only.
    """
    spans = lone_requests(1, 4.0, 8.0)
    division = division_of(spans, np.full(14, 300.0), half_j=3.0)

    found = division.divide(3.5, 300.0, at_end=True)

    assert found.keys.tolist() == [0]
    assert found.total_j == pytest.approx([450.0])
    assert found.energies.meter_j2 == pytest.approx([(3.0 / 1.96) ** 2])
    assert len(division) == 0


def test_slots_of_any_width_have_the_energies_of_equal_ones():
    """Constant power in each phase: the width of the slots changes no energy."""
    spans = lone_requests(12, 2.0, 8.0)
    rng = np.random.default_rng(1)
    edges_s = np.unique(np.concatenate([WIDTH_S * np.arange(401), rng.uniform(0.0, 100.0, 100)]))
    middle_s = (edges_s[1:] + edges_s[:-1]) / 2
    power_w = np.where(
        (middle_s > 2.0) & ((middle_s - 2.0) % 8.0 < 2.0) & (middle_s < 94.0), 300.0, 80.0
    )
    division = Division(is_regular=False)
    joules = np.append(0.0, np.cumsum(power_w * np.diff(edges_s)))
    division.extend(edges_s, joules, np.zeros(len(edges_s)))
    division.add(spans, np.arange(12))

    parts = [division.divide(until_s, 80.0) for until_s in (30.0, 57.3, 100.0)]

    total_j = np.concatenate([each.total_j for each in parts])
    assert total_j == pytest.approx(np.full(12, 600.0))
    assert total_j.sum() + division.rest_j == pytest.approx(joules[-1], rel=1e-12)


def test_division_by_role_has_the_terms_of_its_phase():
    """A device that only decodes, at 300 W: all energy above idle is of steps, none of prefilled
    tokens, and the least error is 4 %.
    """
    spans = lone_requests(12, 2.0, 4.0)
    slot = np.arange(4 * 60)
    busy = (slot % 16 >= 8) & (slot < 4 * 48)
    edges_s = WIDTH_S * np.arange(len(slot) + 1)
    division = Division(role="decode")
    joules = np.append(0.0, np.cumsum(np.where(busy, 300.0, 80.0) * WIDTH_S))
    division.extend(edges_s, joules, np.zeros(len(edges_s)))
    division.add(spans, np.arange(12))

    found = division.divide(60.0, 80.0)

    assert division.model.joules_of[[0, 3]].tolist() == [0.0, 0.0]
    assert found.energies.dynamic_j == pytest.approx(np.full(12, 440.0))
    assert found.energies.floor_ratio == 0.04
