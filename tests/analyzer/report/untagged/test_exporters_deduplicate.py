"""Devices of several exporters, and nodes with several names."""

from tests.analyzer.report.untagged.foreign_exporters import TRUE_ENERGY_J
from tests.analyzer.report.untagged.range_reports import is_exact
from tests.analyzer.run_reports import finding_texts


def test_gpu_of_several_exporters_is_counted_from_wattline(report_of):
    report = report_of("ours-and-theirs")

    assert len(report.gpus) == 1
    assert is_exact(report.energy["gpu"], TRUE_ENERGY_J)
    texts = [text for _, text in finding_texts(report, "counted_once")]
    assert len(texts) == 2
    assert all("counted once, from wattline at gpu01:9847" in text for text in texts)


def test_gpu_of_two_exporters_uses_the_one_with_counter(report_of):
    report = report_of("two-others")

    assert is_exact(report.energy["gpu"], TRUE_ENERGY_J)
    both = "exported by all-smi at gpu01:9090 and nvidia-gpu-exporter at gpu01:9835"
    assert [
        text for subject, text in finding_texts(report, "counted_once") if subject == "GPU 0"
    ] == [f"{both}: counted once, from all-smi at gpu01:9090"]


def test_cpu_of_two_exporters_is_counted_once(report_of):
    report = report_of("two-cpus")

    assert is_exact(report.energy["cpu"], 0.5 * TRUE_ENERGY_J)
    assert report.instances == ("gpu01.example.org",)
    assert "counted once, from kepler" in finding_texts(report, "counted_once")[0][1]


def test_cpu_of_unmatched_node_is_left_out_with_finding(report_of):
    report = report_of("who-is-who")

    assert is_exact(report.energy["cpu"], 0.5 * TRUE_ENERGY_J)
    assert "node-exporter at 10.0.0.5:9100" in finding_texts(report, "node_unknown")[0][1]


def test_nodes_without_gpu_stay_separate_and_add_up(report_of):
    report = report_of("two-nodes")

    assert report.instances == ("cpu03", "gpu01", "gpu02")
    assert is_exact(report.energy["gpu"], 2 * TRUE_ENERGY_J)
    assert is_exact(report.energy["cpu"], 3 * TRUE_ENERGY_J)
