"""Reports of ranges as the command creates them."""

from contextlib import closing

from tests.analyzer.node import START_S
from tests.analyzer.report.untagged.foreign_exporters import END_S
from wattline_analyzer.core.run_report import NO_INPUTS
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.assess_untagged import range_report
from wattline_analyzer.report.untagged.load import load_range
from wattline_analyzer.report.untagged.request import RangeRequest


def load_range_report(address, request, inputs=NO_INPUTS):
    with closing(PrometheusSource(address)) as source:
        time_range = load_range(source, request, lambda _: None)
    return range_report(assess(time_range.recorded, inputs), time_range.quality)


def report_at(address, case, inputs=NO_INPUTS, start_s=START_S, end_s=END_S, **request):
    """Return the report of one of `cases`."""
    return load_range_report(
        address, RangeRequest(start_s, end_s, matching={"case": case}, **request), inputs
    )


def is_exact(quantity, true_j, at_most=0.15):
    """Return whether the interval contains the true value and is narrow."""
    assert abs(quantity.value - true_j) <= quantity.half_width <= at_most * true_j
    return True
