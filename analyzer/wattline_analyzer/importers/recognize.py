"""Recognition of the format of files and folders, and their contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattline.contract.record import EVENTS_FILE, METRICS_FILE
from wattline_analyzer.importers.content import FileContent, ReadOptions, UnreadableError
from wattline_analyzer.importers.formats import events as run_record
from wattline_analyzer.importers.formats import gpu_tune, iris, llm_benchmarks, nvidia_smi, ptdaemon
from wattline_analyzer.importers.formats import power_meters as wall_meter
from wattline_analyzer.importers.text import first_line, parse_json_object, read_columns, read_text

READERS: dict[str, Callable[[Path, ReadOptions], FileContent]] = {
    run_record.RUN_RECORD_FORMAT: run_record.read_run_record,
    gpu_tune.GPU_TUNE_FORMAT: gpu_tune.read_gpu_tune,
    iris.IRIS_FORMAT: iris.read_iris,
    run_record.TENANT_EVENTS_FORMAT: run_record.read_tenant_events,
    wall_meter.AIPOWERMETER_FORMAT: wall_meter.read_aipowermeter,
    nvidia_smi.NVIDIA_SMI_FORMAT: nvidia_smi.read_nvidia_smi,
    wall_meter.WALL_METER_FORMAT: wall_meter.read_wall_meter,
    ptdaemon.PTDAEMON_FORMAT: ptdaemon.read_ptdaemon,
    llm_benchmarks.AIPERF_FORMAT: llm_benchmarks.read_aiperf,
    llm_benchmarks.ML_ENERGY_FORMAT: llm_benchmarks.read_ml_energy,
    llm_benchmarks.VLLM_BENCH_FORMAT: llm_benchmarks.read_vllm_bench,
}
AUTO = "auto"
_TABLES = (
    (gpu_tune.is_gpu_tune, gpu_tune.GPU_TUNE_FORMAT),
    (iris.is_iris, iris.IRIS_FORMAT),
    (nvidia_smi.is_nvidia_smi, nvidia_smi.NVIDIA_SMI_FORMAT),
    (wall_meter.is_wall_meter, wall_meter.WALL_METER_FORMAT),
)
_DOCUMENTS = (
    (llm_benchmarks.is_ml_energy, llm_benchmarks.ML_ENERGY_FORMAT),
    (llm_benchmarks.is_aiperf, llm_benchmarks.AIPERF_FORMAT),
    (llm_benchmarks.is_vllm_bench, llm_benchmarks.VLLM_BENCH_FORMAT),
)
_EVENTS = (
    (run_record.is_run_record, run_record.RUN_RECORD_FORMAT),
    (run_record.is_tenant_events, run_record.TENANT_EVENTS_FORMAT),
)
_WITH_ANOTHER = (METRICS_FILE, llm_benchmarks.TIMES_FILE)
"""Names of files that are read together with another file."""
_NAMED = 3
"""Files of unknown format that are named."""
_SUFFIXES = (".csv", ".json", ".jsonl")
_SHOWN_LETTERS = 60


def read_files(
    paths: Iterable[Path], form: str, options: ReadOptions, log: Callable[[str], None]
) -> list[FileContent]:
    """Return the contents of the files, and of the files in folders. Raises UnreadableError.

    A file inside a folder may have an unknown format: it is logged and left out.
    """
    found: list[FileContent] = []
    for path in paths:
        try:
            is_there = path.exists()
        except OSError as error:
            raise UnreadableError(
                f"cannot read {path}: {error.strerror}; check its permissions"
            ) from error
        if not is_there:
            raise UnreadableError(f"cannot read {path}: no such file; check the path")
        if path.is_dir():
            inside = list(_inside(path, form, options, log))
            if not inside:
                if (path / METRICS_FILE).exists():
                    raise _totals_only(path / METRICS_FILE)
                raise UnreadableError(
                    f"cannot import {path}: it holds no file of a known format: "
                    f"{', '.join(READERS)}"
                )
            found += inside
        else:
            found.append(_read(path, form, options))
    for path, number in Counter(content.path.resolve() for content in found).items():
        if number > 1:
            raise UnreadableError(f"cannot import {path}: it is given {number} times; give it once")
    return found


def _totals_only(path: Path) -> UnreadableError:
    return UnreadableError(
        f"cannot import {path}: it has totals without samples, so its energy cannot be checked; "
        f"give the folder of a run with {EVENTS_FILE} or {iris.SERIES_FILE}"
    )


def _inside(
    folder: Path, form: str, options: ReadOptions, log: Callable[[str], None]
) -> Iterator[FileContent]:
    unknown: list[Path] = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        if (
            path.name == METRICS_FILE
            and form in (AUTO, iris.IRIS_FORMAT)
            and iris.is_iris_totals(path)
        ):
            yield iris.read_iris_totals(path, options)
        if path.name in _WITH_ANOTHER:
            continue
        if path.suffix not in _SUFFIXES and path.name not in ptdaemon.PTDAEMON_FILES:
            unknown.append(path)
            continue
        kind = recognize_format(path) if form == AUTO else form
        if kind is None:
            unknown.append(path)
        else:
            yield _content(kind, path, options)
    if unknown:
        names = ", ".join(str(path) for path in unknown[:_NAMED]) + (
            " …" if len(unknown) > _NAMED else ""
        )
        log(
            f"left out {len(unknown)} file{'s' if len(unknown) > 1 else ''} of unknown format: "
            f"{names}"
        )


def _read(path: Path, form: str, options: ReadOptions) -> FileContent:
    if path.name == METRICS_FILE:
        if iris.is_iris_totals(path):
            return iris.read_iris_totals(path, options)
        raise _totals_only(path)
    kind = recognize_format(path) if form == AUTO else form
    if kind is None and not first_line(path):
        raise UnreadableError(f"cannot import {path}: it has no text; give a file with results")
    if kind is None:
        raise UnreadableError(
            f"cannot import {path}: unknown format, its first line is "
            f"{first_line(path)[:_SHOWN_LETTERS]!r}; "
            f"give a file of {', '.join(READERS)}, or name its format with --format-of"
        )
    return _content(kind, path, options)


def _content(kind: str, path: Path, options: ReadOptions) -> FileContent:
    content = READERS[kind](path, options)
    if content.times.misses_an_hour:
        return READERS[kind](path, replace(options, starts_in_second=True))
    return content


def recognize_format(path: Path) -> str | None:
    """Return the format by the file's name and content, None if it is unknown."""
    if path.name == wall_meter.AIPOWERMETER_FILE:
        return wall_meter.AIPOWERMETER_FORMAT
    if path.name == EVENTS_FILE or path.suffix == ".jsonl":
        return next((form for recognizes, form in _EVENTS if recognizes(_first_object(path))), None)
    if path.suffix == ".json":
        if "metrics" in _first_object(path):
            return wall_meter.AIPOWERMETER_FORMAT
        document = _object(read_text(path)) or _first_object(path)
        return next((form for recognizes, form in _DOCUMENTS if recognizes(document)), None)
    if path.name in ptdaemon.PTDAEMON_FILES or ptdaemon.is_ptdaemon(first_line(path)):
        return ptdaemon.PTDAEMON_FORMAT
    columns = read_columns(path)
    return next((form for recognizes, form in _TABLES if recognizes(columns)), None)


def _first_object(path: Path) -> dict[str, Any]:
    """Return the first object of JSON lines, empty if the first line is not one."""
    return _object(first_line(path))


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object, empty if the text is not one."""
    try:
        return parse_json_object(text)
    except ValueError:
        return {}
