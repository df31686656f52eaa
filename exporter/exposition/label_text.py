"""Text from outside as a label's value: names of processes, products and runs may hold anything."""

from __future__ import annotations

import re

_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def shown(text: str) -> str:
    """Without what breaks a scrape (NUL), cannot be encoded (half a character) or gives a terminal orders (ESC)."""
    return text if text.isprintable() else _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)
