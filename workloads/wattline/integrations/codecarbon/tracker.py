"""Trackers and decorators with the interface of CodeCarbon."""

from __future__ import annotations

import functools
import itertools
import math
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import wattline
from wattline.client.messages import log_message, log_message_once
from wattline.client.summary import outcome_of
from wattline.contract.run import Run
from wattline.figures import JOULES_PER_KWH, Figure
from wattline.integrations.codecarbon.emissions_data import (
    NAN,
    EmissionsData,
    TaskEmissionsData,
    write_row,
    write_tasks,
)
from wattline.runs.measured_function import measured, name_of

_USED = {
    "project_name",
    "output_dir",
    "output_file",
    "save_to_file",
    "gpu_ids",
    "experiment_id",
    "on_csv_write",
    "pue",
    "force_carbon_intensity_g_co2e_kwh",
    "country_iso_code",
    "region",
}
_REPLACED = {
    "measure_power_secs",
    "api_call_interval",
    "tracking_mode",
    "log_level",
    "logger_preamble",
    "logging_logger",
    "allow_multiple_runs",
    "experiment_name",
    "save_to_logger",
    "output_methods",
    "wue",
    "electricitymaps_api_token",
    "co2_signal_api_token",
    "force_cpu_power",
    "force_ram_power",
    "force_mode_cpu_load",
    "rapl_include_dram",
    "rapl_prefer_psys",
    "country_2letter_iso_code",
    "cloud_provider",
    "cloud_region",
    "metadata",
}
"""Arguments without effect: the exporter measures, and has the carbon intensity."""
_NO_ENERGY = (
    "no energy was measured, so the values are NaN; start an exporter on this node: exporter serve"
)
_NO_INTENSITY = (
    "emissions are NaN: no carbon intensity; start the exporter with --carbon.region, or give "
    "force_carbon_intensity_g_co2e_kwh"
)


class OutputMethod(StrEnum):
    """Outputs of CodeCarbon; of these, only the CSV file is written."""

    CSV = "csv"
    API = "api"
    LOGGER = "logger"
    PROMETHEUS = "prometheus"
    LOGFIRE = "logfire"
    BOAMPS = "boamps"


class EmissionsTracker:
    """Measures the program from `start` to `stop` as a run of the exporter; `with` does both.

    It accepts the arguments of CodeCarbon's tracker. Arguments for the method of measurement have
    no effect. A message names arguments without an equivalent, such as those of CodeCarbon's API.
    """

    def __init__(self, project_name: str = "codecarbon", *_: Any, **options: Any) -> None:
        unknown = sorted(name for name in options.keys() - _USED - _REPLACED if options[name])
        if unknown:
            log_message(
                f"EmissionsTracker: no effect of {', '.join(unknown)}; only emissions.csv is "
                "written"
            )
        self._options = {
            name: value for name, value in options.items() if name in _USED and value is not None
        }
        self._project = project_name
        self._gpus = _gpus(self._options.get("gpu_ids"))
        self._run: wattline.ActiveRun | None = None
        self._before: Run | None = None
        self._before_task: Run | None = None
        self._task: tuple[str, wattline.ActiveRun] | None = None
        self._tasks: list[TaskEmissionsData] = []
        self._numbers = itertools.count(1)
        self.final_emissions: float | None = None
        """Emissions in kg CO2eq, after `stop`."""
        self.final_emissions_data: EmissionsData | None = None

    def start(self) -> None:
        if self._run is not None:
            log_message("EmissionsTracker: already started")
            return
        labels = {"project": self._project}
        self._run = wattline.start("codecarbon", labels=labels, gpus=self._gpus, quiet=True)
        self._before = _view_of_another(self._run)

    def stop(self) -> float | None:
        """End the run, write `emissions.csv`, and return the emissions in kg CO2eq; NaN where they
        are unknown.
        """
        return self._stop("ok")

    def _stop(self, outcome: str) -> float | None:
        if self._run is None:
            log_message("EmissionsTracker: already stopped, or never started")
            return self.final_emissions
        if self._task is not None:
            self.end_task(outcome)
        run = self._run
        self._run = None
        run.end(outcome)
        self.final_emissions_data = self._data(run, self._before)
        self.final_emissions = self.final_emissions_data.emissions
        self._write(self.final_emissions_data)
        return self.final_emissions

    def flush(self) -> float | None:
        """Write the values up to now, and return the emissions in kg CO2eq."""
        if self._run is None:
            log_message("EmissionsTracker: start it before flush()")
            return None
        data = self._data(self._run, self._before)
        self._write(data)
        return data.emissions

    def start_task(self, task_name: str | None = None) -> None:
        """Start a task, which is a separate run; start the tracker as well if it is not started."""
        if self._task is not None:
            log_message(f"EmissionsTracker: task {self._task[0]} is still running; stop it first")
            return
        if self._run is None:
            self.start()
        name = task_name or f"task-{next(self._numbers)}"
        labels = {"project": self._project, "task": name}
        run = wattline.start("codecarbon-task", labels=labels, gpus=self._gpus, quiet=True)
        self._task, self._before_task = (name, run), _view_of_another(run)

    def stop_task(self, task_name: str | None = None) -> EmissionsData | None:
        """End the task and return its values."""
        if self._task is None or (task_name is not None and task_name != self._task[0]):
            log_message(f"EmissionsTracker: no task {task_name or ''} to stop")
            return None
        return self.end_task("ok")

    def end_task(self, outcome: str) -> EmissionsData | None:
        """End the task, if one is running, with the outcome `ok`, `failed` or `interrupted`; return
        its values.
        """
        if self._task is None:
            return None
        name, run = self._task
        self._task = None
        run.end(outcome)
        data = self._data(run, self._before_task)
        self._tasks.append(TaskEmissionsData(name, data))
        return data

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(outcome_of(error))

    def _data(self, run: wattline.ActiveRun, before: Run | None) -> EmissionsData:
        now = run.view()
        duration_s = (now.duration_s if now else NAN) - (before.duration_s if before else 0.0)
        used = consumption(now, before)
        if now is None or not now.devices:
            log_message_once(_NO_ENERGY)
        elif math.isnan(used.total_j):
            log_message_once(f"the energy is NaN, since a part is unknown: {now.energy().reason}")
        # CodeCarbon multiplies each energy and power by it
        pue = float(self._options.get("pue", 1.0))
        cpu_j = pue * used.joules.get("cpu", NAN)
        gpu_j = pue * used.joules.get("gpu", NAN)
        ram_j = pue * used.joules.get("dram", NAN)
        energy_kwh = pue * used.total_j / JOULES_PER_KWH
        mass_kg = self._emissions_kg(used.grams, energy_kwh, pue)
        gpus = now.gpus if now else ()
        return EmissionsData(
            timestamp=datetime.now()
            .astimezone()
            .replace(tzinfo=None)
            .isoformat(timespec="seconds"),
            project_name=self._project,
            run_id=now.run_id if now else "",
            experiment_id=str(self._options.get("experiment_id", "")),
            duration=duration_s,
            emissions=mass_kg,
            emissions_rate=_ratio(mass_kg, duration_s),
            cpu_power=_ratio(cpu_j, duration_s),
            gpu_power=_ratio(gpu_j, duration_s),
            ram_power=_ratio(ram_j, duration_s),
            cpu_energy=cpu_j / JOULES_PER_KWH,
            gpu_energy=gpu_j / JOULES_PER_KWH,
            ram_energy=ram_j / JOULES_PER_KWH,
            energy_consumed=energy_kwh,
            water_consumed=NAN,
            country_name="",
            country_iso_code=str(self._options.get("country_iso_code", "")),
            region=str(self._options.get("region", "")),
            cloud_provider="",
            cloud_region="",
            os=platform.platform(),
            python_version=platform.python_version(),
            codecarbon_version="wattline",
            cpu_count=os.cpu_count() or NAN,
            cpu_model=platform.processor(),
            gpu_count=len(gpus),
            gpu_model=", ".join(dict.fromkeys(gpu.name for gpu in gpus)),
            longitude=NAN,
            latitude=NAN,
            ram_total_size=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
            tracking_mode="machine",
            pue=pue,
        )

    def _emissions_kg(self, grams: float, energy_kwh: float, pue: float) -> float:
        forced = self._options.get("force_carbon_intensity_g_co2e_kwh")
        if forced is not None:
            return energy_kwh * float(forced) / 1_000
        if math.isnan(grams) and energy_kwh > 0:
            log_message_once(_NO_INTENSITY)
        return pue * grams / 1_000

    def _write(self, data: EmissionsData) -> None:
        if not self._options.get("save_to_file", True):
            return
        folder = Path(self._options.get("output_dir", os.environ.get("CODECARBON_OUTPUT_DIR", ".")))
        try:
            write_row(
                folder / self._options.get("output_file", "emissions.csv"),
                data,
                updates=self._options.get("on_csv_write", "append") == "update",
            )
            write_tasks(folder / f"emissions_{self._project}_{data.run_id}.csv", self._tasks)
        except OSError as error:
            log_message(
                f"cannot write emissions to {folder}: {error.strerror}; give output_dir with write "
                "permission"
            )


class OfflineEmissionsTracker(EmissionsTracker):
    """Tracker for nodes without the internet: the exporter has the carbon intensity, so it is the
    same.
    """


class TaskEmissionsTracker:
    """Measures a block as a task, of the given tracker or of a new one."""

    def __init__(self, task_name: str, tracker: EmissionsTracker | None = None) -> None:
        self.tracker = tracker or EmissionsTracker()
        self._is_own = tracker is None
        self.task_name = task_name

    def __enter__(self) -> Self:
        self.tracker.start_task(self.task_name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tracker.end_task(outcome_of(error))
        if self._is_own:
            self.tracker.stop()


def track_emissions(
    function: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Measure each call of a function: `@track_emissions`, or
    `@track_emissions(project_name="train")`.
    """
    if function is None:
        return functools.partial(track_emissions, **options)

    own = {name: value for name, value in options.items() if name != "offline"}
    return cast("Callable[..., Any]", measured(function, lambda: EmissionsTracker(**own)))


def track_task_emissions(
    function: Callable[..., Any] | None = None,
    tracker: EmissionsTracker | None = None,
    task_name: str = "",
) -> Callable[..., Any]:
    """Measure each call of a function as a task, named after the function by default."""
    if function is None:
        return functools.partial(track_task_emissions, tracker=tracker, task_name=task_name)
    name = task_name or name_of(function)
    return cast(
        "Callable[..., Any]", measured(function, lambda: TaskEmissionsTracker(name, tracker))
    )


def _gpus(gpu_ids: Any) -> str | None:
    """Return the GPUs of a run; without a choice all of the machine, as CodeCarbon has them."""
    if not gpu_ids:
        return None if os.environ.get("CUDA_VISIBLE_DEVICES") else "all"
    return gpu_ids if isinstance(gpu_ids, str) else ",".join(map(str, gpu_ids))


def _view_of_another(run: wattline.ActiveRun) -> Run | None:
    """Return the present values of a run that another program started, which the tracker must not
    count.
    """
    return None if run.is_own else run.view()


@dataclass(frozen=True, slots=True)
class Consumption:
    """Energy and emissions of a run from one view of it to a later one; NaN where unknown."""

    joules: Mapping[str, float]
    """By component, without those for which the node has no sensor."""
    grams: float
    """Emissions in g CO2eq."""

    @property
    def total_j(self) -> float:
        return math.fsum(self.joules.values()) if self.joules else NAN


def consumption(now: Run | None, before: Run | None) -> Consumption:
    """Return what the run used up to `now`, since its start or since `before`."""
    if now is None:
        return Consumption({}, NAN)
    grams = _number(now.emissions_g)
    joules: dict[str, float] = {}
    for component in now.components:
        joules[component] = _number(now.energy(component))
    if before is not None and before.devices:
        grams -= _number(before.emissions_g)
        for component in before.components:
            joules[component] = joules.get(component, NAN) - _number(before.energy(component))
    return Consumption(joules, grams)


def _number(figure: Figure) -> float:
    """Return the value; NaN where it is unknown, or lacks a part."""
    value = figure.complete().value
    return NAN if value is None else value


def _ratio(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else NAN
