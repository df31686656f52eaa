"""Requests that are not saved, repeated or too many, in virtual time."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from tests.exporter.requests.serving_node import ServingNode
from wattline.contract import metrics as m
from wattline.contract.requests.served import ServedRequest
from wattline_exporter.requests.intake import RateLimit
from wattline_exporter.runs.admission import RunEnd, RunStart
from wattline_exporter.sensors.readings import RunError


def test_requests_that_cannot_be_saved_can_be_reported_again(node):
    async def scenario():
        now_at = node.node.now().at
        requests = [ServedRequest("r", now_at, now_at, 1, 1)]
        node.store.path.mkdir()
        with pytest.raises(RunError, match="the requests are not saved"):
            await node.service.report("server", requests)
        node.store.path.rmdir()
        return await node.service.report("server", requests)

    assert asyncio.run(scenario()).accepted == 1


def test_a_call_repeated_while_the_disk_is_slow_is_stored_once(node):
    async def scenario():
        now_at = node.node.now().at
        requests = [ServedRequest("r", now_at - 0.5, now_at, 1, 1)]
        await node.service.report("server", [ServedRequest("first", now_at, now_at, 1, 1)])
        with closing(sqlite3.connect(node.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            node.store.within_s = 0.05
            for _ in range(2):
                with pytest.raises(RunError, match="the requests are not saved"):
                    await node.service.report("server", requests)
        node.store.within_s = 30.0
        receipt = await node.service.report("server", requests)
        return (
            receipt,
            await node.service.listed("server", 0.0, 1e11, 10, (0, 0)),
            node.service.show("r"),
        )

    receipt, page, view = asyncio.run(scenario())

    assert receipt.accepted + receipt.duplicate == 1
    assert [each.id for each in page.requests] == ["first", "r"]
    assert view.state == "pending"


def test_a_call_repeated_at_once_is_answered_after_the_first_is_saved(node):
    async def scenario():
        now_at = node.node.now().at
        requests = [ServedRequest("r", now_at, now_at, 1, 1)]
        node.store.path.mkdir()
        calls = (node.service.report("server", requests) for _ in range(2))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [getattr(each, "status", None) for each in asyncio.run(scenario())] == [503, 503]


def test_requests_after_their_file_was_deleted_are_stored(node):
    async def scenario():
        for name in ("before", "after"):
            now_at = node.node.now().at
            await node.service.report("server", [ServedRequest(name, now_at, now_at, 1, 1)])
            if name == "before":
                node.store.path.unlink()
        return await node.service.listed("server", 0.0, 1e11, 10, (0, 0))

    assert [each.id for each in asyncio.run(scenario()).requests] == ["after"]


def test_ids_of_a_server_that_reports_are_kept_over_many_short_runs(node):
    ids = node.service._ids.of_run("server")
    for number in range(200):
        node.service._ids.of_run(f"short-{number}")
        assert node.service._ids.of_run("server") is ids


def test_ids_of_a_run_that_reports_rarely_are_kept_over_ended_runs(node):
    async def scenario():
        now_at = node.node.now().at
        requests = [ServedRequest("r", now_at - 1, now_at, 1, 1)]
        await node.service.report("server", requests)
        for number in range(130):
            await node.node.service.begin(
                RunStart(workload="test", run_id=f"short-{number}", gpus=[])
            )
            await node.service.report(f"short-{number}", [])
            await node.node.service.end(f"short-{number}", RunEnd())
        return await node.service.report("server", requests)

    assert asyncio.run(scenario()).duplicate == 1


def test_more_open_requests_than_the_maximum_are_refused(tmp_path):
    node = ServingNode(tmp_path, max_open=5)

    async def scenario():
        now_at = node.node.now().at
        more = [ServedRequest("more", now_at, now_at, 1, 1)]
        await node.service.report(
            "server", [ServedRequest(f"r-{k}", now_at, now_at, 1, 1) for k in range(5)]
        )
        with pytest.raises(RunError, match="5 requests wait for their energy") as refused:
            await node.service.report("server", more)
        await node.service.tick(at_once=True)
        return refused.value.status, await node.service.report("server", more)

    status, receipt = asyncio.run(scenario())
    node.close()

    assert (status, receipt.accepted) == (429, 1)


def test_rate_limit_call_above_limit_per_second_is_accepted_once():
    limit = RateLimit(50)

    limit.take(200, 1_000.0)

    with pytest.raises(RunError) as refused:
        limit.take(200, 1_001.0)
    limit.take(200, 1_001.0 + refused.value.retry_after_s)


def test_labels_beyond_the_limit_are_counted_as_other(node):
    async def scenario():
        now_at = node.node.now().at
        await node.service.report(
            "server",
            [
                ServedRequest(
                    f"r-{k}", now_at, now_at, 1, 1, labels={"model": "a", "user": f"u{k}"}
                )
                for k in range(150)
            ],
        )
        await node.service.tick(at_once=True)
        return [reading for reading in node.readings() if reading.metric is m.REQUESTS]

    readings = asyncio.run(scenario())

    assert sum(reading.value for reading in readings) == 150
    assert len(readings) == 101
    (other,) = [reading for reading in readings if reading.labels[0] == "(other)"]
    assert (other.value, other.extra) == (50, (("user", "(other)"),))
