"""Contents of files and folders in their recognized formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from wattline.contract.run_files import EVENTS_FILE, METRICS_FILE
from wattline_analyzer.importers.content import FileContent, ReadOptions, UnreadableError
from wattline_analyzer.importers.file_format import FileFormat, FileHead
from wattline_analyzer.importers.formats import AUTO, format_files, format_names, iris
from wattline_analyzer.importers.text import first_line

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
    known = load_formats()
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
            inside = list(_inside(path, form, known, options, log))
            if not inside:
                if (path / METRICS_FILE).exists():
                    raise _totals_only(path / METRICS_FILE)
                raise UnreadableError(
                    f"cannot import {path}: it holds no file of a known format: {', '.join(known)}"
                )
            found += inside
        else:
            found.append(_read(path, form, known, options))
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
    folder: Path,
    form: str,
    known: dict[str, FileFormat],
    options: ReadOptions,
    log: Callable[[str], None],
) -> Iterator[FileContent]:
    named = {name for one in known.values() for name in one.file_names}
    companions = {name for one in known.values() for name in one.companions}
    unknown: list[Path] = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        if (
            path.name == METRICS_FILE
            and form in (AUTO, iris.IRIS_FORMAT)
            and iris.is_iris_totals(path)
        ):
            yield iris.read_iris_totals(path, options)
        if path.name in companions:
            continue
        if path.suffix not in _SUFFIXES and path.name not in named:
            unknown.append(path)
            continue
        kind = recognize_format(path, known) if form == AUTO else known[form]
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


def _read(path: Path, form: str, known: dict[str, FileFormat], options: ReadOptions) -> FileContent:
    if path.name == METRICS_FILE:
        if iris.is_iris_totals(path):
            return iris.read_iris_totals(path, options)
        raise _totals_only(path)
    kind = recognize_format(path, known) if form == AUTO else known[form]
    if kind is None and not first_line(path):
        raise UnreadableError(f"cannot import {path}: it has no text; give a file with results")
    if kind is None:
        raise UnreadableError(
            f"cannot import {path}: unknown format, its first line is "
            f"{first_line(path)[:_SHOWN_LETTERS]!r}; "
            f"give a file of {', '.join(known)}, or name its format with --format-of"
        )
    return _content(kind, path, options)


def _content(kind: FileFormat, path: Path, options: ReadOptions) -> FileContent:
    content = kind.read(path, options)
    if content.times.misses_an_hour:
        return kind.read(path, replace(options, starts_in_second=True))
    return content


def load_formats() -> dict[str, FileFormat]:
    """Return the formats of all modules by name, in the order of the help."""
    found: dict[str, FileFormat] = {}
    for path in format_files():
        module = import_module(f"wattline_analyzer.importers.formats.{path.stem}")
        found |= {one.name: one for one in module.FORMATS}
    return {name: found[name] for name in format_names()}


def recognize_format(path: Path, known: dict[str, FileFormat]) -> FileFormat | None:
    """Return the format by the file's name and content, None if it is unknown."""
    head = FileHead(path)
    general_last = sorted(known.values(), key=lambda one: one.is_general)
    return next((one for one in general_last if one.recognize(head)), None)
