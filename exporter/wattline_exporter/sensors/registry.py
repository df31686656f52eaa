"""Registry of sensors: each module or package of this folder that has a SENSOR."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline_exporter import sensors
from wattline_exporter.sensors.readings import Source, SourceError

NAME_WIDTH = 7
"""Width of the sensor's name in the output of `exporter check`."""
_LAST = 1_000


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of output. `measures` is True for a source of energy, `fails` where the exporter
    cannot start.
    """

    text: str
    measures: bool = False
    fails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorContext:
    """Facts that all sensors may use."""

    sysfs: Path = Path("/sys")
    """Mount point of sysfs."""
    own_pids: Callable[[], dict[str, int]] = dict
    """Returns the PIDs of the exporter's processes by role, `exporter` and `nvml_worker`."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of a sensor that only has its switch."""


def check_source(source: Source) -> list[CheckLine]:
    """Read the source once. Return what it measures, or the cause and the remedy."""
    name = source.name.ljust(NAME_WIDTH)
    try:
        batch = source.read()
    except SourceError as error:
        return [CheckLine(f"{name} off: {error}")]
    energies = [f"{poll.device.kind} {poll.device.id}" for poll in batch.polls]
    measured = ", ".join(energies) or f"{len(batch.readings)} readings"
    return [
        CheckLine(f"{name} works: {measured}", measures=bool(energies)),
        *(CheckLine(f"{name} in part: {problem}") for problem in batch.problems),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorKind:
    """Declaration of a sensor, the SENSOR of its module.

    All modules are imported for --help. So a sensor that needs a large package is a folder, whose
    `__init__.py` declares it, and `find` imports the rest.
    """

    name: str
    """Name of its switch, `--collector.NAME`, and of its sources in `wattline_source_up`."""
    help: str
    period_s: float
    """Period at which each of its sources is read."""
    find: Callable[[Any, SensorContext], Sequence[Source]]
    """Returns the sources for its options, none on a node without such sensors."""
    options: type = NoOptions
    """Dataclass with a typer option for each field; all have defaults."""
    default: bool = True
    """True if the sensor is enabled without its switch."""
    has_run_energy: bool = False
    """True if its devices belong to runs, so that it is read at the start and end of each run."""
    check: Callable[[Any], list[CheckLine]] = check_source
    """Reads one source and returns the lines of `exporter check`; blocks."""
    position: int = _LAST
    """Place in --help and in the output of `exporter check`; sensors of one place are sorted."""


def sensor_kinds() -> tuple[SensorKind, ...]:
    """Return all sensors except NVML, in the order of --help."""
    names = [module.name for module in pkgutil.iter_modules(sensors.__path__)]
    modules = [importlib.import_module(f"{sensors.__name__}.{name}") for name in names]
    kinds: list[SensorKind] = [module.SENSOR for module in modules if hasattr(module, "SENSOR")]
    return tuple(sorted(kinds, key=lambda kind: (kind.position, kind.name)))


@dataclass(frozen=True, slots=True)
class ChosenSensor:
    """A sensor with the values of its switch and of its options."""

    kind: SensorKind
    is_enabled: bool
    options: Any

    def sources(self, context: SensorContext) -> Sequence[Source]:
        """Return its sources, none if it is not enabled."""
        return self.kind.find(self.options, context) if self.is_enabled else ()

    def check(self, context: SensorContext) -> list[CheckLine]:
        """Read its sources once; blocks. No line for a sensor that is off by default."""
        if not self.is_enabled and self.kind.default:
            name = self.kind.name
            return [CheckLine(f"{name.ljust(NAME_WIDTH)} off: --no-collector.{name}")]
        return [line for source in self.sources(context) for line in self.kind.check(source)]


def choose_sensors(
    switches: Mapping[str, bool] | None = None, options: Mapping[str, Any] | None = None
) -> tuple[ChosenSensor, ...]:
    """Return all sensors with these switches and options by name, and defaults for the others."""
    switched = switches or {}
    given = options or {}
    return tuple(
        ChosenSensor(
            kind, switched.get(kind.name, kind.default), given.get(kind.name) or kind.options()
        )
        for kind in sensor_kinds()
    )
