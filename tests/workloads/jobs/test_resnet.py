"""Job `resnet` with a small network and small images on the CPU."""

import signal

import pytest

from tests.fakes.run_api import RunApi, run_api_server
from tests.polling import eventually
from tests.workloads.job_environment import job_environment
from tests.workloads.programs import TORCH_NURSERY, Exporter
from wattline.contract.run_files import IterationEvent, parse_event
from wattline_exporter import simulation
from wattline_workloads.jobs import resnet

TINY = ("--depths", "1,1,1,1", "--batch-size", "2", "--image-size", "32", "--warmup", "1")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def test_resnet_reports_images_steps_and_loss(exporter, tmp_path):
    arguments = ("job", "resnet", *TINY, "--iterations", "3", "--out", str(tmp_path))
    done = exporter.workloads(*arguments, **ONE_THREAD)

    run = exporter.api.only_run
    assert done.returncode == 0, done.stderr
    assert run.work == {"images": 6, "steps": 3}
    assert [body["name"] for body in exporter.api.bodies("/phase")] == [
        "load",
        "warmup",
        "measure",
        "rest",
    ]
    lines = next(tmp_path.glob("*/events.jsonl")).read_text().splitlines()
    found = [event for event in map(parse_event, lines) if isinstance(event, IterationEvent)]
    seconds = [event.latency_seconds for event in found]
    assert [event.work for event in found] == [{"images": 2, "steps": 1}] * 3
    assert run.results["step_seconds_mean"] == pytest.approx(sum(seconds) / 3)
    assert run.results["images_per_second"] == pytest.approx(6 / sum(seconds))
    assert run.results["loss"] == found[-1].values["loss"]
    assert all(0 < event.values["device_seconds"] <= event.latency_seconds for event in found)


def test_resnet_epoch_covers_folder_once(exporter, photos, tmp_path):
    with job_environment(exporter, tmp_path / "record"):
        assert resnet.main([*TINY, "--images", str(photos), "--epochs", "3", "--workers", "2"]) == 0

    assert exporter.api.only_run.work == {
        "images": 12,
        "steps": 6,
    }  # 5 images make 2 full batches per epoch


def test_resnet_signal_ends_run_as_interrupted(exporter, tmp_path):
    program = ("-m", "wattline_workloads.jobs.resnet", *TINY, "--duration", "60")
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = TORCH_NURSERY.start(program, exporter.environment | ONE_THREAD, output, output)
    eventually(lambda: exporter.api.runs and exporter.api.only_run.work, log=log.read_text)
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == -signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"
    assert "Traceback" not in log.read_text()


def test_resnet_missing_folder_is_one_line_error(exporter, tmp_path):
    done = exporter.workloads("job", "resnet", "--images", str(tmp_path / "gone"))

    assert done.returncode == 1
    assert (
        f"wattline: resnet: cannot read {tmp_path / 'gone'}: No such file or directory; give another --images"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert exporter.api.only_run.outcome == "failed"


def test_resnet_under_launcher_fails(exporter):
    done = exporter.python(
        "-m", "wattline_workloads.jobs.resnet", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2"
    )

    assert done.returncode == 1
    assert done.stderr == (
        "wattline: resnet: one process uses all GPUs of the run; start it without a launcher, with --gpus "
        "0,1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--depths", "3,4,6"], "argument --depths: 3,4,6 is not a list of four positive numbers"),
        (["--depths", "deep"], "argument --depths: invalid"),
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (
            ["--label-smoothing", "1"],
            "argument --label-smoothing: 1 is not a ratio; give a number from 0 to below 1",
        ),
        (["--epochs", "1", "--iterations", "1"], "not allowed with argument"),
    ],
)
def test_resnet_invalid_options_are_one_line_error(exporter, arguments, message):
    done = exporter.workloads("job", "resnet", *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert exporter.api.runs == {}


def test_resnet_simulated_gpus_share_each_batch(tmp_path):
    path = tmp_path / "simulation.state"
    gpus = simulation.make_gpus(2, simulation.PRODUCTS["H200"])
    simulation.create(path, gpus, simulation.clock_s())
    api = RunApi(known_gpus=tuple(gpu.uuid for gpu in gpus), simulation=str(path))
    with run_api_server(api) as address:
        exporter = Exporter(api, address)
        done = exporter.workloads(
            "job", "resnet", "--gpus", "all", "--batch-size", "128", "--iterations", "20"
        )

    assert done.returncode == 0, done.stderr
    assert api.only_run.work == {"images": 2560, "steps": 20}
    # 128 x 24.3 GFLOP at 2 x 67 TFLOP/s
    assert api.only_run.results["step_seconds_p50"] >= 128 * 24.3e9 / 134e12
    assert api.only_run.results["images_per_second"] <= 134e12 / 24.3e9
    assert "loss" not in api.only_run.results


def test_resnet_training_flop_equals_count_of_torch():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(
            transformers.ResNetConfig(num_labels=1000)
        )
        images = torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        model(images).logits.sum().backward()

    assert (
        sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    )  # published count of ResNet-50
    assert counter.get_total_flops() == pytest.approx(resnet._TRAINING_FLOP, rel=0.001)
