"""Files of requests: JSON, JSON Lines or CSV, AIPerf's records, or `events.jsonl` of llm-server."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattline.contract.requests.served import MAX_TOKENS, ROLES
from wattline.contract.run_files import EVENTS_FILE
from wattline_analyzer.core.sources.base import FetchError, is_there
from wattline_analyzer.core.times import parse_date
from wattline_analyzer.requests.benchmarks import (
    aiperf_request,
    is_aiperf_record,
    is_vllm_result,
    vllm_requests,
)
from wattline_analyzer.requests.table import RequestTable
from wattline_exporter.requests.division.spans import RequestSpans, with_first_tokens

_TIMES = ("started_at", "first_token_at", "ended_at")
_COUNTS = ("prompt_tokens", "cached_tokens", "generated_tokens")
_REQUIRED = ("started_at", "ended_at", "prompt_tokens", "generated_tokens")
_REMEDY = (
    "give one request per line, with id, started_at, first_token_at, ended_at (Unix seconds), "
    "prompt_tokens and "
    "generated_tokens"
)
_RECORD_REMEDY = "write the file again with the tool that made it, or leave the record out"
_DATE = re.compile(r"\s*\d{4}[-/]")
_OTHER_SEPARATORS = (";", "\t", "|")
_TOO_DEEP = "the JSON is nested too deep"
_MAX_UNIX_S = 1e11
"""Larger times are milliseconds."""


@dataclass(frozen=True, slots=True)
class _Request:
    id: str
    times: tuple[float, float, float]
    """Arrival, first token (not a number if unknown) and end."""
    counts: tuple[float, float, float]
    labels: tuple[tuple[str, str], ...]
    role: str | None


def read_requests(paths: Sequence[Path]) -> RequestTable:
    """Return the requests of all files in the order of arrival. Raises FetchError for the first
    invalid one.

    A request that occurs twice with the same values counts once.
    """
    found: dict[str, _Request] = {}
    repeated = 0
    for path in paths:
        for number, fields in enumerate(_records(path), start=1):
            request = _parsed(fields, f"{path.name}: request {number}", f"{path.name}:{number}")
            known = found.setdefault(request.id, request)
            if known is not request:
                repeated += 1
                if known != request:
                    cause = (
                        f"{path.name}: request {number} has the id {request.id!r} of another "
                        "request"
                    )
                    raise FetchError(cause, "give each request a unique id")
    if not found:
        raise FetchError(f"no requests in {', '.join(path.name for path in paths)}", _REMEDY)
    requests = sorted(found.values(), key=lambda one: one.times[0])
    times = np.array([one.times for one in requests]).T
    counts = np.array([one.counts for one in requests]).T
    spans, untimed = with_first_tokens(RequestSpans(*times, *counts))
    numbers: dict[tuple[tuple[tuple[str, str], ...], str | None], int] = {}
    label_of = np.array(
        [numbers.setdefault((one.labels, one.role), len(numbers)) for one in requests],
        dtype=np.int32,
    )
    return RequestTable(
        ids=[one.id for one in requests],
        label_sets=[dict(labels) for labels, _ in numbers],
        label_of=label_of,
        spans=spans,
        untimed=untimed,
        repeated=repeated,
        roles=[role for _, role in numbers],
    )


def _records(path: Path) -> Iterator[Any]:
    if is_there(path) and path.is_dir():
        path = _events_of(path)
    for number, fields in enumerate(_plain_records(path), start=1):
        try:
            requests = _requests_of(fields, path.name)
        except KeyError as error:
            raise FetchError(
                f"{path.name}: record {number} has no {error.args[0]}", _RECORD_REMEDY
            ) from error
        except (TypeError, ValueError, AttributeError) as error:
            raise FetchError(
                f"{path.name}: record {number} has a wrong value: {error}", _RECORD_REMEDY
            ) from error
        yield from requests


def _requests_of(fields: Any, name: str) -> Sequence[Any]:
    """Return the requests of a record. Raises FetchError, KeyError, TypeError, ValueError and
    AttributeError.
    """
    if is_aiperf_record(fields):
        measured = aiperf_request(fields)
    elif is_vllm_result(fields):
        return list(vllm_requests(fields, name))
    elif isinstance(fields, Mapping) and "event" in fields:
        measured = _of_event(fields)
    else:
        return [fields]
    return [] if measured is None else [measured]


def _events_of(folder: Path) -> Path:
    """Return the file of a run's folder. Raises FetchError, which names a folder in it that is one
    of a run.
    """
    if (folder / EVENTS_FILE).exists():
        return folder / EVENTS_FILE
    runs = sorted(events.parent for events in folder.glob(f"*/{EVENTS_FILE}"))
    example = f", such as {runs[-1]}" if runs else ""
    raise FetchError(
        f"{folder} has no {EVENTS_FILE}", f"give the folder of a run, RESULTS/RUN_ID{example}"
    )


def _of_event(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request that an iteration of llm-server is; None for other events and failed
    requests.

    Its latencies count from the time at which it was due; `t` is the time of its end.
    """
    work = event.get("work") or {}
    values = event.get("values") or {}
    if (
        event.get("event") != "iteration"
        or work.get("requests") != 1
        or "prompt_tokens" not in work
    ):
        return None
    due_s = event["t"] - event["latency_seconds"]
    first_s = due_s + values["ttft_seconds"] if "ttft_seconds" in values else None
    return {
        "id": f"{event.get('contributor', '')}-{event.get('index')}",
        "started_at": due_s + values.get("send_delay_seconds", 0.0),
        "first_token_at": first_s,
        "ended_at": event["t"],
        "labels": {"phase": event["phase"]} if event.get("phase") else {},
        **{name: work.get(name) for name in _COUNTS},
    }


def _plain_records(path: Path) -> Iterator[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FetchError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise FetchError(f"cannot read {path}: it is no UTF-8 text", _REMEDY) from error
    if path.suffix.lower() == ".csv":
        yield from _rows(path, text)
        return
    try:
        whole = json.loads(text)
    except ValueError:
        yield from _lines(path, text)
        return
    except RecursionError as error:
        raise FetchError(f"{path.name}: {_TOO_DEEP}", _REMEDY) from error
    requests = whole.get("requests", [whole]) if isinstance(whole, dict) else whole
    if not isinstance(requests, list):
        raise FetchError(f"{path.name}: expected a list of requests", _REMEDY)
    yield from requests


def _rows(path: Path, text: str) -> Iterator[Any]:
    try:
        rows = csv.DictReader(io.StringIO(text))
        names = rows.fieldnames or ()
        if len(names) == 1 and (
            wrong := next((each for each in _OTHER_SEPARATORS if each in names[0]), None)
        ):
            raise FetchError(
                f"{path.name}: the columns are separated by {wrong!r}", "write the CSV with ','"
            )
        yield from rows
    except csv.Error as error:
        raise FetchError(f"{path.name} is no CSV: {error}", _REMEDY) from error


def _lines(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except RecursionError as error:
            raise FetchError(f"{path.name}: line {number}: {_TOO_DEEP}", _REMEDY) from error
        except ValueError as error:
            cause = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise FetchError(f"{path.name}: line {number} is no JSON: {cause}", _REMEDY) from error


def _parsed(fields: Any, where: str, place: str) -> _Request:
    if not isinstance(fields, Mapping):
        raise FetchError(f"{where} is no object with fields", _REMEDY)
    missing = [name for name in _REQUIRED if fields.get(name) in (None, "")]
    if missing:
        raise FetchError(f"{where} has no {' and no '.join(missing)}", _REMEDY)
    arrived, first, ended = (_time_s(fields, name, where) for name in _TIMES)
    prompt, cached, generated = (_number(fields, name, where) for name in _COUNTS)
    if arrived < 0.0:
        raise FetchError(f"{where}: {arrived:g} is no time in Unix seconds", _REMEDY)
    if max(arrived, ended) > _MAX_UNIX_S:
        raise FetchError(
            f"{where}: {max(arrived, ended):g} is no time in Unix seconds",
            "divide milliseconds by 1,000",
        )
    if not arrived <= ended or first < arrived or first > ended:
        raise FetchError(
            f"{where}: the times are not in the order started_at, first_token_at, ended_at",
            "check the clocks that recorded them",
        )
    cached = 0.0 if math.isnan(cached) else cached
    if min(prompt, cached, generated) < 0 or cached > prompt:
        raise FetchError(
            f"{where}: the numbers of tokens are negative, or more are cached than prompted",
            _REMEDY,
        )
    if (most := max(prompt, generated)) > MAX_TOKENS:
        raise FetchError(
            f"{where}: {most:g} tokens, at most {MAX_TOKENS:,} are possible", "correct the number"
        )
    name = str(fields.get("id") or place)
    times = (arrived, first, ended)
    role = fields.get("role")
    labels = tuple(_labels(fields))
    return _Request(
        name, times, (prompt, cached, generated), labels, role if role in ROLES else None
    )


def _time_s(fields: Mapping[str, Any], name: str, where: str) -> float:
    """Return a field as Unix seconds, also of a date with its time zone; not a number if it is
    absent.
    """
    value = fields.get(name)
    if not isinstance(value, str) or not _DATE.match(value):
        return _number(fields, name, where)
    try:
        return parse_date(value)
    except ValueError as error:
        remedy = "write Unix seconds, or a date such as 2026-11-20T10:00:00.5Z"
        raise FetchError(f"{where}: {name}: {error}", remedy) from error


def _number(fields: Mapping[str, Any], name: str, where: str) -> float:
    """Return a field as a number, not a number if it is absent."""
    value = fields.get(name)
    if value in (None, ""):
        return math.nan
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise FetchError(f"{where}: {name} is {value!r}, not a number", _REMEDY)
    return number


def _labels(fields: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Return the labels: the object `labels`, and all further fields, also the role."""
    nested = fields.get("labels")
    if isinstance(nested, Mapping):
        yield from sorted((str(name), str(value)) for name, value in nested.items())
    known = {"id", "labels", *_TIMES, *_COUNTS}
    for name in sorted(name for name in fields if isinstance(name, str) and name not in known):
        if isinstance(fields[name], str) and fields[name]:
            yield name, fields[name]
