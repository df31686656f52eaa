"""Lengths and arrivals of simulated traffic, against published statistics of the Azure LLM
inference trace of 2023.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.exporter.requests.division.traffic import TRAFFIC


@pytest.mark.parametrize(
    ("traffic", "prompt", "output"),
    [
        ("azure conversation", (1_020, 1_155, 4_083), (129, 211, 451)),
        ("azure code", (1_500, 2_048, 7_303), (13, 28, 90)),
    ],
)
def test_lengths_have_the_published_median_mean_and_95_quantile(traffic, prompt, output):
    lengths = TRAFFIC[traffic].lengths(np.random.default_rng(1), 50_000)

    for tokens, published in zip(lengths, (prompt, output), strict=True):
        assert [np.median(tokens), tokens.mean(), np.quantile(tokens, 0.95)] == pytest.approx(
            published, rel=0.15
        )


def test_arrivals_of_code_come_in_bursts_at_the_mean_rate():
    """Counts in 5 s scatter far more than those of a Poisson process, whose variance is their
    mean.
    """
    arrived_s = TRAFFIC["azure code"].arrivals(np.random.default_rng(2), 3.0, 20_000)

    counts = np.bincount((arrived_s / 5.0).astype(int))
    assert len(arrived_s) / arrived_s[-1] == pytest.approx(3.0, rel=0.1)
    assert counts.var() > 5 * counts.mean()


def test_arrivals_of_conversations_are_a_poisson_process():
    arrived_s = TRAFFIC["azure conversation"].arrivals(np.random.default_rng(2), 3.0, 20_000)

    gaps_s = np.diff(arrived_s)
    assert gaps_s.mean() == pytest.approx(1 / 3, rel=0.03)
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.03)
