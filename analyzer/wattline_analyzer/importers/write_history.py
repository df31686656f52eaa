"""Writing of imported runs to a history file, without overwriting anything in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.api import MAX_LABEL_VALUE, MAX_LABELS
from wattline.contract.history import SCHEMA, SCHEMA_VERSION, canonical_labels
from wattline.contract.metrics import Metric
from wattline_analyzer.core.run_report import (
    FILE_LABEL,
    FORMAT_LABEL,
    LABELS_CUT,
    NOTES_LABELS,
    SPACING_LABEL,
)
from wattline_analyzer.core.sources.base import Progress, no_progress
from wattline_analyzer.importers.assemble import Assembly, ImportedRun
from wattline_analyzer.importers.exporter_run import SHOWN_AFTER_S, rows_of_import


class UnwritableError(Exception):
    """History file that cannot take the runs; nothing was written. The message has cause and
    remedy.
    """


def write_history(
    path: Path,
    assembly: Assembly,
    instance: str,
    progress: Progress = no_progress,
) -> int:
    """Return the number of samples written. Raises UnwritableError."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                count = _write(_History(connection, path, instance), assembly, progress)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return count
    except sqlite3.Error as error:
        raise UnwritableError(
            f"cannot write {path}: {error}; give --out a history.sqlite that no exporter writes"
        ) from error


@dataclass(frozen=True, slots=True)
class _History:
    """Open history, to which series of one instance are added."""

    connection: sqlite3.Connection
    path: Path
    instance: str

    def series(self, metric: Metric, labels: Mapping[str, str]) -> tuple[int, bool]:
        """Return the id of a series, which is created if necessary, and whether it may have
        samples.
        """
        key = (metric.name, canonical_labels({**labels, "instance": self.instance}))
        select = "SELECT id FROM series WHERE name = ? AND labels = ?"
        known = self.connection.execute(select, key).fetchone()
        if not known:
            self.connection.execute("INSERT INTO series (name, labels) VALUES (?, ?)", key)
        found = (
            known or self.connection.execute(select, key).fetchone()
        )  # an exporter's `series` is a view
        return int(found[0]), bool(known)

    def insert(
        self, metric: Metric, series: tuple[int, bool], samples: Sequence[tuple[int, float]]
    ) -> None:
        """Insert samples unless another run of the same log has them. Raises UnwritableError for
        another value.
        """
        series_id, has_samples = series
        if has_samples and samples:
            found = self.connection.execute(
                "SELECT t_ms, value FROM samples WHERE series_id = ? AND t_ms BETWEEN ? AND ?",
                (series_id, samples[0][0], samples[-1][0]),
            )
            there = dict(found.fetchall())
            for t_ms, value in samples:
                if there.get(t_ms, value) != value:
                    raise UnwritableError(
                        f"nothing was written: {self.path} has a different {metric.name} of "
                        f"{self.instance} at "
                        f"{t_ms / 1_000:.3f}; give another --node, or another --out"
                    )
            samples = [sample for sample in samples if sample[0] not in there]
        rows = ((t_ms, series_id, value) for t_ms, value in samples)
        self.connection.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)


def _write(history: _History, assembly: Assembly, progress: Callable[[str, float], None]) -> int:
    for statement in filter(str.strip, SCHEMA.split(";")):
        history.connection.execute(statement)
    history.connection.execute(
        "INSERT OR IGNORE INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),)
    )
    there = history.connection.execute(
        "SELECT value FROM meta WHERE key = 'schema_version'"
    ).fetchone()[0]
    if int(there) != SCHEMA_VERSION:
        raise UnwritableError(
            f"cannot write {history.path}: it has schema {there}, this version writes "
            f"{SCHEMA_VERSION}; "
            "give another --out"
        )
    _refuse_known(history.connection, history.path, assembly)
    count = 0
    total = sum(len(one.samples) for one in assembly.series)
    for one in assembly.series:
        series = history.series(one.metric, one.labels)
        last_ms = None
        for part in one.samples.parts():
            t_ms = np.rint(part.t * 1_000).astype(np.int64)
            kept = (
                np.diff(t_ms, prepend=t_ms[0] - 1 if last_ms is None else last_ms) > 0
            )  # the first of a millisecond
            last_ms = t_ms[-1]
            history.insert(
                one.metric,
                series,
                list(zip(t_ms[kept].tolist(), part.value[kept].tolist(), strict=True)),
            )
            count += int(kept.sum())
            progress("writing the history", count / total)
    progress("writing the history", 1.0)
    return count + _write_ledger(history, assembly)


def _write_ledger(history: _History, assembly: Assembly) -> int:
    written = set()
    for metric, labels, t_s, value in _ledger_samples(assembly):
        series = history.series(metric, labels)
        t_ms = round(t_s * 1_000)
        if (series[0], t_ms) not in written:  # two runs may have one GPU and one end
            history.insert(metric, series, [(t_ms, value)])
        written.add((series[0], t_ms))
    return len(written)


def _refuse_known(connection: sqlite3.Connection, path: Path, assembly: Assembly) -> None:
    imported = {run.run_id for run in assembly.runs}
    known = connection.execute(
        "SELECT json_extract(labels, '$.run_id') FROM series WHERE name = ?", (m.RUN_START.name,)
    )
    there = sorted(imported & {row[0] for row in known})
    if there:
        raise UnwritableError(
            f"nothing was written: {path} already has the run{'s' if len(there) > 1 else ''} "
            f"{', '.join(there)}; "
            "give another --out, or --run-id for a single run"
        )


def _ledger_samples(assembly: Assembly) -> Iterator[tuple[Metric, Mapping[str, str], float, float]]:
    for run in assembly.runs:
        for phase in run.file_run.phases:
            yield (
                m.RUN_PHASE_START,
                {"run_id": run.run_id, "phase": phase.name},
                phase.start_s,
                phase.start_s,
            )
        at_s = run.file_run.end_s + SHOWN_AFTER_S
        for metric, labels, value in rows_of_import(run, _labels(run)):
            yield metric, labels, at_s, value


def _labels(run: ImportedRun) -> dict[str, str]:
    """Return the labels of the file and of the import; the file's are cut to the limits of a run's
    labels.

    Raises UnwritableError if the import has too many notes.
    """
    spacings_s = [energy.spacing_s for energy in run.energies if energy.spacing_s is not None]
    about = {FORMAT_LABEL: "+".join(run.forms), FILE_LABEL: _names(run.files)}
    if spacings_s:
        about[SPACING_LABEL] = f"{max(spacings_s):.3g}"
    own = {name: text for name, text in run.file_run.labels.items() if len(text) <= MAX_LABEL_VALUE}
    notes = note_labels(run.file_run.caveats)
    if len(own) < len(run.file_run.labels) or len(own) + len(about) + len(notes) > MAX_LABELS:
        notes = note_labels([*run.file_run.caveats, LABELS_CUT])
    return {**dict(list(own.items())[: MAX_LABELS - len(about) - len(notes)]), **about, **notes}


def note_labels(notes: Sequence[str]) -> dict[str, str]:
    """Return the labels that hold all notes. Raises UnwritableError if there are too many."""
    texts: list[str] = []
    for note in notes:
        joined = f"{texts[-1]},{note}" if texts else note
        if texts and len(joined) <= MAX_LABEL_VALUE:
            texts[-1] = joined
        else:
            texts.append(note)
    if len(texts) > len(NOTES_LABELS) or any(len(text) > MAX_LABEL_VALUE for text in texts):
        raise UnwritableError(
            f"cannot store the notes of the import ({', '.join(notes)}): import fewer files at once"
        )
    return dict(zip(NOTES_LABELS, texts, strict=False))


def _names(files: tuple[str, ...]) -> str:
    """Return the paths, or as much of their end as fits into a label."""
    text = ", ".join(files)
    return text if len(text) <= MAX_LABEL_VALUE else f"…{text[1 - MAX_LABEL_VALUE :]}"
