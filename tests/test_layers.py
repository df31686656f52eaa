"""import-linter holds who may import whom; this holds that it looks at every module."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "rule",
    [
        "workloads and analyzer know the contract and nothing else of the exporter",
        "exporter.contract imports only the standard library and pydantic",
    ],
)
def test_no_module_of_the_exporter_is_left_out_of_the_rule(rule):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    forbidden = next(set(contract["forbidden_modules"]) for contract in contracts if contract["name"] == rule)
    found = [*(ROOT / "exporter").glob("[a-z]*.py"), *(ROOT / "exporter").glob("*/__init__.py")]
    modules = {f"exporter.{path.parent.name if path.stem == '__init__' else path.stem}" for path in found}

    assert modules - {"exporter.contract"} <= forbidden


def test_the_extra_all_has_every_extra_of_wattlines_own():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]

    assert set(re.findall(r"[a-z]+", everything.partition("[")[2])) == set(extras) - {"all", "torch", "parquet"}
