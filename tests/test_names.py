"""Public names of the product: each one stands for one thing.

A reader who searches for a name finds one definition.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.test_one_place import product_trees

ROOT = Path(__file__).parents[1]
FOLDERS = ("exporter", "analyzer", "workloads")
BASE = "workloads/wattline"
INTERFACES = {
    "EnergyCallback": "callback of a training library, in the module of that library",
    "main": "entry of a program or of a built-in job",
    "parser": "options of a built-in job; see `jobs/base.py`",
}
"""Names that several modules define by intention, and their meaning."""
Definition = tuple[str, str]
"""Path of a module and a name that it defines."""


def definitions(tree: ast.AST, kinds: tuple[type[ast.stmt], ...]) -> Iterator[str]:
    """Yield the public names that a module defines by these kinds of statements, each once."""
    body: Sequence[ast.stmt] = getattr(tree, "body", ())
    names = [getattr(node, "name", "_") for node in body if isinstance(node, kinds)]
    yield from dict.fromkeys(name for name in names if not name.startswith("_"))


def repeated(found: Sequence[Definition]) -> dict[str, list[str]]:
    """Return the paths of each name that several modules define."""
    paths: dict[str, list[str]] = {}
    for path, name in found:
        paths.setdefault(name, []).append(path)
    return {
        name: places for name, places in paths.items() if len(places) > 1 and name not in INTERFACES
    }


def test_public_class_exists_once() -> None:
    found = [
        (path, name)
        for path, tree in product_trees()
        for name in definitions(tree, (ast.ClassDef,))
    ]
    assert repeated(found) == {}


@pytest.mark.parametrize(
    "program",
    ["exporter/wattline_exporter", "analyzer/wattline_analyzer", "workloads/wattline_workloads"],
)
def test_public_function_exists_once_in_program_and_base(program: str) -> None:
    found = [
        (path, name)
        for path, tree in product_trees()
        if path.startswith((f"{program}/", f"{BASE}/"))
        for name in definitions(tree, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert repeated(found) == {}


def test_search_notices_second_definition() -> None:
    first = ast.parse("class Step:\n    pass\n\ndef step(): ...\ndef step(): ...\ndef _own(): ...")
    kinds = (ast.ClassDef, ast.FunctionDef)
    assert list(definitions(first, kinds)) == ["Step", "step"]
    assert repeated([("a.py", "Step"), ("b.py", "Step"), ("b.py", "main"), ("c.py", "main")]) == {
        "Step": ["a.py", "b.py"]
    }


def imports_of_folders(tree: ast.AST) -> Iterator[str]:
    """Yield the imported names that are folders of this repository, not packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in FOLDERS)


def test_no_file_imports_a_folder_of_a_program() -> None:
    """In the root of the repository such an import succeeds, with an empty package."""
    paths = [path for folder in (*FOLDERS, "tests") for path in (ROOT / folder).rglob("*.py")]
    found = {
        str(path): names
        for path in paths
        if (names := list(imports_of_folders(ast.parse(path.read_text()))))
    }
    assert paths
    assert found == {}


@pytest.mark.parametrize("line", ["import exporter", "from analyzer.core import x"])
def test_search_notices_import_of_folder(line: str) -> None:
    assert len(list(imports_of_folders(ast.parse(line)))) == 1
    assert list(imports_of_folders(ast.parse("import wattline_exporter\nfrom . import x"))) == []
