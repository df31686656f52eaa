import itertools
import math

import pytest

from wattline_workloads.jobs.llm_load import generator, measure
from wattline_workloads.jobs.llm_load.generator import TokenRange


def first(iterator, count):
    return list(itertools.islice(iterator, count))


def test_arrival_offsets_fixed_are_evenly_spaced():
    assert first(measure.arrival_offsets_s("fixed", 4, seed=0), 5) == [0, 0.25, 0.5, 0.75, 1]


def test_arrival_offsets_poisson_are_exponential():
    offsets_s = first(measure.arrival_offsets_s("poisson", 4, seed=1), 20_000)
    gaps_s = [after - before for before, after in itertools.pairwise([0, *offsets_s])]
    mean_s = sum(gaps_s) / len(gaps_s)
    deviation_s = math.sqrt(sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s))

    assert min(gaps_s) >= 0
    assert mean_s == pytest.approx(
        0.25, rel=0.03
    )  # the standard error is 0.7 %, and the seed is fixed
    assert deviation_s == pytest.approx(
        0.25, rel=0.05
    )  # standard deviation of an exponential distribution is its mean
    assert sum(gap_s > 0.25 for gap_s in gaps_s) / len(gaps_s) == pytest.approx(
        math.exp(-1), abs=0.02
    )


def test_load_same_seed_gives_same_requests():
    def load_of(seed):
        offsets_s = first(measure.arrival_offsets_s("poisson", 4, seed), 20)
        return offsets_s, first(
            generator.generate_requests(None, TokenRange(1, 50), TokenRange(1, 500), seed), 20
        )

    assert load_of(3) == load_of(3)
    assert load_of(3)[0] != load_of(4)[0]
    assert load_of(3)[1] != load_of(4)[1]
