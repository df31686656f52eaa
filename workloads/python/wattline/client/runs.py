"""Run of a Python job: a new one, or the one that the job is part of.

    with wattline.run("train", labels={"model": "gpt2"}) as run:
        run.work(generated_tokens=n)

Only the standard library is imported. An error never stops a training: it is logged once on stderr.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from wattline.client import api as run_api
from wattline.client import barrier, ranks, recorder
from wattline.client import gpus as gpu_choice
from wattline.client import values as numbers
from wattline.client.api import Api, ExporterError, RejectedRequestError, UnreachableError
from wattline.client.contributor import CGROUP, Contributor, RunMembership, contributor_name
from wattline.client.messages import log_message_once
from wattline.client.summary import EndedRun, log_summary, outcome_of

_TIMEOUT_S = 5.0
_REST = "rest"
# One per process and run, however often the run is joined, since the totals of a contributor must not decrease.
_contributors: dict[tuple[int, str, str], Contributor] = {}
_begun: collections.Counter[str] = collections.Counter()


def run(
    workload: str, *, labels: Mapping[str, object] | None = None, gpus: str | None = None, exporter: str | None = None
) -> Run:
    """Return a run for a `with` statement; `gpus` has the form of `workloads run --gpus`.

    Under a runner (WATTLINE_RUN_ID is set) it joins the runner's run and never ends it. Under a launcher (RANK is set)
    the first rank of the node starts and ends the run, and only its phases and results count; the other ranks join.
    """
    return Run(workload, {name: str(value) for name, value in (labels or {}).items()}, gpus, exporter)


class Run:
    """Run to which this process and its children report; each child counts its own work.

    A forked child inherits the object, a spawned child receives it: `Process(target=work, args=(run,))`. Results of
    children are ignored: they come from the process that entered the run.
    """

    def __init__(self, workload: str, labels: Mapping[str, str], gpus: str | None, exporter: str | None) -> None:
        self._workload = workload
        self._labels = dict(labels)
        self._gpus = gpus
        environ = os.environ
        self._api = Api(exporter or environ.get(run_api.EXPORTER) or run_api.DEFAULT_ADDRESS, _TIMEOUT_S)
        self._leads = ranks.is_node_leader(environ)
        self._entered_by = 0
        self._ends = False
        self._results: dict[str, float] = {}
        self._phase: str | None = None
        self._stack = contextlib.ExitStack()
        self.run_id: str | None = None
        """Id of the run; None without an exporter, all methods then do nothing."""
        self.simulation: str | None = environ.get(run_api.SIMULATION)
        """State file of simulated GPUs; None with real GPUs."""
        self._ended: EndedRun | None = None

    def work(self, **amounts: float) -> None:
        """Add to the work of this process, by unit: `run.work(steps=1, samples=64)`."""
        valid = numbers.valid_work(amounts)
        contributor = self._contributor()
        if contributor is not None and valid:
            contributor.add(valid)

    def phase(self, name: str) -> contextlib.ExitStack:
        """Start a phase. `with run.phase("validation"):` restores the previous phase at its end, or `rest`."""
        before = self._phase or _REST
        self._change_phase(name)
        back = contextlib.ExitStack()
        back.callback(self._change_phase, before)
        return back

    def _change_phase(self, name: str) -> None:
        self._phase = name
        contributor = self._contributor()
        if contributor is not None:
            contributor.flush()  # the work so far belongs to the previous phase
        if self.run_id is not None and self._leads:
            writer = recorder.recorder_for(os.environ)
            if writer is not None:
                writer.write("phase", name=name)
            self._post("cannot report the phase", f"/runs/{self.run_id}/phase", {"name": name})

    def iteration(
        self,
        latency_s: float,
        values: Mapping[str, float] | None = None,
        *,
        ended_at: float | None = None,
        **amounts: float,
    ) -> None:
        """Record a step, batch, kernel or request that took `latency_s`: `run.iteration(0.21, samples=64, steps=1)`.

        `amounts` are added to the run's work; `values` are only recorded, and only if the run has a folder. `ended_at`
        is in Unix seconds; the default is now.
        """
        if amounts:
            self.work(**amounts)
        writer, latency = recorder.recorder_for(os.environ), numbers.finite_number(latency_s)
        if latency is None or latency < 0:
            log_message_once(f"cannot record an iteration: {latency_s} is not a latency in seconds")
        elif writer is not None:
            writer.iteration(
                contributor=contributor_name(os.environ),
                phase=self._phase,
                latency_seconds=latency,
                work=numbers.valid_work(amounts),
                values=numbers.valid_values(values or {}),
                **({} if ended_at is None else {"t": ended_at}),
            )

    def barrier(self) -> None:
        """Wait for the other tenants of a plan; return at once without tenants. Raises BarrierError if one fails.

        Under a launcher each rank waits, and only the first rank of the node is counted.
        """
        barrier.await_all_tenants(os.environ, is_counted=self._leads)

    def result(self, **values: float) -> None:
        """Report a result that the job measured, its unit in its name: `run.result(ttft_seconds_p99=0.31)`.

        The last value of each name is kept.
        """
        for name, value in numbers.valid_results(values).items():
            if name in self._results or len(self._results) < numbers.MAX_RESULTS:
                self._results[name] = value
            else:
                log_message_once(f"cannot report result {name}: a run has at most {numbers.MAX_RESULTS} results")

    def register(self, *, pids: Sequence[int] = (), cgroup: str | None = None) -> str | None:
        """Add processes to the run by pid or cgroup (or `container:ID`); return the error message, or None.

        Only processes that this process did not start need it: its descendants are part of the run.
        """
        if self.run_id is None:
            return None
        body = {"pids": list(pids), **({} if cgroup is None else {"cgroup": cgroup})}
        try:
            self._api.post(f"/runs/{self.run_id}/processes", body)
        except ExporterError as error:
            return str(error)
        return None

    @property
    def energy_joules(self) -> float | None:
        """Energy of the whole GPUs, CPUs and memory of the run, once this process has ended it and it was measured."""
        return self._ended.energy_j if self._ended else None

    @property
    def uncertainty_joules(self) -> float | None:
        """Half-width of the 95 % confidence interval of `energy_joules`; None where it is unknown."""
        return self._ended.half_j if self._ended else None

    @property
    def emissions_grams(self) -> float | None:
        """Emissions of `energy_joules` in g CO2eq; None where the carbon intensity is unknown."""
        return self._ended.grams if self._ended else None

    def flush(self) -> None:
        """Post the work so far. Needed only before `os._exit`."""
        contributor = self._contributor()
        if contributor is not None:
            contributor.flush()
        self._flush_recorder()

    def __enter__(self) -> Self:
        self._entered_by = os.getpid()
        try:
            self._enter(os.environ)
        except UnreachableError as error:
            if self._leads or not ranks.is_launched(os.environ):
                log_message_once(
                    f"this run is not measured: {error}; start an exporter with exporter serve, or start the job with "
                    "workloads run"
                )
        except (ExporterError, gpu_choice.GpusError) as error:
            log_message_once(f"this run is not measured: {error}")
        return self

    def _enter(self, environ: Mapping[str, str]) -> None:
        joined = environ.get(run_api.RUN_ID)
        if joined:
            self._join(joined)
            return
        _begun[self._workload] += 1
        ids = ranks.candidate_run_ids(environ, self._workload, _begun[self._workload])
        if not ranks.is_launched(environ):
            self._begin(numbers.unique_run_id(self._workload))
        elif self._leads:
            self._begin(ranks.first_free_run_id(self._api, ids, ranks.process_started_at()))
        else:
            self._join_run_of_leader(ranks.await_run_of_leader(self._api, ids, ranks.process_started_at()))

    def _join_run_of_leader(self, leader_run: Mapping[str, Any] | None) -> None:
        if leader_run is None:
            log_message_once(
                f"this process's work is not counted: the process with LOCAL_RANK=0 started no run {self._workload!r}"
            )
        elif leader_run["state"] != "running":
            log_message_once(f"this process's work is not counted: its run {leader_run['run_id']} has already ended")
        else:
            self._stack.enter_context(ranks.hold_presence(leader_run["run_id"]))
            self._join(leader_run["run_id"])
            self.simulation = self.simulation or leader_run.get("simulation")

    def _join(self, joined: str) -> None:
        self._register(joined)
        self.run_id = joined

    def _begin(self, chosen: str) -> None:
        choice = gpu_choice.choose_gpus(self._gpus, os.environ)
        if choice.warning:
            log_message_once(choice.warning)
        body = {"workload": self._workload, "labels": self._labels, "run_id": chosen, "lease_seconds": run_api.LEASE_S}
        try:
            started = self._api.post("/runs", {**body, **choice.field()})
        except RejectedRequestError as error:
            if choice.is_explicit or not choice.gpus or error.status != 422:
                raise
            started = self._api.post("/runs", {**body, "gpus": []})  # CUDA_VISIBLE_DEVICES on a machine without GPUs
        self.simulation = self.simulation or started.get("simulation")
        self.run_id, self._ends = chosen, True
        self._register(chosen)
        contributor = self._contributor()
        if contributor is not None:
            contributor.start()

    def _register(self, joined: str) -> None:
        """Register this process with the run; log a rejection. Raises UnreachableError."""
        group = os.environ.get(CGROUP)
        RunMembership(self._api, joined, group, RejectedRequestError, log_message_once).add(os.getpid())

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        contributor = self._contributor()
        if contributor is not None:
            contributor.close()
        self._flush_recorder()
        if self.run_id is None or self._entered_by != os.getpid():  # a forked child must not end the run
            return
        if self._ends:
            self._end(outcome_of(error))
        elif self._leads:
            recorder.write_results(os.environ.get(run_api.RESULTS), self._results)
        self._stack.close()

    def _end(self, outcome: str) -> None:
        assert self.run_id is not None
        if outcome == "ok" and ranks.is_launched(os.environ):
            ranks.await_other_ranks(self.run_id)
        body = {"outcome": outcome, "results": self._results}
        answer = self._post(f"cannot end run {self.run_id}", f"/runs/{self.run_id}/end", body)
        if answer is not None:
            self._ended = log_summary(answer, outcome, self._api.analyzer_source)

    def _contributor(self) -> Contributor | None:
        if not self._entered_by:
            log_message_once(
                f"run {self._workload!r} has not started, so its work and phases are lost; start it with: "
                f"with wattline.run({self._workload!r}) as run"
            )
        if self.run_id is None:
            return None
        key = os.getpid(), self._api.address, self.run_id
        if key not in _contributors:
            is_forked = self._entered_by != os.getpid()
            lease_s = run_api.LEASE_S if self._ends and not is_forked else None
            created = Contributor(self._api, self.run_id, contributor_name(os.environ), lease_s)
            if _contributors.setdefault(key, created) is created and is_forked:
                recorder.call_at_exit(created.close)
        return _contributors[key]

    def _flush_recorder(self) -> None:
        writer = recorder.recorder_for(os.environ)
        if writer is not None:
            writer.flush()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a spawned child, which does not end the run."""
        return {**self.__dict__, "_stack": contextlib.ExitStack()}

    def _post(self, failure: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        try:
            return self._api.post(path, body)
        except ExporterError as error:
            log_message_once(f"{failure}: {error}")
        return None
