"""The file to which a job's processes write what they measured, read once the job has ended."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from exporter.contract.run import MAX_RESULTS, EndRequest
from workloads.client.messages import say


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """Where there is no room for one, what takes everything and keeps nothing: the run goes on."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="wattline-")
    except OSError as error:
        say(f"the job's results will not be kept: {error.strerror}; make room there, or set TMPDIR")
        yield Path(os.devnull)
        return
    with folder as name:
        yield Path(name) / "results.jsonl"


def read(path: Path) -> dict[str, float]:
    """The last value of each name; a job may have no client, or be killed while it writes a line. Its processes may
    have more together than a run can have, and all would be refused.
    """
    results: dict[str, float] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        with contextlib.suppress(ValueError):
            results |= EndRequest.model_validate({"results": json.loads(line)}).results
    for name in list(results)[MAX_RESULTS:]:
        say(f"result {name} is left out: a run has {MAX_RESULTS} at most")
        del results[name]
    return results
