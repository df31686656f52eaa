"""Validation of numbers and names that a job reports.

An invalid value is left out and logged once, since it must not stop a training.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping

from wattline.client.messages import log_message_once
from wattline.contract.api import MAX_AMOUNT, UNIT_PATTERN

_MAX_NAME_CHARS = 40  # of the 64 of a run id; the rest is for the unique part


def finite_number(value: float) -> float | None:
    """Return `value` as a finite float, or None. Scalars of NumPy and torch are accepted."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # an integer may be larger than any float
        return None
    return number if math.isfinite(number) else None


def json_number(value: float | None) -> float | None:
    """Return a number of Python for a scalar of NumPy or torch; another value as it is."""
    if value is None or type(value) in {int, float}:
        return value
    number = finite_number(value)
    if number is None:
        return value
    return int(number) if number.is_integer() else number


def valid_work(amounts: Mapping[str, float]) -> dict[str, float]:
    valid = {
        unit: number
        for unit, amount in amounts.items()
        if (number := finite_number(amount)) is not None
        and 0 <= number <= MAX_AMOUNT
        and unit != "contributor"
        and _is_name(unit)
    }
    for unit in amounts.keys() - valid.keys():
        log_message_once(
            f"cannot count work {unit}: use an ASCII name and a non-negative number of at most "
            "1e300"
        )
    return valid


def valid_labels(labels: object) -> dict[str, str] | None:
    """Return the labels of a request as text; None without any."""
    if isinstance(labels, Mapping):
        return {str(name): str(value) for name, value in labels.items()} or None
    if labels is not None:
        kind = type(labels).__name__
        log_message_once(
            f"cannot report the labels of a request: they are a {kind}; "
            "use the form {'user': 'ann'}"
        )
    return None


def valid_results(values: Mapping[str, float]) -> dict[str, float]:
    with_valid_name = {name: value for name, value in values.items() if _is_name(name)}
    for name in values.keys() - with_valid_name.keys():
        log_message_once(
            f"cannot report result {name}: use a name of at most 64 ASCII letters, digits and _"
        )
    return valid_values(with_valid_name, "result")


def valid_values(values: Mapping[str, float], kind: str = "value") -> dict[str, float]:
    if not isinstance(values, Mapping):
        name = type(values).__name__
        log_message_once(
            f"cannot record the {kind}s: they are a {name}; use the form {{'loss': 0.5}}"
        )
        return {}
    valid = {
        name: number
        for name, value in values.items()
        if (number := finite_number(value)) is not None
    }
    for name in values.keys() - valid.keys():
        log_message_once(
            f"cannot record {kind} {name}: it is not a finite number; pass a finite number"
        )
    return valid


def _is_name(name: str) -> bool:
    return re.fullmatch(UNIT_PATTERN, name) is not None


def run_id_for(workload: str, unique: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", workload).strip("._-")[:_MAX_NAME_CHARS]
    return f"{name or 'run'}-{unique}"


def unique_run_id(workload: str) -> str:
    return run_id_for(workload, secrets.token_hex(5))
