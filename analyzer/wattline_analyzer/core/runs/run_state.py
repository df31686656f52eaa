"""Record of a run in an exporter's ledger: its state, its energy, and its reported requests."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wattline.contract.history import REQUESTS_FILE, STATE_FILE
from wattline.contract.run import Run, RunFormatError
from wattline_analyzer.core.sources.base import FetchError, HttpSource, SampleSource
from wattline_analyzer.core.sources.history import HistorySource


def is_known_as_open(source: SampleSource, run_id: str) -> bool:
    """Return True if the run API of the source, or its state folder, has the run as running."""
    if isinstance(source, HistorySource):
        return bool(
            _number(source.folder / STATE_FILE, "SELECT running FROM run WHERE run_id = ?", run_id)
        )
    run = ledger_run(source, run_id)
    return run is not None and run.state == "running"


def ledger_run(source: SampleSource, run_id: str) -> Run | None:
    """Return the run as the run API of an exporter has it; None without one."""
    try:
        return Run.parse(_answer(source, run_id))
    except RunFormatError:  # the answer of a server of another kind
        return None


def reported_requests(source: SampleSource, run_id: str) -> str:
    """Return `292 requests`, `requests` where their number is not known, and an empty text without
    any.
    """
    if isinstance(source, HistorySource):
        path = source.folder / REQUESTS_FILE
        count = _number(path, "SELECT sum(requests) FROM batch WHERE run_id = ?", run_id)
        return f"{count:,} requests" if count else ""
    return "requests" if _answer(source, run_id, "/requests?limit=1").get("requests") else ""


def _answer(source: SampleSource, run_id: str, what: str = "") -> dict[str, Any]:
    """Return the run API's document of a run, empty if the source has none."""
    if not isinstance(source, HttpSource):
        return {}
    try:
        response = source.get(f"/api/v1/runs/{quote(run_id, safe='')}{what}", {})
        answer = response.json() if response.ok else None
    except (FetchError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _number(path: Path, query: str, run_id: str) -> int | None:
    """Return the number that a database has for a run, None without it."""
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
        ) as connection:
            row = connection.execute(query, (run_id,)).fetchone()
    except sqlite3.Error:  # a history without the other files of its folder
        return None
    return row[0] if row else None
