"""Names and secrets of the carbon providers."""

from __future__ import annotations

import os
import re
from pathlib import Path

from wattline.contract.secret_file import read_secret_text

PROVIDERS = ("gb", "static", "energy-charts", "electricitymaps", "watttime")
TOKEN_VARIABLE = "WATTLINE_CARBON_TOKEN"  # noqa: S105  # name of an environment variable


def read_provider_secret(path: Path | None, provider: str) -> str | None:
    """Return the secret of a provider: its line `PROVIDER=SECRET`, else the only line; None without
    one.

    Without `path`, read the text from WATTLINE_CARBON_TOKEN. Empty lines and comments (`#`) are
    ignored. Raises SecretFileError, or ValueError for an ambiguous or invalid secret. No message
    contains the secret.
    """
    text = os.environ.get(TOKEN_VARIABLE, "") if path is None else read_secret_text(path)
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    named = [line.removeprefix(f"{provider}=") for line in lines if line.startswith(f"{provider}=")]
    unnamed = [
        line for line in lines if not line.startswith(tuple(f"{name}=" for name in PROVIDERS))
    ]
    if len(named) > 1 or (not named and len(unnamed) > 1):
        raise ValueError(
            f"more than one carbon token for {provider}; use one line {provider}=SECRET"
        )
    secret = next(iter(named or unnamed), None)
    if secret is not None and not re.fullmatch(r"[ -~]{1,4096}", secret):
        raise ValueError(
            f"invalid carbon token for {provider}: expected 1 to 4,096 printable ASCII characters"
        )
    return secret
