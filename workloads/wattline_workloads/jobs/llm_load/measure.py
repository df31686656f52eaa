"""Measurement of the job `llm-server`: warm-up, barrier, load and results."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import random
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Literal

import aiohttp

import wattline
from wattline.client.api import Api
from wattline.client.barrier import BarrierError
from wattline.client.contributor import contributor_name
from wattline.client.messages import log_message, message_line
from wattline_workloads.jobs.llm_load import endpoint, generator, summary
from wattline_workloads.jobs.llm_load.endpoint import EndpointError, RequestTarget
from wattline_workloads.jobs.llm_load.generator import (
    LoadGenerator,
    Request,
    StopCondition,
    show_load_progress,
)
from wattline_workloads.jobs.llm_load.request_reports import RequestReports
from wattline_workloads.jobs.llm_load.server_process import ServerProcesses
from wattline_workloads.jobs.llm_load.stream import RequestOutcome
from wattline_workloads.runner.signals import SignalInterrupt

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Arrivals = Literal["poisson", "fixed"]
_DEFAULT_REQUESTS = 100
_API_TIMEOUT_S = 5.0


async def run_until_signal(work: Coroutine[Any, Any, object]) -> int | None:
    """Run the work and return the number of the signal that cancelled it, else None.

    Later signals are ignored, so that the results can be reported.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def interrupt(number: int) -> None:
        if not received:
            task.cancel()
        received.append(number)

    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await asyncio.wait([task])
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if received else handler)
    if not task.cancelled():
        task.result()
    return received[0] if received else None


def arrival_offsets_s(kind: Arrivals, rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield increasing due times endlessly."""
    if kind == "fixed":
        return (index / rate_per_s for index in itertools.count())
    intervals = random.Random(f"arrivals {seed}")  # noqa: S311  # a load, not a secret
    return itertools.accumulate(intervals.expovariate(rate_per_s) for _ in itertools.count())


def measure_endpoint(options: argparse.Namespace, key: str | None, run: wattline.ActiveRun) -> None:
    """Measure the endpoint; an error ends the process with a one-line message. Raises
    SignalInterrupt.
    """
    with asyncio.Runner() as loop:  # calls of the run may block between its parts
        stack = contextlib.AsyncExitStack()
        session = loop.run(_entered(stack, key))
        try:
            _measure(options, key, run, loop, session)
        except EndpointError as error:
            text = f"llm-server: {summary.printable_line(str(error), key)}"
            sys.exit(message_line(text))
        except BarrierError as error:
            sys.exit(message_line(f"llm-server: {error}"))
        finally:
            loop.run(stack.aclose())


async def _entered(stack: contextlib.AsyncExitStack, key: str | None) -> aiohttp.ClientSession:
    return await stack.enter_async_context(endpoint.open_session(key))


def _measure(
    options: argparse.Namespace,
    key: str | None,
    run: wattline.ActiveRun,
    loop: asyncio.Runner,
    session: aiohttp.ClientSession,
) -> None:
    sender = _Sender(options, session)
    _finish(loop, sender.find_model())
    server = ServerProcesses(run, options.url)
    server.register()
    if options.warmup:
        run.phase("warmup")
        load = LoadGenerator(sender.send_one, lambda _: None)
        _finish(loop, sender.send(load, "warm-up", StopCondition(options.warmup)))
        _exit_unless_answered(load, "warm-up requests", key)
    run.barrier()
    run.phase("measure")
    numbers = itertools.count()
    sender.name_run(run.run_id)
    reports = RequestReports(run, Api.configured(os.environ, timeout_s=_API_TIMEOUT_S))

    def report(answer: RequestOutcome) -> None:
        if not answer.failure:
            server.note_answer()
        _report(run, reports, answer, next(numbers), sender.model)

    load = LoadGenerator(sender.send_one, report)
    interrupted_by = loop.run(run_until_signal(sender.send(load, "measure", _until(options))))
    run.phase("rest")
    reports.close()
    results = summary.load_results(load, options.slo)
    run.result(**results)
    if interrupted_by is None:
        _exit_unless_answered(load, "requests", key)
    for text in summary.load_summary_lines(load, results, key):
        log_message(text)
    if interrupted_by is not None:
        raise SignalInterrupt(interrupted_by)


def _finish(loop: asyncio.Runner, work: Coroutine[Any, Any, object]) -> None:
    """Run the work. Raises SignalInterrupt and the errors of the work."""
    interrupted_by = loop.run(run_until_signal(work))
    if interrupted_by is not None:
        raise SignalInterrupt(interrupted_by)


def _until(options: argparse.Namespace) -> StopCondition:
    if options.duration:
        return StopCondition(None, options.duration)
    return StopCondition(options.requests or _DEFAULT_REQUESTS, math.inf)


def _report(
    run: wattline.ActiveRun,
    reports: RequestReports,
    answer: RequestOutcome,
    number: int,
    model: str | None,
) -> None:
    """Report an answer as the iteration `number`, whose request has the same name in the run's
    folder.
    """
    clock_s = time.time() - time.monotonic()
    run.iteration(answer.e2e_s, answer.values(), ended_at=clock_s + answer.ended_s, **answer.work())
    usage = answer.usage
    if (
        answer.failure
        or usage is None
        or usage.prompt_tokens is None
        or usage.generated_tokens is None
    ):
        return
    request = {
        "request_id": f"{contributor_name(os.environ)}-{number}",
        "started_at": clock_s + answer.sent_s,
        "ended_at": clock_s + answer.ended_s,
        "first_token_at": None if answer.first_s is None else clock_s + answer.first_s,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "labels": {"model": model} if model else None,
    }
    reports.add(answer.answer_id, request)


def _exit_unless_answered(load: LoadGenerator, what: str, key: str | None) -> None:
    if not load.sent:
        text = (
            f"llm-server: none of the {what} was due within --duration; give a longer one or a "
            "higher --rate"
        )
        sys.exit(message_line(text))
    if all(answer.failure for answer in load.answers):
        failed = summary.describe_failures(load.answers, key)
        text = f"llm-server: none of the {len(load.answers)} {what} succeeded: {failed}"
        sys.exit(message_line(text))


class _Sender:
    """Sender of the requests that the options describe."""

    def __init__(self, options: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._options = options
        self._session = session
        self._requests = generator.generate_requests(
            options.prompts, options.prompt_tokens, options.max_tokens, options.seed
        )
        self._target = RequestTarget(
            options.url, options.api, options.model, options.extra_body, options.timeout
        )

    @property
    def model(self) -> str | None:
        return self._target.model

    def name_run(self, run_id: str | None) -> None:
        """Name a run to the server with the requests from now on."""
        self._target = self._target.of_run(run_id)

    async def find_model(self) -> None:
        """Choose the model. Raises EndpointError."""
        listed = await endpoint.list_models(self._session, self._options.url)
        if self._options.model is None:
            if not listed:
                raise EndpointError(f"{self._options.url}/models lists no model; give --model")
            self._target = self._target.with_model(listed[0])
            log_message(f"using model {listed[0]}, the first of {self._options.url}")

    async def send_one(self, request: Request, due_s: float | None) -> RequestOutcome:
        return await endpoint.send_request(self._session, self._target, request, due_s)

    async def send(self, load: LoadGenerator, what: str, until: StopCondition) -> None:
        options = self._options
        async with show_load_progress(load, what):
            if options.rate:
                due_s = arrival_offsets_s(options.arrivals, options.rate, options.seed)
                await load.open(self._requests, due_s, until)
            else:
                await load.closed(self._requests, options.concurrency or 1, until)
