"""Switches and options of the sensors in the registry, as options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any

import typer

from wattline.command_line import field_options
from wattline_exporter.sensors.registry import (
    ChosenSensor,
    SensorKind,
    choose_sensors,
    sensor_kinds,
)

Sensors = tuple[ChosenSensor, ...]
_PARAMETER = "sensors"
_SWITCHES_AFTER = "nvml"
_OPTIONS_AFTER = "history"


def with_sensor_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `sensors` of a command by the options of all sensors.

    --help lists their switches after --collector.nvml, and their own options after --history. A
    sensor's options may raise UsageError when the command is called.
    """
    kinds = sensor_kinds()
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name != _PARAMETER:
            options.append(parameter)
        if parameter.name == _SWITCHES_AFTER:
            options += [_switch(kind) for kind in kinds]
        if parameter.name == _OPTIONS_AFTER:
            options += [option for kind in kinds for option in _own_options(kind)]

    @wraps(command)
    def command_of_options(**values: Any) -> None:
        switches: dict[str, bool] = {}
        chosen: dict[str, Any] = {}
        for kind in kinds:
            switches[kind.name] = values.pop(_variable(kind))
            own = {
                field.name: values.pop(_variable(kind, field.name))
                for field in fields(kind.options)
            }
            chosen[kind.name] = kind.options(**own)
        command(**values, sensors=choose_sensors(switches, chosen))

    command_of_options.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # functions take any attribute
    command_of_options.__annotations__ = {option.name: option.annotation for option in options}
    return command_of_options


def _switch(kind: SensorKind) -> inspect.Parameter:
    option = typer.Option(f"--collector.{kind.name}/--no-collector.{kind.name}", help=kind.help)
    return inspect.Parameter(
        _variable(kind),
        inspect.Parameter.KEYWORD_ONLY,
        default=kind.default,
        annotation=Annotated[bool, option],
    )


def _own_options(kind: SensorKind) -> list[inspect.Parameter]:
    return [
        option.replace(name=_variable(kind, option.name)) for option in field_options(kind.options)
    ]


def _variable(kind: SensorKind, field: str = "") -> str:
    """Return the name of a parameter, that of the switch without `field`."""
    name = kind.name.replace("-", "_")
    return f"sensor_{name}__{field}" if field else f"sensor_{name}"
