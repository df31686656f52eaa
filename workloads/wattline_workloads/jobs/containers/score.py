"""Score (`time: 123.4`), other numbers and files that a benchmark writes in its container."""

from __future__ import annotations

import io
import math
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from wattline.client.messages import log_message
from wattline_workloads.jobs.containers.container_engine import EngineError, engine_errors
from wattline_workloads.jobs.containers.created_container import CreatedContainer, started_at

SCORE_PATH = "/root/results/metrics.yml"
_KEY = "time"
_LARGEST_BYTES = 64 * 1024
_MOST = 64


def read_score(container: CreatedContainer, path: str) -> dict[str, float]:
    """Read the numbers of the score file by key; empty if the container has not written it.

    An unusable file is logged and ignored. Raises EngineError.
    """
    file = _file(container, path)
    if file is None:
        return {}
    text, written_at = file
    if written_at < int(started_at(container)):
        log_message(f"ignored {path}: it is older than the container")
        return {}
    return parse_score(text, path)


def _file(container: CreatedContainer, path: str) -> tuple[bytes, float] | None:
    import docker.errors

    with engine_errors(f"cannot read {path}"):
        try:
            chunks, about = container.engine.api.get_archive(container.id, path)
        except docker.errors.NotFound:
            return None
        if about.get("size", 0) > _LARGEST_BYTES:
            log_message(f"ignored {path}: it has more than {_LARGEST_BYTES} bytes")
            return None
        archive = b"".join(chunks)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.next()
        file = tar.extractfile(member) if member is not None and member.isfile() else None
        if member is None or file is None:
            log_message(f"ignored {path}: it is not a file")
            return None
        return file.read(), member.mtime


def copy_results(container: CreatedContainer, path: str, target: Path) -> None:
    """Copy the folder of the score file to `target`, if it exists. Errors are logged."""
    import docker.errors

    folder = PurePosixPath(path).parent
    if folder == folder.parent:  # the whole container
        return
    try:
        with engine_errors(f"cannot copy {folder}"), tempfile.TemporaryFile() as archive:
            try:
                chunks, _ = container.engine.api.get_archive(container.id, str(folder))
            except docker.errors.NotFound:
                return
            archive.writelines(chunks)
            archive.seek(0)
            with tarfile.open(fileobj=archive) as tar:
                for member in tar:
                    _unpack(tar, member, target)
    except (EngineError, tarfile.TarError) as error:
        log_message(f"the results remain in the container: {error}")


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Extract files and folders without the leading folder name; links and devices are skipped."""
    parts = PurePosixPath(member.name).parts[1:]
    if ".." in parts:
        return
    path = target.joinpath(*parts)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.isfile() and (content := tar.extractfile(member)) is not None:
        with path.open("xb") as file:
            shutil.copyfileobj(content, file)


def parse_score(text: bytes, path: str) -> dict[str, float]:
    """Parse the numbers by result name; accepts `1e-3`, which YAML reads as text."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        log_message(f"ignored {path}: invalid YAML: {' '.join(str(error).split())}")
        return {}
    if not isinstance(document, Mapping):
        log_message(f"ignored {path}: it has no keys; write it like time: 123.4")
        return {}
    numbers = {
        _name(key): number
        for key, value in document.items()
        if (number := _number(value)) is not None
    }
    return dict(list(numbers.items())[:_MOST])


def score_results(score: Mapping[str, float]) -> dict[str, float]:
    """Return the results: `time` becomes `score_seconds`, other names stay."""
    return {"score_seconds" if name == _KEY else name: number for name, number in score.items()}


def _name(key: Any) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", str(key))[:64]
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


def _number(value: Any) -> float | None:
    if isinstance(value, bool | datetime) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
