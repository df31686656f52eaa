"""`analyzer export`: a run's raw samples for other programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.connection import DEFAULT_SINCE, Connection, SinceOption, fail, reads, say, seconds
from exporter.contract.installation import install

if TYPE_CHECKING:
    from analyzer.model.samples import Series


class Kind(StrEnum):
    OPENMETRICS = "openmetrics"
    CSV = "csv"
    PARQUET = "parquet"


_SUFFIXES = {".csv": Kind.CSV, ".parquet": Kind.PARQUET, ".om": Kind.OPENMETRICS, ".txt": Kind.OPENMETRICS}
_NO_PARQUET = f"Parquet needs pyarrow, which is not installed: {install('parquet')}; or export to a .csv"


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
    from analyzer.sources.runs.raw import whole_run
    from analyzer.sources.runs.runs import AHEAD_S
    from analyzer.sources.spool import Spool

    with _written_to(out), TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        spool, now_s = Spool(Path(folder)), time.time()
        with connection.open() as chosen:
            for part in whole_run(chosen, run_id, (now_s - since_s, now_s + AHEAD_S), margin_s, say):
                spool.add(part)
        counted = Counted(spool.series())
        _write(Path(folder) / "whole", kind, counted, spool.label_names)
        (Path(folder) / "whole").replace(out)
    say(f"wrote {counted.samples} samples of {len(counted.metrics)} metrics to {out}{_next(kind, out)}")


class Counted:
    """What went by."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._series = series
        self.samples = 0
        self.metrics: set[str] = set()

    def __iter__(self) -> Iterator[Series]:
        for one in self._series:
            self.metrics.add(one[0]["__name__"])
            self.samples += len(one[1])
            yield one


@contextmanager
def _written_to(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}; give --out a place that you may write to")


def _check_parquet() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        fail(_NO_PARQUET)


def _write(path: Path, kind: Kind, series: Iterable[Series], names: list[str]) -> None:
    """Beside what is asked for first, so that a half one is never taken for whole."""
    from analyzer.output import export as samples

    if kind is Kind.PARQUET:
        samples.write_parquet(path, series, names)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(samples.openmetrics(series) if kind is Kind.OPENMETRICS else samples.rows_csv(series, names))


def _next(kind: Kind, out: Path) -> str:
    if kind is not Kind.OPENMETRICS:
        return ""
    return (
        f"; Prometheus: promtool tsdb create-blocks-from openmetrics {out} DATA-FOLDER, "
        f"VictoriaMetrics: curl -X POST -T {out} http://HOST:8428/api/v1/import/prometheus"
    )
