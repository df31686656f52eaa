"""Separate process with pynvml on the test library."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from tests.fakes import nvml


class NvmlProcess:
    """Process that calls pynvml on request."""

    def __init__(self, state_file: Path) -> None:
        environment = {**os.environ, **nvml.environment(state_file)}
        program = Path(__file__).with_name("nvml_calls.py")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._child = subprocess.Popen([sys.executable, program], env=environment, **pipes)

    def send(self, function, *arguments):
        self._child.stdin.write(json.dumps([function, *arguments]) + "\n")
        self._child.stdin.flush()

    def receive(self):
        return json.loads(self._child.stdout.readline())

    def call(self, function, *arguments):
        self.send(function, *arguments)
        return self.receive()

    def is_silent(self):
        return not select.select([self._child.stdout], [], [], 0.05)[0]

    def end(self):
        self._child.kill()
        self._child.communicate()
