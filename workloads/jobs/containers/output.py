"""What a container writes, passed on as it comes; stdout and stderr stay apart."""

from __future__ import annotations

import contextlib
import threading
from typing import BinaryIO

from workloads.client.messages import say
from workloads.jobs.containers import life as container_life
from workloads.jobs.containers.docker_engine import reason
from workloads.jobs.containers.life import Created
from workloads.jobs.containers.terminal_lines import TerminalLines


class Output:
    """A terminal gets each byte as it comes, anything else each line when it is finished. Raises EngineError."""

    def __init__(self, made: Created, streams: tuple[BinaryIO, BinaryIO]) -> None:
        self._chunks = container_life.attach(made)
        self._streams = streams
        self._lines = [None if stream.isatty() else TerminalLines() for stream in streams]
        self._thread = threading.Thread(target=self._follow, name="output", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until the container has closed its output."""
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
            say("nobody reads the container's output any more; it goes on without")
        except (
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            say(f"the container's output breaks off: {reason(error)}")
        finally:
            with contextlib.suppress(OSError):
                for index, lines in enumerate(self._lines):
                    self._pass_on(index, lines.close() if lines else b"")

    def _pass_on(self, index: int, text: bytes) -> None:
        if text:
            self._streams[index].write(text)
            self._streams[index].flush()
