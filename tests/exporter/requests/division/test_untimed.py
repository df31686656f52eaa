"""Requests whose first token is not known: likely prefills, and half-widths that contain their
errors.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.exporter.requests.division.server import serve
from tests.exporter.requests.division.traffic import TRAFFIC
from wattline_exporter.requests.division.division import Division, divide_all
from wattline_exporter.requests.division.spans import RequestSpans, with_first_tokens


def without_first_tokens(spans, part, rng):
    first_s = np.where(rng.random(len(spans)) < part, np.nan, spans.first_token_s)
    return with_first_tokens(replace(spans, first_token_s=first_s))


def test_likely_first_token_counts_200_prompt_tokens_as_a_generated_one():
    """A prompt of 1,000 tokens, 200 of them cached, and 36 generated tokens in 8 s: 1/10 of it is
    prefill.
    """
    columns = [1.0], [np.nan], [9.0], [1_000.0], [200.0], [36.0]

    spans, is_guess = with_first_tokens(RequestSpans(*map(np.array, columns)))

    assert spans.first_token_s == pytest.approx([1.8])
    assert is_guess.tolist() == [True]


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_half_widths_contain_the_error_of_guesses(part):
    """The mean of the traffics was 70 %, that of long prompts 43 %."""
    contained = {"guess": [], "known": []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        served = serve(rng, list(TRAFFIC)[seed % len(TRAFFIC)], rng.uniform(0.15, 1.0), 60.0)
        spans, untimed = without_first_tokens(served.spans, part, rng)

        found = divide_all(spans, served.slots([0.1, 0.25, 1.0][seed % 3], rng), untimed=untimed)

        is_inside = np.abs(found.dynamic_j - served.shapley_j) <= found.half_j
        contained["guess"].append(is_inside[untimed].mean())
        contained["known"] += [is_inside[~untimed].mean()] if part < 1.0 else []
    assert all(np.mean(each) >= 0.95 for each in contained.values() if each)


def test_exporter_adds_the_error_of_guesses_to_half_widths():
    """Requests of 400 J alone in their slots; those with a known first token have the part of the
    others' energy, 1/4, in their half-width.
    """
    starts_s = np.arange(2.0, 98.0, 4.0)
    columns = (
        starts_s,
        starts_s + 0.5,
        starts_s + 2.0,
        *np.full((3, len(starts_s)), [[100.0], [0.0], [30.0]]),
    )
    edges_s = 0.25 * np.arange(401)
    busy = np.searchsorted(starts_s, edges_s[:-1], side="right") > np.searchsorted(
        starts_s + 2.0, edges_s[:-1], "right"
    )
    total_j = np.append(0.0, np.cumsum(np.where(busy, 260.0, 60.0) * 0.25))

    def half_widths_j(untimed):
        division = Division()
        division.extend(edges_s, total_j, np.zeros(len(edges_s)))
        division.add(RequestSpans(*columns), np.arange(len(starts_s)), untimed)
        return division.divide(100.0, 60.0).half_j

    each_fourth = np.arange(len(starts_s)) % 4 == 0
    none, every = half_widths_j(np.False_), half_widths_j(np.ones(len(starts_s), dtype=bool))
    quarter = half_widths_j(each_fourth)

    guess_j2 = (1.96 * 0.12 * 400.0) ** 2
    assert every**2 - none**2 == pytest.approx(np.full(len(none), guess_j2))
    assert quarter**2 - none**2 == pytest.approx(np.where(each_fourth, guess_j2, guess_j2 / 4))


def test_group_of_guesses_has_their_error():
    rng = np.random.default_rng(2)
    served = serve(rng, "conversation", 0.5, 60.0)
    slots, numbers = served.slots(0.25, rng), np.arange(len(served.spans), dtype=np.int32) % 2
    untimed = numbers == 0

    timed = divide_all(served.spans, slots, groups=numbers)
    found = divide_all(served.spans, slots, groups=numbers, untimed=untimed)

    whole_j, guessed_j = found.dynamic_j.sum(), found.dynamic_j[untimed].sum()
    least_j = min(guessed_j, whole_j - guessed_j)
    added_j2 = found.group_half_j**2 - timed.group_half_j**2
    assert added_j2 == pytest.approx(
        (1.96 * 0.12 * least_j) ** 2 * np.array([1.0, guessed_j / whole_j])
    )
