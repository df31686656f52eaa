"""Energies and half-widths of the two divisions, of a whole run and in a server, which are equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exporter.requests.division.__main__ import Other
from tests.exporter.requests.division.server import draw_law, serve
from tests.exporter.requests.division.traffic import TRAFFIC
from wattline_exporter.requests.division.divide import divide_energy
from wattline_exporter.requests.division.spans import with_first_tokens
from wattline_exporter.requests.division.streaming import SLOT_S, StreamingDivision


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    traffic=st.sampled_from(sorted(TRAFFIC)),
    noise_w=st.sampled_from([0.0, 1.0, 5.0]),
    other_w=st.sampled_from([0.0, 50.0]),
    guessed=st.sampled_from([0.0, 0.4, 1.0]),
    age_s=st.sampled_from([0.0, 0.1]),
    idle_known=st.booleans(),
)
def test_division_of_a_server_equals_that_of_the_whole_run(
    *, seed, traffic, noise_w, other_w, guessed, age_s, idle_known
):
    rng = np.random.default_rng(seed)
    served = serve(rng, traffic, rng.uniform(0.1, 0.8), 30.0, draw_law(rng))
    slots = Other(0.0, other_w, 0.3).add_to(served.slots(SLOT_S, rng, noise_w, age_s), rng)
    slots = replace(slots, idle_known=idle_known)
    first_s = np.where(rng.random(len(served.spans)) < guessed, np.nan, served.spans.first_token_s)
    spans, untimed = with_first_tokens(replace(served.spans, first_token_s=first_s))

    whole = divide_energy(spans, slots, untimed=untimed)
    division = StreamingDivision(60.0)
    division.extend(slots.edges_s, np.append(0.0, np.cumsum(slots.joules)), slots.edge_half_j)
    division.add(spans, np.arange(len(spans)), np.False_ if untimed is None else untimed)
    found = division.divide(float(slots.edges_s[-1]), slots.idle_w, idle_known=idle_known)

    assert found.keys.tolist() == list(range(len(spans)))
    most_j = float(whole.total_j.max())
    for name in ("prefill_j", "decode_j", "idle_j"):
        expected = getattr(whole.divided, name)
        assert getattr(found, name) == pytest.approx(expected, rel=1e-9, abs=1e-12 * most_j)
    assert found.half_j == pytest.approx(whole.half_j, rel=1e-9, abs=1e-12 * most_j)
