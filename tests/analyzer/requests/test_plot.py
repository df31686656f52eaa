"""Axes of the plot of requests."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from wattline_analyzer.requests.plot import requests_figure, scale_axis
from wattline_exporter.requests.division.spans import RequestSpans


def drawn_axis(values):
    """Return the title of the axis of energies, and the labels within its view."""
    axes = Figure().subplots()
    axes.scatter(np.ones(len(values)), values)
    scale_axis(axes, "y", np.array(values), "Energy of a request, J")
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    labels = [
        each.get_text()
        for each in axes.yaxis.get_ticklabels()
        if low <= each.get_position()[1] <= high
    ]
    return axes.get_ylabel(), [label for label in labels if label]


def test_energies_of_one_magnitude_have_a_linear_axis_with_labels():
    title, labels = drawn_axis([39.0, 55.0, 81.0])

    assert title == "Energy of a request, J"
    assert {"40", "60", "80"} <= set(labels)


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (90.0, {"5", "10", "20", "50"}),
        (2_000.0, {"10", "100", "1,000"}),
        (1e6, {"10", "1,000", "100,000"}),
    ],
)
def test_energies_of_several_magnitudes_have_a_logarithmic_axis(highest, labels):
    title, found = drawn_axis([4.0, 30.0, highest])

    assert title == "Energy of a request, J, log scale"
    assert labels <= set(found)


def test_legend_of_several_models_is_outside_of_the_axes():
    tokens = np.array([20.0, 40.0, 90.0, 800.0])
    table = SimpleNamespace(
        spans=RequestSpans(*[tokens] * len(fields(RequestSpans))),
        label_values=lambda _name, chosen: np.array(["toy-70b", "toy-8b"] * 2, dtype=object)[
            chosen
        ],
    )

    figure = requests_figure(SimpleNamespace(table=table, joules=tokens))

    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    assert [each.get_text() for each in legend.get_texts()] == ["toy-70b", "toy-8b"]
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
