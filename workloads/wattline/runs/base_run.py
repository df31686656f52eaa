"""Start and end of a run, and what this process sends to it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from wattline.client import api as run_api
from wattline.client import ranks, recorder
from wattline.client.api import ExporterError, JobApi, UnreachableError
from wattline.client.contributor import Contributor, contributor_name
from wattline.client.gpus import GpusError, GpusOfRun, option_text
from wattline.client.messages import log_message, log_message_once
from wattline.client.request_queue import RequestQueue
from wattline.client.summary import RunResult, log_summary, outcome_of
from wattline.contract import run as contract
from wattline.runs import open_runs
from wattline.runs.begin import BegunRun, RunRequest, begin_or_choose, register_this_process
from wattline.runs.end_report import EndReport

QUIET = "WATTLINE_QUIET"
"""With the value 1, runs print no summary at their end."""
_BEGIN_WITHIN_S = 5.0
_PHASES_NOT_RECORDED = "phases_not_recorded"
_REQUESTS_NOT_RECORDED = "requests_not_recorded"
_Key = tuple[int, str, str]
# One per process and run, however often the run is joined, since the totals of a contributor must
# not decrease.
_contributors: dict[_Key, Contributor] = {}
_request_queues: dict[_Key, RequestQueue] = {}


class BaseRun:
    """Start and end of a run, with the work and the requests of this process."""

    def __init__(  # noqa: PLR0913  # the options of a run
        self,
        workload: str,
        labels: Mapping[str, str],
        gpus: GpusOfRun,
        exporter: str | None,
        *,
        quiet: bool = False,
        known_run: str | None = None,
        unit: str | None = None,
    ) -> None:
        """Prepare a run that `start` or `with` begins.

        `known_run` is one that this process is already part of; `unit` is the primary unit of work.
        """
        environ = os.environ
        self._request = RunRequest(workload, dict(labels), option_text(gpus), known_run)
        self._unit = unit
        self._quiet = quiet or environ.get(QUIET) == "1"
        self._api = JobApi.configured(environ, exporter)
        self._leads = ranks.is_node_leader(environ)
        self._created_by = os.getpid()
        self._started_by = 0
        self._ends = False
        self._is_open = False
        self._results: dict[str, float] = {}
        self._stack = contextlib.ExitStack()
        self.run_id: str | None = None
        """Id of the run; None without an exporter, all methods then do nothing."""
        self.simulation: str | None = environ.get(run_api.SIMULATION)
        """State file of simulated GPUs; None with real GPUs."""
        self._ended: contract.Run | None = None
        self._end: EndReport | None = None

    @property
    def gpus(self) -> str | None:
        """GPUs that were given, in the form of `workloads run --gpus`."""
        return self._request.gpus

    @property
    def is_own(self) -> bool:
        """True if this process has begun the run on the exporter and ends it."""
        return self._ends

    def start(self) -> Self:
        """Start the run; `with` does it, too. A run that is still open when Python exits ends
        then.
        """
        if self._is_open and self._started_by == os.getpid():
            raise RuntimeError(
                f"run {self._request.workload!r} has already started; end it first: run.end()"
            )
        outer = open_runs.enclosing_run()
        self._request = RunRequest(
            self._request.workload,
            self._request.labels,
            outer.gpus if self._request.gpus is None and outer else self._request.gpus,
            self._request.known_run,
        )
        self._started_by = os.getpid()
        self._is_open = True
        self._ended = None
        self._end = None
        self.run_id = None
        self._ends = False
        self._results = {}
        open_runs.add(self)
        try:
            begun = begin_or_choose(
                self._api.persistent(_BEGIN_WITHIN_S), self._request, os.environ
            )
            if begun is not None:
                self._join(begun)
        except UnreachableError as error:
            if self._leads or not ranks.is_launched(os.environ):
                log_message_once(
                    f"this run is not measured: {error}; start an exporter with exporter serve, or "
                    "start the job with "
                    "workloads run"
                )
        except (ExporterError, GpusError) as error:
            log_message_once(f"this run is not measured: {error}")
        return self

    def _join(self, begun: BegunRun) -> None:
        """Register with the run. Raises ExporterError."""
        if begun.is_own:
            self.run_id = begun.run_id
            self._ends = True
        elif begun.is_of_rank:
            self._stack.enter_context(ranks.hold_presence(begun.run_id))
        if not begun.has_process:
            register_this_process(self._api, begun.run_id)
        self.run_id = begun.run_id
        self.simulation = self.simulation or begun.simulation
        contributor = self._contributor()
        if contributor is not None and self._unit is not None:
            contributor.declare(self._unit)
        if contributor is not None and begun.is_own:
            contributor.start()

    def end(self, outcome: str = "ok") -> RunResult:
        """End the run and return its figures; `with` does it, too. A run of the runner or of
        another rank continues.

        `outcome` is `ok`, `failed` or `interrupted`. A second call returns the same figures. If the
        exporter is away, the figures are None; a thread, a second call and the exit of Python
        repeat the end with its time.
        """
        self._require_start()
        if self._is_open:
            open_runs.remove(self)
            self._close(outcome)
        elif self._end is not None and self._started_by == os.getpid():
            self._end.post()
        return RunResult.of(self.run_id, self._ended)

    def _close(self, outcome: str) -> None:
        self._flush_recorder()
        send_rest = functools.partial(
            self._send_rest, self._key(), self._contributor(), self._results
        )
        if self._started_by != os.getpid():  # a forked child must not end the run
            send_rest()
            return
        self._is_open = False
        if self.run_id is not None and self._ends:
            if outcome == "ok" and ranks.is_launched(os.environ):
                ranks.await_other_ranks(self.run_id)
            take = functools.partial(self._take_figures, self.run_id, outcome)
            self._end = EndReport(self._api, self.run_id, outcome, send_rest, take)
            self._end.post_or_repeat()
        else:
            results = send_rest()
            if self.run_id is not None and self._leads:
                recorder.write_results(os.environ.get(run_api.RESULTS), results)
        self._stack.close()

    def _send_rest(
        self, key: _Key, contributor: Contributor | None, results: dict[str, float]
    ) -> Mapping[str, float]:
        """Post the rest of the work and the requests; return the results with the numbers of lost
        items.
        """
        self._close_requests(key, results)
        if contributor is not None:
            contributor.close()
            if contributor.late_phases:
                results[_PHASES_NOT_RECORDED] = float(contributor.late_phases)
        return results

    def _take_figures(self, run_id: str, outcome: str, answer: Mapping[str, Any]) -> None:
        ended = log_summary(answer, outcome, self._api.analyzer_source, quiet=self._quiet)
        if run_id == self.run_id:
            self._ended = ended

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.end(outcome_of(error))

    def __del__(self) -> None:
        """Report a run that never started, since nothing of it was measured."""
        if not getattr(self, "_started_by", 1) and self._created_by == os.getpid():
            log_message_once(f"nothing was measured: {self._start_error()}")

    def _start_error(self) -> str:
        name = self._request.workload
        return (
            f"run {name!r} has not started; use `with wattline.run({name!r})`, or `run = "
            f"wattline.start({name!r})`"
        )

    def _require_start(self) -> None:
        if not self._started_by:
            raise RuntimeError(self._start_error())

    def _key(self) -> _Key:
        return os.getpid(), self._api.address, self.run_id or ""

    def _contributor(self) -> Contributor | None:
        if self.run_id is None:
            return None
        key = self._key()
        if key not in _contributors:
            is_forked = self._started_by != os.getpid()
            lease_s = run_api.LEASE_S if self._ends and not is_forked else None
            created = Contributor(self._api, self.run_id, contributor_name(os.environ), lease_s)
            if _contributors.setdefault(key, created) is created and is_forked:
                recorder.call_at_exit(created.close)
        return _contributors[key]

    def _requests(self) -> RequestQueue:
        assert self.run_id is not None
        key = self._key()
        if key not in _request_queues:
            created = RequestQueue(
                dataclasses.replace(self._api, timeout_s=_BEGIN_WITHIN_S), self.run_id
            )
            if (
                _request_queues.setdefault(key, created) is created
                and self._started_by != os.getpid()
            ):
                recorder.call_at_exit(functools.partial(self._close_requests, key, self._results))
        return _request_queues[key]

    def _flush_requests(self, within_s: float) -> None:
        if (queue := _request_queues.get(self._key())) is not None:
            queue.flush(within_s)

    @staticmethod
    def _close_requests(key: _Key, results: dict[str, float]) -> None:
        """Post the requests; declare those that were not recorded."""
        queue = _request_queues.pop(key, None)
        if queue is None:
            return
        queue.close()
        if queue.dropped:
            log_message(
                f"{queue.dropped} requests were not recorded; energy per request is of the others "
                "only"
            )
            results[_REQUESTS_NOT_RECORDED] = (
                results.get(_REQUESTS_NOT_RECORDED, 0.0) + queue.dropped
            )

    def _flush_recorder(self) -> None:
        writer = recorder.recorder_for(os.environ)
        if writer is not None:
            writer.flush()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a spawned child, which does not end the run."""
        return {**self.__dict__, "_stack": contextlib.ExitStack(), "_end": None}
