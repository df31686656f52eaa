"""A device that several exporters show, and nodes under several names."""

from tests.analyzer.ranges.foreign import TRUTH_J
from tests.analyzer.ranges.reporting import holds
from tests.analyzer.reported import found


def test_a_card_that_wattline_and_others_show_is_counted_from_wattline_once(report_of):
    report = report_of("ours-and-theirs")

    assert len(report.gpus) == 1
    assert holds(report.energy["gpu"], TRUTH_J)
    said = [text for _, text in found(report, "counted_once")]
    assert len(said) == 2
    assert all("counted from wattline at gpu01:9847" in text for text in said)


def test_of_two_other_exporters_the_one_with_an_energy_counter_counts(report_of):
    report = report_of("two-others")

    assert holds(report.energy["gpu"], TRUTH_J)
    assert [text for subject, text in found(report, "counted_once") if subject == "GPU 0"] == [
        "shown by all-smi at gpu01:9090 and by nvidia-gpu-exporter at gpu01:9835: counted from all-smi at gpu01:9090"
    ]


def test_a_node_with_two_exporters_of_cpu_energy_is_counted_once(report_of):
    report = report_of("two-cpus")

    assert holds(report.energy["cpu"], 0.5 * TRUTH_J)
    assert report.instances == ("gpu01.example.org",)
    assert "counted from kepler" in found(report, "counted_once")[0][1]


def test_where_nobody_knows_whether_two_nodes_are_one_the_second_is_left_out_and_said(report_of):
    report = report_of("who-is-who")

    assert holds(report.energy["cpu"], 0.5 * TRUTH_J)
    assert "node-exporter at 10.0.0.5:9100" in found(report, "node_unknown")[0][1]


def test_nodes_add_up_and_those_without_a_gpu_are_not_taken_for_one(report_of):
    report = report_of("two-nodes")

    assert report.instances == ("cpu03", "gpu01", "gpu02")
    assert holds(report.energy["gpu"], 2 * TRUTH_J)
    assert holds(report.energy["cpu"], 3 * TRUTH_J)
