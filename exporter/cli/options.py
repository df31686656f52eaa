"""Command-line options, generated from the fields of Settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer

from exporter.config.settings import Option, Settings, default_state_path


def takes_settings(
    only: Collection[str] | None = None, **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's first parameter by the options of Settings, or of `only` some.

    `defaults` replace those of Settings. The command raises UsageError for options that exclude each other.
    """
    hints = get_type_hints(Settings, include_extras=True)
    options = [
        _parameter(one.name, hints[one.name], defaults.get(one.name, None if one.default is MISSING else one.default))
        for one in fields(Settings)
        if only is None or one.name in only
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = [*options, *list(inspect.signature(command, eval_str=True).parameters.values())[1:]]

        @wraps(command)
        def with_options(**arguments: Any) -> None:
            settings = _settings({parameter.name: arguments.pop(parameter.name) for parameter in options})
            command(settings, **arguments)

        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions allow it
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return decorate


def _parameter(name: str, hint: Any, default: object) -> inspect.Parameter:
    hinted: Any
    option: Option
    hinted, option = get_args(hint)
    if default == ():
        hinted, default = list[str] | None, None
    elif default is None:
        hinted |= None
    shown = typer.Option(
        option.flags, metavar=option.metavar, help=option.help, show_default=option.shown_default or True
    )
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[hinted, shown])


def _settings(values: dict[str, Any]) -> Settings:
    """Return the settings. Raises UsageError for options that exclude each other."""
    values["state_path"] = values.get("state_path") or default_state_path()
    set_values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value is not None
    }
    settings = Settings(**set_values)
    settings.check_combinations()
    return settings
