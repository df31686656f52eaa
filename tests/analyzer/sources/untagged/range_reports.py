"""Reports of ranges as the command creates them."""

from contextlib import closing

from analyzer.assess.run import assess
from analyzer.assess.untagged import range_report
from analyzer.model.report import NO_INPUTS
from analyzer.sources.prometheus import PrometheusSource
from analyzer.sources.untagged.load import load_range
from analyzer.sources.untagged.request import RangeRequest
from tests.analyzer.node import START_S
from tests.analyzer.sources.untagged.foreign_exporters import END_S


def load_range_report(address, asked, given=NO_INPUTS):
    with closing(PrometheusSource(address)) as source:
        ranged = load_range(source, asked, lambda _: None)
    return range_report(assess(ranged.frames, given), ranged.quality)


def report_at(address, case, given=NO_INPUTS, start_s=START_S, end_s=END_S, **asked):
    """Return the report of one of `cases`."""
    return load_range_report(address, RangeRequest(start_s, end_s, matching={"case": case}, **asked), given)


def is_exact(quantity, truth_j, at_most=0.15):
    """Return whether the interval contains the true value and is narrow."""
    assert abs(quantity.value - truth_j) <= quantity.half <= at_most * truth_j
    return True
