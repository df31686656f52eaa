"""A job's `main` in this process, as if it were one of its own: what it needs of the environment, and its signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workloads.conftest import Exporter, plain_environment


@contextlib.contextmanager
def in_process(exporter: Exporter, record: Path) -> Iterator[None]:
    """Events are written to the folder `record`."""
    record.mkdir()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - plain_environment().keys():
            patch.delenv(name)
        patch.setenv("WATTLINE_EXPORTER", exporter.address)
        patch.setenv("WATTLINE_RECORD", str(record))
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
