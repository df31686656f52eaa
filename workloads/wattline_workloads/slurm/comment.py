"""Energy of a job in its AdminComment, and its sums over nodes and attempts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wattline.contract.run import Run
from wattline.figures import Figure, sum_of_independent, sum_of_one_job, unknown

PREFIX = "wattline:"
"""Start of the comments that this program writes."""
_NODE_MISSING = "the energy of a node is not known"
_ATTEMPT_MISSING = "the energy of an attempt is not known"


@dataclass(frozen=True, slots=True)
class EnergyComment:
    """Energy of a job's attempts so far, as AdminComment states it.

    Raises ValueError for a value that is negative or not finite, and for impossible counts.
    """

    energy_j: Figure
    """Lower limit unless the energy of all nodes is known, in each attempt."""
    emissions_g: float | None
    """Emissions of `energy_j` in g CO2eq; None where the carbon intensity is unknown."""
    known_nodes: int
    """Nodes whose energy is known, in the attempt that lacks most."""
    nodes: int
    """Nodes of that attempt."""
    attempts: int = 1

    def __post_init__(self) -> None:
        for value in (self.energy_j.value, self.energy_j.half_width, self.emissions_g):
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{value} is negative or not finite")
        if not 0 <= self.known_nodes <= self.nodes or self.nodes < 1 or self.attempts < 1:
            raise ValueError(
                f"nodes={self.known_nodes}/{self.nodes} attempts={self.attempts} is impossible"
            )

    @property
    def text(self) -> str:
        """Text for AdminComment. It is lower case, since sacctmgr converts it to lower case.

        Raises UnknownFigureError.
        """
        fields = [f"energy_joules={self.energy_j.number:.1f}"]
        if self.energy_j.half_width is not None:
            fields.append(f"uncertainty_joules={self.energy_j.half_width:.1f}")
        if self.emissions_g is not None:
            fields.append(f"emissions_gco2eq={self.emissions_g:.4g}")
        fields.append(f"nodes={self.known_nodes}/{self.nodes}")
        if self.attempts > 1:
            fields.append(f"attempts={self.attempts}")
        return f"{PREFIX} {' '.join(fields)}"

    @classmethod
    def parse(cls, text: str) -> EnergyComment | None:
        """Return the energy in a comment; None if it has none that is valid."""
        if not text.startswith(PREFIX):
            return None
        fields = dict(re.findall(r"(\w+)=(\S+)", text))
        try:
            known_nodes, nodes = map(int, fields["nodes"].split("/"))
            energy_j = Figure(
                float(fields["energy_joules"]), _optional(fields.get("uncertainty_joules"))
            )
            if known_nodes < nodes:
                energy_j = sum_of_one_job([energy_j, unknown(_NODE_MISSING)])
            emissions_g = _optional(fields.get("emissions_gco2eq"))
            return cls(energy_j, emissions_g, known_nodes, nodes, int(fields.get("attempts", "1")))
        except (KeyError, ValueError):
            return None

    def after(self, earlier: EnergyComment | None, attempts: int) -> EnergyComment:
        """Return the sum of all `attempts`, of which this is the last one.

        `earlier` is the sum of the first ones. The energy of the attempts between is unknown.
        """
        parts = [self]
        if earlier is not None:
            parts.append(earlier)
        missing = attempts - sum(part.attempts for part in parts)
        if missing > 0:
            parts.append(unknown_attempts(self.nodes, missing))
        least_known = min(parts, key=lambda part: part.known_nodes / part.nodes)
        return EnergyComment(
            sum_of_independent(part.energy_j for part in parts),
            _sum_of_emissions((part.energy_j, part.emissions_g) for part in parts),
            least_known.known_nodes,
            least_known.nodes,
            attempts,
        )


def _optional(text: str | None) -> float | None:
    return None if text is None else float(text)


def sum_of_nodes(runs: Sequence[Run], nodes: int) -> EnergyComment:
    """Return the energy of one attempt on `nodes` nodes, from the runs of those that have one.

    Of a device that others used as well, only the job's share counts.
    """
    parts = [device.own_energy_j for run in runs for device in run.devices]
    measured = sum(bool(run.devices) for run in runs)
    if measured < nodes:
        parts.append(unknown(_NODE_MISSING))
    return EnergyComment(
        sum_of_one_job(parts),
        _sum_of_emissions((run.own_energy(), _emissions_of_node(run)) for run in runs),
        sum(run.own_energy().state == "known" for run in runs),
        nodes,
    )


def _emissions_of_node(run: Run) -> float | None:
    """Return the emissions of the energy that is known; None where they lack a part of it."""
    emissions_g = run.own_emissions_g
    return emissions_g.value if emissions_g.state == run.own_energy().state else None


def unknown_attempts(nodes: int, attempts: int = 1) -> EnergyComment:
    """Return attempts of which no node has a run."""
    return EnergyComment(unknown(_ATTEMPT_MISSING), None, 0, nodes, attempts)


def _sum_of_emissions(parts: Iterable[tuple[Figure, float | None]]) -> float | None:
    """Return the emissions of the parts with an energy; None where those of one are unknown."""
    emissions_g = [grams for energy, grams in parts if energy.value is not None]
    known_g = [grams for grams in emissions_g if grams is not None]
    return math.fsum(known_g) if known_g and len(known_g) == len(emissions_g) else None
