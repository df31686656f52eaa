"""The local history over HTTP, as Prometheus would answer it, with a bound on what one question may cost."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aiohttp import web

from exporter.contract import history
from exporter.web.problem import TITLES

AT_A_TIME = 2
WAITING = 16
WITHIN_S = 20.0
MAX_SAMPLES = 1_000_000
_STEPS = 20_000
"""SQLite's steps between two looks at the clock."""


class TooMuchError(Exception):
    """The question costs more than one may."""


class Queries:
    """A few at a time, in threads of their own; some more wait, the rest is turned away."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(AT_A_TIME, "history")
        self._asked = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: web.Request) -> web.Response:
        at = request.query.get("time")
        try:
            parsed = history.parse_query(request.query.get("query", ""))
            end_s = time.time() if at is None else float(at)
        except history.QueryError as error:
            return _error("bad_data", str(error))
        except ValueError:
            end_s = math.nan
        if not math.isfinite(end_s):
            return _error("bad_data", f"time: expected Unix seconds, not {str(at)[:40]!r}")
        if self._path is None:
            return _error("unavailable", "this exporter keeps no history (--no-history); ask Prometheus instead")
        if self._asked >= AT_A_TIME + WAITING:
            return _error("unavailable", "too many questions at a time; ask again in a second", 429)
        return await self._run(self._path, parsed, end_s)

    async def _run(self, path: Path, parsed: history.RangeQuery, end_s: float) -> web.Response:
        self._asked += 1
        try:
            text = await asyncio.get_running_loop().run_in_executor(self._threads, _read, path, parsed, end_s)
        except OverflowError:
            return _error("bad_data", "time and window: expected seconds that a clock can show")
        except TooMuchError as error:
            return _error("execution", str(error), 422)
        except sqlite3.Error as error:
            return _error("internal", f"cannot read the history: {error}; is the disk of --state.path well?", 503)
        finally:
            self._asked -= 1
        return web.Response(text=text, content_type="application/json")


def _read(path: Path, parsed: history.RangeQuery, end_s: float) -> str:
    connection = history.open_read_only(path)
    give_up_s = time.monotonic() + WITHIN_S
    connection.set_progress_handler(lambda: time.monotonic() > give_up_s, _STEPS)
    try:
        series = history.select_series(connection, parsed, end_s, MAX_SAMPLES, lambda: time.monotonic() > give_up_s)
    except history.QueryError as error:
        raise TooMuchError(str(error)) from error
    except sqlite3.OperationalError as error:
        if time.monotonic() > give_up_s:
            raise TooMuchError(f"it took longer than {WITHIN_S:g} s; ask for a shorter window") from error
        raise
    finally:
        connection.close()
    return json.dumps(history.query_response(series), separators=(",", ":"))


def _error(kind: str, detail: str, status: int = 400) -> web.Response:
    """Prometheus's own form of an error, and the problem's fields beside it."""
    body = {"status": "error", "errorType": kind, "error": detail, "title": TITLES[status], "detail": detail}
    return web.json_response(body, status=status, content_type="application/problem+json")
