"""The division of a server that runs, second by second in virtual time, against the known energy of
each request.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.exporter.requests.division.server import serve
from wattline_exporter.requests.division.divide import divide_energy
from wattline_exporter.requests.division.spans import RequestSpans
from wattline_exporter.requests.division.streaming import StreamingDivision

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
    division, found = StreamingDivision(WINDOW_S), {}
    total_j = np.concatenate([[0.0], np.cumsum(slots.joules)])
    last_s = float(slots.edges_s[-1])
    division.extend(slots.edges_s[:1], total_j[:1], np.zeros(1))
    for now_s in np.arange(1.0, last_s + WINDOW_S + 2, 1.0):
        added = np.flatnonzero((served.spans.ended_s > now_s - 1) & (served.spans.ended_s <= now_s))
        estimated = division.estimate(columns(served.spans, added))
        division.add(columns(served.spans, added), added)
        new = (slots.edges_s > now_s - 1) & (slots.edges_s <= now_s)
        division.extend(slots.edges_s[new], total_j[new], np.zeros(np.count_nonzero(new)))
        done = division.divide(now_s - division.wait_s(now_s), slots.idle_w)
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
    whole_j = divide_energy(served.spans, slots).dynamic_j
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
    division = StreamingDivision(WINDOW_S)
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
    division = StreamingDivision(WINDOW_S)
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
    division = StreamingDivision(WINDOW_S)
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
    division = StreamingDivision(WINDOW_S)
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
    division = StreamingDivision(WINDOW_S)
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
    whole = divide_energy(served.spans, slots)

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
    division = StreamingDivision(WINDOW_S)
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
