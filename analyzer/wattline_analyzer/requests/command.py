"""`analyzer requests`: energy of each request to a server that generates text."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline.contract.work import SHARE_POLICY
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    NO_RUN_OR_RANGE,
    CarbonOption,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
    moment_option,
)
from wattline_analyzer.core.printing import (
    OutputFormat,
    exists,
    exit_with_error,
    print_message,
    require_folder,
    write_files,
)
from wattline_analyzer.core.window_options import PolicyOption, policy_option
from wattline_analyzer.report.options import price_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from wattline_analyzer.requests.client_runs import AnalyzedRequests
    from wattline_analyzer.requests.energy import ServerEnergy
    from wattline_analyzer.requests.report import RequestEnergyReport
    from wattline_analyzer.requests.table import Grouping, RequestTable
    from wattline_exporter.requests.division.division import RequestEnergies
    from wattline_exporter.requests.division.model import Role

COMMAND = {
    "name": "requests",
    "help": "Divide the energy of a server's GPUs among its requests.",
    "group": "Report",
}

_ROW_SUFFIXES = (".csv", ".parquet")
_PAGES = ("requests.html", "report.html")
"""Files by which a folder of the analyzer is known."""


@with_option_groups
def requests_command(
    *,
    run_id: Annotated[str | None, typer.Option(metavar="ID", help="Run of the server.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Start of a time range: of a part of the run, or without a run."
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="WHEN", help="End of the range (default: now).")
    ] = None,
    gpus: Annotated[
        str, typer.Option(metavar="0,1|UUID,…", help="GPUs of the range (default: all).")
    ] = "",
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="prefill=0,1|decode=2,3",
            help="GPUs of a role of a disaggregated server; give both roles.",
        ),
    ] = None,
    requests: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Requests in place of those that the exporter stored: JSON, JSON Lines or CSV, "
            "profile_export.jsonl of AIPerf, or the folder that a run of llm-server wrote; "
            "repeatable.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(metavar="LABELS", help="Labels of the groups, such as user,model, or length."),
    ] = "",
    policy: PolicyOption = SHARE_POLICY,
    top: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of requests in the table.")
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Folder for a page, a plot and a row for each request, or a new .csv or .parquet "
            "file of these rows.",
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, metavar="MONEY", help="Price of a kWh, to add costs.")
    ] = None,
    currency: Annotated[
        str, typer.Option(metavar="NAME", help="Currency of --price, e.g. EUR.")
    ] = "",
    carbon: CarbonOption = None,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    connection: ConnectionOptions,
) -> None:
    """Divide the energy of a server's GPUs among its requests."""
    policy_option(policy)
    cost = price_options(price, currency)
    since_s = duration_option(since)
    span_s = _range(run_id, start, end)
    roles = _roles(role or [])
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    if run_id is None and not requests:
        raise typer.BadParameter(
            "a time range needs --requests; the exporter stores requests by run (--run-id)"
        )
    if out is not None:
        _check_out(out)
    from wattline.figures import Figure
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.core.runs.load import Clock
    from wattline_analyzer.requests.client_runs import load_run_requests, requests_in_range
    from wattline_analyzer.requests.energy import fetch_range_energy, fetch_server_energy
    from wattline_analyzer.requests.file import read_requests
    from wattline_analyzer.requests.loaded_run import RunSearch
    from wattline_analyzer.requests.notes import attributed_notes
    from wattline_analyzer.requests.output import requests_output
    from wattline_analyzer.requests.part import part_of_requests
    from wattline_analyzer.requests.report import RequestEnergyReport
    from wattline_analyzer.requests.selection import part_notes, requests_with_energy
    from wattline_analyzer.requests.table import group_requests, groups_by, in_order_of_length

    given = read_requests(requests) if requests else None
    found: AnalyzedRequests
    with connection.open() as source:
        if run_id is not None:
            search = RunSearch(run_id, since_s, Clock(time.time, time.sleep, wait), print_message)
            found = of_server = load_run_requests(source, search, given, span_s)
            _check_labels(names, found.table.label_names)
            server = fetch_server_energy(source, of_server, roles)
        elif given is not None and span_s is not None:
            found = requests_in_range(given, span_s)
            _check_labels(names, given.label_names)
            server = fetch_range_energy(
                source, found, [one for one in gpus.split(",") if one], roles
            )
    table, counted, notes = requests_with_energy(
        replace(found.table, energies=None) if roles else found.table,  # divided by role again
        server.slots,
        found.counted,
        found.part_s,
    )
    part = None if counted is None else server.part(found.part_s, found.client_s)
    notes += part_notes(table, counted, part, found.client)
    of_run = table if counted is None else table.take(counted)
    grouping = groups_by(of_run, names)
    energies = part_of_requests(
        _divide(table, server, grouping, counted, run_id), counted, len(grouping.keys), part
    )
    if found.client and found.client_j is not None and part is not None:
        notes += attributed_notes(
            found.client, found.client_j, Figure(part.joules, energies.total_half_j)
        )
    shared = policy == SHARE_POLICY
    groups = in_order_of_length(
        group_requests(of_run, energies, grouping, idle_shared=shared), names
    )
    report = RequestEnergyReport(
        run_id,
        of_run,
        energies,
        groups,
        names,
        shared,
        notes + list(server.notes),
        cost,
        carbon,
        found.warnings + server.warnings,
        server.half_j,
    )
    if out is not None:
        _write(report, out, simulated=server.simulated)
    print_output(requests_output(report, top).marked(simulated=server.simulated), form)


def _divide(
    table: RequestTable,
    server: ServerEnergy,
    grouping: Grouping,
    counted: NDArray[np.bool_] | None,
    run_id: str | None,
) -> RequestEnergies:
    """Divide the energy of the server among all its requests; exit if that is impossible.

    `grouping` has the groups of the `counted` ones (N,); the others are in one further group.
    """
    from wattline_analyzer.requests.part import with_others
    from wattline_analyzer.requests.stored_division import stored_request_energies
    from wattline_exporter.requests.division.division import divide_all
    from wattline_exporter.requests.division.roles import divide_role, divide_roles

    groups = grouping.numbers if counted is None else with_others(grouping.numbers, counted)
    if table.energies is not None and server.divided is not None:
        return stored_request_energies(table, server.divided.totals, server.slots, groups)
    try:
        if server.roles:
            return divide_roles(table.spans, server.roles, groups)
        if (only := table.only_role) is not None:
            return divide_role(table.spans, server.slots, only, groups)
        return divide_all(table.spans, server.slots, untimed=table.untimed, groups=groups)
    except ValueError as error:
        remedy = (
            "measure a longer load, or report requests to the exporter and ask it before it stops: "
            "GET "
            "/api/v1/requests/ID"
        )
        exit_with_error(
            f"cannot divide the energy of {run_id or 'the time range'}: {error}; {remedy}"
        )


def _range(run_id: str | None, start: str | None, end: str | None) -> tuple[float, float] | None:
    """Return the time range in Unix seconds, None for a whole run. Raises typer.BadParameter."""
    if run_id is None and start is None:
        raise typer.BadParameter(NO_RUN_OR_RANGE)
    if start is None and end is None:
        return None
    now_s = time.time()
    start_s = -math.inf if start is None else moment_option(start, "--start", now_s)
    end_s = moment_option(end or "now", "--end", now_s)
    if start_s > now_s:
        raise typer.BadParameter("--start is in the future; give a time up to now")
    if end_s <= start_s:
        raise typer.BadParameter("--end is not after --start")
    return start_s, end_s


def _check_out(out: Path) -> None:
    """Exit for a file that exists, for an unknown format, for a folder with files of something
    else, and for one that cannot be written.
    """
    if out.suffix in _ROW_SUFFIXES:
        if exists(out):
            exit_with_error(
                f"cannot write {out}: it exists and is not overwritten; give another --out"
            )
        if out.suffix == ".parquet" and not find_spec("pyarrow"):
            exit_with_error(
                f"cannot write {out}: pyarrow is not installed; install 'wattline[parquet]', or "
                "give a .csv"
            )
    elif not exists(out):
        if out.suffix[1:].isalpha():
            exit_with_error(
                f"cannot write {out}: unknown format {out.suffix}; give a folder, or a .csv or "
                ".parquet file"
            )
    elif not out.is_dir():
        exit_with_error(f"cannot write to {out}: it is no folder; give another --out")
    elif any(out.iterdir()) and not any(exists(out / name) for name in _PAGES):
        exit_with_error(
            f"cannot write to {out}: it has files of something else; give a new folder as --out"
        )
    require_folder(out.parent if out.suffix in _ROW_SUFFIXES else out)


def _check_labels(names: Sequence[str], known: Sequence[str]) -> None:
    """Exit if no request has one of the labels."""
    from wattline_analyzer.requests.table import LENGTH

    if missing := [name for name in names if name != LENGTH and name not in known]:
        has = f"they have {', '.join(known)}" if known else "they have no labels"
        exit_with_error(
            f"--by {missing[0]}: no request has this label; {has}, and {LENGTH} is always possible"
        )


def _roles(texts: list[str]) -> dict[Role, list[str]]:
    """Return the GPUs of each role. Raises typer.BadParameter."""
    found: dict[Role, list[str]] = {}
    names: dict[str, Role] = {"prefill": "prefill", "decode": "decode"}
    for text in texts:
        name, _, gpus = text.partition("=")
        if name in names:
            found[names[name]] = [one.strip() for one in gpus.split(",") if one.strip()]
    if texts and (
        len(found) < 2 or not all(found.values()) or set(found["prefill"]) & set(found["decode"])
    ):
        raise typer.BadParameter(
            "--role: expected both prefill=0,1 and decode=2,3, with different GPUs"
        )
    return found


def _write(report: RequestEnergyReport, out: Path, *, simulated: bool) -> None:
    import pandas as pd

    from wattline_analyzer.requests.output import request_columns

    frame = pd.DataFrame(request_columns(report))
    parquet = out.suffix == ".parquet"
    if not parquet and out.suffix not in _ROW_SUFFIXES:
        from wattline_analyzer.requests.page import requests_page
        from wattline_analyzer.requests.plot import requests_plot

        rows_file = "requests.parquet" if find_spec("pyarrow") else "requests.csv"
        rows = (
            frame.to_parquet(index=False)
            if find_spec("pyarrow")
            else frame.to_csv(index=False).encode()
        )
        page = requests_page(report, rows_file, simulated=simulated).encode()
        write_files(
            out, {"requests.html": page, "requests.png": requests_plot(report), rows_file: rows}
        )
        return
    content = frame.to_parquet(index=False) if parquet else frame.to_csv(index=False).encode()
    try:
        with out.open("xb") as file:
            file.write(content)
    except OSError as error:
        exit_with_error(
            f"cannot write {out}: {error.strerror}; give --out a path with write permission"
        )
    print_message(f"wrote {len(frame)} requests to {out}")
