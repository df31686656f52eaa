"""Which GPUs, nodes and exporters are asked for."""

import pytest

from analyzer.sources.error import SourceError
from tests.analyzer.ranges.foreign import TRUTH_J, uuid
from tests.analyzer.ranges.reporting import holds


@pytest.mark.parametrize("wanted", [("1",), (uuid(1),), (uuid(1).removeprefix("GPU-").upper(),)])
def test_gpus_are_chosen_by_index_or_uuid_however_it_is_written(report_of, wanted):
    report = report_of("two-cards", gpus=wanted)

    assert [device.device for device in report.gpus] == [uuid(1)]
    assert holds(report.energy["gpu"], TRUTH_J)


@pytest.mark.parametrize("node", ["gpu01", "gpu0[01]", "gpu01:9400"])
def test_nodes_are_chosen_by_name_or_address(report_of, node):
    report = report_of("two-nodes", node=node)

    assert report.instances == ("gpu01",)
    assert holds(report.energy["gpu"], TRUTH_J)


def test_a_schema_that_is_named_is_the_only_one_read(report_of):
    report = report_of("ours-and-theirs", schema="nvidia-gpu-exporter")

    assert report.labels["schema"] == "nvidia-gpu-exporter"
    assert "cpu" not in report.energy


def test_nothing_there_is_one_line_with_what_was_looked_for(report_of):
    with pytest.raises(SourceError) as nothing:
        report_of("no-such-case")
    with pytest.raises(SourceError) as elsewhere:
        report_of("two-nodes", node="gpu0")
    with pytest.raises(SourceError) as gpu:
        report_of("two-cards", gpus=("7",))

    assert "wattline, dcgm-exporter, nvidia-gpu-exporter, kepler, node-exporter, all-smi" in str(nothing.value)
    assert "2026-09-10 00:26:40" in str(nothing.value)
    assert "there are gpu01 (dcgm-exporter), gpu02 (dcgm-exporter)" in str(elsewhere.value)
    assert f"there are 0 ({uuid()} on gpu01), 1 ({uuid(1)} on gpu01)" in str(gpu.value)
