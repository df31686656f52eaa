"""Axes of the plot of requests."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from analyzer.output.plots.requests import scale_axis


def drawn_axis(values):
    """Return the title of the axis of energies, and the labels within its view."""
    axes = Figure().subplots()
    axes.scatter(np.ones(len(values)), values)
    scale_axis(axes, "y", np.array(values), "Energy of a request, J")
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    labels = [each.get_text() for each in axes.yaxis.get_ticklabels() if low <= each.get_position()[1] <= high]
    return axes.get_ylabel(), [label for label in labels if label]


def test_energies_of_one_magnitude_have_a_linear_axis_with_labels():
    title, labels = drawn_axis([39.0, 55.0, 81.0])

    assert title == "Energy of a request, J"
    assert {"40", "60", "80"} <= set(labels)


@pytest.mark.parametrize(
    ("highest", "labels"),
    [(90.0, {"5", "10", "20", "50"}), (2_000.0, {"10", "100", "1,000"}), (1e6, {"10", "1,000", "100,000"})],
)
def test_energies_of_several_magnitudes_have_a_logarithmic_axis(highest, labels):
    title, found = drawn_axis([4.0, 30.0, highest])

    assert title == "Energy of a request, J, log scale"
    assert labels <= set(found)
