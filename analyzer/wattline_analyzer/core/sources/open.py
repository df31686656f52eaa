"""Choice of the source: the one that the user names, else the first available one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from wattline.command_line import user_state_folder
from wattline.contract.history import HISTORY_FILE
from wattline.contract.metrics import BUILD_INFO
from wattline_analyzer.core.sources.base import (
    Access,
    FetchError,
    Progress,
    SampleSource,
    is_there,
    no_progress,
)
from wattline_analyzer.core.sources.history import HistorySource

DEFAULT_EXPORTER = "http://127.0.0.1:9847"
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+")
SYSTEM_FOLDER = Path("/var/lib/wattline")
_PROBE_S = 2.0


def choose_source(  # noqa: PLR0913  # tests pass half of them
    named: str | None,
    access: Access,
    log: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    system_folder: Path = SYSTEM_FOLDER,
    *,
    progress: Progress = no_progress,
) -> SampleSource:
    """Open the source; `named` is a server's address, a history file or its folder. Raises
    FetchError.
    """
    if named:
        address = server_address(named)
        if address is None:
            return HistorySource(_path_of(named), progress)
        from wattline_analyzer.core.sources.prometheus import PrometheusSource

        return PrometheusSource(address, access, progress=progress)
    exporter = _exporter_address(environ)
    folders = (system_folder, user_state_folder(environ))
    denied: list[str] = []
    chosen = _answering(check_address(exporter), access, progress) or _local_history(
        folders, progress, denied
    )
    if chosen is None:
        places = " and ".join(str(folder) for folder in folders)
        raise FetchError(
            f"no source found: no exporter's history at {exporter}, and "
            + (" and ".join(denied) or f"no {HISTORY_FILE} in {places}"),
            ("let this user read it, " if denied else "")
            + "start one with exporter serve, measure a command with workloads run, or give "
            "--source URL|PATH",
        )
    log(f"reading from {chosen.name}")
    return chosen


def _exporter_address(environ: Mapping[str, str]) -> str:
    exporter = environ.get("WATTLINE_EXPORTER") or DEFAULT_EXPORTER
    if exporter.startswith("unix:"):  # socket of the run API; the history is served over TCP
        return DEFAULT_EXPORTER
    return exporter


def running_exporter(environ: Mapping[str, str] = os.environ) -> SampleSource | None:
    """Return the exporter of WATTLINE_EXPORTER or of this machine, without credentials; None if it
    does not answer.
    """
    try:
        return _answering(check_address(_exporter_address(environ)), Access(), no_progress)
    except FetchError:
        return None


def _local_history(
    folders: Iterable[Path], progress: Progress, denied: list[str]
) -> HistorySource | None:
    """Return the first local history that can be opened; add the causes for others that exist to
    `denied`.
    """
    for folder in folders:
        try:
            (folder / HISTORY_FILE).open("rb").close()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            denied.append(f"cannot read {folder / HISTORY_FILE}: {error.strerror}")
        else:
            return HistorySource(folder, progress)
    return None


def _path_of(named: str) -> Path:
    """Return the path. Raises FetchError for a home folder of an unknown user."""
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise FetchError(
            f"cannot read {named}: {error}", "give --source a path that exists"
        ) from error


def missing_data_remedy(source: SampleSource) -> str:
    """Return the remedy for missing samples by the kind of source: a file scrapes nothing."""
    if isinstance(source, HistorySource):
        return "check that the file is of the right node, and that its exporter was running"
    return "check that the source is the exporter or scrapes it, and that the exporter was running"


def server_address(named: str | None) -> str | None:
    """Return the address of the named server, None for a path or without a name. Raises
    FetchError.
    """
    if named and _HOST_AND_PORT.fullmatch(named) and not is_there(Path(named)):
        named = f"http://{named}"
    return check_address(named) if named and "://" in named else None


def check_address(address: str) -> str:
    """Return the address if it is one of a server. Raises FetchError."""
    cause = ""
    try:
        parts = urlsplit(address)
        usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except ValueError as error:  # such as of a port above 65535
        usable = False
        cause = f": {error}"
    if not usable:
        raise FetchError(
            f"invalid server address {address!r}{cause}",
            "write it as http://host:9090 or https://host/path",
        )
    return address


def _answering(exporter: str, access: Access, progress: Progress) -> SampleSource | None:
    """Return the exporter's history, None if it has none or is not running."""
    from wattline_analyzer.core.sources.prometheus import PrometheusSource

    source = PrometheusSource(exporter, access, timeout_s=_PROBE_S)
    try:
        source.fetch([BUILD_INFO], {}, 0.0, 1.0)
    except FetchError:
        source.close()
        return None
    source.close()
    return PrometheusSource(exporter, access, progress=progress)
