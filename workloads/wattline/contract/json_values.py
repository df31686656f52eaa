"""Values from JSON, each check raising ValueError with the name of the field, and to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_args

from wattline.contract.api import Outcome

_Value = TypeVar("_Value")


def as_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a number")  # noqa: TRY004  # invalid content
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{name}: the number is too large") from error


def as_duration_s(name: str, value: object) -> float:
    seconds = as_number(name, value)
    if seconds < 0 or math.isnan(seconds):
        raise ValueError(f"{name}: expected a number of at least 0")
    return seconds


def as_whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: expected a whole number")  # noqa: TRY004  # invalid content
    return value


def as_index(name: str, value: object) -> int:
    number = as_whole(name, value)
    if number < 0:
        raise ValueError(f"{name}: expected a number of at least 0")
    return number


def as_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text")  # noqa: TRY004  # invalid content
    return value


def as_list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name}: expected a list")  # noqa: TRY004  # invalid content
    return list(value)


def as_texts(name: str, value: object) -> list[str]:
    return [as_text(f"{name}.{index}", one) for index, one in enumerate(as_list(name, value))]


def as_object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object")  # noqa: TRY004  # invalid content
    return value


def as_labels(name: str, value: object) -> dict[str, str]:
    return {key: as_text(f"{name}.{key}", one) for key, one in as_object(name, value).items()}


def as_amounts(name: str, value: object) -> dict[str, float]:
    return {key: as_number(f"{name}.{key}", one) for key, one in as_object(name, value).items()}


def as_outcome(name: str, value: object) -> Outcome:
    if value not in get_args(Outcome):
        raise ValueError(f"{name}: expected {', '.join(get_args(Outcome))}")
    return cast("Outcome", value)


def optional(check: Callable[[str, object], _Value]) -> Callable[[str, object], _Value | None]:
    """Return the check that also accepts null."""
    return lambda name, value: None if value is None else check(name, value)


def json_bytes(document: object) -> bytes:
    """Return a document as compact JSON. Raises ValueError for a number that JSON lacks."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
