"""Metadata of the distribution."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_extra_all_contains_every_other_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (everything,) = extras["all"]

    assert set(re.findall(r"[a-z]+", everything.partition("[")[2])) == set(extras) - {
        "all",
        "torch",
        "parquet",
        "mcp",
    }
