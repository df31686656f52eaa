"""pytest plugin: energy budgets of tests, by the marker `energy_budget`, and their summary.

    @pytest.mark.energy_budget(joules=500, joules_per_unit={"samples": 0.5})
    def test_inference(energy_run):
        energy_run.work(samples=infer())

The plugin is loaded in every environment that has Wattline, so it imports nothing until a test has
a budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

MARKER = "energy_budget"
_FIXTURE = "energy_run"
_HELP = (
    "energy_budget(joules=None, joules_per_unit=None, gpus=None): largest energy of a test, "
    "see docs of Wattline"
)
_NOT_COMPARED = ", whose uncertainty is unknown: not compared with the budget"
_NOT_MEASURED = (
    "not measured: no exporter, no GPU of the test, or no sensor; start an exporter, "
    'and name the GPUs with gpus="0"'
)


@dataclass(slots=True)
class Budget:
    """Energy budget of a test, and the energy that it used. Raises ValueError for invalid
    arguments.
    """

    joules: float | None = None
    joules_per_unit: Mapping[str, float] = field(default_factory=dict)
    gpus: str | None = None
    problems: list[str] = field(default_factory=list)
    used: str = _NOT_MEASURED
    is_measured: bool = False

    def __post_init__(self) -> None:
        limits = [*([] if self.joules is None else [self.joules]), *self.joules_per_unit.values()]
        if not limits or any(
            not isinstance(limit, int | float) or not limit > 0 for limit in limits
        ):
            raise ValueError(
                "energy_budget: no valid limit; give joules=500, or joules_per_unit={'samples': "
                "0.5}, or both"
            )

    def check(self, result: Any) -> None:
        """Compare the result of the run with the limits. A limit is exceeded if the whole interval
        is above it.
        """
        if result.energy_j is None:
            return
        from wattline.figures import Figure, energy_of_one_text, joules_text, small_energy_text

        self.used = joules_text(result.energy_j)
        low_j = Figure(result.energy_joules, result.uncertainty_joules).low
        if low_j is None:
            self.used += _NOT_COMPARED
            return
        self.is_measured = True
        if self.joules is not None and low_j > self.joules:
            limit = small_energy_text(self.joules)
            self.problems.append(f"{self.used}, more than the budget of {limit}")
        for unit, limit_j in self.joules_per_unit.items():
            used_j = result.per_unit_j.get(unit)
            if used_j is None:
                self.problems.append(
                    f"no work in {unit!r}: report it with energy_run.work({unit}=…)"
                )
                continue
            each = f"{energy_of_one_text(used_j)} per {result.unit_names.get(unit, unit)}"
            self.used += f", {each}"
            if used_j.low is None:
                self.used += _NOT_COMPARED
                self.is_measured = False
            elif used_j.low > limit_j:
                limit = small_energy_text(limit_j)
                self.problems.append(f"{each}, more than the budget of {limit}")


_BUDGET = pytest.StashKey[Budget]()
_FAILED = pytest.StashKey[bool]()
_USED = pytest.StashKey[dict[str, tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("wattline", "energy budgets")
    group.addoption(
        "--energy-strict",
        action="store_true",
        help="Fail tests with an energy budget whose energy is not measured.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)
    config.stash[_USED] = {}


@pytest.fixture
def energy_run(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run of a test with an energy budget; it has the methods of `wattline.ActiveRun`."""
    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        pytest.fail(
            "energy_run: the test has no budget; add @pytest.mark.energy_budget(joules=…)",
            pytrace=False,
        )
    import wattline

    try:
        budget = Budget(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        pytest.fail(str(error), pytrace=False)
    request.node.stash[_BUDGET] = budget
    with wattline.run(
        "pytest", labels={"test": request.node.name}, gpus=budget.gpus, quiet=True
    ) as run:
        yield run
        budget.check(run.end("failed" if request.node.stash.get(_FAILED, False) else "ok"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure each test that has a budget, also one that does not use the fixture."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker(MARKER) is None:
            continue
        if _FIXTURE not in item.fixturenames:
            item.fixturenames.insert(0, _FIXTURE)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    budget = item.stash.get(_BUDGET, None)
    if (
        call.when == "call"
        and call.excinfo is not None
        and not call.excinfo.errisinstance(pytest.skip.Exception)
    ):
        item.stash[_FAILED] = (
            True  # an expected failure as well: the work of the test is incomplete
        )
    if budget is None or call.when != "teardown":
        return
    item.config.stash[_USED][item.nodeid] = (budget.used, "; ".join(budget.problems))
    problems = list(budget.problems)
    if not budget.is_measured and item.config.getoption("--energy-strict"):
        problems.append(budget.used)
    if problems and report.outcome == "passed":
        report.outcome = "failed"
        report.longrepr = f"energy budget of {item.nodeid}: {'; '.join(problems)}"
    report.user_properties.append(("energy", budget.used))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    used = config.stash.get(_USED, {})
    if used:
        terminalreporter.section("energy budgets")
        for name, (text, problems) in used.items():
            terminalreporter.line(f"{name}: {text}{f' ({problems})' if problems else ''}")
