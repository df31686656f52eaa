"""Limits of the product's modules and folders."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 300
MAX_MODULES = 12
"""Limit of the modules in a folder, without `__init__.py`."""


def product_modules():
    """Return the modules of the product, without generated ones, relative to the repository."""
    paths = (path for package in ("exporter", "analyzer", "workloads") for path in (ROOT / package).rglob("*.py"))
    return sorted(path.relative_to(ROOT) for path in paths if not path.stem.endswith("_pb2"))


def test_product_modules_have_at_most_300_lines():
    lines = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in product_modules()}
    too_long = [f"{path} has {count} lines" for path, count in lines.items() if count > MAX_LINES]

    assert not too_long, f"{'; '.join(too_long)}: at most {MAX_LINES}; split it by subject"


def test_product_folders_have_at_most_12_modules():
    modules = Counter(path.parent for path in product_modules() if path.stem != "__init__")
    too_full = [f"{folder} has {count} modules" for folder, count in modules.items() if count > MAX_MODULES]

    assert not too_full, f"{'; '.join(too_full)}: at most {MAX_MODULES}; move modules of one subject to a folder"
