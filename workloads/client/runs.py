"""Make a Python job a run of its own, or let it add its work to the run that it is part of:

    with workloads.client.run("train", labels={"model": "gpt2"}) as run:
        run.work(generated_tokens=n)

Only the standard library is imported, and nothing that goes wrong here stops a training: it is said once on stderr.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from workloads.client import api as run_api
from workloads.client import at_exit, barrier, ranks, recorder, registration
from workloads.client import gpus as gpu_choice
from workloads.client import values as numbers
from workloads.client import values as run_id
from workloads.client.api import Api, ExporterError, RefusedError, UnreachableError
from workloads.client.contributor import Contributor, unique_name
from workloads.client.messages import say_once
from workloads.client.registration import Membership

_TIMEOUT_S = 5.0
_REST = "rest"
# One a process and run, however often it is joined: a contributor's totals never fall.
_contributors: dict[tuple[int, str, str], Contributor] = {}
_begun: collections.Counter[str] = collections.Counter()


def run(
    workload: str, *, labels: Mapping[str, object] | None = None, gpus: str | None = None, exporter: str | None = None
) -> Run:
    """A run, to be used in a `with`; `gpus` as in `workloads run --gpus`.

    Under a runner (WATTLINE_RUN_ID is set) its run is joined and never ended. Under a launcher (RANK is set) the node's
    first process begins and ends the run, and only its phases and results count; the other processes join.
    """
    return Run(workload, {name: str(value) for name, value in (labels or {}).items()}, gpus, exporter)


class Run:
    """The run that this process works for. Its children may go on with it: each then counts for itself.

    A forked child has it, to a spawned one it is given: `Process(target=work, args=(run,))`. Their results are not
    taken: those are of the process that entered the run.
    """

    def __init__(self, workload: str, labels: Mapping[str, str], gpus: str | None, exporter: str | None) -> None:
        self._workload = workload
        self._labels = dict(labels)
        self._gpus = gpus
        environ = os.environ
        self._api = Api(exporter or environ.get(run_api.EXPORTER) or run_api.DEFAULT_ADDRESS, _TIMEOUT_S)
        self._leads = ranks.leads(environ)
        self._entered_by = 0
        self._ends = False
        self._results: dict[str, float] = {}
        self._phase: str | None = None
        self._stack = contextlib.ExitStack()
        self.run_id: str | None = None
        """None where there is no exporter: everything else then does nothing."""
        self.simulation: str | None = environ.get(run_api.SIMULATION)
        """The simulated GPUs' state file, where they are simulated."""

    def work(self, **amounts: float) -> None:
        """Add to what this process has done, by unit: `run.work(steps=1, samples=64)`."""
        good = numbers.of_work(amounts)
        contributor = self._contributor()
        if contributor is not None and good:
            contributor.add(good)

    def phase(self, name: str) -> contextlib.ExitStack:
        """From now on the run is in this phase. `with run.phase("validation"):` then goes back to the one before, or to
        `rest` where there was none.
        """
        before = self._phase or _REST
        self._change_phase(name)
        back = contextlib.ExitStack()
        back.callback(self._change_phase, before)
        return back

    def _change_phase(self, name: str) -> None:
        self._phase = name
        contributor = self._contributor()
        if contributor is not None:
            contributor.flush()  # what was done so far is of the phase before
        if self.run_id is not None and self._leads:
            writer = recorder.of(os.environ)
            if writer is not None:
                writer.write("phase", name=name)
            self._try("the phase could not be reported", f"/runs/{self.run_id}/phase", {"name": name})

    def iteration(
        self,
        latency_s: float,
        values: Mapping[str, float] | None = None,
        *,
        ended_at: float | None = None,
        **amounts: float,
    ) -> None:
        """One step, batch, kernel or request is done and took `latency_s`: `run.iteration(0.21, samples=64, steps=1)`.

        `amounts` are added to the run's work; `values` are only recorded, where the run has a folder. `ended_at` is
        in Unix seconds; now, where it is left out.
        """
        if amounts:
            self.work(**amounts)
        writer, latency = recorder.of(os.environ), numbers.finite(latency_s)
        if latency is None or latency < 0:
            say_once(f"an iteration is not recorded: {latency_s} is no latency in seconds")
        elif writer is not None:
            writer.iteration(
                contributor=unique_name(os.environ),
                phase=self._phase,
                latency_seconds=latency,
                work=numbers.of_work(amounts),
                values=numbers.of_values(values or {}),
                **({} if ended_at is None else {"t": ended_at}),
            )

    def barrier(self) -> None:
        """Wait for the other tenants of a plan; at once where there are none. Raises BarrierError where they fail.

        Under a launcher each process waits, and the node's first stands for all of them.
        """
        barrier.await_all(os.environ, is_counted=self._leads)

    def result(self, **values: float) -> None:
        """What the job measured itself, the unit in the name: `run.result(ttft_seconds_p99=0.31)`; the last stands."""
        for name, value in numbers.of_results(values).items():
            if name in self._results or len(self._results) < numbers.MOST_RESULTS:
                self._results[name] = value
            else:
                say_once(f"result {name} is left out: a run has {numbers.MOST_RESULTS} at most")

    def register(self, *, pids: Sequence[int] = (), cgroup: str | None = None) -> str | None:
        """More processes are part of the run, by pid and cgroup (`container:ID`, too); why not, where they cannot be.

        Only those are needed that this process did not start: what it started is seen with it.
        """
        if self.run_id is None:
            return None
        body = {"pids": list(pids), **({} if cgroup is None else {"cgroup": cgroup})}
        try:
            self._api.post(f"/runs/{self.run_id}/processes", body)
        except ExporterError as error:
            return str(error)
        return None

    def flush(self) -> None:
        """Post the work so far; of use before `os._exit`, everything else posts by itself."""
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
                say_once(
                    f"this run is not measured: {error}; start one with exporter serve, or start the job with "
                    "workloads run"
                )
        except (ExporterError, gpu_choice.GpusError) as error:
            say_once(f"this run is not measured: {error}")
        return self

    def _enter(self, environ: Mapping[str, str]) -> None:
        joined = environ.get(run_api.RUN_ID)
        if joined:
            self._join(joined)
            return
        _begun[self._workload] += 1
        ids = ranks.candidates(environ, self._workload, _begun[self._workload])
        if not ranks.is_launched(environ):
            self._begin(run_id.fresh(self._workload))
        elif self._leads:
            self._begin(ranks.first_free(self._api, ids, ranks.process_started_at()))
        else:
            self._join_first_process(ranks.await_run(self._api, ids, ranks.process_started_at()))

    def _join_first_process(self, found: Mapping[str, Any] | None) -> None:
        if found is None:
            say_once(
                f"this process's work is not counted: the process with LOCAL_RANK=0 began no run {self._workload!r}"
            )
        elif found["state"] != "running":
            say_once(f"this process's work is not counted: its run {found['run_id']} has already ended")
        else:
            self._stack.enter_context(ranks.present(found["run_id"]))
            self._join(found["run_id"])
            self.simulation = self.simulation or found.get("simulation")

    def _join(self, joined: str) -> None:
        self._register(joined)
        self.run_id = joined

    def _begin(self, chosen: str) -> None:
        choice = gpu_choice.choose(self._gpus, os.environ)
        if choice.doubt:
            say_once(choice.doubt)
        body = {"workload": self._workload, "labels": self._labels, "run_id": chosen, "lease_seconds": run_api.LEASE_S}
        try:
            begun = self._api.post("/runs", {**body, **choice.field()})
        except RefusedError as error:
            if choice.asked or not choice.gpus or error.status != 422:
                raise
            begun = self._api.post("/runs", {**body, "gpus": []})  # CUDA_VISIBLE_DEVICES on a machine without GPUs
        self.simulation = self.simulation or begun.get("simulation")
        self.run_id, self._ends = chosen, True
        self._register(chosen)
        contributor = self._contributor()
        if contributor is not None:
            contributor.start()

    def _register(self, joined: str) -> None:
        """Raises UnreachableError; a refusal is said and survived."""
        group = os.environ.get(registration.CGROUP)
        Membership(self._api, joined, group, RefusedError, say_once).add(os.getpid())

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        contributor = self._contributor()
        if contributor is not None:
            contributor.close()
        self._flush_recorder()
        if self.run_id is None or self._entered_by != os.getpid():  # a forked child ends only what is its own
            return
        if self._ends:
            self._end(_outcome(error))
        elif self._leads:
            _hand_to_runner(self._results)
        self._stack.close()

    def _end(self, outcome: str) -> None:
        assert self.run_id is not None
        if outcome == "ok" and ranks.is_launched(os.environ):
            ranks.await_others(self.run_id)
        body = {"outcome": outcome, "results": self._results}
        self._try(f"run {self.run_id} could not be ended", f"/runs/{self.run_id}/end", body)

    def _contributor(self) -> Contributor | None:
        if self.run_id is None:
            return None
        key = os.getpid(), self._api.address, self.run_id
        if key not in _contributors:
            is_forked = self._entered_by != os.getpid()
            lease_s = run_api.LEASE_S if self._ends and not is_forked else None
            made = Contributor(self._api, self.run_id, unique_name(os.environ), lease_s)
            if _contributors.setdefault(key, made) is made and is_forked:
                at_exit.call(made.close)
        return _contributors[key]

    def _flush_recorder(self) -> None:
        writer = recorder.of(os.environ)
        if writer is not None:
            writer.flush()

    def __getstate__(self) -> dict[str, Any]:
        """For a spawned child, whose own it then is not to end."""
        return {**self.__dict__, "_stack": contextlib.ExitStack()}

    def _try(self, what: str, path: str, body: Mapping[str, Any]) -> None:
        try:
            self._api.post(path, body)
        except ExporterError as error:
            say_once(f"{what}: {error}")


def _outcome(error: BaseException | None) -> str:
    if error is None or (isinstance(error, SystemExit) and error.code in {None, 0}):
        return "ok"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def _hand_to_runner(results: Mapping[str, float]) -> None:
    """The runner ends the run, so it has to know them."""
    path = os.environ.get(run_api.RESULTS)
    if results and path:
        try:
            with Path(path).open("a") as file:
                file.write(json.dumps(results) + "\n")
        except OSError as error:
            say_once(f"the results cannot be handed to the runner: {path}: {error.strerror}")
