"""Run of a Python job: a new one, or the one that the job is part of.

    with wattline.run("train", labels={"model": "gpt2"}) as run:
        run.work(generated_tokens=n)

Only the standard library is imported. An error of the measurement never stops a training: it is
logged once on stderr.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence

from wattline.client import barrier, recorder
from wattline.client import values as numbers
from wattline.client.api import ExporterError
from wattline.client.contributor import contributor_name
from wattline.client.messages import log_message_once
from wattline.client.request_queue import FLUSH_WITHIN_S
from wattline.client.summary import EnergySoFar, RunResult
from wattline.contract import run as contract
from wattline.contract.api import MAX_RESULTS
from wattline.runs.base_run import BaseRun
from wattline.runs.phases import Phases

# One per process and run, however often the run is joined.
_phases: dict[tuple[int, str, str], Phases] = {}
_request_numbers = itertools.count(1)


class ActiveRun(BaseRun):
    """Run to which this process and its children report; each child counts its own work.

    A forked child inherits the object, a spawned child receives it: `Process(target=work,
    args=(run,))`. Results of children are ignored: they come from the process that started the run.
    """

    _phase: str | None = None

    def work(self, **amounts: float) -> None:
        """Add to the work of this process, by unit: `run.work(steps=1, samples=64)`."""
        self._require_start()
        valid = numbers.valid_work(amounts)
        contributor = self._contributor()
        if contributor is not None and valid:
            contributor.add(valid)

    def phase(self, name: str) -> contextlib.ExitStack:
        """Start a phase. `with run.phase("validation"):` restores the previous phase at its end, or
        `rest`.

        A run has at most 16 phases; further ones are refused, with a message and a note in the
        report.
        """
        self._require_start()
        if os.getpid() != self._started_by:
            log_message_once(
                "a phase is not recorded: only the process that started the run changes its phase; "
                "start another run "
                "in this process: wattline.run()"
            )
            return contextlib.ExitStack()
        phases = Phases() if self.run_id is None else _phases.setdefault(self._key(), Phases())
        return phases.start(name, self._change_phase, self._refuse_phase)

    def _change_phase(self, name: str) -> None:
        self._phase = name
        contributor = self._contributor()
        if contributor is not None and self._leads:
            writer = recorder.recorder_for(os.environ)
            if writer is not None:
                writer.write("phase", name=name)
            contributor.change_phase(name)
        elif contributor is not None:
            contributor.flush()

    def _refuse_phase(self) -> None:
        contributor = self._contributor()
        if contributor is not None:
            contributor.late_phases += 1

    def iteration(
        self,
        latency_s: float,
        values: Mapping[str, float] | None = None,
        *,
        ended_at: float | None = None,
        **amounts: float,
    ) -> None:
        """Record a step, batch, kernel or request that took `latency_s`: `run.iteration(0.21,
        samples=64, steps=1)`.

        `amounts` are added to the run's work; `values` are only recorded, and only if the run has a
        folder. `ended_at` is in Unix seconds; the default is now.
        """
        self._require_start()
        if amounts:
            self.work(**amounts)
        writer = recorder.recorder_for(os.environ)
        latency = numbers.finite_number(latency_s)
        if latency is None or latency < 0:
            log_message_once(
                "cannot record an iteration: its latency is no number of seconds; pass a finite "
                "number"
            )
        elif writer is not None:
            writer.iteration(
                contributor=contributor_name(os.environ),
                phase=self._phase,
                latency_seconds=latency,
                work=numbers.valid_work(amounts),
                values=numbers.valid_values(values or {}),
                **({} if ended_at is None else {"t": ended_at}),
            )

    def request(  # noqa: PLR0913  # the fields of a request
        self,
        *,
        started_at: float,
        ended_at: float,
        prompt_tokens: int,
        generated_tokens: int,
        cached_tokens: int | None = None,
        first_token_at: float | None = None,
        request_id: str | None = None,
        labels: Mapping[str, object] | None = None,
    ) -> None:
        """Record a request that this process served, so that it gets its part of the GPUs' energy.

        Times are in Unix seconds. A thread posts the requests in batches. At most 20,000 wait;
        requests that the exporter does not accept are counted in the result
        `requests_not_recorded`.
        """
        self._require_start()
        if self.run_id is None:
            return
        optional = {
            "cached_tokens": numbers.json_number(cached_tokens),
            "first_token_at": numbers.json_number(first_token_at),
            "labels": numbers.valid_labels(labels),
        }
        body = {
            "id": request_id or f"{contributor_name(os.environ)}-{next(_request_numbers)}",
            "started_at": numbers.json_number(started_at),
            "ended_at": numbers.json_number(ended_at),
            "prompt_tokens": numbers.json_number(prompt_tokens),
            "generated_tokens": numbers.json_number(generated_tokens),
        }
        self._requests().add(
            body | {name: value for name, value in optional.items() if value is not None}
        )

    def barrier(self) -> None:
        """Wait for the other tenants of a plan; return at once without tenants. Raises BarrierError
        if one fails.

        Under a launcher each rank waits, and only the first rank of the node is counted.
        """
        barrier.await_all_tenants(os.environ, is_counted=self._leads)

    def result(self, **values: float) -> None:
        """Report a result that the job measured, its unit in its name:
        `run.result(ttft_seconds_p99=0.31)`.

        The last value of each name is kept.
        """
        self._require_start()
        for name, value in numbers.valid_results(values).items():
            if name in self._results or len(self._results) < MAX_RESULTS:
                self._results[name] = value
            else:
                log_message_once(
                    f"cannot report result {name}: a run has at most {MAX_RESULTS} results"
                )

    def register(self, *, pids: Sequence[int] = (), cgroup: str | None = None) -> str | None:
        """Add processes to the run by pid or cgroup (or `container:ID`); return the error message,
        or None.

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

    def energy(self) -> EnergySoFar | None:
        """Return the energy of the whole GPUs, CPUs and memory from the start up to now; None if
        none is measured.
        """
        self._require_start()
        if self._ended:
            return EnergySoFar.of(self._ended)
        if self.run_id is None:
            return None
        record = self.view()
        return None if record is None else EnergySoFar.of(record)

    def metrics(self) -> dict[str, float]:
        """Return energy, mean power, emissions and duration by name with unit, up to now or of the
        ended run.

        For trackers: `mlflow.log_metrics(run.metrics())`. Unknown figures are left out; empty
        without a measurement.
        """
        if self._ended:
            return RunResult.of(self.run_id, self._ended).metrics()
        energy = self.energy()
        return energy.metrics() if energy is not None else {}

    def view(self) -> contract.Run | None:
        """Return the run as the exporter has it, running or ended; None without an exporter."""
        if self.run_id is None:
            return None
        try:
            return contract.Run.parse(self._api.get(f"/runs/{self.run_id}"))
        except (ExporterError, contract.RunFormatError) as error:
            log_message_once(f"cannot read run {self.run_id}: {error}")
        return None

    @property
    def energy_joules(self) -> float | None:
        """Energy of the whole GPUs, CPUs and memory of the run, once this process has ended it and
        it was measured.
        """
        return self._ended.known_energy().value if self._ended else None

    @property
    def uncertainty_joules(self) -> float | None:
        """Half-width of the 95 % confidence interval of `energy_joules`; None where it is
        unknown.
        """
        return self._ended.known_energy().half_width if self._ended else None

    @property
    def emissions_grams(self) -> float | None:
        """Emissions of `energy_joules` in g CO2eq; None where the carbon intensity is unknown."""
        return self._ended.emissions_g.complete().value if self._ended else None

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> None:
        """Post the work and the requests so far, for about `within_s`. Needed only before
        `os._exit`.
        """
        self._require_start()
        contributor = self._contributor()
        if contributor is not None:
            contributor.flush()
        self._flush_requests(within_s)
        self._flush_recorder()
