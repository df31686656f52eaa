"""JSON, YAML and CSV texts of results."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattline.figures import Figure


def quantity(interval: Figure | None, name: str, unit: str) -> dict[str, float | None]:
    """Return a value and the half-width of its 95 % CI as entries of a document."""
    return {
        f"{name}_{unit}": interval.value if interval else None,
        f"{name}_uncertainty_{unit}": interval.half_width if interval else None,
    }


def energy_by_component(energies: Mapping[str, Figure]) -> dict[str, dict[str, float | None]]:
    return {
        "energy_joules": {component: energy.value for component, energy in energies.items()},
        "energy_uncertainty_joules": {
            component: energy.half_width for component, energy in energies.items()
        },
    }


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def as_yaml(data: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")


def null_if_not_finite(data: Any) -> Any:
    """Return the document with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(data, Mapping):
        return {key: null_if_not_finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [null_if_not_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def as_csv(rows: Sequence[Mapping[str, Any]], header: Sequence[str] = ()) -> str:
    """Return rows below one header, `header` and then their other keys; a mapping becomes one
    column of JSON.
    """
    text = io.StringIO()
    writer = csv.DictWriter(
        text,
        list(dict.fromkeys((*header, *(name for row in rows for name in row)))),
        lineterminator="\n",
    )
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def _plain(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else value
