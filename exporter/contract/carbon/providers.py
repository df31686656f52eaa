"""Carbon providers: names, secrets and validation of JSON responses."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from exporter.contract.secret_file import read_secret_text

PROVIDERS = ("gb", "static", "energy-charts", "electricitymaps", "watttime")
TOKEN_VARIABLE = "WATTLINE_CARBON_TOKEN"  # noqa: S105  # name of an environment variable
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


def read_provider_secret(path: Path | None, provider: str) -> str | None:
    """Return the secret of a provider: its line `PROVIDER=SECRET`, else the only line; None without one.

    Without `path`, read the text from WATTLINE_CARBON_TOKEN. Empty lines and comments (`#`) are ignored. Raises
    SecretFileError, or ValueError for an ambiguous or invalid secret. No message contains the secret.
    """
    text = os.environ.get(TOKEN_VARIABLE, "") if path is None else read_secret_text(path)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    named = [line.removeprefix(f"{provider}=") for line in lines if line.startswith(f"{provider}=")]
    unnamed = [line for line in lines if not line.startswith(tuple(f"{name}=" for name in PROVIDERS))]
    if len(named) > 1 or (not named and len(unnamed) > 1):
        raise ValueError(f"more than one carbon token for {provider}; use one line {provider}=SECRET")
    secret = next(iter(named or unnamed), None)
    if secret is not None and not re.fullmatch(r"[ -~]{1,4096}", secret):
        raise ValueError(f"invalid carbon token for {provider}: expected 1 to 4,096 printable ASCII characters")
    return secret
