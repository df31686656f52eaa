"""Files, functions and callers that ARCHITECTURE.md names."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "exporter/wattline_exporter",
    "analyzer/wattline_analyzer",
    "workloads/wattline",
    "workloads/wattline_workloads",
)
CODE = re.compile(r"`([^`\s]+)`")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")


@cache
def files_below(*folders):
    """Return the paths of the Python files below folders of the repository."""
    return tuple(
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def files_named(name, known):
    """Return the files whose path ends in a name of the page, in which `*` is any text."""
    pattern = re.compile(rf"(?:.*/)?{re.escape(name).replace(re.escape('*'), '[^/]*')}")
    return [path for path in known if pattern.fullmatch(path)]


def is_file(code):
    return code.endswith(".py") and "NAME" not in code


@cache
def page():
    return (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


@cache
def rules():
    """Return the rows of the table of rules: rule, home, callers and tests."""
    table = page().partition("| rule | home | callers | tests |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]


def product_names():
    """Return the product's files that the page names, also the homes and callers of rules."""
    tests = {code for row in rules() for code in CODE.findall(row[3])}
    return sorted({code for code in CODE.findall(page()) if is_file(code)} - tests)


def homes(cell):
    """Return pairs of a home's file and a name in it; None for the whole file."""
    found = []
    for code in CODE.findall(cell):
        if is_file(code):
            found.append((code, None))
        elif found and NAME.fullmatch(code):
            file = found[-1][0]
            if found[-1][1] is None:
                found.pop()
            found.append((file, code))
    return found


def the_file(name):
    (path,) = files_named(name, files_below(*PACKAGES))
    return path


@cache
def tree_of(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def defined_in(path):
    """Return names of functions and classes, `Class.method` for methods."""
    names = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
    return names


@cache
def used_in(path):
    """Return the names that a module imports or uses, and the modules that it imports."""
    used = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            used |= {(node.module or "").rpartition(".")[2], *(one.name for one in node.names)}
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.Name):
            used.add(node.id)
    return used


def is_used(home, caller):
    """Return True if a caller uses the name of a home, or imports the module of a whole file."""
    file, name = home
    wanted = Path(file).stem if name is None else name.rpartition(".")[2]
    return wanted in used_in(the_file(caller))


@pytest.mark.parametrize("name", product_names())
def test_page_file_is_named_with_the_folder_that_makes_it_unique(name):
    known = (*files_below(*PACKAGES), *files_below("tests"))
    anchored = [name] if name in known else []

    assert len(anchored or files_named(name, files_below(*PACKAGES))) == 1


@pytest.mark.parametrize("row", rules(), ids=lambda row: row[0])
def test_rule_names_functions_of_its_home(row):
    named = [(file, name) for file, name in homes(row[1]) if name is not None]

    assert [one for one in named if one[1] not in defined_in(the_file(one[0]))] == []


@pytest.mark.parametrize("row", rules(), ids=lambda row: row[0])
def test_rule_callers_use_its_home(row):
    callers = [code for code in CODE.findall(row[2]) if is_file(code)]
    known = homes(row[1])

    idle = [one for one in callers if known and not any(is_used(home, one) for home in known)]
    assert idle == []


@pytest.mark.parametrize("row", rules(), ids=lambda row: row[0])
def test_rule_tests_exist(row):
    for code in CODE.findall(row[3]):
        path = f"tests/{code}"
        if is_file(code):
            assert len(files_named(code, files_below("tests"))) >= 1, code
        else:
            assert (ROOT / path).is_dir(), code


def test_home_with_several_names_has_each_of_them():
    cell = "`meter/meter.py`: `DeviceMeter.last_poll`, `meter/uncertainty.py`: `silence_j`; `a.py`"

    assert homes(cell) == [
        ("meter/meter.py", "DeviceMeter.last_poll"),
        ("meter/uncertainty.py", "silence_j"),
        ("a.py", None),
    ]


def test_caller_that_only_calls_another_function_does_not_use_the_home():
    """The energy of the silence is taken in marks.py; restart.py calls only `marks_of_totals`."""
    home = "meter/uncertainty.py", "silence_j"

    assert is_used(home, "runs/marks.py")
    assert not is_used(home, "runs/restart.py")
