"""Waiting until the GPUs are as cool as they were, so that no run begins on the heat of the one before."""

from __future__ import annotations

import time
from collections.abc import Callable

from workloads.plans.model import CoolDown

_POLL_S = 1.0


def wait(
    wanted: CoolDown,
    first_celsius: float | None,
    hottest: Callable[[], float | None],
    show: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """None once it is as cool; else why it was not waited for any longer. `first_celsius` is that before the plan."""
    until = wanted.to_celsius if wanted.to_celsius is not None else first_celsius
    if until is None:
        return "no cool-down: the exporter shows no temperature to come back to; see exporter check"
    begin_s, waited_s = time.monotonic(), 0.0
    while True:
        celsius = hottest()
        if celsius is None:
            return "no cool-down: the exporter shows no temperature now; see exporter check"
        if celsius <= until + wanted.tolerance_celsius:
            return None
        if waited_s >= wanted.at_most_seconds:
            return (
                f"still {celsius:.0f} °C after {waited_s:.0f} s of cool-down, not {until:.0f} °C; "
                "give it more with at_most_seconds"
            )
        show(f"cools down, {celsius:.0f} °C until {until + wanted.tolerance_celsius:.0f} °C")
        sleep(min(_POLL_S, wanted.at_most_seconds - waited_s))
        waited_s = time.monotonic() - begin_s
