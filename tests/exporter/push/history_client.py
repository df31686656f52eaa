"""A history with samples, its push client, and comparison with a server."""

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests import servers
from tests.exporter.push.proxy import server_samples, stored_samples
from tests.polling import eventually
from wattline.contract.metrics import GPU_ENERGY, GPU_POWER, RUN_INFO
from wattline_exporter.config.settings import Settings
from wattline_exporter.push.client import PushClient, PushTiming
from wattline_exporter.push.config import push_target
from wattline_exporter.sensors.readings import Reading
from wattline_exporter.storage.history import History

VICTORIA, PROMETHEUS = "/api/v1/import/prometheus", "/api/v1/write"
TIMING = PushTiming(first_backoff_s=0.02)


@dataclass
class PushNode:
    """A history and its push client; `push` runs until all samples are sent, `restart` restarts the
    exporter.
    """

    folder: Path
    url: str
    name: str
    every_s: float = 0.05
    timing: PushTiming = TIMING
    history: History | None = None
    client: PushClient | None = None

    def open(self):
        settings = Settings(state_path=self.folder, push_url=self.url)
        target = replace(push_target(settings, self.name), every_s=self.every_s)
        self.history = History(self.folder)
        self.history.follow(target.url)

        async def call_history(ask):
            return await asyncio.to_thread(ask, self.history)

        self.client = PushClient(target, call_history, self.timing)
        return self

    def restart(self):
        self.history.close()
        return self.open()

    def sample_counts(self):
        position = self.history.backlog.position()
        return {
            outcome: getattr(position, outcome) for outcome in ("accepted", "refused", "dropped")
        }

    @property
    def position_ms(self):
        return self.history.backlog.position().t_ms

    def is_done(self):
        return not self.history.backlog.oldest(self.history.settled_ms, 1).samples

    def push(self, until=None):
        """Push until the condition holds, by default until the last settled sample is sent.

        Nothing is sent while `until` runs.
        """

        async def run_client():
            task = asyncio.create_task(self.client.run())
            try:
                async with asyncio.timeout(60):
                    while not (until or self.is_done)():
                        assert not task.done() or task.result()
                        await asyncio.sleep(0.01)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

        asyncio.run(run_client())


LATE = "storage:\n  tsdb:\n    out_of_order_time_window: 2h\n"


@dataclass(frozen=True)
class PushServers:
    victoria: str
    prometheus: str

    def of(self, path):
        return self.victoria if path == VICTORIA else self.prometheus


@contextlib.contextmanager
def start_servers(folder):
    """Start VictoriaMetrics with deduplication and Prometheus with a window for late samples."""
    for name in ("victoria", "prometheus"):
        (folder / name).mkdir()
    flags = ["--web.enable-remote-write-receiver"]
    with (
        servers.victoria_metrics(
            folder / "victoria", [], flags=["-dedup.minScrapeInterval=1ms"]
        ) as victoria,
        servers.prometheus(folder / "prometheus", [], flags=flags, config=LATE) as prometheus,
    ):
        yield PushServers(victoria, prometheus)


def readings(second):
    watts = 300.0 + second / 7
    return [
        Reading(GPU_POWER, ("0", "GPU-0"), watts),
        Reading(GPU_ENERGY, ("0", "GPU-0"), 1 / 3 + 300.0 * second),
        Reading(GPU_POWER, ("1", "GPU-1"), float("inf") if second % 60 == 0 else -0.1 * second),
        Reading(GPU_ENERGY, ("1", ""), float(second)),
        Reading(RUN_INFO, ("r-1", "w"), 1.0, (("label_note", 'say "ü"\\\n'),)),
    ]


def add_samples(history, begin_s, seconds, *, run_open=True):
    for second in range(seconds):
        history.add(begin_s + second, readings(second), run_open=run_open)


def compare_with_server(server, node, now):
    """Return the number of samples after comparing series and times of history and server."""
    stored = stored_samples(node.folder)
    expected_count = count(stored)
    with contextlib.suppress(AssertionError):
        eventually(
            lambda: count(server_samples(server, node.name, now)) >= expected_count,
            "the pushed samples",
            within_s=20,
        )
    found = server_samples(server, node.name, now)
    assert times(found) == times(stored)
    # VictoriaMetrics stores decimal numbers of about 15 digits
    for labels, samples in stored.items():
        assert [v for _, v in found[labels]] == pytest.approx(
            [v for _, v in samples], rel=1e-12, abs=0
        )
    return expected_count


def times(samples):
    return {labels: [t_ms for t_ms, _ in own] for labels, own in samples.items()}


def count(samples):
    return sum(map(len, samples.values()))
