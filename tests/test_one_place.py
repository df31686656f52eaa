"""Rules that have one home: half-widths, increases of counters, differences of groups, texts of
numbers, constants.

A half-width that is unknown must stay unknown, so that 0 in its place is searched as well.

Each search reads the syntax trees of the product. It cannot follow a unit through a variable.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "exporter/wattline_exporter",
    "analyzer/wattline_analyzer",
    "workloads/wattline",
    "workloads/wattline_workloads",
)
HALF_WIDTH = re.compile(r"hal[fv]|uncertaint")
ENERGY = re.compile(r"(?:^|_)(?:j|joules|energy)$")
WORK = re.compile(r"tokens|requests|amount|work|samples|units?$")
SUMS = {"fsum", "sum", "sqrt", "hypot", "sum_known"}
DIVISION = "exporter/wattline_exporter/requests/division"
HOMES_OF_SUMS = {
    "workloads/wattline/figures.py": "sums of figures",
    "exporter/wattline_exporter/meter/uncertainty.py": "errors between two marks of one device",
    f"{DIVISION}/half_widths.py": "errors of the division, in arrays",
    f"{DIVISION}/model.py": "weight of a model and its error",
    f"{DIVISION}/roles.py": "errors of the division over prefill and decode servers",
}
HOMES_OF_SHARES = {
    "workloads/wattline/figures.py": "factors of figures",
    f"{DIVISION}/half_widths.py": "errors of the division, in arrays",
}
HOMES_OF_UNIT_ENERGY = {
    "workloads/wattline/contract/work.py": "energy of one unit",
    "analyzer/wattline_analyzer/requests/table.py": "mean of a group, which has requests",
}
HOMES_OF_WEIGHTED_SUMS = {
    "analyzer/wattline_analyzer/carbon/emissions.py": "shares of emissions",
    "analyzer/wattline_analyzer/carbon/restate.py": "errors of the intensities of slots",
}
HOMES_OF_ZEROS = {
    f"{DIVISION}/roles.py": "slots of samples, whose errors at the edges are not estimated",
}
HOMES_OF_COUNTERS = {
    "workloads/wattline/counter_arrays.py": "steps of counters in arrays",
}
HOMES_OF_TEXTS = {
    "workloads/wattline/figures.py": "texts of figures",
    "analyzer/wattline_analyzer/report/compatible/model_documents.py": "MWh of the EU's form",
}
HOMES_OF_CONSTANTS = {
    "workloads/wattline/figures.py": "factors of energies and of normal distributions",
    "exporter/wattline_exporter/storage/sample_store.py": "milliseconds of an hour",
}
HOMES_OF_STATISTICS = {
    "analyzer/wattline_analyzer/core/statistics.py": "differences of groups, outliers, limits",
    f"{DIVISION}/spans.py": "noise of a meter in slots without requests",
}
HOMES_OF_DIGITS = {
    "workloads/wattline/figures.py": "significant digits of numbers without an error",
    "workloads/wattline_workloads/slurm/comment.py": "a number for programs, without thousands",
}
_UNIT = r"(?:[kMGmµ]?J|[kMG]?Wh)\b"
STARTS_WITH_UNIT = re.compile(rf"[ \u00a0]?{_UNIT}")
TEMPLATE_WITH_UNIT = re.compile(
    rf"(?:\{{[^{{}}]*\}}|%(?:\(\w+\))?[-+ #0-9.*]*[diouxXeEfFgGsr])[ \u00a0]?{_UNIT}"
)
"""Field of `str.format`, of `%` or of a log message, followed by a unit."""
HOMES_OF_NAMED = ("workloads/wattline/contract/", "workloads/wattline/figures.py")
"""Modules of the base whose constants other modules import."""
FINE_DECIMALS = 3
"""Decimals from which on two named constants of one value have one meaning, not by chance."""
CONSTANTS = (3.6e6, 1 / 3.6e6, 1.96, 1.4826)
"""Joules per kWh, its inverse, half-width of a 95 % interval, standard deviation by the MAD."""
OF_ENERGY = re.compile(r"(?:^|_)(?:j|wh|kwh|joules?|energy)$")


@cache
def product_trees() -> tuple[tuple[str, ast.AST], ...]:
    """Return path and syntax tree of the product's modules, without generated ones."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return tuple(
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in paths
        if not path.stem.endswith("_pb2")
    )


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names of the variables and attributes in an expression."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def has_half_width(node: ast.AST) -> bool:
    return any(HALF_WIDTH.search(name) for name in names_in(node))


def sums_of_half_widths(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that add half-widths or their squares, or any squares by `hypot`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            if has_half_width(node.left) and has_half_width(node.right):
                yield node.lineno
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            added = list(node.args)
            if called == "sum" and isinstance(node.func, ast.Attribute):
                added.append(node.func.value)
            is_root_of_squares = called == "hypot"
            if called in SUMS and (is_root_of_squares or any(map(has_half_width, added))):
                yield node.lineno


def shares_of_half_widths(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that multiply or divide a half-width by anything but a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            sides = (node.left, node.right)
            is_half_width = any(HALF_WIDTH.search(_own_name(side)) for side in sides)
            if is_half_width and all(_number(side) is None for side in sides):
                yield node.lineno


def divisions_by_work(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that divide joules by an amount of work."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=scaled, attr="scaled"),
                args=[ast.BinOp(op=ast.Div(), right=amount)],
            ) if ENERGY.search(_own_name(scaled)) and WORK.search(_own_name(amount)):
                yield node.lineno
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            divided = node.left
            if isinstance(divided, ast.Attribute) and divided.attr in {"number", "value"}:
                divided = divided.value
            if ENERGY.search(_own_name(divided)) and WORK.search(_own_name(node.right)):
                yield node.lineno


def weighted_sums_of_numbers(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that add products of a figure's number, which has no errors and no state."""
    for node in ast.walk(tree):
        called = getattr(node, "func", node)
        if isinstance(node, ast.Call) and _own_name(called) in {"sum", "fsum"}:
            products = [
                inner
                for added in node.args
                for inner in ast.walk(added)
                if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult | ast.Div)
            ]
            sides = [side for one in products for side in (one.left, one.right)]
            if "number" in map(_own_name, sides):
                yield node.lineno


def _own_name(node: ast.AST) -> str:
    """Return the last name of `a.b.c`; empty for other expressions."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def zeros_for_unknown(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that take 0 for a half-width that is unknown."""
    for node in ast.walk(tree):
        found = False
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            found = _number(node.values[-1]) == 0 and any(map(has_half_width, node.values))
        elif isinstance(node, ast.IfExp):
            is_zero = 0 in map(_number, (node.body, node.orelse))
            found = is_zero and has_half_width(node.test) and _compares_none(node.test)
        elif isinstance(node, ast.If) and _compares_none(node.test) and has_half_width(node.test):
            values = [one.value for one in node.body if isinstance(one, ast.Assign)]
            found = 0 in map(_number, values)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"get", "setdefault", "pop", "fillna"}:
                has_zero = bool(node.args) and _number(node.args[-1]) == 0
                found = has_zero and has_half_width(node.func.value)
            elif node.func.attr == "nan_to_num":
                found = any(map(has_half_width, node.args))
        if found and isinstance(node, ast.expr | ast.stmt):
            yield node.lineno


def _compares_none(node: ast.AST) -> bool:
    constants = [one for one in ast.walk(node) if isinstance(one, ast.Constant)]
    return any(constant.value is None for constant in constants)


def choices_of_increase(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that choose between a counter's step and its value after a fall."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "where":
            if any(re.search(r"fell|fall|wrap", name) for name in names_in(node.args[0])):
                yield node.lineno
        elif isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare):
            is_counter = any(re.fullmatch(r"raw|raw_j|counter_j", name) for name in names_in(node))
            is_step = isinstance(node.body, ast.BinOp) and isinstance(node.body.op, ast.Sub)
            if is_counter and is_step:
                yield node.lineno


def formats_of_energy(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that write a number with a unit of energy behind it."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found = _fields_with_unit(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_template = TEMPLATE_WITH_UNIT.search(node.value) is not None
            found = is_template and id(node) not in docstrings
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add):
            found = _starts_with_unit(node.right if isinstance(node, ast.BinOp) else node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            found = any(map(_starts_with_unit, _later_items([node.right])))
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            parts = {
                "join": _later_items(node.args),
                "format": node.args[1:],
                "print": node.args[1:],
            }
            found = any(map(_starts_with_unit, parts.get(called, [])))
        else:
            found = False
        if found and isinstance(node, ast.expr | ast.stmt):
            yield node.lineno


def _later_items(nodes: Sequence[ast.expr]) -> list[ast.expr]:
    """Return the items of lists and tuples without the first one of each."""
    lists = [node for node in nodes if isinstance(node, ast.List | ast.Tuple)]
    return [item for one in lists for item in one.elts[1:]]


def _fields_with_unit(text: ast.JoinedStr) -> bool:
    """Return True for `{joules} J` and `{joules} {'J'}`."""
    after_field = False
    for part in text.values:
        constant = part.value if isinstance(part, ast.FormattedValue) else part
        if after_field and _starts_with_unit(constant):
            return True
        is_space = isinstance(part, ast.Constant) and not str(part.value).strip()
        after_field = isinstance(part, ast.FormattedValue) or (after_field and is_space)
    return False


def _starts_with_unit(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _starts_with_unit(node.values[0])
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return STARTS_WITH_UNIT.match(node.value) is not None


def formats_of_digits(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that write a number with four significant digits."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            parts = ast.walk(node.format_spec)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "format":
            parts = iter(node.args[1:])
        else:
            continue
        specs = [part.value for part in parts if isinstance(part, ast.Constant)]
        if any(re.search(r"\.4[gG]$", str(spec)) for spec in specs):
            yield node.lineno


def statistical_tests(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that import distributions or a rule of outliers, or divide a standard
    deviation by the root of a number.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {one.name for one in node.names}
            of_scipy = {"special", "stats"} & names if node.module == "scipy" else set()
            is_distribution = node.module in {"scipy.special", "scipy.stats"} or of_scipy
            if is_distribution or names & {"MAD_TO_SIGMA", "NormalDist"}:
                yield node.lineno
        elif isinstance(node, ast.Import):
            if any(one.name in {"scipy.special", "scipy.stats"} for one in node.names):
                yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left = {_own_name(one.func) for one in ast.walk(node.left) if isinstance(one, ast.Call)}
            right = {
                _own_name(one.func) for one in ast.walk(node.right) if isinstance(one, ast.Call)
            }
            if left & {"std", "stdev"} and "sqrt" in right:
                yield node.lineno


def repeated_constants(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with a constant that has a home, also as a product or a quantile."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr):
            continue
        number = _number(node)
        if number is not None and any(math.isclose(number, one, rel_tol=1e-3) for one in CONSTANTS):
            yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            sides = node.left, node.right
            if any(_number(side) == 3_600 for side in sides) and any(
                OF_ENERGY.search(name) for side in sides for name in names_in(side)
            ):
                yield node.lineno
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") in {"inv_cdf", "ppf"}
            and any(_number(argument) == 0.975 for argument in node.args)
        ):
            yield node.lineno


def _number(node: ast.AST) -> float | None:
    """Return the number of a constant, or of a product or quotient of constants."""
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool):
        return float(node.value) if isinstance(node.value, int | float) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        left = _number(node.left)
        right = _number(node.right)
        if left is None or not right:
            return None
        return left * right if isinstance(node.op, ast.Mult) else left / right
    return None


def named_constants(tree: ast.AST) -> Iterator[tuple[str, float]]:
    """Yield name and number of a module's constants."""
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        targets = [target]
        values = [value]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            targets = target.elts
            values = value.elts
        for one, its_value in zip(targets, values, strict=False):
            number = _number(its_value)
            if isinstance(one, ast.Name) and number is not None:
                yield one.id, number


def fine_constants(trees: Iterable[tuple[str, ast.AST]]) -> dict[float, list[str]]:
    """Return the modules of each value with many decimals that several modules name."""
    places: dict[float, list[str]] = {}
    for path, tree in trees:
        numbers = {number for _, number in named_constants(tree)}
        for number in numbers:
            is_fine = round(number, FINE_DECIMALS - 1) != number
            if is_fine and len(_significant_digits(number)) > 1:
                places.setdefault(number, []).append(path)
    return {number: paths for number, paths in places.items() if len(paths) > 1}


def _significant_digits(number: float) -> str:
    return f"{abs(number):.12e}".partition("e")[0].replace(".", "").rstrip("0")


def copies_of_base(trees: Iterable[tuple[str, ast.AST]]) -> list[tuple[str, str]]:
    """Return path and name of each constant that repeats a public one of the base, without regard
    to the underscore of a private name.
    """
    known = list(trees)
    homes = {
        constant: path
        for path, tree in known
        if path.startswith(HOMES_OF_NAMED)
        for constant in named_constants(tree)
        if not constant[0].startswith("_")
    }
    return [
        (path, name)
        for path, tree in known
        for name, number in named_constants(tree)
        if homes.get((name.lstrip("_"), number), path) != path
    ]


def test_constant_with_many_decimals_is_named_once() -> None:
    assert fine_constants(product_trees()) == {}


def test_constant_of_base_is_imported() -> None:
    assert copies_of_base(product_trees()) == []


def test_search_notices_second_named_constant() -> None:
    home = (
        "workloads/wattline/contract/api.py",
        ast.parse("MAX_LABEL: int = 8 * 16\nFAST_S = 0.047"),
    )
    other = "a.py", ast.parse("_COUNT, _MAX_LABEL = 3, 128\n_POLLED_S = 0.047")
    assert fine_constants([home, other]) == {0.047: [home[0], "a.py"]}
    assert copies_of_base([home, other]) == [("a.py", "_MAX_LABEL")]


def test_search_ignores_common_values_and_other_names() -> None:
    home = (
        "workloads/wattline/contract/api.py",
        ast.parse("MAX_TEXT = 128\n_SHARE = 0.05\nS = 0.005"),
    )
    other = "a.py", ast.parse("_LONGEST = 128\n_SHARE = 0.05\nTICK_S = 0.005")
    assert fine_constants([home, other]) == {}
    assert copies_of_base([home, other]) == []


RULES = [
    pytest.param(sums_of_half_widths, HOMES_OF_SUMS, id="sum-of-half-widths"),
    pytest.param(shares_of_half_widths, HOMES_OF_SHARES, id="share-of-a-half-width"),
    pytest.param(divisions_by_work, HOMES_OF_UNIT_ENERGY, id="energy-per-unit"),
    pytest.param(weighted_sums_of_numbers, HOMES_OF_WEIGHTED_SUMS, id="weighted-sum-of-figures"),
    pytest.param(zeros_for_unknown, HOMES_OF_ZEROS, id="zero-for-unknown-half-width"),
    pytest.param(choices_of_increase, HOMES_OF_COUNTERS, id="increase-of-a-counter"),
    pytest.param(formats_of_energy, HOMES_OF_TEXTS, id="text-of-joules"),
    pytest.param(formats_of_digits, HOMES_OF_DIGITS, id="significant-digits"),
    pytest.param(statistical_tests, HOMES_OF_STATISTICS, id="difference-of-groups"),
    pytest.param(repeated_constants, HOMES_OF_CONSTANTS, id="constant"),
]


@pytest.mark.parametrize(("search", "homes"), RULES)
def test_rule_stands_in_its_homes_only(
    search: Callable[[ast.AST], Iterator[int]], homes: dict[str, str]
) -> None:
    """Call the home instead of repeating its rule; a home without the rule leaves the list."""
    found = {name: lines for name, tree in product_trees() if (lines := list(search(tree)))}
    assert found.keys() == homes.keys(), found


@pytest.mark.parametrize(
    ("search", "line"),
    [
        (sums_of_half_widths, "half_j = math.hypot(energy.half_width, idle_j)"),
        (sums_of_half_widths, "half_j = sum(halves)"),
        (sums_of_half_widths, "half_j = group_half_j[:3].sum()"),
        (sums_of_half_widths, "half_j = begin.half_width_j + end.half_width_j"),
        (sums_of_half_widths, "half_j = math.sqrt(a.uncertainty**2 + b**2)"),
        (sums_of_half_widths, "random_j = math.hypot(*known)"),
        (shares_of_half_widths, "each = Figure(energy_j / n, half_j / n)"),
        (shares_of_half_widths, "half = energy.half_width / energy.number"),
        (shares_of_half_widths, "half = ratio * energy.half_width"),
        (divisions_by_work, "each_j = energy_j / serving.requests"),
        (divisions_by_work, "each_j = energy.joules / tokens"),
        (divisions_by_work, "each_j = run.energy.number / work.amount"),
        (divisions_by_work, "each = run.energy.scaled(1 / work.amount)"),
        (weighted_sums_of_numbers, "own = math.fsum(r * joules.number for r, joules in known)"),
        (weighted_sums_of_numbers, "own = sum(one.number / n for one in parts)"),
        (zeros_for_unknown, "half_j = energy.half_width or 0.0"),
        (zeros_for_unknown, "half_j = max(measured, gpu.half_j or 0)"),
        (zeros_for_unknown, "half_j = phase.half_widths_j.get(device, 0.0)"),
        (zeros_for_unknown, "half_j = 0.0 if energy.half_width is None else energy.half_width"),
        (zeros_for_unknown, "half_j = half_j if half_j is not None else 0"),
        (zeros_for_unknown, "if half_j is None: half_j = 0.0"),
        (zeros_for_unknown, "halves = np.nan_to_num(uncertainties)"),
        (choices_of_increase, "step = np.where(fell, now, now - before)"),
        (choices_of_increase, "step = raw - before if raw >= before else raw"),
        (formats_of_energy, 'text = f"used {energy_j:,.1f} J of it"'),
        (formats_of_energy, 'text = f"{energy_j / 3.6:.3g}\u00a0Wh"'),
        (formats_of_energy, "text = f\"{energy_j} {'kWh'}\""),
        (formats_of_energy, 'text = f"{value} ± {half} mJ per token"'),
        (formats_of_energy, 'text = "{:.0f} J".format(energy_j)'),
        (formats_of_energy, 'text = "{name} kJ".format_map(fields)'),
        (formats_of_energy, 'text = "%.1f MJ" % energy'),
        (formats_of_energy, 'text = "%(energy)s Wh" % fields'),
        (formats_of_energy, 'log.info("used %d J", energy_j)'),
        (formats_of_energy, 'text = " ".join([str(energy_j), "J"])'),
        (formats_of_energy, 'text = "".join((value, " kWh"))'),
        (formats_of_energy, 'text = format(energy_j, ".2f") + " J"'),
        (formats_of_energy, 'text = str(energy_j) + f" J of {name}"'),
        (formats_of_energy, 'text = str(energy_j); text += " J"'),
        (formats_of_energy, 'text = "{} {}".format(energy_j, "J")'),
        (formats_of_energy, 'text = "%s %s" % (energy_j, "Wh")'),
        (formats_of_energy, 'print(energy_j, "J")'),
        (formats_of_digits, 'text = f"{rate:,.4g} requests/s"'),
        (formats_of_digits, 'text = f"{rate:.4g}"'),
        (formats_of_digits, 'text = format(rate, ".4g")'),
        (statistical_tests, "from scipy.stats import mannwhitneyu"),
        (statistical_tests, "from scipy import stats"),
        (statistical_tests, "import scipy.special"),
        (statistical_tests, "from statistics import NormalDist"),
        (statistical_tests, "from wattline.figures import MAD_TO_SIGMA, Figure"),
        (statistical_tests, "error = float(np.std(logs, ddof=1)) / math.sqrt(n)"),
        (statistical_tests, "error = statistics.stdev(values) / len(values) ** 0.5 / math.sqrt(2)"),
        (repeated_constants, "energy_kwh = energy_j / 3_600_000"),
        (repeated_constants, "KWH_J = 3.6e6"),
        (repeated_constants, "energy_kwh = energy_j * 2.7778e-7"),
        (repeated_constants, "KWH_J = 1_000 * 3_600"),
        (repeated_constants, "energy_wh = run.energy / 3600.0"),
        (repeated_constants, "half = 1.959964 * error"),
        (repeated_constants, "half = NormalDist().inv_cdf(0.975) * error"),
        (repeated_constants, "sigma = 1.4826 * mad"),
    ],
)
def test_search_notices_second_place(search: Callable[[ast.AST], Iterator[int]], line: str) -> None:
    assert list(search(ast.parse(f"import math\n{line}\n"))) == [2]


@pytest.mark.parametrize("search", [rule.values[0] for rule in RULES])
def test_search_ignores_call_of_home(search: Callable[[ast.AST], Iterator[int]]) -> None:
    calls = """
half_j = sum_of_independent([a, b]).half_width
half = NONE if energy.half_width is None else energy.half_width / 2
count = counts.get(name, 0) or 0
step = counter_step(before, raw)
text = f"used {short_joules_text(energy_j)} in {hours:.1f} h, {intensity:g} gCO2eq/kWh"
column = Column("J", "kWh")
energy_kwh = energy_j / JOULES_PER_KWH
hours = seconds / 3_600
half = NORMAL_95 * error
half = student_quantile(n - 1, 0.975) * error
cv = np.std(values, ddof=1) / np.mean(values)
each = energy_of_one(energy, work.amount)
power_w = energy_j / seconds
whole_j = math.fsum(part.number for part in parts)
"""
    assert list(search(ast.parse(calls))) == []
