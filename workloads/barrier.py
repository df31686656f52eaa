"""Several jobs that begin to measure at one instant: each says that it is ready and waits for the others, by files.

Of the standard library alone. The plan's runner makes the folder; whoever finds `ABANDONED` in it goes no further.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

FOLDER = "WATTLINE_BARRIER"
"""`FOLDER:COUNT:SECONDS`: how many are to come, and for how long the first waits for the last."""
ABANDONED = "abandoned"
_POLL_S = 0.005


class BarrierError(RuntimeError):
    """The others did not come; one line, with the remedy."""


def await_all(environ: Mapping[str, str]) -> None:
    """Return at once where there is no barrier. Raises BarrierError."""
    text = environ.get(FOLDER)
    if not text:
        return
    name, count, seconds = text.rsplit(":", 2)
    folder = Path(name)
    (folder / f"ready-{os.getpid()}").touch()
    give_up_s = time.monotonic() + float(seconds)
    while True:
        present = {path.name for path in folder.iterdir()}
        if ABANDONED in present:
            raise BarrierError("another tenant failed before all were ready, so this one does not begin")
        ready = sum(name.startswith("ready-") for name in present)
        if ready >= int(count):
            return
        if time.monotonic() > give_up_s:
            raise BarrierError(
                f"{ready} of {count} tenants were ready within {float(seconds):g} s; give the slow one more time with "
                "barrier_timeout"
            )
        time.sleep(_POLL_S)
