"""Energy of a job over its nodes, and its text in the accounting database."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wattline.figures import Figure, sum_of_independent, sum_of_one_job

PREFIX = "wattline:"
"""Start of the comments that this program writes."""

EDGES_S = 2.0
"""Time for which attribution may not know the processes of a run: a second at its start and at its
end.
"""


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """Energy of a job's attempts so far, in joules, and the emissions.

    `grams` is None where the intensity is unknown. `measured` of `nodes` reported the last attempt.
    """

    energy_j: Figure
    grams: float | None
    measured: int
    nodes: int
    attempts: int = 1

    @property
    def comment(self) -> str:
        """Text for AdminComment. It is lower case, since sacctmgr converts it to lower case."""
        fields = [f"energy_joules={self.energy_j.number:.1f}"]
        if self.energy_j.half_width is not None:
            fields.append(f"uncertainty_joules={self.energy_j.half_width:.1f}")
        if self.grams is not None:
            fields.append(f"emissions_gco2eq={self.grams:.4g}")
        fields.append(f"nodes={self.measured}/{self.nodes}")
        if self.attempts > 1:
            fields.append(f"attempts={self.attempts}")
        return f"{PREFIX} {' '.join(fields)}"

    @classmethod
    def parse(cls, comment: str) -> JobEnergy | None:
        """Return the energy in a comment; None if it has none."""
        if not comment.startswith(PREFIX):
            return None
        found = dict(re.findall(r"(\w+)=([\d./e+-]+)", comment))
        try:
            measured, nodes = map(int, found["nodes"].split("/"))
            joules = float(found["energy_joules"])
            half_width_j = _optional(found, "uncertainty_joules")
            grams = _optional(found, "emissions_gco2eq")
            attempts = int(found.get("attempts", "1"))
        except (KeyError, ValueError):
            return None
        return cls(Figure(joules, half_width_j), grams, measured, nodes, attempts)

    def after(self, earlier: JobEnergy) -> JobEnergy:
        """Return the sum of this attempt and the earlier ones."""
        is_known = self.grams is not None and earlier.grams is not None
        return replace(
            self,
            energy_j=sum_of_independent([self.energy_j, earlier.energy_j]),
            grams=(self.grams or 0.0) + (earlier.grams or 0.0) if is_known else None,
            attempts=self.attempts + earlier.attempts,
        )


def _optional(fields: Mapping[str, str], name: str) -> float | None:
    return float(fields[name]) if name in fields else None


def sum_runs(runs: Iterable[Mapping[str, Any]], nodes: int) -> JobEnergy:
    """Return the energy of the runs of one job, one from each node that has it. A run without
    devices is not counted.

    Of a device that others used as well, only the job's share counts.
    """
    devices: list[Figure] = []
    grams: list[float | None] = []
    measured = 0
    for run in runs:
        measured += bool(run["energy_joules"])
        shares: dict[str, float] = {}
        for component, energies_j in run["energy_joules"].items():
            of_component = list(_own_energies(run, component))
            devices += of_component
            own_j = math.fsum(device.number for device in of_component)
            whole_j = math.fsum(energies_j.values())
            shares[component] = own_j / whole_j if whole_j else 0.0
        grams.append(_grams(run, shares))
    emitted = [each for each in grams if each is not None]
    has_grams = bool(measured) and len(emitted) == len(grams)
    return JobEnergy(
        sum_of_one_job(devices), math.fsum(emitted) if has_grams else None, measured, nodes
    )


def _own_energies(run: Mapping[str, Any], component: str) -> Iterator[Figure]:
    """Yield the job's energy of each device, with the half-width of the whole device."""
    attributed_j = run.get("attributed_energy_joules", {}).get(component, {})
    half_widths_j = run["energy_uncertainty_joules"].get(component, {})
    for device, energy_j in run["energy_joules"][component].items():
        own_j = _own_j(energy_j, attributed_j.get(device), run["duration_seconds"])
        yield Figure(own_j, half_widths_j.get(device))


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
