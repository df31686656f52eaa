"""Mutants of a module."""

import pytest

pytest.importorskip("cosmic_ray", reason="only `make mutants` installs cosmic-ray")

from tests.mutants.mutations import mutants, operators

SOURCE = """def half(one, other):
    if one < 0:
        return 0
    return one + other
"""


def test_mutants_have_one_change_each():
    chosen = operators(["ReplaceBinaryOperator_Add_Sub", "ReplaceComparisonOperator_Lt_LtE"])

    first, second = mutants(SOURCE, chosen)

    assert (first.number, first.change) == (2, ("if one < 0:", "if one <= 0:"))
    assert (second.number, second.change) == (4, ("return one + other", "return one - other"))
    assert first.source == SOURCE.replace("<", "<=")
    assert second.source == SOURCE.replace("+", "-")


def test_mutants_numbers_are_one_higher_and_one_lower():
    changes = [mutant.change for mutant in mutants("x = 1.5\n", operators(["NumberReplacer"]))]

    assert changes == [("x = 1.5", "x = 2.5"), ("x = 1.5", "x = 0.5")]


def test_mutant_that_is_no_python_has_no_code():
    (mutant,) = mutants("def f(*, x): ...\n", operators(["ReplaceBinaryOperator_Mul_Add"]))

    assert mutant.code() is None
