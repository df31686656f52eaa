"""`analyzer runs`: list of the runs at a source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    FormatOption,
)
from wattline_analyzer.core.printing import OutputFormat, print_message, table_limit
from wattline_analyzer.core.window_options import window_options

if TYPE_CHECKING:
    from wattline.contract.run import Run
    from wattline_analyzer.core.devices import GpuModel
    from wattline_analyzer.core.facts import Fact
    from wattline_analyzer.core.recorded_run import RunScrapes
    from wattline_analyzer.core.run_catalog import RunEntry
    from wattline_analyzer.core.sources.base import SampleSource
    from wattline_analyzer.core.tables import Table

COMMAND = {
    "name": "runs",
    "help": "List the runs at the source.",
    "group": "Report",
}

_AT_ONCE = 8
"""Number of runs that are requested ahead."""
_SAME_START_S = 1.0
"""Largest difference of the starts of one run in a ledger and in samples, whose clocks may have
been set.
"""
_SHARED = (
    "GPU energy: of the whole GPUs. Add up Attributed, the share of each run: the rest is of other "
    "users, or not "
    "attributed to a run."
)


@with_option_groups
def runs_command(
    *,
    form: FormatOption = OutputFormat.TABLE,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time to search for runs, up to now: 12h, 30d, or since 2026-11-01.",
        ),
    ] = DEFAULT_SINCE,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of runs to list, newest first (default: 50 as a table, else all).",
        ),
    ] = None,
    connection: ConnectionOptions,
) -> None:
    """List the runs at the source, newest first."""
    now_s = time.time()
    since_s = now_s - window_options(since, "now", now_s)[0]
    limit = limit or table_limit(form)
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.core.sources.open import missing_data_remedy
    from wattline_analyzer.core.tables import CommandOutput

    with connection.open() as source:
        with closing(_Ledgers(source)) as ledgers:
            runs = _list_runs(source, ledgers, since_s, limit)
        if not runs:
            print_message(
                f"no run at {source.name} {_since_text(since)}; start one with workloads run, see "
                "--since, or "
                f"{missing_data_remedy(source)}"
            )
            if form is OutputFormat.TABLE:
                return
        table = _run_table(runs)
    rows = table.records()
    hidden = set() if any(row["simulated"] for row in rows) else {"simulated"}
    shared = any(run.shared for run in runs)
    hidden |= set() if shared else {"attributed_gpu_energy_joules"}
    keys = [column.key for column in table.columns if column.key not in hidden]
    shown = table.select(table.title, keys, [_SHARED] if shared else [])
    print_output(CommandOutput([shown], rows, rows, table.keys()), form)


def _since_text(since: str) -> str:
    return (
        f"in the last {since}" if since[-1:].isalpha() and since[-1:] != "Z" else f"since {since}"
    )


class _Ledgers:
    """Ledgers of the exporters that answer: of the source, and of this machine."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._local: SampleSource | None = None
        self._is_local_known = False

    def ended(self, run: Run, scrapes: RunScrapes) -> Run | None:
        """Return the ledger's record of a run whose end was not scraped; None if no ledger has
        it as ended.

        A ledger has only its own node's part of a run, so that runs of several nodes stay as they
        were scraped.
        """
        from wattline_analyzer.core.runs.run_state import ledger_run

        if run.state == "ended" or len(scrapes.windows) > 1:
            return None
        known = ledger_run(self._source, run.run_id)
        if known is None and (local := self._local_exporter()):
            known = ledger_run(local, run.run_id)
        if known is None or known.state != "ended":
            return None
        return known if abs(known.started_at - run.started_at) <= _SAME_START_S else None

    def _local_exporter(self) -> SampleSource | None:
        from wattline_analyzer.core.sources.open import running_exporter

        if not self._is_local_known:
            self._local = running_exporter()
            self._is_local_known = True
        return self._local

    def close(self) -> None:
        if self._local is not None:
            self._local.close()


def _list_runs(
    source: SampleSource, ledgers: _Ledgers, since_s: float, limit: int | None
) -> list[RunEntry]:
    from wattline.contract.metrics import GPU_INFO
    from wattline_analyzer.core.recorded_run import gpu_models, read_run
    from wattline_analyzer.core.run_catalog import run_entry
    from wattline_analyzer.core.runs import load
    from wattline_analyzer.core.runs.scrapes import AHEAD_S, PATIENCE_S, scrape_timing
    from wattline_analyzer.core.sample_table import table_of

    now_s = time.time()
    scrapes = _active_since(
        source, now_s - since_s, load.last_scrapes(source, now_s - since_s, now_s + AHEAD_S)
    )
    newest = list(dict.fromkeys(row.labels["run_id"] for row in reversed(scrapes)))
    if limit is not None and len(newest) > limit:
        print_message(
            f"showing the newest {limit} of {len(newest)} runs; --limit {len(newest)} lists all"
        )
    timing = scrape_timing(source, now_s, set())
    found = []
    rows_by_run = {
        run_id: [row for row in scrapes if row.labels["run_id"] == run_id]
        for run_id in newest[:limit]
    }
    requests = [load.facts_request(run_id, rows) for run_id, rows in rows_by_run.items()]
    if not requests:
        return []
    times_s = [row.t for rows in rows_by_run.values() for row in rows]
    infos = source.facts([GPU_INFO], {}, min(times_s) - PATIENCE_S, max(times_s))
    facts_by_run = []
    for request in requests[:_AT_ONCE]:
        source.prefetch(*request)
    for number, request in enumerate(requests):
        for following in requests[number + _AT_ONCE :][:1]:
            source.prefetch(*following)
        facts_by_run.append(source.facts(*request))
    models = _earlier_models(source, facts_by_run, gpu_models(infos), max(times_s))
    for facts, rows in zip(facts_by_run, rows_by_run.values(), strict=True):
        fresh = timing is not None and max(row.t for row in rows) >= now_s - max(
            3 * timing.interval_s, PATIENCE_S
        )
        scraped, scrapes_of_run = read_run(facts, table_of(()), models)
        run = ledgers.ended(scraped, scrapes_of_run) or scraped
        found.append(run_entry(run, fresh=fresh, models=models))
    return found


def _earlier_models(
    source: SampleSource,
    facts_by_run: Sequence[Sequence[Fact]],
    models: dict[str, GpuModel],
    until_s: float,
) -> dict[str, GpuModel]:
    """Add the GPUs that are not visible now, such as after a restart of the exporter, from the time
    of their runs.
    """
    from wattline.contract.metrics import GPU_INFO, RUN_ENERGY, RUN_START
    from wattline_analyzer.core.recorded_run import gpu_models

    starts_s: list[float] = []
    for facts in facts_by_run:
        gpus = {
            fact.labels["device"]
            for fact in facts
            if fact.metric is RUN_ENERGY and fact.labels["component"] == "gpu"
        }
        if gpus - models.keys():
            starts_s += [fact.value for fact in facts if fact.metric is RUN_START]
    if not starts_s:
        return models
    return gpu_models(source.facts([GPU_INFO], {}, min(starts_s), until_s)) | models


def _active_since(source: SampleSource, start_s: float, scrapes: Sequence[Fact]) -> list[Fact]:
    """Return the scrapes of the runs that did not end before a time; ended runs are scraped for ten
    minutes more.
    """
    from wattline.contract.metrics import RUN_END

    if not scrapes:
        return []
    ends = source.facts([RUN_END], {}, start_s, max(row.t for row in scrapes))
    ends_s = {(end.instance, end.labels["run_id"]): end.value for end in ends}
    active = {
        row.labels["run_id"]
        for row in scrapes
        if ends_s.get((row.instance, row.labels["run_id"]), start_s) >= start_s
    }
    return [row for row in scrapes if row.labels["run_id"] in active]


def _run_table(runs: Sequence[RunEntry]) -> Table:
    """Return one row per run; ids are never wrapped, so that they can be copied."""
    from wattline_analyzer.core import units
    from wattline_analyzer.core.tables import (
        Cell,
        Column,
        Table,
        duration_cell,
        energy_cell,
        joules_cell,
        text_cell,
    )

    columns = (
        Column("Run", "run_id", text=True, whole=True),
        Column("Workload", "workload", text=True),
        Column("State", "state", text=True),
        Column("Hardware", "simulated", text=True),
        Column("Started (local)", "started_at_unix_seconds", text=True, whole=True),
        Column("Duration", "duration_seconds"),
        Column("GPU energy", "gpu_energy_joules", "uncertainty"),
        Column("Attributed", "attributed_gpu_energy_joules"),
        Column("Labels", "labels", text=True),
    )
    largest_j = units.largest(run.gpu_energy for run in runs)
    rows = [
        [
            *(text_cell(text) for text in (run.run_id, run.workload, run.state)),
            Cell("SIMULATED" if run.simulated else "", run.simulated),
            Cell(units.moment(run.started_at_s)[:19], run.started_at_s, "s"),
            duration_cell(run.duration_s),
            energy_cell(run.gpu_energy, largest_j),
            joules_cell(run.attributed_gpu_j, largest_j),
            Cell(
                " ".join(f"{name}={text}" for name, text in sorted(run.labels.items())),
                dict(run.labels),
            ),
        ]
        for run in runs
    ]
    return Table("", columns, rows)
