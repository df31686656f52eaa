from wattline.contract.metrics import NODE_INFO
from wattline_exporter.sensors.node import NodeInfo
from wattline_exporter.sensors.readings import Reading


def test_node_info_has_the_name_of_the_node_in_kubernetes(tmp_path):
    file = tmp_path / "machine-id"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    info = NodeInfo(
        is_simulated=False, environment={"NODE_NAME": "gpu-7"}, host="exporter-x2k", machine_id=file
    )
    assert list(info.readings()) == [
        Reading(NODE_INFO, ("gpu-7", "0123456789abcdef0123456789abcdef", "false"), 1.0)
    ]


def test_node_info_without_machine_id_has_the_host(tmp_path):
    info = NodeInfo(
        is_simulated=True, environment={}, host="gpu-8", machine_id=tmp_path / "missing"
    )
    assert list(info.readings()) == [Reading(NODE_INFO, ("gpu-8", "", "true"), 1.0)]
