"""Which format a file or a folder is, and what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from analyzer.importers.content import Content, Reading, UnreadableError
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
from analyzer.importers.text import content_of, header
from exporter.contract.record import EVENTS_FILE, METRICS_FILE

READERS: dict[str, Callable[[Path, Reading], Content]] = {
    module.FORM: module.read
    for module in (
        run_record,
        gpu_tune,
        iris,
        tenant_events,
        aipowermeter,
        nvidia_smi,
        wall_meter,
        aiperf,
        ml_energy,
    )
}
AUTO = "auto"
_TABLES = ((gpu_tune.is_it, gpu_tune.FORM), (iris.is_it, iris.FORM), (nvidia_smi.is_it, nvidia_smi.FORM))
_WITH_ANOTHER = (METRICS_FILE, ml_energy.TIMES_FILE)
"""Files that are read with the one beside them."""
_SUFFIXES = (".csv", ".json", ".jsonl")


def read_all(paths: Iterable[Path], form: str, reading: Reading, say: Callable[[str], None]) -> list[Content]:
    """What the files hold, those in folders too. Raises UnreadableError for a file that was named or is broken."""
    found = []
    for path in paths:
        if not path.exists():
            raise UnreadableError(f"there is no {path}")
        if path.is_dir():
            inside = list(_inside(path, form, reading, say))
            if not inside:
                raise UnreadableError(f"{path} holds no file of a format known here: {', '.join(READERS)}")
            found += inside
        else:
            found.append(_read(path, form, reading))
    return found


def _inside(folder: Path, form: str, reading: Reading, say: Callable[[str], None]) -> Iterator[Content]:
    for path in sorted(one for one in folder.rglob("*") if one.suffix in _SUFFIXES and one.is_file()):
        if path.name in _WITH_ANOTHER:
            continue
        kind = recognized(path) if form == AUTO else form
        if kind is None:
            say(f"left out {path}: not of a format known here")
        else:
            yield READERS[kind](path, reading)


def _read(path: Path, form: str, reading: Reading) -> Content:
    if path.name == METRICS_FILE:
        raise UnreadableError(f"{path} has totals only; name its folder, or the {iris.SERIES_FILE} beside it")
    kind = recognized(path) if form == AUTO else form
    if kind is None:
        raise UnreadableError(f"{path} is of no format known here; name it: --format-of {'|'.join(READERS)}")
    return READERS[kind](path, reading)


def recognized(path: Path) -> str | None:
    """By its name and its first line."""
    if path.name == EVENTS_FILE or path.suffix == ".jsonl":
        first = _first_object(path)
        return next((module.FORM for module in (run_record, tenant_events) if module.is_it(first)), None)
    if path.name == aipowermeter.FILE:
        return aipowermeter.FORM
    if path.suffix == ".json":
        document = _document(path)
        if document is None:
            return aipowermeter.FORM if "metrics" in _first_object(path) else None
        return next((module.FORM for module in (ml_energy, aiperf) if module.is_it(document)), None)
    columns = header(path)
    kind = next((form for is_it, form in _TABLES if is_it(columns)), None)
    return kind or (wall_meter.FORM if wall_meter.is_it(columns) else None)


def _first_object(path: Path) -> dict[str, Any]:
    """Of JSON lines; empty where the first is none."""
    for line in islice((text for text in content_of(path).splitlines() if text.strip()), 1):
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            break
        return found if isinstance(found, dict) else {}
    return {}


def _document(path: Path) -> dict[str, Any] | None:
    """None where it is not one JSON object."""
    try:
        found = json.loads(content_of(path))
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
