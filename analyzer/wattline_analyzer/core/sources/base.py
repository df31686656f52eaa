"""Interface, errors, credentials and progress of the sources."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO, runtime_checkable

from wattline.contract.secret_file import SecretFileError, read_secret

if TYPE_CHECKING:
    from requests import Response
    from rich.progress import Progress as RichProgress

    from wattline.contract.metrics import Metric
    from wattline_analyzer.core.facts import Fact
    from wattline_analyzer.core.sample_table import SampleTable
    from wattline_analyzer.core.samples import Series

Progress = Callable[[str, float], None]
"""Callback with the name and the progress of a fetch, from 0 to 1; 1 ends it."""
Text = str | Collection[str]
"""Text that a label has, or texts of which it has one."""
SHOWN_AFTER_S = 1.0
_APART_S = 0.5
"""Maximum time between two fetches of one sequence: a live table polls once a second."""


class FetchError(Exception):
    """Samples that cannot be read; `remedy` is what to type or to check."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy


class SampleSource(Protocol):
    """Source of facts and raw samples that holds a connection until it is closed.

    All methods have the metrics, the labels that a series must have, and a time range in Unix
    seconds with both ends included. All but `prefetch` and `close` raise FetchError.
    """

    name: str
    """Address or path without credentials."""

    def facts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> list[Fact]:
        """Return the newest sample of each series, in the order of time."""

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> SampleTable:
        """Return all raw samples as a table."""

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """Yield all raw samples in time order, in parts of a limited size."""

    def prefetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> None:
        """Request the first part together with those of other requests.

        A later call of another method with the same arguments returns it, or raises its error.
        """

    def close(self) -> None: ...


@runtime_checkable
class HttpSource(SampleSource, Protocol):
    """Source that is a server."""

    def get(self, path: str, parameters: Mapping[str, str]) -> Response:
        """Return the server's response, also one with an error. Raises FetchError for none, and
        without access.
        """


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and TLS settings for a server."""

    basic_auth: tuple[str, str] | None = None
    bearer_token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None


def is_there(path: Path) -> bool:
    """Return True for a file or folder. Raises FetchError for a path in a folder without
    permission.
    """
    try:
        return path.exists()
    except OSError as error:
        raise FetchError(
            f"cannot read {path}: {error.strerror}", "check the path and its permissions"
        ) from error


def read_access(
    basic_auth: str | None,
    bearer_token_file: Path | None,
    headers: Iterable[str],
    ca_file: Path | None,
) -> Access:
    """Return the credentials that options name; secrets are read from files, which no process list
    shows.

    Raises FetchError for an unreadable file, ValueError for an invalid option.
    """
    user, _, password_file = (basic_auth or "").partition(":")
    if basic_auth and not (user and password_file):
        raise ValueError(f"--basic-auth: expected USER:PASSWORD-FILE, not {basic_auth!r}")
    if basic_auth and bearer_token_file:
        raise ValueError("--basic-auth and --bearer-token-file exclude each other")
    if ca_file and not is_there(ca_file):
        raise FetchError(
            f"cannot read {ca_file}: no such file", "give --ca-file the PEM file of the authority"
        )
    return Access(
        (user, _secret(Path(password_file))) if basic_auth else None,
        _secret(bearer_token_file) if bearer_token_file else None,
        dict(_header(text) for text in headers),
        ca_file,
    )


def _secret(path: Path) -> str:
    try:
        return read_secret(path.expanduser())
    except SecretFileError as error:
        raise FetchError(str(error), "store the password or token there, in one line") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or any(c in text for c in "\r\n"):
        raise ValueError(f"--header: expected 'Name: value', not {text!r}")
    return name.strip(), value.strip()


def no_progress(_what: str, _ratio: float) -> None:
    pass


def metric_names(metrics: Sequence[Metric]) -> str:
    """Return a short name of the metrics."""
    first = metrics[0].name.removeprefix("wattline_")
    return first if len(metrics) == 1 else f"{first} and {len(metrics) - 1} more"


class ProgressBar:
    """Progress callback that draws a bar on a terminal, after the first second of a sequence of
    fetches.

    Between two fetches the bar is removed, so that other output can be printed.
    """

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._begun_s = 0.0
        self._over_s: float | None = float("-inf")
        self._drawn: RichProgress | None = None

    def __call__(self, what: str, ratio: float) -> None:
        if not self._stream.isatty():
            return
        now_s = self._now()
        if self._over_s is not None and now_s > self._over_s + _APART_S:
            self._begun_s = now_s
        self._over_s = now_s if ratio >= 1 else None
        if ratio >= 1:
            self._clear()
        elif now_s >= self._begun_s + SHOWN_AFTER_S:
            self._draw(what, ratio)

    def _draw(self, what: str, ratio: float) -> None:
        if self._drawn is None:
            self._drawn = _drawing(self._stream)
            self._drawn.add_task(what, total=1.0)
            self._drawn.start()
        self._drawn.update(self._drawn.task_ids[0], description=what, completed=ratio)
        self._drawn.refresh()

    def _clear(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def _drawing(stream: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        *(TextColumn("fetching {task.description}"), BarColumn(), TaskProgressColumn()),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
