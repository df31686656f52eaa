"""Where the energy of a device is known: at the instants at which its sensor updated (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from exporter.energy.interpolation import Knot
from exporter.energy.sensor_clock import UpdateClock
from exporter.energy.totals import Seen
from exporter.model import Poll

SENSOR_PERIOD_S = 0.1
"""How often a driver updates energy and power, unless the polls tell."""


def counter_knots(seen: Sequence[Seen], clock: UpdateClock | None, update_s: float) -> list[Knot]:
    """One knot for each update of the counter that was seen, at the instant of the update."""
    first_s = seen[0].poll.after_s
    updated_s, slack_s = (clock.before(first_s), clock.slack_s) if clock else (first_s, update_s)
    knots = [Knot(updated_s, seen[0].totals.energy_j, slack_s)]
    for a, b in pairwise(seen):
        if b.poll.counter_j is None or b.totals.energy_j == a.totals.energy_j:
            continue
        earliest_s, latest_s = a.poll.before_s, b.poll.after_s
        if clock:
            if latest_s - earliest_s < 0.75 * clock.period_s:
                first_s = last_s = clock.nearest((earliest_s + latest_s) / 2)
            else:  # the value is that of the last update before the call looked at it, whenever that was
                first_s, last_s = clock.before(b.poll.before_s), clock.before(latest_s)
            t_s = min(max((first_s + last_s) / 2, earliest_s), latest_s)
            slack_s = clock.slack_s + (last_s - first_s) / 2
        else:
            earliest_s = max(earliest_s, b.poll.before_s - update_s)
            t_s, slack_s = (earliest_s + latest_s) / 2, (latest_s - earliest_s) / 2
        if t_s > knots[-1].t_s:
            knots.append(Knot(t_s, b.totals.energy_j, slack_s))
    return knots


def integral_knots(seen: Sequence[Seen], lag_s: float, slack_s: float) -> list[Knot]:
    """One knot for each update of the power, earlier by `lag_s`, by which the power shown trails the power drawn."""
    edges = [item for a, b in pairwise(seen) if b.moved_s is None for item in (a, b)]  # of gaps
    knots = [Knot(after_s(item) - lag_s, item.totals.energy_j, slack_s) for item in [seen[0], *edges, seen[-1]]]
    for a, b in pairwise(seen):
        watts = power_w(a.poll)
        if b.moved_s is not None and watts is not None and watts != power_w(b.poll):
            joules = a.totals.energy_j + watts * (b.moved_s - a.poll.after_s)
            knots.append(Knot(b.moved_s - lag_s, joules, slack_s))
    knots.sort(key=lambda knot: knot.t_s)
    return [knot for i, knot in enumerate(knots) if i == 0 or knot.t_s > knots[i - 1].t_s]


def after_s(item: Seen) -> float:
    return item.poll.after_s


def power_w(poll: Poll) -> float | None:
    return poll.average_w if poll.average_w is not None else poll.power_w


def changes(polls: Sequence[Poll], *, counter: bool) -> list[tuple[float, float]]:
    """Between which instants the value changed, for every change that was seen closely enough to tell a clock."""
    value = (lambda poll: poll.counter_j) if counter else power_w
    return [
        (a.before_s, b.after_s)
        for a, b in pairwise(polls)
        if b.after_s - a.before_s < SENSOR_PERIOD_S
        and value(a) is not None
        and value(b) is not None
        and value(a) != value(b)
    ]
