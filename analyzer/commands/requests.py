"""`analyzer requests`: energy of each request to a server that generates text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.fleet import PolicyOption, policy_option
from analyzer.commands.options.report import price_options
from analyzer.commands.options.shared import (
    DEFAULT_SINCE,
    CarbonOption,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
)
from analyzer.commands.printing import OutputFormat, exit_with_error, print_message
from exporter.contract.command_line import with_option_groups
from exporter.contract.work import SHARE_POLICY

if TYPE_CHECKING:
    from analyzer.output.studies.requests import RequestReport


@with_option_groups
def requests_command(
    *,
    run_id: Annotated[str, typer.Option(metavar="ID", help="Run of the server.")],
    requests: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE|FOLDER",
            help="Requests as JSON, JSON Lines or CSV, or the folder that a run of llm-server wrote; repeatable.",
        ),
    ],
    by: Annotated[str, typer.Option(metavar="LABELS", help="Labels of the groups, such as user,model.")] = "",
    policy: PolicyOption = SHARE_POLICY,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Number of requests in the table.")] = 10,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="New CSV file with a row for each request.")] = None,
    price: Annotated[float | None, typer.Option(min=0, metavar="MONEY", help="Price of a kWh, to add costs.")] = None,
    currency: Annotated[str, typer.Option(metavar="NAME", help="Currency of --price, e.g. EUR.")] = "",
    carbon: CarbonOption = None,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    connection: ConnectionOptions,
) -> None:
    """Divide the energy of a server's GPUs among its requests."""
    policy_option(policy)
    cost, since_s = price_options(price, currency), duration_option(since)
    if out is not None and out.exists():
        exit_with_error(f"cannot write {out}: it exists and is not overwritten; give another --out")
    from analyzer.commands.printing import print_output
    from analyzer.output.studies.requests import RequestReport, requests_output
    from analyzer.sources.requests.energy import fetch_server_energy, request_notes
    from analyzer.sources.requests.file import read_requests
    from analyzer.sources.runs.load import Clock
    from analyzer.studies.requests.table import group_requests
    from exporter.request_energy.divide import divide_energy

    table = read_requests(requests)
    with connection.open() as source:
        server = fetch_server_energy(source, run_id, since_s, Clock(time.time, time.sleep, wait), print_message)
    notes = [*request_notes(table, server.slots), *server.notes]
    try:
        energies = divide_energy(table.spans, server.slots, separate=not table.untimed)
    except ValueError as error:
        exit_with_error(f"cannot divide the energy of run {run_id}: {error}")
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    shared = policy == SHARE_POLICY
    groups = group_requests(table, energies, names, idle_shared=shared)
    report = RequestReport(run_id, table, energies, groups, names, shared, notes, cost, carbon)
    if out is not None:
        _write(report, out)
    print_output(requests_output(report, top).marked(simulated=server.simulated), form)


def _write(report: RequestReport, out: Path) -> None:
    import csv

    from analyzer.output.studies.requests import request_rows

    rows = list(request_rows(report))
    try:
        with out.open("x", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        exit_with_error(f"cannot write {out}: {error.strerror}; give --out a path with write permission")
    print_message(f"wrote {len(rows)} requests to {out}")
