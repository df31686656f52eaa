"""CPU time of requests that a server reports: 5,000 a second, in batches of 500."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure
from tests.bench.node import make_node
from tests.bench.program import ProgramError
from tests.bench.wattline import start_exporter

RATE, BATCH = 5_000, 500
CPU_GOAL = 0.02
SETTLE_S = 30.0
"""Time until requests become final as fast as new ones come."""


@dataclass
class RequestCost:
    """Shares of one core, one figure a span, without and with requests; resident memory at the end."""

    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    memory_bytes: int = 0
    trouble: list[str] = field(default_factory=list)


def measure(folder: Path, span_s: float, spans: int, stopped: threading.Event) -> RequestCost:
    """Measure one exporter on eight simulated GPUs with an open run, first without and then with requests."""
    cost = RequestCost()
    node = make_node(folder / "requests")
    try:
        exporter = start_exporter(node.environment, node.folder, "requests")
        with exporter.program:
            exporter.until_ready()
            run_id = exporter.begin("llm-server", gpus=[*node.uuids])
            for _ in range(spans):
                cost.before.append(_cpu(exporter.program.cpu_of_threads_s, lambda: stopped.wait(span_s)))
            sender = _Sender(exporter.port, run_id, random.Random(1))
            sender.send(SETTLE_S, stopped)
            for _ in range(spans):
                cost.during.append(_cpu(exporter.program.cpu_of_threads_s, lambda: sender.send(span_s, stopped)))
            cost.memory_bytes = exporter.program.memory().rss_bytes
            if sender.refused:
                cost.trouble.append(f"requests: {sender.refused} batches were refused")
    except (ProgramError, OSError) as error:
        cost.trouble.append(f"requests: {error}")
    finally:
        node.simulation.close()
    return cost


def _cpu(cpu_s, act) -> float:
    begin_s, before = time.monotonic(), cpu_s()
    act()
    return float(cpu_s() - before) / (time.monotonic() - begin_s)


class _Sender:
    """Server whose requests take 0.2 to 10 s."""

    def __init__(self, port: int, run_id: str, rng: random.Random) -> None:
        self._port, self._run_id, self._rng = port, run_id, rng
        self._number = self.refused = 0
        self._began = time.time()

    def send(self, seconds: float, stopped: threading.Event) -> None:
        """Send batches at the rate."""
        due_s = time.monotonic()
        until_s = due_s + seconds
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            while due_s < until_s and not stopped.is_set():
                connection.request(
                    "POST",
                    f"/api/v1/runs/{self._run_id}/requests",
                    json.dumps({"requests": [self._request() for _ in range(BATCH)]}),
                    {"Content-Type": "application/json"},
                )
                with connection.getresponse() as answer:
                    answer.read()
                    self.refused += answer.status != 202
                due_s += BATCH / RATE
                stopped.wait(max(0.0, due_s - time.monotonic()))

    def _request(self) -> dict[str, object]:
        self._number += 1
        rng, ended_at = self._rng, time.time() - 0.01
        started_at = max(self._began, ended_at - rng.uniform(0.2, 10.0))
        return {
            "id": f"chatcmpl-{rng.getrandbits(128):032x}",
            "started_at": started_at,
            "first_token_at": started_at + 0.1 * (ended_at - started_at),
            "ended_at": ended_at,
            "prompt_tokens": rng.randrange(50, 4_000),
            "cached_tokens": rng.randrange(50),
            "generated_tokens": rng.randrange(1, 500),
            "labels": {"model": "llama-3-8b", "user": f"user-{rng.randrange(50)}"},
        }


def report_figures(cost: RequestCost) -> Iterator[Figure]:
    """Yield the CPU time that the requests add, and the memory."""
    if not cost.during:
        return
    added = [each - median(cost.before) for each in cost.during]
    where = f"{RATE:,} requests per second in batches of {BATCH}"
    yield Figure(
        f"CPU of a core that requests add, {where}",
        "%",
        median(added),
        goal=CPU_GOAL,
        spread=(min(added), max(added)),
        note=f"{1e6 * median(added) / RATE:.2g} µs a request",
    )
    yield Figure(f"resident memory with {where}", "MB", float(cost.memory_bytes))
