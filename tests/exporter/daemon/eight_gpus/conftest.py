import pytest

from tests.daemon import daemon
from tests.exporter.daemon.eight_gpus.observation import load_w
from tests.fakes import nvml
from tests.fakes.powercap import Powercap
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Fault,
    Simulation,
    create,
    make_gpus,
)


@pytest.fixture
def node(tmp_path):
    path = tmp_path / FILE_NAME
    create(path, make_gpus(8, PRODUCTS["H200"]), boottime() - 10)
    with Simulation.open(path) as simulation:
        for i in range(8):
            simulation.set_load(i, Constant(load_w(i)), at=boottime() - 9)
        yield simulation
        for i in range(8):
            simulation.set_fault(i, Fault.HANG | Fault.INIT_HANG, on=False)


@pytest.fixture
def serve(tmp_path, node):
    """Return a function that starts exporters on this node, which also has a CPU."""
    tree = Powercap(tmp_path / "sys")
    tree.zone("intel-rapl:0", "package-0", 1_000.0)

    def start_daemon(**more):
        environment = nvml.environment(node.path)
        return daemon(tmp_path, "--path.sysfs", str(tree.root), env=environment, **more)

    return start_daemon
