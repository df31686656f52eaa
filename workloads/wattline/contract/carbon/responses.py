"""Validation of the JSON responses of carbon providers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

DAY_S = 86_400.0
MAX_GRAMS_PER_KWH = 5_000.0
"""Upper bound of a plausible intensity in gCO2eq/kWh; lignite alone has about 1,100."""
MAX_POINTS = 4_000
"""Limit per response, so that none blocks the event loop; 9.5 days of 5 minutes are 2,736."""
MAX_TEXT = 200
"""Characters of a server's text in a message."""

Basis = Literal["average", "marginal"]
Quality = Literal["actual", "forecast", "estimated"]
GramsPerKwh = Annotated[float, Field(strict=True, ge=0, le=MAX_GRAMS_PER_KWH)]
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class IntensitySlot:
    """Intensity in gCO2eq/kWh from `start_s` to `end_s` (Unix seconds)."""

    start_s: float
    end_s: float
    grams_per_kwh: float
    quality: Quality


class ResponseError(Exception):
    """A response that is not the expected JSON, described in one line."""


def parse_response(body: bytes, model: type[_Model]) -> _Model:
    """Return the validated body. Raises ResponseError, which names the first invalid field."""
    if not body.strip():
        raise ResponseError("the body is empty")
    if body.lstrip().startswith(b"<"):
        raise ResponseError("the body is a web page, not JSON (from a proxy or a login page?)")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ResponseError(one_line(f"{field or 'body'}: {first['msg']}")) from error


def one_line(text: str) -> str:
    """Return at most MAX_TEXT printable characters of the text."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:MAX_TEXT]


def format_minute(time_s: float) -> str:
    """Return the time in UTC as providers expect it: `2018-01-20T12:00Z`."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
