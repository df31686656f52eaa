"""Separate process with pynvml on the test library."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fakes import nvml


class NvmlProcess:
    """Process that calls pynvml on request."""

    def __init__(self, state_file: Path) -> None:
        environment = {**os.environ, **nvml.environment(state_file)}
        program = Path(__file__).with_name("nvml_calls.py")
        self._child = subprocess.Popen(
            [sys.executable, str(program)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdin
        assert self._child.stdout
        self._requests, self._results = self._child.stdin, self._child.stdout

    def send(self, function: str, *arguments: object) -> None:
        self._requests.write(json.dumps([function, *arguments]) + "\n")
        self._requests.flush()

    def receive(self) -> Any:
        return json.loads(self._results.readline())

    def call(self, function: str, *arguments: object) -> Any:
        self.send(function, *arguments)
        return self.receive()

    def is_silent(self) -> bool:
        return not select.select([self._results], [], [], 0.05)[0]

    def end(self) -> None:
        self._child.kill()
        self._child.communicate()
