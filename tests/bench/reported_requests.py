"""CPU time of requests that a server reports: 5,000 a second, to the run API and as OTLP traces."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.bench.figures import Figure
from tests.bench.node import make_node
from tests.bench.program import ProgramError
from tests.bench.wattline import start_exporter

RATE, BATCH, SPANS = 5_000, 1_000, 500
"""Requests per second, in a call of the run API, and in a body of traces; 512 is the batch of
OpenTelemetry's SDKs.
"""
CPU_GOAL = 0.02
WARM_UP_S, SETTLE_S = 75.0, 30.0
"""Time until requests become final as fast as new ones come: of a new server, whose slots wait for
30 s in its first minute, and after a change of the reports.
"""


@dataclass
class RequestCost:
    """Shares of one core, several without requests and several by each way to report them; memory
    at the end.
    """

    before: list[float] = field(default_factory=list)
    during: dict[str, list[float]] = field(default_factory=dict)
    memory_bytes: int = 0
    trouble: list[str] = field(default_factory=list)


def measure(folder: Path, span_s: float, spans: int, stopped: threading.Event) -> RequestCost:
    """Measure one exporter on eight simulated GPUs with an open run, first without and then with
    requests.
    """
    cost = RequestCost()
    node = make_node(folder / "requests")
    try:
        exporter = start_exporter(node.environment, node.folder, "requests", ("--otlp.traces",))
        with exporter.program:
            exporter.until_ready()
            run_id = exporter.begin("llm-server", gpus=[*node.uuids])
            for _ in range(spans):
                cost.before.append(
                    _cpu(exporter.program.cpu_of_threads_s, lambda: stopped.wait(span_s))
                )
            for number, kind in enumerate((_Arrays, _RunApi, _Traces), start=1):
                sender = kind(exporter.port, run_id, random.Random(number))
                sender.send(SETTLE_S if cost.during else WARM_UP_S, stopped)
                cost.during[kind.way] = [
                    _cpu(exporter.program.cpu_of_threads_s, partial(sender.send, span_s, stopped))
                    for _ in range(spans)
                ]
                if sender.refused:
                    cost.trouble.append(f"requests: {sender.refused} bodies were refused")
            cost.memory_bytes = exporter.program.memory().rss_bytes
    except (ProgramError, OSError) as error:
        cost.trouble.append(f"requests: {error}")
    finally:
        node.simulation.close()
    return cost


def _cpu(cpu_s, act) -> float:
    begin_s, before = time.monotonic(), cpu_s()
    act()
    return float(cpu_s() - before) / (time.monotonic() - begin_s)


class _Sender(ABC):
    """Server whose requests take 0.2 to 10 s."""

    way: str
    batch: int
    path: str
    content_type: str

    def __init__(self, port: int, run_id: str, rng: random.Random) -> None:
        self._port, self._run_id, self._rng = port, run_id, rng
        self.refused = 0
        self._began = time.time()

    def send(self, seconds: float, stopped: threading.Event) -> None:
        """Send batches at the rate."""
        due_s = time.monotonic()
        until_s = due_s + seconds
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            while due_s < until_s and not stopped.is_set():
                path = self.path.format(run_id=self._run_id)
                connection.request("POST", path, self._body(), {"Content-Type": self.content_type})
                with connection.getresponse() as answer:
                    self.refused += not self._is_accepted(answer.status, answer.read())
                due_s += self.batch / RATE
                stopped.wait(max(0.0, due_s - time.monotonic()))

    def _times(self) -> tuple[float, float, float]:
        """Return start, first token and end of a request."""
        ended_at = max(self._began, time.time() - 0.01)
        started_at = max(self._began, ended_at - self._rng.uniform(0.2, 10.0))
        return started_at, started_at + 0.1 * (ended_at - started_at), ended_at

    @abstractmethod
    def _body(self) -> bytes: ...

    @abstractmethod
    def _is_accepted(self, status: int, body: bytes) -> bool: ...


class _RunApi(_Sender):
    way = f"the run API with objects, {BATCH:,} in a call"
    batch, path, content_type = BATCH, "/api/v1/runs/{run_id}/requests", "application/json"

    def _body(self) -> bytes:
        return json.dumps({"requests": [self._request() for _ in range(self.batch)]}).encode()

    def _is_accepted(self, status: int, _: bytes) -> bool:
        return status == 202

    def _request(self) -> dict[str, object]:
        rng = self._rng
        started_at, first_token_at, ended_at = self._times()
        return {
            "id": f"chatcmpl-{rng.getrandbits(128):032x}",
            "started_at": started_at,
            "first_token_at": first_token_at,
            "ended_at": ended_at,
            "prompt_tokens": rng.randrange(50, 4_000),
            "cached_tokens": rng.randrange(50),
            "generated_tokens": rng.randrange(1, 500),
            "labels": {"model": "llama-3-8b", "user": f"user-{rng.randrange(50)}"},
        }


class _Arrays(_RunApi):
    """Run API with an array for each field, as the Python client posts a batch; once a second."""

    way = f"the run API with arrays, {RATE:,} in a call"
    batch = RATE

    def _body(self) -> bytes:
        requests = [self._request() for _ in range(self.batch)]
        labels = list({str(each["labels"]): each["labels"] for each in requests}.values())
        position = {str(each): number for number, each in enumerate(labels)}
        label_set = [position[str(each["labels"])] for each in requests]
        fields = {
            name: [each[name] for each in requests] for name in requests[0] if name != "labels"
        }
        return json.dumps(
            {"requests": {**fields, "labels": labels, "label_set": label_set}}
        ).encode()


class _Traces(_Sender):
    """vLLM, whose spans have the attributes of
    `tests/exporter/requests/otlp/captured/vllm-0.32.0.pb`.
    """

    way = f"OTLP traces of vLLM, {SPANS} in a body"

    batch, path, content_type = SPANS, "/v1/traces", "application/x-protobuf"

    def _body(self) -> bytes:
        message = ExportTraceServiceRequest()
        of_resource = message.resource_spans.add()
        run_id = of_resource.resource.attributes.add(key="wattline.run_id")
        run_id.value.string_value = self._run_id
        spans = of_resource.scope_spans.add().spans
        for _ in range(self.batch):
            self._fill(spans.add(name="llm_request", kind=2))
        return message.SerializeToString()

    def _is_accepted(self, status: int, body: bytes) -> bool:
        return status == 200 and not body  # a partial success has a body

    def _fill(self, span: Span) -> None:
        rng = self._rng
        started_at, first_token_at, ended_at = self._times()
        span.trace_id, span.span_id = rng.randbytes(16), rng.randbytes(8)
        span.start_time_unix_nano, span.end_time_unix_nano = (
            int(started_at * 1e9),
            int(ended_at * 1e9),
        )
        e2e_s, generated = ended_at - started_at, rng.randrange(1, 500)
        values: dict[str, str | float] = {
            "gen_ai.latency.time_to_first_token": first_token_at - started_at,
            "gen_ai.latency.e2e": e2e_s,
            "gen_ai.latency.time_in_queue": 0.01 * e2e_s,
            "gen_ai.usage.prompt_tokens": rng.randrange(50, 4_000),
            "gen_ai.usage.completion_tokens": generated,
            "gen_ai.latency.time_in_model_prefill": 0.09 * e2e_s,
            "gen_ai.latency.time_in_model_decode": 0.9 * e2e_s,
            "gen_ai.latency.time_in_model_inference": 0.99 * e2e_s,
            "gen_ai.request.id": f"chatcmpl-{rng.getrandbits(128):032x}",
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.max_tokens": generated,
            "gen_ai.request.temperature": 0.7,
            "gen_ai.request.n": 1,
        }
        for key, value in values.items():
            attribute = span.attributes.add(key=key).value
            if isinstance(value, str):
                attribute.string_value = value
            elif isinstance(value, int):
                attribute.int_value = value
            else:
                attribute.double_value = value


def report_figures(cost: RequestCost) -> Iterator[Figure]:
    """Yield the CPU time that the requests add, and the memory."""
    for way, shares in cost.during.items():
        added = [each - median(cost.before) for each in shares]
        yield Figure(
            f"CPU of a core that {RATE:,} requests per second add, by {way}",
            "%",
            median(added),
            goal=CPU_GOAL,
            spread=(min(added), max(added)),
            note=f"{1e6 * median(added) / RATE:.2g} µs a request",
        )
    if cost.memory_bytes:
        yield Figure(
            f"resident memory with {RATE:,} requests per second", "MB", float(cost.memory_bytes)
        )
