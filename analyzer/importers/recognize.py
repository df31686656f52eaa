"""Recognition of the format of files and folders, and their contents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from analyzer.importers.content import FileContent, ReadOptions, UnreadableError
from analyzer.importers.formats import (
    aiperf,
    aipowermeter,
    gpu_tune,
    iris,
    ml_energy,
    nvidia_smi,
    run_record,
    tenant_events,
    wall_meter,
)
from analyzer.importers.text import csv_header, read_text
from exporter.contract.run import EVENTS_FILE, METRICS_FILE

READERS: dict[str, Callable[[Path, ReadOptions], FileContent]] = {
    run_record.FORM: run_record.read_run_record,
    gpu_tune.FORM: gpu_tune.read_gpu_tune,
    iris.FORM: iris.read_iris,
    tenant_events.FORM: tenant_events.read_tenant_events,
    aipowermeter.FORM: aipowermeter.read_aipowermeter,
    nvidia_smi.FORM: nvidia_smi.read_nvidia_smi,
    wall_meter.FORM: wall_meter.read_wall_meter,
    aiperf.FORM: aiperf.read_aiperf,
    ml_energy.FORM: ml_energy.read_ml_energy,
}
AUTO = "auto"
_TABLES = (
    (gpu_tune.is_gpu_tune, gpu_tune.FORM),
    (iris.is_iris, iris.FORM),
    (nvidia_smi.is_nvidia_smi, nvidia_smi.FORM),
    (wall_meter.is_wall_meter, wall_meter.FORM),
)
_DOCUMENTS = ((ml_energy.is_ml_energy, ml_energy.FORM), (aiperf.is_aiperf, aiperf.FORM))
_EVENTS = ((run_record.is_run_record, run_record.FORM), (tenant_events.is_tenant_events, tenant_events.FORM))
_WITH_ANOTHER = (METRICS_FILE, ml_energy.TIMES_FILE)
"""Names of files that are read together with another file."""
_SUFFIXES = (".csv", ".json", ".jsonl")


def read_files(paths: Iterable[Path], form: str, options: ReadOptions, log: Callable[[str], None]) -> list[FileContent]:
    """Return the contents of the files, and of the files in folders. Raises UnreadableError.

    A file inside a folder may have an unknown format: it is logged and left out.
    """
    found = []
    for path in paths:
        if not path.exists():
            raise UnreadableError(f"cannot read {path}: no such file; check the path")
        if path.is_dir():
            inside = list(_inside(path, form, options, log))
            if not inside:
                raise UnreadableError(f"cannot import {path}: it holds no file of a known format: {', '.join(READERS)}")
            found += inside
        else:
            found.append(_read(path, form, options))
    return found


def _inside(folder: Path, form: str, options: ReadOptions, log: Callable[[str], None]) -> Iterator[FileContent]:
    for path in sorted(one for one in folder.rglob("*") if one.suffix in _SUFFIXES and one.is_file()):
        if path.name in _WITH_ANOTHER:
            continue
        kind = recognize_format(path) if form == AUTO else form
        if kind is None:
            log(f"left out {path}: unknown format")
        else:
            yield READERS[kind](path, options)


def _read(path: Path, form: str, options: ReadOptions) -> FileContent:
    if path.name == METRICS_FILE:
        raise UnreadableError(
            f"cannot import {path}: it holds only totals; give its folder, or the {iris.SERIES_FILE} in it"
        )
    kind = recognize_format(path) if form == AUTO else form
    if kind is None:
        raise UnreadableError(f"cannot import {path}: unknown format; give --format-of {'|'.join(READERS)}")
    return READERS[kind](path, options)


def recognize_format(path: Path) -> str | None:
    """Return the format by the file's name and content, None if it is unknown."""
    if path.name == aipowermeter.FILE:
        return aipowermeter.FORM
    if path.name == EVENTS_FILE or path.suffix == ".jsonl":
        return next((form for recognizes, form in _EVENTS if recognizes(_first_object(path))), None)
    if path.suffix == ".json":
        document = _document(path)
        if document is None:
            return aipowermeter.FORM if "metrics" in _first_object(path) else None
        return next((form for recognizes, form in _DOCUMENTS if recognizes(document)), None)
    columns = csv_header(path)
    return next((form for recognizes, form in _TABLES if recognizes(columns)), None)


def _first_object(path: Path) -> dict[str, Any]:
    """Return the first object of JSON lines, empty if the first line is not one."""
    for line in islice((text for text in read_text(path).splitlines() if text.strip()), 1):
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            break
        return found if isinstance(found, dict) else {}
    return {}


def _document(path: Path) -> dict[str, Any] | None:
    """Return the file's JSON object, None if it is not one."""
    try:
        found = json.loads(read_text(path))
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
