"""Energy in MLflow, TensorBoard and Weights & Biases, with their real libraries, on a simulated
GPU.

Install them with `pip install --group trackers`; without one, its tests are skipped. An idle
simulated H200 has 78 W.
"""

import json
import struct
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

import wattline
from tests.daemon import daemon
from tests.workloads.wattline.integrations.test_transformers import trainer
from wattline.integrations.transformers import EnergyCallback

IDLE_W, GRAMS_PER_KWH = 78.0, 200.0
LIBRARIES = ("mlflow", "tensorboard", "wandb")
WANDB_HEADER_BYTES, WANDB_BLOCK_BYTES = 7, 32_768
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    options = ("--simulate", "1xH200", "--no-history", "--carbon.intensity", f"{GRAMS_PER_KWH:g}")
    with daemon(tmp_path_factory.mktemp("node"), *options) as started:
        yield started


@pytest.fixture
def trackers(job, tmp_path, monkeypatch):
    """Return the names of the installed trackers, which write to a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return [name for name in LIBRARIES if find_spec(name)]


def mlflow_metrics(folder):
    import mlflow

    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    return dict(run.data.metrics)


def tensorboard_scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(path))
    events.Reload()
    return {
        tag.removeprefix("train/"): events.Scalars(tag)[-1].value
        for tag in events.Tags()["scalars"]
    }


def wandb_records(folder):
    """Yield the records of the file of an offline run, which is a log of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, text = path.read_bytes(), WANDB_HEADER_BYTES, b""
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        left = WANDB_BLOCK_BYTES - at % WANDB_BLOCK_BYTES
        if left < 7 or not kind:
            at += left
            continue
        text, at = text + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(text)
            text = b""


def wandb_summary(folder):
    updates = [item for record in wandb_records(folder) for item in record.summary.update]
    names = [(item.key or item.nested_key[-1]).removeprefix("train/") for item in updates]
    return {name: json.loads(item.value_json) for name, item in zip(names, updates, strict=True)}


SUMMARIES = {"mlflow": mlflow_metrics, "tensorboard": tensorboard_scalars, "wandb": wandb_summary}


def expected(run):
    """Return the final figures of an ended run, from the exporter."""
    energy_j = sum(run["energy_joules"]["gpu"].values())
    return {
        "energy_joules": pytest.approx(energy_j, rel=1e-5),
        "mean_power_watts": pytest.approx(energy_j / run["duration_seconds"], rel=1e-5),
        "emissions_grams": pytest.approx(energy_j / 3.6e6 * GRAMS_PER_KWH, rel=1e-5),
    }


def test_trainer_gives_each_tracker_the_final_figures_of_its_run(trackers, job, tmp_path):
    if not trackers:
        pytest.skip("no tracker is installed")
    trained = trainer(tmp_path / "model", report_to=trackers)
    callback = EnergyCallback(gpus="all").attach(trained)
    trained.train()
    if "wandb" in trackers:
        sys.modules["wandb"].finish()

    _, run = job.get(f"/api/v1/runs/{callback.run.run_id}")
    final = expected(run)
    assert sum(run["energy_joules"]["gpu"].values()) / run["duration_seconds"] == pytest.approx(
        IDLE_W, rel=0.03
    )
    for name in trackers:
        summary = SUMMARIES[name](tmp_path)
        assert {figure: summary[figure] for figure in final} == final, name
        assert summary["power_watts"] > 0, name


def test_bare_script_gives_mlflow_the_figures_of_its_run(trackers, job, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    with mlflow.start_run():
        with wattline.run("train", gpus="all", quiet=True) as run:
            run.work(samples=10)
            time.sleep(1)
            mlflow.log_metrics(run.metrics(), step=0)
        mlflow.log_metrics(run.metrics(), step=1)

    _, ended = job.get(f"/api/v1/runs/{run.run_id}")
    logged, final = mlflow_metrics(tmp_path), expected(ended)
    assert {figure: logged[figure] for figure in final} == final
    assert logged["joules_per_sample"] == pytest.approx(logged["energy_joules"] / 10)


def test_accelerate_tracker_has_the_figures_of_the_run(trackers, job, tmp_path):
    pytest.importorskip("tensorboard")
    folder = ProjectConfiguration(project_dir=tmp_path, logging_dir=tmp_path / "tensorboard")
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_config=folder)
    accelerator.init_trackers("tiny")
    with wattline.run("train", gpus="all", quiet=True) as run:
        for step in range(3):
            time.sleep(0.5)
            run.work(steps=1)
            accelerator.log(run.metrics(), step=step)
    accelerator.log(run.metrics(), step=3)
    accelerator.end_training()

    _, ended = job.get(f"/api/v1/runs/{run.run_id}")
    logged, final = tensorboard_scalars(tmp_path), expected(ended)
    assert ended["work"] == {"steps": 3.0}
    assert {figure: logged[figure] for figure in final} == final


def test_wandb_reads_the_exporter_without_a_change_of_the_script(
    trackers, job, tmp_path, monkeypatch
):
    """A script that does not use Wattline runs with the settings of the documentation."""
    pytest.importorskip("wandb")
    monkeypatch.setenv(
        "WANDB_X_STATS_OPEN_METRICS_ENDPOINTS", json.dumps({"node": f"{job.url}/metrics"})
    )
    monkeypatch.setenv(
        "WANDB_X_STATS_OPEN_METRICS_FILTERS",
        json.dumps([".*wattline_gpu_(power_watts|energy_joules_total)"]),
    )
    monkeypatch.setenv("WANDB_X_STATS_SAMPLING_INTERVAL", "0.5")
    script = (
        "import time, wandb\nwith wandb.init(project='tiny') as run:\n    time.sleep(3)\n    "
        "run.log({'loss': 1.0})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)

    read = {}
    for record in wandb_records(tmp_path):
        for item in record.stats.item:
            read.setdefault(item.key, []).append(float(json.loads(item.value_json)))
    power_w, energy_j = (
        read[f"openmetrics.node.wattline_gpu_{name}.0"]
        for name in ("power_watts", "energy_joules_total")
    )
    assert {name.split(".")[2] for name in read if name.startswith("openmetrics.")} == {
        "wattline_gpu_power_watts",
        "wattline_gpu_energy_joules_total",
    }
    assert power_w == pytest.approx([IDLE_W] * len(power_w), rel=0.03)
    assert energy_j == sorted(energy_j)
