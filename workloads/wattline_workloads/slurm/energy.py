"""Energy of a job over its nodes, and its text in the accounting database."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

PREFIX = "wattline:"
"""Start of the comments that this program writes."""

EDGES_S = 2.0
"""Time for which attribution may not know the processes of a run: a second at its start and at its
end.
"""


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """Energy of a job's attempts so far, with the half-width of its 95 % confidence interval and
    the emissions.

    `grams` is None where the intensity is unknown. `measured` of `nodes` reported the last attempt.
    """

    joules: float
    half_width_j: float
    grams: float | None
    measured: int
    nodes: int
    attempts: int = 1

    @property
    def comment(self) -> str:
        """Text for AdminComment. It is lower case, since sacctmgr converts it to lower case."""
        fields = [f"energy_joules={self.joules:.1f}", f"uncertainty_joules={self.half_width_j:.1f}"]
        if self.grams is not None:
            fields.append(f"emissions_gco2eq={self.grams:.4g}")
        fields.append(f"nodes={self.measured}/{self.nodes}")
        if self.attempts > 1:
            fields.append(f"attempts={self.attempts}")
        return f"{PREFIX} {' '.join(fields)}"

    @classmethod
    def parse(cls, comment: str) -> JobEnergy | None:
        """Return the energy in a comment; None if it has none."""
        found = (
            dict(re.findall(r"(\w+)=([\d./e+-]+)", comment)) if comment.startswith(PREFIX) else {}
        )
        try:
            measured, nodes = map(int, found["nodes"].split("/"))
            grams = float(found["emissions_gco2eq"]) if "emissions_gco2eq" in found else None
            joules, half_width_j = float(found["energy_joules"]), float(found["uncertainty_joules"])
        except (KeyError, ValueError):
            return None
        return cls(joules, half_width_j, grams, measured, nodes, int(found.get("attempts", "1")))

    def after(self, earlier: JobEnergy) -> JobEnergy:
        """Return the sum of this attempt and the earlier ones."""
        return replace(
            self,
            joules=self.joules + earlier.joules,
            half_width_j=math.hypot(self.half_width_j, earlier.half_width_j),
            grams=None
            if self.grams is None or earlier.grams is None
            else self.grams + earlier.grams,
            attempts=self.attempts + earlier.attempts,
        )


def sum_runs(runs: Iterable[Mapping[str, Any]], nodes: int) -> JobEnergy:
    """Return the energy of the runs of one job, one from each node that has it. A run without
    devices is not counted.

    Of a device that others used as well, only the job's share counts. The half-widths of devices
    are independent.
    """
    joules, squares_j2, grams, measured = 0.0, 0.0, 0.0, 0
    has_grams = True
    for run in runs:
        measured += bool(run["energy_joules"])
        shares: dict[str, float] = {}
        for component, energies in run["energy_joules"].items():
            attributed = run.get("attributed_energy_joules", {}).get(component, {})
            seconds = run["duration_seconds"]
            own_j = sum(
                _own_j(energy_j, attributed.get(device), seconds)
                for device, energy_j in energies.items()
            )
            whole_j = sum(energies.values())
            joules += own_j
            shares[component] = own_j / whole_j if whole_j else 0.0
            halves_j = run["energy_uncertainty_joules"].get(component, {})
            squares_j2 += sum(halves_j.get(device, 0.0) ** 2 for device in energies)
        emitted = _grams(run, shares)
        has_grams, grams = has_grams and emitted is not None, grams + (emitted or 0.0)
    return JobEnergy(
        joules, math.sqrt(squares_j2), grams if measured and has_grams else None, measured, nodes
    )


def _own_j(energy_j: float, attributed_j: float | None, duration_s: float) -> float:
    """Return the job's energy of a device: all of it, unless others used it for more than the edges
    of the run.
    """
    if attributed_j is None or energy_j - attributed_j <= EDGES_S * energy_j / max(
        duration_s, EDGES_S
    ):
        return energy_j
    return attributed_j


def _grams(run: Mapping[str, Any], shares: Mapping[str, float]) -> float | None:
    """Return the emissions of the run's share by average intensity, else by marginal; None without
    an intensity.
    """
    bases = {emission["basis"] for emission in run["emissions_grams"]}
    if not bases:
        return None
    basis = "average" if "average" in bases else min(bases)
    return sum(
        float(emission["grams"]) * shares.get(emission["component"], 1.0)
        for emission in run["emissions_grams"]
        if emission["basis"] == basis
    )
