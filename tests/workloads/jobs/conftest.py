import pytest

from tests.fakes.run_api import RunApi, run_api_server
from tests.workloads.job_environment import job_environment
from tests.workloads.jobs.recorded_runs import RECORD, RecordedRun, recorded_run
from tests.workloads.programs import Exporter
from wattline_exporter import simulation


@pytest.fixture
def photos(tmp_path):
    """Folder with three red cats and two green dogs of different sizes, and a text file."""
    from PIL import Image

    folder = tmp_path / "photos"
    for name, colour, count in (("cat", "red", 3), ("dog", "lime", 2)):
        (folder / name / "images").mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (40 + i, 50), colour).save(folder / name / "images" / f"{i}.PNG")
    (folder / "cat" / "boxes.txt").write_text("0 0 1 1")
    return folder


@pytest.fixture
def simulated(tmp_path):
    """Two simulated H200, and an exporter that measures them."""
    path = tmp_path / "simulation.state"
    gpus = simulation.make_gpus(2, simulation.PRODUCTS["H200"])
    simulation.create(path, gpus, simulation.clock_s())
    api = RunApi(known_gpus=tuple(gpu.uuid for gpu in gpus), simulation=str(path))
    with simulation.Simulation.open(path) as opened, run_api_server(api) as address:
        yield Exporter(api, address), opened


@pytest.fixture
def environment(exporter, tmp_path):
    """Exporter for jobs that run in this process."""
    with job_environment(exporter, tmp_path / RECORD):
        yield exporter


@pytest.fixture
def in_process_job(environment, tmp_path):
    """Return a function that runs the job of a module in this process."""

    def run_job(module, *arguments: str) -> RecordedRun:
        assert module.main(arguments) == 0
        return recorded_run(environment.api.only_run, tmp_path)

    return run_job


@pytest.fixture
def texts(tmp_path):
    """Texts of three and five tokens that the counting model continues from position 0."""
    path = tmp_path / "texts"
    path.write_text("9 1 2\n9 1 2 3 4\n")
    return str(path)
