"""The history of an hour, pushed through outages and faults to a real VictoriaMetrics and a real Prometheus."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from exporter.contract.metrics import GPU_ENERGY, GPU_POWER, RUN_INFO
from exporter.history import History
from exporter.push.pusher import MOST_SAMPLES, Pusher, halves
from exporter.push.target import push_target
from exporter.reading import Reading
from exporter.settings import Settings
from tests import servers
from tests.exporter.push_proxy import in_file, lines, on_server, proxy
from tests.waiting import eventually

VICTORIA, PROMETHEUS = "/api/v1/import/prometheus", "/api/v1/write"
LATE = "storage:\n  tsdb:\n    out_of_order_time_window: 2h\n"


@dataclass(frozen=True)
class Both:
    victoria: str
    prometheus: str

    def of(self, path):
        return self.victoria if path == VICTORIA else self.prometheus


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A VictoriaMetrics that keeps one sample a time, and a Prometheus that takes late ones."""
    one, two = tmp_path_factory.mktemp("victoria"), tmp_path_factory.mktemp("prometheus")
    with (
        servers.victoria_metrics(one, [], flags=["-dedup.minScrapeInterval=1ms"]) as victoria,
        servers.prometheus(two, [], flags=["--web.enable-remote-write-receiver"], config=LATE) as prometheus,
    ):
        yield Both(victoria, prometheus)


@dataclass
class Node:
    """A history, and who pushes it: `push` goes on until all is done with, `again` is the exporter started anew."""

    folder: Path
    url: str
    name: str
    history: History | None = None
    pusher: Pusher | None = None

    def open(self):
        target = replace(push_target(Settings(state_path=self.folder, push_url=self.url), self.name), every_s=0.05)
        self.history = History(self.folder)
        self.history.follow(target.url)

        async def in_history(ask):
            return await asyncio.to_thread(ask, self.history)

        self.pusher = Pusher(target, in_history, first_wait_s=0.02)
        return self

    def again(self):
        self.history.close()
        return self.open()

    def counted(self):
        position = self.history.backlog.position()
        return {outcome: getattr(position, outcome) for outcome in ("accepted", "refused", "dropped")}

    @property
    def done_ms(self):
        return self.history.backlog.position().t_ms

    def is_done(self):
        return not self.history.backlog.oldest(self.history.settled_ms, 1).samples

    def push(self, until=None):
        """Until that holds; else until the last sample that is settled is done with."""

        async def go_on():
            task = asyncio.create_task(self.pusher.run())
            try:
                async with asyncio.timeout(60):
                    while not (until or self.is_done)():
                        assert not task.done() or task.result()
                        await asyncio.sleep(0.01)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

        asyncio.run(go_on())


@pytest.fixture
def node(tmp_path, request):
    made = []

    def make(url):
        made.append(Node(tmp_path, url, f"{request.node.name[:40]}-{len(made)}").open())
        return made[-1]

    yield make
    for each in made:
        each.history.close()


def readings(second):
    watts = 300.0 + second / 7
    return [
        Reading(GPU_POWER, ("0", "GPU-0"), watts),
        Reading(GPU_ENERGY, ("0", "GPU-0"), 1 / 3 + 300.0 * second),
        Reading(GPU_POWER, ("1", "GPU-1"), float("inf") if second % 60 == 0 else -0.1 * second),
        Reading(GPU_ENERGY, ("1", ""), float(second)),
        Reading(RUN_INFO, ("r-1", "w"), 1.0, (("label_note", 'say "ü"\\\n'),)),
    ]


def remember(history, begin_s, seconds, *, run_open=True):
    for second in range(seconds):
        history.add(begin_s + second, readings(second), run_open=run_open)


def agrees(server, node, now):
    """How many samples both have, once the server shows all it was sent: the same series, and each time once."""
    written = in_file(node.folder)
    wanted = count(written)
    with contextlib.suppress(AssertionError):
        eventually(lambda: count(on_server(server, node.name, now)) >= wanted, "what was pushed", within_s=20)
    found = on_server(server, node.name, now)
    assert times(found) == times(written)
    # VictoriaMetrics keeps decimal numbers, of 15 digits or so
    for labels, samples in written.items():
        assert [v for _, v in found[labels]] == pytest.approx([v for _, v in samples], rel=1e-12, abs=0)
    return wanted


def times(samples):
    return {labels: [t_ms for t_ms, _ in own] for labels, own in samples.items()}


def count(samples):
    return sum(map(len, samples.values()))


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_after_an_outage_of_an_hour_and_a_restart_in_it_each_sample_is_there_once(both, node, path):
    now = round(time.time(), 3)
    with proxy(both.of(path)) as between:
        pushed = node(between.url + path)
        remember(pushed.history, now - 3_660, 60)
        pushed.push()
        assert pushed.counted()["accepted"] == 300
        between.always = "away"
        remember(pushed.history, now - 3_600, 1_800)
        pushed.push(until=lambda: len(between.seen) > 3)
        assert pushed.done_ms < (now - 3_600) * 1_000
        pushed.again()
        remember(pushed.history, now - 1_800, 1_800)
        pushed.push(until=lambda: len(between.seen) > 6)
        between.faults = [500, "garbage", 502, "page", 429, 404, "pass", "away", 401, 503]
        between.always = "pass"
        pushed.push()

    assert agrees(both.of(path), pushed, now) == 5 * 3_660
    assert pushed.counted()["refused"] == pushed.counted()["dropped"] == 0
    assert pushed.counted()["accepted"] == 5 * 3_660
    assert max(between.sizes) < 2_000_000


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_what_was_taken_and_not_acknowledged_is_sent_again_and_does_no_harm(both, node, path):
    now = round(time.time(), 3)
    with proxy(both.of(path)) as between:
        pushed = node(between.url + path)
        remember(pushed.history, now - 600, 300)
        between.faults = ["cut", "cut"]
        pushed.push()
        remember(pushed.history, now - 300, 300)
        between.faults = ["cut"]
        pushed.again()
        pushed.push()

    assert between.seen.count("cut") == 3
    assert agrees(both.of(path), pushed, now) == 5 * 600


def test_what_a_victoria_metrics_lost_that_was_killed_is_sent_again(tmp_path, node):
    """It has nothing on disk of what it took in the last seconds."""
    now = round(time.time(), 3)
    (tmp_path / "server").mkdir()
    flags = ["-dedup.minScrapeInterval=1ms"]
    with servers.victoria_metrics(tmp_path / "server", [], flags=flags) as victoria, proxy(victoria) as between:
        pushed = node(between.url + VICTORIA)
        remember(pushed.history, now - 120, 60)
        pushed.push()
        assert pushed.counted()["accepted"] == 300
        (process,) = [p for p in psutil.Process().children() if victoria[len("http://") :] in " ".join(p.cmdline())]
        process.kill()
        process.wait(10)
        remember(pushed.history, now - 60, 60)
        pushed.push(until=lambda: len(between.seen) > 2)
        with servers.victoria_metrics(tmp_path / "server", [], flags=flags) as started_anew:
            between.server = started_anew
            pushed.push()
            assert agrees(started_anew, pushed, now) == 600

    assert pushed.counted() == {"accepted": 600, "refused": 0, "dropped": 0}


def test_a_series_that_is_refused_takes_no_other_with_it(both, node, caplog):
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        between.refuses = lambda body: any('gpu="1",uuid="GPU-1"' in line for line in lines(body))
        pushed = node(between.url + VICTORIA)
        remember(pushed.history, now - 60, 40)
        pushed.push()

    written = in_file(pushed.folder)
    kept = {labels: samples for labels, samples in written.items() if ("uuid", "GPU-1") not in labels}
    eventually(lambda: times(on_server(both.victoria, pushed.name, now)) == times(kept), "the other series")
    assert pushed.counted() == {"accepted": 160, "refused": 40, "dropped": 0}
    (said,) = [r.getMessage() for r in caplog.records if "refuses samples" in r.getMessage()]
    assert "out of order sample" in said
    assert "storage.tsdb.out_of_order_time_window" in said


def test_prometheus_without_a_window_for_late_samples_gets_all_that_it_takes(tmp_path, node):
    """Once it has seen a sample of now, it takes none that is more than an hour older: half of a block of 2 h."""
    now = round(time.time(), 3)
    (tmp_path / "server").mkdir()
    with servers.prometheus(tmp_path / "server", [], flags=["--web.enable-remote-write-receiver"]) as prometheus:
        other = Node(tmp_path / "server", prometheus + PROMETHEUS, "other").open()
        remember(other.history, now, 1)
        other.push()
        other.history.close()
        pushed = node(prometheus + PROMETHEUS)
        remember(pushed.history, now - 5_400, 5_390)
        pushed.push()
        found = on_server(prometheus, pushed.name, now)

    counted = pushed.counted()
    oldest_ms = round(now * 1_000) - 3_600_000
    expected = {
        labels: kept
        for labels, samples in in_file(pushed.folder).items()
        if (kept := [sample for sample in samples if sample[0] >= oldest_ms])
    }
    missing = {labels: sorted(set(samples) - set(found.get(labels, []))) for labels, samples in expected.items()}
    assert counted["accepted"] + counted["refused"] == 5 * 5_390
    assert counted["accepted"] == count(found)
    # the batch on the border is halved six times at least: of its 2,000 seconds no more than 32 may be lost beside it
    assert max(map(len, missing.values())) <= 32
    assert all(set(samples) <= set(expected[labels]) for labels, samples in found.items())


def test_a_server_that_takes_less_at_once_gets_less_at_once(both, node):
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        pushed = node(between.url + VICTORIA)
        remember(pushed.history, now - 600, 600)
        between.faults = [413, 413]
        pushed.push()

    assert agrees(both.victoria, pushed, now) == 3_000
    assert between.sizes[2] < between.sizes[0] / 3
    assert pushed.counted() == {"accepted": 3_000, "refused": 0, "dropped": 0}


def test_retry_after_is_obeyed(both, node):
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        between.faults, between.retry_after = [503], "3"
        waiting = node(between.url + VICTORIA)
        remember(waiting.history, now, 10)
        asked_s = time.monotonic()
        waiting.push()
        again_s = time.monotonic()

    assert between.seen == [503, "pass"]
    assert again_s - asked_s >= 3.0


def test_a_batch_is_bounded_however_much_waits(tmp_path, node):
    pushed = node("http://127.0.0.1:9/api/v1/write")
    remember(pushed.history, time.time() - 3_600, 3_000)
    batch = pushed.history.backlog.oldest(pushed.history.settled_ms, MOST_SAMPLES)

    assert len(batch.samples) == MOST_SAMPLES
    assert batch.samples == sorted(batch.samples)


def test_a_batch_is_halved_by_time_and_one_of_a_single_time_by_series(node):
    pushed = node("http://127.0.0.1:9/api/v1/write")
    remember(pushed.history, 1_790_000_000, 5)
    samples = pushed.history.backlog.oldest(pushed.history.settled_ms, MOST_SAMPLES).samples

    older, newer = halves(samples)
    assert older + newer == samples
    assert {s.t_ms for s in older}.isdisjoint({s.t_ms for s in newer})
    assert [len(half) for half in halves(samples[:5])] == [2, 3]
    assert [len(half) for half in halves(samples[:2])] == [1, 1]
