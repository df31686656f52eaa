"""`workloads caps`: display and restoration of power limits and clocks."""

from __future__ import annotations

import contextlib
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattline.client.messages import log_message

if TYPE_CHECKING:
    from wattline_workloads.caps.gpu_set import GpuSet
    from wattline_workloads.caps.journal import Journal

app = typer.Typer(
    help="Show or restore the power limits and clocks that sweeps set.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Simulated = Annotated[
    Path | None,
    typer.Option(
        "--simulation",
        metavar="FILE",
        help="State file of simulated GPUs: simulation.state in the --state.path of their "
        "exporter.",
    ),
]


class CapsFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.command("show", short_help="Show the power limits of the GPUs.")
def show_caps(
    simulation: Simulated = None,
    form: Annotated[
        CapsFormat, typer.Option("--format", metavar="|".join(CapsFormat), help="Output format.")
    ] = CapsFormat.TABLE,
) -> None:
    """Show the power limit of each GPU, its range, and the process that holds it."""
    from wattline_workloads.caps import journal as caps_journal
    from wattline_workloads.caps.gpu_set import CapsError, open_gpu_set

    try:
        journals = [
            caps_journal.read_journal(path) for path in caps_journal.journal_paths(_folder())
        ]
        with contextlib.closing(
            open_gpu_set(None, str(simulation) if simulation else None)
        ) as gpus:
            rows = [_row(gpus, uuid, journals) for uuid in gpus.uuids]
    except (CapsError, FileNotFoundError) as error:
        where = "the simulation.state in the --state.path of their exporter"
        log_message(
            f"{error}{'' if simulation else f'; for simulated GPUs add --simulation FILE, {where}'}"
        )
        raise typer.Exit(1) from error
    if form is CapsFormat.JSON:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"{row['name']:<40} {row['power_limit_watts']:5g} W of {row['least_watts']:g} to "
            f"{row['most_watts']:g} W, "
            f"default {row['default_watts']:g} W{_holder_text(row)}"
        )


@app.command("restore")
def restore_caps(
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Restore even if the process that holds the limit runs or is in another "
            "container.",
        ),
    ] = False,
) -> None:
    """Restore the power limits and clocks that a killed sweep left set."""
    from wattline_workloads.caps import journal as caps_journal
    from wattline_workloads.caps.gpu_set import CapsError

    try:
        with caps_journal.lock_journals(_folder()):
            paths = caps_journal.journal_paths(_folder())
            left = [path for path in paths if not _restore_one(path, force=force)]
    except CapsError as error:
        log_message(str(error))
        raise typer.Exit(1) from error
    if not paths:
        log_message(f"nothing to restore: {_folder()} has no journal of a process that set caps")
    raise typer.Exit(1 if left else 0)


def _restore_one(path: Path, *, force: bool) -> bool:
    """Restore one journal; return False if it remains. An error does not stop the restoration of
    other journals.
    """
    from wattline_workloads.caps import journal as caps_journal
    from wattline_workloads.caps.gpu_set import CapsError
    from wattline_workloads.caps.journal import open_journal_gpus

    try:
        holder = caps_journal.read_journal(path).holder
    except FileNotFoundError:  # its holder has just ended
        return True
    except CapsError as error:
        log_message(str(error))
        return False
    if holder.is_alive and not force:
        log_message(
            f"process {holder.pid} is running and will restore its limits at its end; use --force "
            "to restore them now"
        )
        return False
    return caps_journal.restore_journal(path, open_journal_gpus, log_message)


def _folder() -> Path:
    from wattline.command_line import user_state_folder
    from wattline_workloads.caps import journal as caps_journal

    return user_state_folder(os.environ) / caps_journal.FOLDER


def _row(gpus: GpuSet, uuid: str, journals: list[Journal]) -> dict[str, Any]:
    power = gpus.power(uuid)
    of_gpu = [
        (journal.holder, before.power_limit_w)
        for journal in journals
        for before in journal.initial_limits
        if before.uuid == uuid and journal.simulation == gpus.simulation
    ]
    holder, before_w = of_gpu[0] if of_gpu else (None, None)
    return {
        "name": gpus.name(uuid),
        "uuid": uuid,
        "power_limit_watts": power.now_w,
        "least_watts": power.least_w,
        "most_watts": power.most_w,
        "default_watts": power.default_w,
        "holder_pid": holder.pid if holder else None,
        "holder_is_alive": holder.is_alive if holder else None,
        "before_watts": before_w,
    }


def _holder_text(row: dict[str, Any]) -> str:
    if row["holder_pid"] is None:
        return ""
    if row["holder_is_alive"]:
        return f"; process {row['holder_pid']} will restore {row['before_watts']:g} W"
    return (
        f"; left by ended process {row['holder_pid']}: restore {row['before_watts']:g} W with "
        "workloads caps restore"
    )
