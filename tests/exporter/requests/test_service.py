"""Energy of requests on a node in virtual time, whose power is known at each instant."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from itertools import pairwise

import numpy as np
import pytest

from tests.exporter.requests.serving_node import IDLE_W, ServingNode
from wattline.contract import metrics as m
from wattline.contract.requests.served import ServedRequest
from wattline_exporter.requests.division.energy_rows import unpack_energies
from wattline_exporter.requests.division.totals import DivisionTotals
from wattline_exporter.requests.final import FinalEnergy


def test_requests_have_the_energy_that_they_used_and_add_up_with_the_rest(node):
    async def scenario():
        sent = await node.serve(120, np.random.default_rng(1))
        division = node.service._servers.by_run["server"]._division
        await node.service.tick(at_once=True)
        views = [node.service.show(each.request_id) for each in sent]
        return sent, views, division

    sent, views, division = asyncio.run(scenario())
    values = node.values()

    final = list(zip(sent, views, strict=True))
    total_j = sum(view.energy_joules for _, view in final)
    assert values[m.REQUEST_ENERGY_TOTAL.name, "", ""] == pytest.approx(total_j, rel=1e-9)
    assert values[m.REQUESTS.name, "", ""] == len(sent)
    assert total_j + division.rest_j + division.open_j == pytest.approx(
        division.measured_j, rel=1e-9
    )
    dynamic_j = np.array([view.energy_joules - view.idle_energy_joules for _, view in final])
    true_j = np.array([40.0 * (each.ended_at - each.started_at) for each, _ in final])
    assert dynamic_j.sum() == pytest.approx(true_j.sum(), rel=0.03)
    assert np.abs(dynamic_j - true_j).mean() / true_j.mean() < 0.1
    assert all(view.state == "final" for view in views)


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_energy_above_idle_of_a_role_is_of_its_phase(node, role, other):
    async def scenario():
        sent = await node.serve(60, np.random.default_rng(1), role=role)
        await node.service.tick(at_once=True)
        return [node.service.show(each.request_id).model_dump() for each in sent]

    views = asyncio.run(scenario())

    for view in views:
        own_j = view["energy_joules"] - view["idle_energy_joules"]
        assert view[f"{role}_energy_joules"] == pytest.approx(own_j, rel=1e-6, abs=1e-6)
        assert view[f"{other}_energy_joules"] is None
        assert view["energy_uncertainty_joules"] >= 1.96 * 0.04 * own_j * (1 - 1e-6)


def test_energy_of_a_server_that_gets_another_role_is_of_both_phases(node):
    async def scenario():
        await node.serve(60, np.random.default_rng(1), role="prefill")
        sent = await node.serve(60, np.random.default_rng(2), role="decode")
        await node.service.tick(at_once=True)
        return [node.service.show(each.request_id) for each in sent]

    views = asyncio.run(scenario())

    assert all(view.state == "final" and view.energy_joules > 0 for view in views)
    stated = [view for view in views if view.prefill_energy_joules is not None]
    assert all(view.decode_energy_joules is not None for view in stated)


def test_a_request_has_an_estimate_at_once_and_its_final_energy_later(node):
    async def scenario():
        rng = np.random.default_rng(2)
        first = (await node.serve(10, rng, rate=2.0))[0]
        pending = node.service.show(first.request_id)
        await node.serve(80, rng)
        sent = await node.serve(20, rng, rate=2.0)
        provisional = node.service.show(sent[-1].request_id)
        await node.serve(40, rng, rate=0.0)
        return pending, provisional, node.service.show(sent[-1].request_id)

    pending, provisional, final = asyncio.run(scenario())

    assert (pending.state, pending.energy_joules) == ("pending", None)
    assert (provisional.state, final.state) == ("provisional", "final")
    assert (
        abs(provisional.energy_joules - final.energy_joules)
        <= provisional.energy_uncertainty_joules
    )
    assert final.idle_energy_joules > 0


def test_a_request_after_idle_time_has_the_estimate_of_the_known_model(node):
    """All requests before it are final; the model of the server is still known."""

    async def scenario():
        await node.serve(80, np.random.default_rng(2), rate=1.0)
        await node.serve(300, np.random.default_rng(2), rate=0.0)
        now_at = node.node.now().at
        await node.service.report(
            "server", [ServedRequest("r", now_at - 2, now_at, 50, 80, now_at - 1.95)]
        )
        return node.service.show("r")

    assert asyncio.run(scenario()).state == "provisional"


def test_long_request_before_the_first_report_has_all_of_its_energy(node):
    """30 s at 60 W; the polls of its first 18 s are gone."""

    async def scenario():
        await node.serve(30, np.random.default_rng(1), rate=0.0)
        now_at = node.node.now().at
        await node.service.report(
            "server", [ServedRequest("long", now_at - 30, now_at, 10, 1_000, now_at - 29)]
        )
        await node.serve(60, np.random.default_rng(1), rate=0.0)
        return node.service.show("long")

    view = asyncio.run(scenario())

    assert view.state == "final"
    assert not any("is missing" in note for note in view.notes)
    assert view.energy_joules == pytest.approx(30 * IDLE_W, rel=0.005)


def test_request_before_the_first_polls_lacks_energy_in_its_half_width(node):
    """Of 3,000 J, 1,130 J are measured, up to a slot of 25 J; the half-width contains the rest."""

    async def scenario():
        node.node.power_w = IDLE_W + 40
        node.node.run_for(30)  # the exporter keeps the polls of 12 s, and reads none of them
        now_at = node.node.now().at
        receipt = await node.service.report(
            "server",
            [
                ServedRequest("long", now_at - 30, now_at, 10, 1_000, now_at - 29),
                ServedRequest("before", now_at - 30, now_at - 20, 10, 1_000, now_at - 29),
            ],
        )
        await node.service.tick(at_once=True)
        return receipt, node.service.show("before"), node.service.show("long")

    receipt, before, view = asyncio.run(scenario())

    assert (receipt.accepted, receipt.late) == (2, 0)
    assert (before.state, before.energy_joules) == ("final", None)
    assert "or that is not known" in before.notes[0]
    assert view.state == "final"
    assert any("the energy of its first 19 s is missing" in note for note in view.notes)
    assert view.energy_joules == pytest.approx(11.3 * 100, rel=0.02)
    assert 3_000.0 - view.energy_joules <= view.energy_uncertainty_joules <= 3_100.0


@pytest.mark.parametrize("every_s", [5, 15, 20, 30])
def test_requests_of_a_server_that_reports_rarely_all_have_energy(node, every_s):
    """The first call has the requests of `every_s`, whose energy is known from before."""

    async def scenario():
        rng = np.random.default_rng(4)
        sent = []
        for _ in range(120 // every_s):
            sent += await node.serve(every_s, rng, rate=1.0, every_s=every_s)
        await node.service.tick(at_once=True)
        return [node.service.show(each.request_id) for each in sent]

    views = asyncio.run(scenario())

    assert [view.id for view in views if not view.energy_joules] == []
    assert [note for view in views for note in view.notes if "is missing" in note] == []
    total_j = sum(view.energy_joules for view in views)
    assert node.values()[m.REQUEST_ENERGY_TOTAL.name, "", ""] == pytest.approx(total_j, rel=1e-9)


def test_request_reported_after_its_time_was_divided_is_stored_and_counted_as_late(node):
    async def scenario():
        await node.serve(60, np.random.default_rng(1), rate=1.0)
        start_at = node.node.now().at
        await node.serve(80, np.random.default_rng(2), rate=1.0)
        late = ServedRequest("late", start_at, start_at + 2, 10, 50)
        receipts = [await node.service.report("server", [late]) for _ in range(2)]
        await node.serve(20, np.random.default_rng(3), rate=0.0)
        await node.service.tick(at_once=True)
        page = await node.service.listed("server", start_at, start_at + 2.1, 100, (0, 0))
        return receipts, node.service.show("late"), [each.id for each in page.requests]

    receipts, view, stored = asyncio.run(scenario())

    assert [(each.accepted, each.late, each.duplicate) for each in receipts] == [
        (0, 1, 0),
        (0, 0, 1),
    ]
    assert "late" in stored
    assert (view.state, view.energy_joules) == ("final", None)
    assert any("after the energy of its time was divided" in note for note in view.notes)
    values = node.values()
    assert values[m.REQUESTS_REJECTED.name, "late"] == 1
    assert values[m.REQUESTS.name, "", ""] == values[m.REQUEST_ENERGY_COUNT.name, "", ""] + 1
    (note,) = node.node.ledger.find("server").notes
    assert "reported too late: the energy of their time was divided before" in note


async def serve_with_outage(node):
    """Report each request at its end, but those of 40 s after that; return all views, and the
    number of those that the metrics count as late.
    """
    rng = np.random.default_rng(1)
    sent = await node.serve(90, rng, rate=1.0)
    sent += await node.serve(40, rng, rate=1.0, every_s=40)
    sent += await node.serve(20, rng, rate=1.0)
    await node.service.tick(at_once=True)
    late = node.values().get((m.REQUESTS_REJECTED.name, "late"), 0)
    return [node.service.show(each.request_id) for each in sent], late


def test_requests_without_energy_after_an_outage_are_all_counted_as_late(node):
    """Once no reported request is open, slots wait for the window: only one request is too late."""
    views, late = asyncio.run(serve_with_outage(node))

    assert sum(view.energy_joules is None for view in views) == late == 1


def test_energies_wait_for_reports_of_the_lateness_that_is_set(tmp_path):
    node = ServingNode(tmp_path, lateness_s=60.0)
    views, late = asyncio.run(serve_with_outage(node))
    node.close()

    assert (sum(view.energy_joules is None for view in views), late) == (0, 0)
    assert not any("is missing" in note for view in views for note in view.notes)


def test_request_whose_report_is_being_saved_is_pending(node):
    async def scenario():
        now_at = node.node.now().at
        reporting = asyncio.create_task(
            node.service.report("server", [ServedRequest("r", now_at - 1, now_at, 10, 50)])
        )
        await asyncio.sleep(0)
        found = [node.service.show("r"), await node.service.find("r", "server")]
        await reporting
        return found

    for view in asyncio.run(scenario()):
        assert (view.id, view.run_id, view.state) == ("r", "server", "pending")
        assert view.notes == ["no energy yet: the report of the request is being saved"]


def test_requests_of_a_run_on_no_gpu_have_no_estimate(node):
    """The run has requests long enough for a model, but none of its processes is on a GPU."""
    node.node.begin(run_id="cpu", gpus=[])

    async def scenario():
        for number in range(60):
            node.node.run_for(1)
            now_at = node.node.now().at
            await node.service.report(
                "cpu", [ServedRequest(f"r-{number}", now_at - 1, now_at, 10, 50)]
            )
            await node.service.tick()
        return node.service.show("r-59")

    view = asyncio.run(scenario())

    assert (view.state, view.energy_joules, view.energy_uncertainty_joules) == (
        "pending",
        None,
        None,
    )
    assert view.notes == [
        (
            "no energy yet: no GPU of the run is known and measured; see exporter check and the "
            "run's "
            "notes"
        )
    ]


def test_pending_request_is_noted_with_the_time_to_wait(node):
    """Slots wait for 30 s in the first minute, then for 5 s and the longest request: 5.5 s."""

    async def report(request_id):
        now_at = node.node.now().at
        await node.service.report(
            "server", [ServedRequest(request_id, now_at - 0.5, now_at, 50, 20)]
        )
        return node.service.show(request_id)

    async def scenario():
        first = await report("first")
        for _ in range(67):
            node.node.run_for(1)
            await node.service.tick()
        return first, await report("second")

    for view, wait_s in zip(asyncio.run(scenario()), (30, 6), strict=True):
        assert view.state == "pending"
        (note,) = view.notes
        assert note.startswith(
            f"no energy yet: an estimate needs 1.5 s with requests, at least {wait_s} s ago; "
        )
        assert note.endswith(
            f"the final energy comes about {wait_s} s after the end of the request"
        )


def test_requests_of_a_run_without_gpus_have_no_energy(node):
    node.node.begin(run_id="cpu", gpus=[])

    async def scenario():
        now_at = node.node.now().at
        await node.service.report("cpu", [ServedRequest("r", now_at, now_at, 10, 50)])
        for _ in range(60):
            node.node.run_for(1)
            await node.service.tick()
        return node.service.show("r")

    view = asyncio.run(scenario())

    assert (view.state, view.energy_joules) == ("final", None)
    assert m.REQUEST_ENERGY_TOTAL.name not in {name for name, *_ in node.values()}
    assert node.values()[m.REQUESTS.name, "", ""] == 1


def test_gpus_found_after_the_first_report_count_from_its_begin(node):
    node.node.run_for(5)

    async def scenario():
        found, devices_of = node.node.service.devices_of("server"), node.devices_of
        node.devices_of = lambda run_id: found._replace(devices=())
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("r", now_at - 2, now_at, 10, 50)])
        await node.serve(5, np.random.default_rng(1), rate=0.0)
        node.devices_of = devices_of
        await node.serve(60, np.random.default_rng(1), rate=0.0)
        return node.service.show("r")

    assert asyncio.run(scenario()).energy_joules == pytest.approx(2 * IDLE_W, rel=0.05)


def test_estimates_after_a_gpu_is_found_late_are_near_the_final_energies(node):
    """Without a GPU, the energy of 90 s of requests is 0 J; the model has the time since it was
    found.
    """

    async def scenario():
        found, devices_of = node.node.service.devices_of("server"), node.devices_of
        node.devices_of = lambda run_id: found._replace(devices=())
        rng = np.random.default_rng(1)
        await node.serve(90, rng, rate=1.0)
        node.devices_of = devices_of
        await node.serve(30, rng, rate=1.0)
        sent, estimates = [], []
        for _ in range(6):
            sent += await node.serve(5, rng, rate=1.0)
            estimates += [node.service.show(each.request_id) for each in sent[len(estimates) :]]
        await node.serve(60, rng, rate=0.0)
        return estimates, [node.service.show(each.request_id) for each in sent]

    estimates, final = asyncio.run(scenario())

    assert {view.state for view in estimates} == {"provisional"}
    ratios = [
        each.energy_joules / view.energy_joules for each, view in zip(estimates, final, strict=True)
    ]
    assert len(ratios) > 15
    assert np.median(ratios) == pytest.approx(1.0, abs=0.15)
    assert max(each.energy_uncertainty_joules / each.energy_joules for each in estimates) <= 1.0


def test_requests_after_a_long_time_without_requests_have_their_energy(node):
    async def scenario():
        await node.serve(60, np.random.default_rng(3))
        await node.serve(200, np.random.default_rng(3), rate=0.0)
        sent = await node.serve(20, np.random.default_rng(4), rate=1.0)
        await node.service.tick(at_once=True)
        return [(each, node.service.show(each.request_id)) for each in sent[:5]]

    for request, view in asyncio.run(scenario()):
        true_j = 40.0 * (request.ended_at - request.started_at)
        assert view.energy_joules - view.idle_energy_joules == pytest.approx(true_j, rel=0.25)


def test_request_without_duration_is_counted_and_has_no_energy(node):
    async def scenario():
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("r", now_at, now_at, 50, 40)])
        await node.serve(60, np.random.default_rng(1))
        return node.service.show("r")

    view = asyncio.run(scenario())

    assert (view.state, view.energy_joules) == ("final", None)
    assert view.notes == [
        "no energy: the request ended at the time at which it started; report fractions of a second"
    ]
    values = node.values()
    assert values[m.REQUESTS.name, "", ""] == values[m.REQUEST_ENERGY_COUNT.name, "", ""] + 1


def test_divided_seconds_have_the_energy_of_the_requests_and_the_rest(node):
    """The GPU has 60 W without requests, and 40 W for each request in progress."""

    async def scenario():
        sent = await node.serve(60, np.random.default_rng(1))
        division = node.service._servers.by_run["server"]._division
        await node.service.tick(at_once=True)
        views = [node.service.show(each.request_id) for each in sent]
        found = await node.service.divided_energy("server", 0.0)
        packed = await node.service.packed("server", 0.0, np.inf, 0)
        return sent, views, division, found, packed

    sent, views, division, found, packed = asyncio.run(scenario())

    begins_at, ends_at, joules, idle_j, is_known = np.array(found.seconds).T
    assert begins_at[1:] == pytest.approx(ends_at[:-1], abs=1e-6)
    assert (ends_at - begins_at).max() == pytest.approx(1.0)
    total_j = sum(view.energy_joules for view in views)
    assert joules.sum() == pytest.approx(total_j + division.rest_j, rel=1e-9)
    assert idle_j == pytest.approx(60.0 * (ends_at - begins_at), rel=1e-6)
    assert is_known.all()
    rows = np.concatenate([unpack_energies(b64decode(energies)) for _, energies in packed.batches])
    assert packed.next is None
    assert [FinalEnergy.of(rows[number : number + 1]).total_j for number in range(len(rows))] == [
        view.energy_joules for view in views
    ]
    (totals,) = map(DivisionTotals.from_json, found.totals)
    assert totals.joules_of is not None
    assert len(sent) == len(rows)


def cut_into_calls(requests, calls):
    """Return the requests in that many calls, of about the same number each."""
    edges = np.linspace(0, len(requests), calls + 1).astype(int).tolist()
    return [requests[begin:end] for begin, end in pairwise(edges)]


def figures_by_calls(folder, calls, *, in_order):
    """Return energies and half-widths of 100 requests of 8 s that are reported in some calls."""
    folder.mkdir()
    node = ServingNode(folder)
    rng = np.random.default_rng(5)
    begins_s = np.sort(rng.uniform(0.0, 6.0, 100))
    ends_s = begins_s + rng.uniform(0.2, 2.0, 100)

    async def scenario():
        begun_at = node.node.now().at
        for step in range(32):
            middle_s = 0.25 * (step + 0.5)
            running = np.count_nonzero((begins_s <= middle_s) & (middle_s < ends_s))
            node.node.power_w = IDLE_W + 10.0 * running
            node.node.run_for(0.25)
        sent = [
            ServedRequest(
                f"r-{k}", begun_at + begin, begun_at + end, 10 * k, 20 + k, begun_at + begin + 0.1
            )
            for k, (begin, end) in enumerate(zip(begins_s, ends_s, strict=True))
        ]
        order = range(100) if in_order else rng.permutation(100).tolist()
        for call in cut_into_calls([sent[k] for k in order], calls):
            await node.service.report("server", call)
        await node.serve(60, rng, rate=0.0)
        await node.service.tick(at_once=True)
        views = [node.service.show(each.request_id) for each in sent]
        return [(view.energy_joules, view.energy_uncertainty_joules) for view in views]

    try:
        return asyncio.run(scenario())
    finally:
        node.close()


def test_energies_do_not_depend_on_the_cut_of_requests_into_calls(tmp_path):
    """The order of sums changes energies in the seventh digit, and half-widths, which are of
    differences of fits, in the sixth.
    """
    one = np.array(figures_by_calls(tmp_path / "one", 1, in_order=True))

    assert one.min() > 0.0
    for calls, in_order in ((7, True), (7, False), (100, True), (100, False)):
        folder = tmp_path / f"{calls}-{in_order}"
        found = np.array(figures_by_calls(folder, calls, in_order=in_order))
        assert found[:, 0] == pytest.approx(one[:, 0], rel=2e-6)
        assert found[:, 1] == pytest.approx(one[:, 1], rel=1e-5)
