"""Registry of carbon providers: one file of this folder each, listed without importing it."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.contract.secret_file import read_secret_text

if TYPE_CHECKING:
    from wattline_exporter.sensors.carbon.provider import CarbonProvider

TOKEN_VARIABLE = "WATTLINE_CARBON_TOKEN"  # noqa: S105  # name of an environment variable


def provider_names() -> tuple[str, ...]:
    """Return the names of all providers, sorted: those of their files, with `-` for `_`."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(file.replace("_", "-") for file in files))


def load_provider(name: str) -> type[CarbonProvider]:
    """Import the file of one of `provider_names()` and return its PROVIDER.

    Providers are imported when they are used: all of them take 3 MB of memory.
    """
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    provider: type[CarbonProvider] = module.PROVIDER
    return provider


def read_provider_secret(path: Path | None, provider: str) -> str:
    """Return the secret of a provider: its line `PROVIDER=SECRET`, else the only line, else "".

    Without `path`, read the text from WATTLINE_CARBON_TOKEN. Empty lines and comments (`#`) are
    ignored. Raises SecretFileError, or ValueError for an ambiguous or invalid secret. No message
    contains the secret.
    """
    text = os.environ.get(TOKEN_VARIABLE, "") if path is None else read_secret_text(path)
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    prefixes = tuple(f"{name}=" for name in provider_names())
    named = [line.removeprefix(f"{provider}=") for line in lines if line.startswith(f"{provider}=")]
    unnamed = [line for line in lines if not line.startswith(prefixes)]
    if len(named) > 1 or (not named and len(unnamed) > 1):
        raise ValueError(
            f"more than one carbon token for {provider}; use one line {provider}=SECRET"
        )
    secret = next(iter(named or unnamed), "")
    if secret and not re.fullmatch(r"[ -~]{1,4096}", secret):
        raise ValueError(
            f"invalid carbon token for {provider}: expected 1 to 4,096 printable ASCII characters"
        )
    return secret
