"""Environment of a job whose `main` runs in this process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workloads.programs import Exporter, plain_environment


@contextlib.contextmanager
def job_environment(exporter: Exporter, record: Path) -> Iterator[None]:
    """Set the variables of a job that records to `record`; restore them and the signal handlers at
    the end.
    """
    record.mkdir()
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
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
