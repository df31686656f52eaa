"""Queries of the local history with limits on their cost, and of runs."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aiohttp import web

from wattline.contract import history
from wattline.contract.api import MAX_PROCESSES, MAX_RUNS_LISTED
from wattline_exporter.runs.admission import RunProcesses
from wattline_exporter.sensors.readings import RunError
from wattline_exporter.web.documents import status_title

MAX_RUNNING = 2
MAX_WAITING = 16
TIMEOUT_S = 20.0
MAX_SAMPLES = 1_000_000
_STEPS_PER_CHECK = 20_000
"""SQLite instructions between two checks of the time."""


class QueryLimitError(Exception):
    """A query beyond the limits of its cost."""


class HistoryQueries:
    """Executor of queries: a few run in threads, some more wait, others are refused."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(MAX_RUNNING, "history")
        self._pending = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: web.Request) -> web.Response:
        time_text = request.query.get("time")
        try:
            parsed = history.parse_query(request.query.get("query", ""))
            end_s = time.time() if time_text is None else float(time_text)
        except history.QueryError as error:
            return _error("bad_data", str(error))
        except ValueError:
            end_s = math.nan
        if not math.isfinite(end_s):
            return _error("bad_data", f"time: expected Unix seconds, not {str(time_text)[:40]!r}")
        if self._path is None:
            return _error(
                "unavailable",
                "this exporter has no history (--no-history); query Prometheus instead",
            )
        if self._pending >= MAX_RUNNING + MAX_WAITING:
            return _error("unavailable", "too many concurrent queries; try again in a second", 429)
        return await self._run(self._path, parsed, end_s)

    async def _run(self, path: Path, parsed: history.RangeQuery, end_s: float) -> web.Response:
        self._pending += 1
        try:
            text = await asyncio.get_running_loop().run_in_executor(
                self._threads, _read, path, parsed, end_s
            )
        except OverflowError:
            return _error("bad_data", "time and window are out of range; use Unix seconds")
        except QueryLimitError as error:
            return _error("execution", str(error), 422)
        except sqlite3.Error as error:
            return _error(
                "internal",
                f"cannot read the history: {error}; check the disk that holds --state.path",
                503,
            )
        finally:
            self._pending -= 1
        return web.Response(text=text, content_type="application/json")


def _read(path: Path, parsed: history.RangeQuery, end_s: float) -> str:
    connection = history.open_read_only(path)
    deadline_s = time.monotonic() + TIMEOUT_S
    connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS_PER_CHECK)
    try:
        series = history.select_series(
            connection, parsed, end_s, MAX_SAMPLES, lambda: time.monotonic() > deadline_s
        )
    except history.QueryError as error:
        raise QueryLimitError(str(error)) from error
    except sqlite3.OperationalError as error:
        if time.monotonic() > deadline_s:
            raise QueryLimitError(
                f"the query took longer than {TIMEOUT_S:g} s; use a shorter window"
            ) from error
        raise
    finally:
        connection.close()
    return json.dumps(history.query_response(series), separators=(",", ":"))


def _error(kind: str, detail: str, status: int = 400) -> web.Response:
    """Return an error in Prometheus's format with the fields of problem+json."""
    body = {
        "status": "error",
        "errorType": kind,
        "error": detail,
        "title": status_title(status),
        "detail": detail,
    }
    return web.json_response(body, status=status, content_type="application/problem+json")


def query_processes(request: web.Request) -> RunProcesses | None:
    """Return the processes whose runs are asked for, None for all runs. Raises RunError."""
    if "pid" not in request.query:
        return None
    pids = request.query.getall("pid")
    namespaces = request.query.getall("pid_namespace", [])[:1]
    wrong = [text for text in (*pids, *namespaces) if not re.fullmatch("[1-9][0-9]{0,17}", text)]
    if wrong:
        raise RunError(
            400, f"pid, pid_namespace: expected whole numbers from 1 on, not {wrong[0][:40]!r}"
        )
    pids = pids[:MAX_PROCESSES]
    namespace = next(map(int, namespaces), None)
    return RunProcesses(pids=[int(pid) for pid in pids], pid_namespace=namespace)


def query_limit(request: web.Request) -> int:
    """Return the most runs to list. Raises RunError."""
    text = request.query.get("limit", str(MAX_RUNS_LISTED))
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_RUNS_LISTED:
        raise RunError(
            400, f"limit: expected a whole number from 1 to {MAX_RUNS_LISTED}, not {text[:40]!r}"
        )
    return int(text)
