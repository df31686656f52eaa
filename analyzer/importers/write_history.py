"""Writing of imported runs to a history file, without overwriting anything in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from analyzer.importers.assemble import Assembly, ImportedRun
from analyzer.importers.ledger import LONGEST_LABEL, ledger_rows
from analyzer.model.report import FILE_LABEL, FORMAT_LABEL, NOTES_LABEL, SPACING_LABEL
from exporter.contract import metrics as m
from exporter.contract.history import SCHEMA, SCHEMA_VERSION, canonical_labels
from exporter.contract.metrics import Metric
from exporter.contract.run import MAX_LABELS

_SHOWN_AFTER_S = 2.0
"""Time between a run's end and the timestamp of its figures: an exporter's figures are final then."""

_Sample = tuple[Metric, Mapping[str, str], float, float]


class UnwritableError(Exception):
    """History file that cannot take the runs; nothing was written. The message has cause and remedy."""


def write_history(path: Path, assembly: Assembly, instance: str) -> int:
    """Return the number of samples written. Raises UnwritableError."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                count = _write(connection, path, assembly, instance)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return count
    except sqlite3.Error as error:
        raise UnwritableError(
            f"cannot write {path}: {error}; give --out a history.sqlite that no exporter writes"
        ) from error


def _write(connection: sqlite3.Connection, path: Path, assembly: Assembly, instance: str) -> int:
    for statement in filter(str.strip, SCHEMA.split(";")):
        connection.execute(statement)
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
    there = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()[0]
    if int(there) != SCHEMA_VERSION:
        raise UnwritableError(
            f"cannot write {path}: it has schema {there}, this version writes {SCHEMA_VERSION}; give another --out"
        )
    _refuse_known(connection, path, assembly)
    ids: dict[tuple[str, str], int] = {}
    written: set[tuple[int, int]] = set()
    for metric, labels, t_s, value in _samples(assembly):
        key = (metric.name, canonical_labels({**labels, "instance": instance}))
        if key not in ids:
            ids[key] = _series(connection, key)
        place = (round(t_s * 1_000), ids[key])
        if place in written:  # of two samples within a millisecond the first is kept
            continue
        written.add(place)
        _insert(connection, path, place, value, f"{metric.name} of {instance}")
    return len(written)


def _insert(connection: sqlite3.Connection, path: Path, place: tuple[int, int], value: float, what: str) -> None:
    """Insert a sample unless another run of the same log has it. Raises UnwritableError for a different value."""
    there = connection.execute("SELECT value FROM samples WHERE t_ms = ? AND series_id = ?", place).fetchone()
    if there is None:
        connection.execute("INSERT INTO samples VALUES (?, ?, ?)", (*place, value))
    elif there[0] != value:
        raise UnwritableError(
            f"nothing was written: {path} has a different {what} at {place[0] / 1_000:.3f}; "
            "give another --node, or another --out"
        )


def _refuse_known(connection: sqlite3.Connection, path: Path, assembly: Assembly) -> None:
    imported = {run.run_id for run in assembly.runs}
    known = connection.execute(
        "SELECT json_extract(labels, '$.run_id') FROM series WHERE name = ?", (m.RUN_START.name,)
    )
    there = sorted(imported & {row[0] for row in known})
    if there:
        raise UnwritableError(
            f"nothing was written: {path} already has the run{'s' if len(there) > 1 else ''} {', '.join(there)}; "
            "give another --out, or --run-id for a single run"
        )


def _series(connection: sqlite3.Connection, key: tuple[str, str]) -> int:
    select = "SELECT id FROM series WHERE name = ? AND labels = ?"
    found = connection.execute(select, key).fetchone()
    if not found:
        connection.execute("INSERT INTO series (name, labels) VALUES (?, ?)", key)
        found = connection.execute(select, key).fetchone()  # in an exporter's file, `series` is a view
    return int(found[0])


def _samples(assembly: Assembly) -> Iterator[_Sample]:
    for one in assembly.series:
        for t_s, value in zip(one.samples.t.tolist(), one.samples.value.tolist(), strict=True):
            yield one.metric, one.labels, t_s, value
    for run in assembly.runs:
        for phase in run.file_run.phases:
            yield m.RUN_PHASE_START, {"run_id": run.run_id, "phase": phase.name}, phase.start_s, phase.start_s
        at_s = run.file_run.end_s + _SHOWN_AFTER_S
        for metric, labels, value in ledger_rows(run, _labels(run)):
            yield metric, labels, at_s, value


def _labels(run: ImportedRun) -> dict[str, str]:
    """Return the labels of the file and of the import; the file's are cut to the limit of labels."""
    spacings_s = [energy.spacing_s for energy in run.energies if energy.spacing_s is not None]
    about = {FORMAT_LABEL: "+".join(run.forms), FILE_LABEL: _names(run.files)}
    if spacings_s:
        about[SPACING_LABEL] = f"{max(spacings_s):.3g}"
    if run.file_run.caveats:
        about[NOTES_LABEL] = ",".join(run.file_run.caveats)
    return {**dict(list(run.file_run.labels.items())[: MAX_LABELS - len(about)]), **about}


def _names(files: tuple[str, ...]) -> str:
    """Return the paths, or as much of their end as fits into a label."""
    text = ", ".join(files)
    return text if len(text) <= LONGEST_LABEL else f"…{text[1 - LONGEST_LABEL :]}"
