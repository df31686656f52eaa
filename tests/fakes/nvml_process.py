"""The real pynvml on the fake library, in a process of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from tests.fakes import nvml


class Process:
    """A process that asks the real pynvml."""

    def __init__(self, state_file: Path) -> None:
        environment = {**os.environ, **nvml.environment(state_file)}
        program = Path(__file__).with_name("ask_nvml.py")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._child = subprocess.Popen([sys.executable, program], env=environment, **pipes)

    def say(self, function, *arguments):
        self._child.stdin.write(json.dumps([function, *arguments]) + "\n")
        self._child.stdin.flush()

    def hear(self):
        return json.loads(self._child.stdout.readline())

    def ask(self, function, *arguments):
        self.say(function, *arguments)
        return self.hear()

    def is_silent(self):
        return not select.select([self._child.stdout], [], [], 0.05)[0]

    def end(self):
        self._child.kill()
        self._child.communicate()
