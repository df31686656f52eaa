"""Times of phases from the samples of their seconds, and rises of counters in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.figures import Figure
from wattline_analyzer.core.phases import active_spans, rise_limits
from wattline_analyzer.core.samples import Samples


@given(
    st.floats(0, 50),
    st.floats(1, 50),
    st.sampled_from([1.0, 2.5, 15.0]),
)
def test_active_spans_any_scrape_interval_are_exact(begin_s, length_s, interval_s):
    t = np.arange(0, 150, interval_s)
    seconds = Samples(t, np.clip(t - begin_s, 0, length_s))

    result = active_spans(seconds)
    if length_s > interval_s:  # else its start and end are between the same two scrapes
        assert (result[0][0], result[-1][1]) == pytest.approx(
            (begin_s, begin_s + length_s), abs=1e-6
        )


def test_active_spans_late_update_starts_in_time():
    """The phase starts at 2.5, is first exported at 8 and then each second, half a second late."""
    t = np.arange(11.0)
    (result,) = active_spans(Samples(t, np.where(t < 8, 0.0, t - 2.5)))
    assert result == (2.5, 10.0)


def test_phase_repeated_has_two_stretches():
    t = np.arange(0, 11.0)
    assert active_spans(
        Samples(t, np.array([0, 0, 0.5, 1.5, 2, 2, 2, 2.25, 3.25, 3.25, 3.25]))
    ) == [
        (1.5, 3.5),
        (6.75, 8),
    ]


def test_counter_between_samples_is_linear():
    counter = Samples(np.array([10.0, 20.0]), np.array([0.0, 100.0]))

    assert rise_limits(counter, (12.0, 15.0)) == Figure(pytest.approx(30), skewed=(0, 100))
    assert rise_limits(counter, (15.0, 30.0), ((24.0, 120.0),)) == Figure(
        pytest.approx(70), skewed=(20, 120)
    )


def test_rise_at_known_points_is_exact():
    counter = Samples(np.array([0.0, 30.0]), np.array([0.0, 900.0]))

    assert rise_limits(counter, (12.0, 15.0), ((12.0, 0.0), (15.0, 900.0))) == Figure(
        900, skewed=(900, 900)
    )


def test_rise_limits_include_the_age_of_samples():
    """A sample at 10.2 s may be as old as 9.8 s, so that it limits no energy at 10 s from above."""
    counter = Samples(np.array([8.0, 10.2, 12.2, 14.2]), np.array([0.0, 100.0, 200.0, 300.0]))

    assert rise_limits(counter, (10.0, 14.0)).limits == (100, 300)
    assert rise_limits(counter, (10.0, 14.0), age_s=0.4).limits == (0, 300)
    assert rise_limits(counter, (10.0, 14.0), ((14.0, 290.0),), 0.4).limits == (90, 290)
