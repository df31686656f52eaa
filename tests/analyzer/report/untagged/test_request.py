"""Filters of a range: GPUs, nodes and exporters."""

import pytest

from tests.analyzer.report.untagged.foreign_exporters import TRUE_ENERGY_J, uuid
from tests.analyzer.report.untagged.range_reports import is_exact
from wattline_analyzer.core.sources.base import FetchError


@pytest.mark.parametrize("expected", [("1",), (uuid(1),), (uuid(1).removeprefix("GPU-").upper(),)])
def test_range_gpus_match_index_or_uuid(report_of, expected):
    report = report_of("two-cards", gpus=expected)

    assert [device.device for device in report.gpus] == [uuid(1)]
    assert is_exact(report.energy["gpu"], TRUE_ENERGY_J)


@pytest.mark.parametrize("node", ["gpu01", "gpu0[01]", "gpu01:9400"])
def test_range_nodes_match_name_or_address(report_of, node):
    report = report_of("two-nodes", node=node)

    assert report.instances == ("gpu01",)
    assert is_exact(report.energy["gpu"], TRUE_ENERGY_J)


def test_range_named_schema_is_the_only_one_read(report_of):
    report = report_of("ours-and-theirs", schema="nvidia-gpu-exporter")

    assert report.labels["schema"] == "nvidia-gpu-exporter"
    assert "cpu" not in report.energy


def test_range_nothing_found_is_one_line_with_request(report_of):
    with pytest.raises(FetchError) as empty:
        report_of("no-such-case")
    with pytest.raises(FetchError) as elsewhere:
        report_of("two-nodes", node="gpu0")
    with pytest.raises(FetchError) as gpu:
        report_of("two-cards", gpus=("7",))

    assert "wattline, dcgm-exporter, nvidia-gpu-exporter, kepler, node-exporter, all-smi" in str(
        empty.value
    )
    assert "2026-09-10 00:26:40" in str(empty.value)
    assert "known nodes: gpu01 (dcgm-exporter), gpu02 (dcgm-exporter)" in str(elsewhere.value)
    assert f"known GPUs: 0 ({uuid()} on gpu01), 1 ({uuid(1)} on gpu01)" in str(gpu.value)
