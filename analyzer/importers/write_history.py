"""Imported runs into a history file. Nothing in it is overwritten: a run that is there already is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from analyzer.assess.imported import FILE_LABEL, FORMAT_LABEL, NOTES_LABEL, SPACING_LABEL
from analyzer.importers import ledger
from analyzer.importers.assemble import Assembled, AssembledRun
from analyzer.importers.ledger import LONGEST
from analyzer.sources.error import SourceError
from exporter.contract import metrics as m
from exporter.contract.history import SCHEMA, SCHEMA_VERSION, canonical_labels
from exporter.contract.metrics import Metric
from exporter.contract.run import MAX_LABELS

_SHOWN_AFTER_S = 2.0
"""How long after its end a run's figures are stamped, which is when an exporter's are final."""

_Sample = tuple[Metric, Mapping[str, str], float, float]


def write(path: Path, found: Assembled, instance: str) -> int:
    """How many samples were written. Raises SourceError; then nothing was."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                count = _write(connection, path, found, instance)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return count
    except sqlite3.Error as error:
        raise SourceError(
            f"cannot write {path}: {error}", "give --out a history.sqlite that no exporter writes"
        ) from error


def _write(connection: sqlite3.Connection, path: Path, found: Assembled, instance: str) -> int:
    for statement in filter(str.strip, SCHEMA.split(";")):
        connection.execute(statement)
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
    there = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()[0]
    if int(there) != SCHEMA_VERSION:
        raise SourceError(f"{path} has schema {there}, this version writes {SCHEMA_VERSION}", "give another --out")
    _refuse_known(connection, path, found)
    ids: dict[tuple[str, str], int] = {}
    written: set[tuple[int, int]] = set()
    for metric, labels, t_s, value in _samples(found):
        key = (metric.name, canonical_labels({**labels, "instance": instance}))
        if key not in ids:
            ids[key] = _series(connection, key)
        place = (round(t_s * 1_000), ids[key])
        if place in written:  # two samples within a millisecond: the first stays
            continue
        written.add(place)
        _insert(connection, path, place, value, f"{metric.name} of {instance}")
    return len(written)


def _insert(connection: sqlite3.Connection, path: Path, place: tuple[int, int], value: float, what: str) -> None:
    """The same sample may be there from another run of the same log, another one may not."""
    there = connection.execute("SELECT value FROM samples WHERE t_ms = ? AND series_id = ?", place).fetchone()
    if there is None:
        connection.execute("INSERT INTO samples VALUES (?, ?, ?)", (*place, value))
    elif there[0] != value:
        raise SourceError(
            f"{path} has another {what} at {place[0] / 1_000:.3f} already",
            "nothing was written; give another --node, or another --out",
        )


def _refuse_known(connection: sqlite3.Connection, path: Path, found: Assembled) -> None:
    mine = {run.run_id for run in found.runs}
    known = connection.execute(
        "SELECT json_extract(labels, '$.run_id') FROM series WHERE name = ?", (m.RUN_START.name,)
    )
    there = sorted(mine & {row[0] for row in known})
    if there:
        raise SourceError(
            f"{path} has the run{'s' if len(there) > 1 else ''} {', '.join(there)} already",
            "nothing was written; give another --out, or --run-id where there is one run",
        )


def _series(connection: sqlite3.Connection, key: tuple[str, str]) -> int:
    found = connection.execute("SELECT id FROM series WHERE name = ? AND labels = ?", key).fetchone()
    if found:
        return int(found[0])
    return int(connection.execute("INSERT INTO series (name, labels) VALUES (?, ?)", key).lastrowid or 0)


def _samples(found: Assembled) -> Iterator[_Sample]:
    for track in found.tracks:
        for t_s, value in zip(track.samples.t.tolist(), track.samples.value.tolist(), strict=True):
            yield track.metric, track.labels, t_s, value
    for run in found.runs:
        at_s = run.told.end_s + _SHOWN_AFTER_S
        for metric, labels, value in ledger.rows(run, _labels(run)):
            yield metric, labels, at_s, value


def _labels(run: AssembledRun) -> dict[str, str]:
    """The file's own, and where the run comes from; the file's make room."""
    spacings_s = [energy.spacing_s for energy in run.energies if energy.spacing_s is not None]
    about = {FORMAT_LABEL: "+".join(run.forms), FILE_LABEL: _names(run.files)}
    if spacings_s:
        about[SPACING_LABEL] = f"{max(spacings_s):.3g}"
    if run.told.caveats:
        about[NOTES_LABEL] = ",".join(run.told.caveats)
    return {**dict(list(run.told.labels.items())[: MAX_LABELS - len(about)]), **about}


def _names(files: tuple[str, ...]) -> str:
    """What fits into a label; of a long path, its end."""
    text = ", ".join(files)
    return text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}"
