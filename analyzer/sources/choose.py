"""Which source to read: what the user names, else the first that is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from analyzer.sources.access import Access
from analyzer.sources.base import Source
from analyzer.sources.error import SourceError
from analyzer.sources.history import HistorySource
from analyzer.sources.progress import Progress, untold
from analyzer.sources.prometheus import PrometheusSource
from exporter.contract.history import HISTORY_FILE
from exporter.contract.metrics import BUILD_INFO

DEFAULT_EXPORTER = "http://127.0.0.1:9847"
SYSTEM_FOLDER = Path("/var/lib/wattline")
_PROBE_S = 2.0


def choose(  # noqa: PLR0913  # half of them only tests give
    named: str | None,
    access: Access,
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    system_folder: Path = SYSTEM_FOLDER,
    *,
    progress: Progress = untold,
) -> Source:
    """`named` is a server's address, a history file or its folder. Raises SourceError."""
    if named:
        if "://" in named:
            return PrometheusSource(checked_address(named), access, progress=progress)
        return HistorySource(Path(named).expanduser(), progress)
    exporter = environ.get("WATTLINE_EXPORTER") or DEFAULT_EXPORTER
    if exporter.startswith("unix:"):  # where runs are tagged; what is to be read is served over TCP, too
        exporter = DEFAULT_EXPORTER
    folders = (system_folder, state_folder(environ))
    chosen = _answering(checked_address(exporter), access, progress) or next(
        (HistorySource(folder, progress) for folder in folders if os.access(folder / HISTORY_FILE, os.R_OK)), None
    )
    if chosen is None:
        places = " and ".join(str(folder) for folder in folders)
        raise SourceError(
            f"no source: no exporter's history answers at {exporter}, and no {HISTORY_FILE} can be read in {places}",
            "give --source http://prometheus:9090, or a history file, or set WATTLINE_SOURCE",
        )
    say(f"reading from {chosen.name}")
    return chosen


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where an exporter of this user keeps its state (XDG)."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return Path(state) / "wattline"


def checked_address(address: str) -> str:
    """Raises SourceError for what is no address of a server."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise SourceError(f"{address!r} is no server's address", "write it as http://host:9090 or https://host/path")
    return address


def _answering(exporter: str, access: Access, progress: Progress) -> Source | None:
    """An exporter without history, or none at all, is no error here: other places are tried next."""
    source = PrometheusSource(exporter, access, timeout_s=_PROBE_S)
    try:
        source.fetch([BUILD_INFO], {}, 0.0, 1.0)
    except SourceError:
        source.close()
        return None
    source.close()
    return PrometheusSource(exporter, access, progress=progress)
