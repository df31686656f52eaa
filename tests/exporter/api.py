"""Helpers of the run API's tests."""

import subprocess
import sys

UUIDS = ("GPU-f875bc6b-2fae-51f1-8109-e99a752776f8", "GPU-d86a2754-94f4-5ca1-aa39-d5f16f580120")


def sleeper(seconds=600):
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


def assert_problem(answer, status, *words):
    """Assert a problem document with this status whose detail contains the words."""
    assert answer[0] == status, answer
    assert answer[1]["status"] == status
    assert set(answer[1]) == {"type", "title", "status", "detail"}
    for word in words:
        assert word in answer[1]["detail"]
