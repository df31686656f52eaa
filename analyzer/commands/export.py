"""`analyzer export`: a run's raw samples for other programs."""

from __future__ import annotations

import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options import (
    DEFAULT_SINCE,
    Connection,
    SinceOption,
    fail,
    reads,
    say,
    seconds,
)

if TYPE_CHECKING:
    import pandas as pd


class Kind(StrEnum):
    OPENMETRICS = "openmetrics"
    CSV = "csv"
    PARQUET = "parquet"


_SUFFIXES = {".csv": Kind.CSV, ".parquet": Kind.PARQUET, ".om": Kind.OPENMETRICS, ".txt": Kind.OPENMETRICS}
_NO_PARQUET = "Parquet needs pyarrow, which is not installed: pip install 'wattline[parquet]'; or export to a .csv"


@reads
def export(
    connection: Connection,
    run_id: Annotated[str, typer.Option(help="The run; see: analyzer runs.")],
    out: Annotated[Path, typer.Option(help="The file to write; .om or .txt, .csv, .parquet.")],
    form: Annotated[Kind | None, typer.Option("--format", help="What to write, else by the name of --out.")] = None,
    margin: Annotated[str, typer.Option(help="How much before and after the run to take along: 2m, 1h.")] = "2m",
    since: SinceOption = DEFAULT_SINCE,
) -> None:
    """A run's raw samples: OpenMetrics for promtool and VictoriaMetrics, CSV, Parquet."""
    kind = form or _SUFFIXES.get(out.suffix.lower())
    if kind is None:
        raise typer.BadParameter(f"--format is needed: {out.name} ends in none of {', '.join(_SUFFIXES)}")
    since_s, margin_s = seconds(since), seconds(margin)
    if out.exists():
        fail(f"{out} is there already and is left as it is; give another --out")
    if kind is Kind.PARQUET:
        _check_parquet()
    from analyzer.sources.runs import AHEAD_S  # noqa: PLC0415  # pandas takes half a second
    from analyzer.sources.whole_run import whole_run  # noqa: PLC0415

    with connection.open() as chosen:
        now_s = time.time()
        frame = whole_run(chosen, run_id, (now_s - since_s, now_s + AHEAD_S), margin_s, say)
    _write(out, kind, frame)
    say(f"wrote {len(frame)} samples of {frame['metric'].nunique()} metrics to {out}{_next(kind, out)}")


def _check_parquet() -> None:
    from importlib.util import find_spec  # noqa: PLC0415

    if find_spec("pyarrow") is None:
        fail(_NO_PARQUET)


def _write(out: Path, kind: Kind, frame: pd.DataFrame) -> None:
    """Into a file beside it first, so that a half one is never taken for whole."""
    from analyzer.report import samples  # noqa: PLC0415  # pandas takes half a second

    part = out.with_name(f".{out.name}.part")
    try:
        if kind is Kind.OPENMETRICS:
            with part.open("w", encoding="utf-8") as file:
                file.writelines(samples.openmetrics(frame))
        elif kind is Kind.CSV:
            samples.table(frame).to_csv(part, index=False)
        else:
            samples.table(frame).to_parquet(part, index=False)
        part.replace(out)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        fail(f"cannot write {out}: {error.strerror or error}; give --out a place that you may write to")


def _next(kind: Kind, out: Path) -> str:
    if kind is not Kind.OPENMETRICS:
        return ""
    return (
        f"; Prometheus: promtool tsdb create-blocks-from openmetrics {out} DATA-FOLDER, "
        f"VictoriaMetrics: curl -X POST -T {out} http://HOST:8428/api/v1/import/prometheus"
    )
