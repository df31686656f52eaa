"""Exporters under two addresses in fleet queries."""

import pytest

from wattline_analyzer.core.sources.promql import InstantValue, QuerySpan
from wattline_analyzer.usage.aliases import add_matchers, find_aliases, without_instances

SPAN = QuerySpan(3_600_000)


class Server:
    """Server of GPUs with samples by UUID and instance; `several` counts the instants with two
    instances by UUID.

    The window of one hour has 200 instants, 18 s apart.
    """

    def __init__(self, samples, several):
        self._samples = samples
        self._several = several

    def query(self, text, at_s):
        if "> 1" in text:
            return [InstantValue({"uuid": uuid}, count) for uuid, count in self._several.items()]
        return [
            InstantValue({"uuid": uuid, "instance": instance}, count)
            for uuid, by_instance in self._samples.items()
            for instance, count in by_instance.items()
        ]


def test_find_aliases_keeps_the_address_with_most_samples():
    samples = {
        "GPU-1": {"node:9847": 200.0, "10.0.0.1:9847": 240.0},
        "GPU-2": {"other:9847": 240.0},
    }
    messages = []

    assert find_aliases(Server(samples, {"GPU-1": 160.0}), SPAN, 0.0, messages.append) == {
        "node:9847"
    }
    assert messages == [
        (
            "node:9847 is not counted: it shows the same GPUs as 10.0.0.1:9847 at the same time, "
            "as "
            "the same exporter does"
        )
    ]


def test_find_aliases_new_address_after_the_old_one_counts():
    """The server shows the old address for five minutes after its last sample."""
    samples = {"GPU-1": {"old:9847": 100.0, "new:9847": 140.0}}

    assert find_aliases(Server(samples, {"GPU-1": 17.0}), SPAN, 0.0, pytest.fail) == frozenset()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "sum by (instance) (max_over_time(wattline_gpu_energy_joules_total[60ms]))",
            (
                "sum by (instance) "
                '(max_over_time(wattline_gpu_energy_joules_total{instance!="b:1"}[60ms]))'
            ),
        ),
        (
            'max_over_time(wattline_run_work_total{run_id!=""}[5m])',
            'max_over_time(wattline_run_work_total{run_id!="",instance!="b:1"}[5m])',
        ),
        (
            "sum_over_time(instance:wattline_device_energy_joules:increase5m[1h])",
            'sum_over_time(instance:wattline_device_energy_joules:increase5m{instance!="b:1"}[1h])',
        ),
    ],
)
def test_without_instances_adds_a_matcher_to_each_metric(query, expected):
    assert without_instances(query, ["b:1"]) == expected
    assert without_instances(query, []) == query


def test_add_matchers_extends_the_named_metrics_only():
    query = (
        "sum(max_over_time(wattline_run_info[5m]) * "
        'max_over_time(wattline_gpu_info{name="H200"}[5m]))'
    )

    assert add_matchers(query, 'run_id=~"a"', "wattline_run_") == (
        'sum(max_over_time(wattline_run_info{run_id=~"a"}[5m]) * '
        'max_over_time(wattline_gpu_info{name="H200"}[5m]))'
    )
