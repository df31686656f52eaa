"""Output of a container, forwarded to stdout and stderr."""

from __future__ import annotations

import codecs
import contextlib
import re
import threading
from collections.abc import Iterator
from typing import BinaryIO

from wattline.client.messages import log_message
from wattline_workloads.jobs.containers import created_container
from wattline_workloads.jobs.containers.container_engine import error_cause
from wattline_workloads.jobs.containers.created_container import CreatedContainer

_TOKEN = re.compile(
    r"(?P<plain>[^\x1b\r\b]+)"
    r"|\x1b\[(?P<numbers>[0-9;:?]*)(?P<final>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title, a link
    r"|(?P<move>[\r\b])"
    r"|\x1b.?"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:?]{0,64}|\][^\x07\x1b]{0,4096}\x1b?)?\Z")
_LONGEST = 1 << 20
_LONGEST_COLOURS = 256


class TerminalLines:
    """Terminal output converted to plain lines of UTF-8.

    Escape sequences that move within a line or erase it are executed. Colours are kept, moves
    between lines dropped.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unread = ""
        self._line = _Line()

    def feed(self, chunk: bytes) -> bytes:
        """Return the complete lines, with newlines."""
        return "".join(self._finished(self._decoder.decode(chunk))).encode()

    def close(self) -> bytes:
        """Return the last, incomplete line."""
        rest = "".join(self._finished(self._decoder.decode(b"", final=True)))
        return (rest + self._line.take()).encode()

    def _finished(self, text: str) -> Iterator[str]:
        *lines, rest = (self._unread + text).split("\n")
        for line in lines:
            self._line.write(line)
            yield self._line.take() + "\n"
        unfinished = _UNFINISHED.search(rest)
        self._unread = unfinished[0] if unfinished else ""
        self._line.write(rest[: len(rest) - len(self._unread)])
        if len(self._line) > _LONGEST:
            yield self._line.take()


class _Line:
    """Line of cells, each a character with its preceding colour sequences."""

    def __init__(self) -> None:
        self._cells: list[str] = []
        self._column = 0
        self._colours = ""

    def __len__(self) -> int:
        return len(self._cells)

    def take(self) -> str:
        text = "".join(self._cells) + self._colours
        self._cells = []
        self._column = 0
        self._colours = ""
        return text

    def write(self, text: str) -> None:
        for token in _TOKEN.finditer(text):
            if token["plain"]:
                self._put(token["plain"])
            elif token["move"]:
                self._column = 0 if token["move"] == "\r" else max(0, self._column - 1)
            elif token["final"] == "m":
                self._colour(token[0], token["numbers"])
            elif token["final"]:
                self._control(token["final"], token["numbers"])

    def _put(self, plain: str) -> None:
        cells = list(plain)
        cells[0] = self._colours + cells[0]
        self._colours = ""
        self._cells.extend(" " * (self._column - len(self._cells)))
        self._cells[self._column : self._column + len(cells)] = cells
        self._column += len(cells)

    def _colour(self, sequence: str, numbers: str) -> None:
        """Add a colour sequence; a reset discards earlier ones."""
        self._colours = sequence if numbers in {"", "0"} else self._colours + sequence
        if len(self._colours) > _LONGEST_COLOURS:
            self._colours = ""

    def _control(self, final: str, numbers: str) -> None:
        number = int(numbers) if numbers.isdecimal() else 0
        if final in "KJ":
            self._erase(number)
        elif final == "G":
            self._column = min(max(number, 1), _LONGEST) - 1
        elif final == "C":
            self._column = min(self._column + max(number, 1), _LONGEST)
        elif final == "D":
            self._column = max(self._column - max(number, 1), 0)

    def _erase(self, number: int) -> None:
        """Erase from the cursor (0), up to it (1), or the whole line (2)."""
        if number == 0:
            del self._cells[self._column :]
        elif number == 1:
            erased = min(self._column + 1, len(self._cells))
            self._cells[:erased] = " " * erased
        else:
            self._cells.clear()


class ContainerOutput:
    """Forwarder of the output: bytes to a terminal, complete lines elsewhere. Raises
    EngineError.
    """

    def __init__(self, container: CreatedContainer, streams: tuple[BinaryIO, BinaryIO]) -> None:
        self._chunks = created_container.attach_output(container)
        self._streams = streams
        self._lines = [None if stream.isatty() else TerminalLines() for stream in streams]
        self._thread = threading.Thread(target=self._follow, name="output", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the output."""
        self._thread.join(timeout_s)

    def _follow(self) -> None:
        import docker.errors
        import requests
        import urllib3

        try:
            for chunks in self._chunks:
                for index, chunk in enumerate(chunks):
                    if chunk:
                        lines = self._lines[index]
                        self._pass_on(index, lines.feed(chunk) if lines else chunk)
        except BrokenPipeError:
            log_message("the container's output is discarded: its reader closed the stream")
        except (
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            log_message(f"lost the container's output: {error_cause(error)}")
        finally:
            with contextlib.suppress(OSError):
                for index, lines in enumerate(self._lines):
                    self._pass_on(index, lines.close() if lines else b"")

    def _pass_on(self, index: int, text: bytes) -> None:
        if text:
            self._streams[index].write(text)
            self._streams[index].flush()
