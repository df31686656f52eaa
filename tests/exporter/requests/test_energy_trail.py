"""Energy of times whose polls are no longer kept (after 12 s), and of times that are divided
already.
"""

from __future__ import annotations

import asyncio
import re
from array import array

import numpy as np
import pytest

from tests.exporter.requests.serving_node import IDLE_W
from wattline.contract.requests.served import ServedRequest
from wattline_exporter.config.request_options import RequestSettings
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.requests import service as service_module
from wattline_exporter.requests.energy_trail import EnergyTrail, TrailPart, pause_overlaps_s
from wattline_exporter.requests.service import RequestService
from wattline_exporter.requests.store import RequestStore
from wattline_exporter.runs.admission import RunEnd
from wattline_exporter.sensors.readings import Device, Poll

SECOND_GPU = Device("gpu", "GPU-2")
BUSY_W, SECOND_W = 160.0, 100.0


def metered(seconds, *, from_s=0.0, meter=None, power_w=200.0):
    """Return a meter with a poll each 0.05 s."""
    meter = meter or DeviceMeter()
    for step in range(1, round(seconds * 20) + 1):
        t_s = from_s + step / 20
        meter.push(Poll(SECOND_GPU, t_s, t_s, power_w * t_s, power_w, power_w))
    return meter


async def serve(node, seconds, *, stalled=range(0), name="r"):
    """Report a request of the last second each second, and tick except in `stalled` seconds."""
    for second in range(seconds):
        node.node.run_for(1)
        now_at = node.node.now().at
        request = ServedRequest(f"{name}-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)
        await node.service.report("server", [request])
        if second not in stalled:
            await node.service.tick()


def views(node, seconds):
    return [node.service.show(f"r-{second}") for second in range(seconds)]


def test_energy_that_was_read_keeps_its_value_after_its_polls():
    meter = metered(10)
    trail = EnergyTrail(meter)
    trail.read(10.0)
    before_j, before_half_j = trail.energy_at(np.array([4.0, 6.0, 8.0]))
    metered(30, from_s=10.0, meter=meter)
    trail.read(40.0)

    joules, half_j = trail.energy_at(np.array([4.0, 6.0, 8.0, 8.125, 38.0]))

    assert joules[:3].tolist() == before_j.tolist()
    assert half_j[:3].tolist() == before_half_j.tolist()
    assert joules.tolist() == pytest.approx([800.0, 1_200.0, 1_600.0, 1_625.0, 7_600.0], abs=20)


def test_trail_has_settled_energies_at_quarters_of_seconds():
    """The counter's updates take 0.1 s, so an energy settles in 0.22 s: the last one is at 9.75
    s.
    """
    trail = EnergyTrail(metered(10))
    trail.read(10.0)
    part = trail.after(9.0)

    assert trail.begin_s == 0.25
    assert trail.last_s == 9.75
    assert part.times_s.tolist() == [9.25, 9.5, 9.75]
    assert part.joules.tolist() == pytest.approx([1_850.0, 1_900.0, 1_950.0], abs=20)


def test_trail_of_a_device_without_polls_is_empty():
    trail = EnergyTrail(DeviceMeter())
    trail.read(10.0)

    assert not trail.is_polled
    assert (trail.begin_s, trail.last_s) == (np.inf, -np.inf)
    assert [each.tolist() for each in trail.energy_at(np.array([1.0, 2.0]))] == [[0.0, 0.0]] * 2


def test_energy_between_read_and_kept_polls_is_a_mean_with_its_error():
    """From 8 s to about 28.5 s nothing is known but the sum: 200 W up to 18 s, then 400 W."""
    meter = metered(8)
    trail = EnergyTrail(meter)
    trail.read(8.25)
    for step in range(1, 641):
        t_s = 8.0 + step / 20
        counter_j = 200.0 * t_s + 200.0 * max(0.0, t_s - 18.0)
        power_w = 400.0 if t_s > 18.0 else 200.0
        meter.push(Poll(SECOND_GPU, t_s, t_s, counter_j, power_w, power_w))

    joules, half_j = trail.energy_at(np.array([8.0, 18.0, 38.0]))
    trail.read(40.0)

    assert joules[[0, 2]].tolist() == pytest.approx([1_600.0, 11_600.0], abs=40)
    assert 3_600.0 < joules[1] < 5_000.0
    assert abs(joules[1] - 3_600.0) <= half_j[1]
    (pause,) = trail.pauses_s(0.0)
    assert pause == (8.0, pytest.approx(28.5, abs=0.3))


def test_energy_of_time_that_was_not_read_is_bounded_by_the_most_power():
    """1,000 J in 10 s, at most 400 W: after 2 s 0 to 800 J, after 5 s 0 to 1,000 J, so 200 ± 600
    and 500 ± 500 J. The energies at both ends have 4 and 6 J, and between them as a line.
    """
    known = TrailPart(
        array("d", [0.0, 10.0, 10.25]), array("d", [0.0, 1_000.0, 1_025.0]), array("d", [4, 6, 6])
    )
    meter = metered(12, from_s=100.0, power_w=400.0)
    meter.max_w = 1.5 * 400.0
    trail = EnergyTrail(meter, known)

    joules, half_j = trail.energy_at(np.array([0.0, 2.0, 5.0, 10.0, 10.125]))

    assert joules.tolist() == [0.0, 200.0, 500.0, 1_000.0, 1_012.5]
    assert half_j.tolist() == pytest.approx([4.0, 4.4 + 600.0, 5.0 + 500.0, 6.0, 6.0])


def test_time_without_polls_is_a_pause_that_devices_share():
    """One GPU has no polls from 4 to 9 s, another one from 7 to 12 s: requests of 0 to 10 s and 8
    to 20 s have 6 and 4 s of that.
    """
    trails = []
    for begin_s, end_s in ((4.0, 9.0), (7.0, 12.0)):
        meter = metered(begin_s)
        trails.append(EnergyTrail(meter))
        trails[-1].read(begin_s + 1.0)
        metered(3.0, from_s=end_s - 0.05, meter=meter)
        trails[-1].read(end_s + 4.0)

    overlaps_s = pause_overlaps_s(trails, np.array([0.0, 8.0]), np.array([10.0, 20.0]))

    assert overlaps_s.tolist() == [6.0, 4.0]


def test_stored_trail_continues_with_later_parts_and_moves_in_time():
    """Two parts that overlap at 2 s, stored in Unix time, which is 1,000 s ahead."""
    parts = [
        TrailPart(*(array("d", each) for each in columns))
        for columns in (([1.0, 2.0], [10.0, 20.0], [0.5, 0.5]), ([2.0, 2.25], [20.0, 22.0], [1, 1]))
    ]
    stored = [TrailPart.unpacked(each.moved(1_000.0).packed()) for each in parts]
    found = TrailPart.empty().plus(stored[0]).plus(stored[1]).moved(-1_000.0)

    assert [each.tolist() for each in found] == [
        [1.0, 2.0, 2.25],
        [10.0, 20.0, 22.0],
        [0.5, 0.5, 1.0],
    ]
    with pytest.raises(ValueError, match="damaged: 2 numbers"):
        TrailPart.unpacked(bytes(16))


def test_forgotten_trail_begins_with_the_last_energy_before_the_time():
    trail = EnergyTrail(metered(10))
    trail.read(10.0)
    trail.forget(5.1)

    assert trail.begin_s == 5.0
    assert trail.after(-np.inf).times_s[:2].tolist() == [5.0, 5.25]


def test_gpu_that_joins_late_counts_from_its_first_poll(node):
    """The second GPU is found 26 s after the first report, when its first polls are gone."""
    found, counted_j, joined = node.devices_of, 0.0, False

    def devices_of(run_id):
        run = found(run_id)
        return run._replace(devices=(*run.devices, SECOND_GPU)) if joined else run

    async def scenario():
        nonlocal counted_j, joined
        node.devices_of, node.node.power_w = devices_of, BUSY_W
        for second in range(60):
            for _ in range(20):
                node.node.run_for(0.05)
                counted_j += 0.05 * SECOND_W
                now_s = node.node.now_s
                node.node.live.energy.push(
                    [Poll(SECOND_GPU, now_s, now_s, counted_j, SECOND_W, SECOND_W)]
                )
            now_at = node.node.now().at
            await node.service.report(
                "server", [ServedRequest(f"r-{second}", now_at - 1, now_at, 50, 40)]
            )
            joined = second >= 25
            await node.service.tick()
        await node.service.tick(at_once=True)
        return views(node, 55)

    found = asyncio.run(scenario())
    joules, idle_j = (
        [getattr(each, name) for each in found] for name in ("energy_joules", "idle_energy_joules")
    )

    assert joules == pytest.approx([BUSY_W + SECOND_W] * 55, rel=0.2)
    assert idle_j[1:] == pytest.approx([2 * IDLE_W] * 54, rel=0.05)
    assert sum(joules) == pytest.approx(55 * (BUSY_W + SECOND_W), rel=0.02)


def test_ticks_that_stop_lose_no_energy_and_are_noted(node):
    async def scenario():
        node.node.power_w = BUSY_W
        await serve(node, 120, stalled=range(60, 80))
        division = node.service._servers.by_run["server"]._division
        await node.service.tick(at_once=True)
        return division.measured_j, views(node, 119)

    measured_j, found = asyncio.run(scenario())

    assert measured_j == pytest.approx(120 * BUSY_W, rel=0.01)
    assert [each.energy_joules for each in found] == pytest.approx([BUSY_W] * 119, rel=0.1)
    noted = [
        second
        for second, view in enumerate(found)
        if any("is a mean of a longer time" in note for note in view.notes)
    ]
    assert noted == list(range(noted[0], noted[-1] + 1))
    assert 57 <= noted[0] <= 61
    assert 67 <= noted[-1] <= 69


def test_time_without_polls_is_noted(node):
    """The exporter is suspended for 5 s; the counter of the GPU counts on."""

    async def scenario():
        node.node.power_w = BUSY_W
        await serve(node, 40)
        node.node.now_s += 5.0
        node.node.run_for(1)
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("over", now_at - 6.5, now_at, 50, 80)])
        await serve(node, 30, name="after")
        await node.service.tick(at_once=True)
        return [node.service.show(name) for name in ("r-38", "over", "after-2")]

    before, over, after = asyncio.run(scenario())

    assert not any(
        "is a mean of a longer time" in note for view in (before, after) for note in view.notes
    )
    # up to two steps of 0.25 s longer, between the energies that are kept
    assert any(re.match("the power of [56] s of this request is a mean", n) for n in over.notes)
    assert over.energy_joules == pytest.approx(6.5 * BUSY_W, rel=0.15)


def test_meters_are_read_while_the_disk_does_not_answer(node, monkeypatch):
    monkeypatch.setattr(service_module, "TICK_S", 0.0)

    async def scenario():
        await serve(node, 10)
        server, answer = node.service._servers.by_run["server"], asyncio.Event()
        node.store.save = lambda *_: answer.wait()
        task = asyncio.create_task(node.service.run())
        for _ in range(60):
            node.node.run_for(1)
            for _ in range(5):
                await asyncio.sleep(0)
        late_s = node.node.now_s - server._division.last_edge_s
        answer.set()
        task.cancel()
        await asyncio.wait([task])
        return late_s

    assert asyncio.run(scenario()) < 6.0


def test_late_report_after_the_end_of_a_run_is_not_divided_again(node):
    async def scenario():
        node.node.power_w = BUSY_W
        await serve(node, 70)
        end_at = node.node.now().at
        await node.node.service.end("server", RunEnd())
        while "server" in node.service._servers.by_run:
            node.node.run_for(1)
            await node.service.tick()
        seconds = node.node.now().at - end_at
        await node.service.report("server", [ServedRequest("late", end_at - 2, end_at, 50, 80)])
        for _ in range(40):
            node.node.run_for(1)
            await node.service.tick()
        return seconds, node.service.show("late")

    seconds, view = asyncio.run(scenario())

    assert seconds <= 3.0
    assert (view.state, view.energy_joules) == ("final", None)
    assert any("after the energy of its time was divided" in note for note in view.notes)


def test_report_after_a_restart_is_not_divided_again(node):
    """The exporter divides the energy up to its stop, and starts again 2 s later."""

    async def scenario():
        node.node.power_w = BUSY_W
        await serve(node, 60)
        stopped_at = node.node.now().at
        await node.service.stop()
        node.node.run_for(2)
        node.store = RequestStore(node.store.path.parent)
        node.service = RequestService(
            node, node.node.live, node.store, RequestSettings(), node.node.now
        )
        await node.service.start()
        await node.service.report(
            "server", [ServedRequest("late", stopped_at - 4, stopped_at + 1, 50, 80)]
        )
        for _ in range(40):
            node.node.run_for(1)
            await node.service.tick()
        return node.service.show("late")

    view = asyncio.run(scenario())

    assert view.energy_joules == pytest.approx(BUSY_W, abs=0.25 * BUSY_W)
    assert any("the energy of its first 4 s is missing" in note for note in view.notes)
