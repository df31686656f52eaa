"""Job `resnet` with a small network and small images on the CPU."""

import itertools
import math
import signal

import pytest
from PIL import Image

from exporter import simulation
from exporter.contract.run import RECORD_EVENT, IterationEvent
from tests.fakes.run_api import RunApi, serving
from tests.waiting import eventually
from tests.workloads.conftest import Exporter
from workloads.jobs import resnet
from workloads.jobs.vision import training
from workloads.jobs.vision import training as image_training
from workloads.jobs.vision.training import ImagesError

TINY = ("--depths", "1,1,1,1", "--batch-size", "2", "--image-size", "32", "--warmup", "1")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def photos(tmp_path):
    """Folder with three red cats and two green dogs of different sizes, and a text file."""
    folder = tmp_path / "photos"
    for name, colour, count in (("cat", "red", 3), ("dog", "lime", 2)):
        (folder / name / "images").mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (40 + i, 50), colour).save(folder / name / "images" / f"{i}.PNG")
    (folder / "cat" / "boxes.txt").write_text("0 0 1 1")
    return folder


def test_resnet_reports_images_steps_and_loss(exporter, tmp_path):
    arguments = ("job", "resnet", *TINY, "--iterations", "3", "--out", str(tmp_path))
    done = exporter.workloads(*arguments, **ONE_THREAD)

    run = exporter.api.only_run
    assert done.returncode == 0, done.stderr
    assert run.work == {"images": 6, "steps": 3}
    assert [body["name"] for body in exporter.api.bodies("/phase")] == ["load", "warmup", "measure", "rest"]
    lines = next(tmp_path.glob("*/events.jsonl")).read_text().splitlines()
    found = [event for event in map(RECORD_EVENT.validate_json, lines) if isinstance(event, IterationEvent)]
    seconds = [event.latency_seconds for event in found]
    assert [event.work for event in found] == [{"images": 2, "steps": 1}] * 3
    assert run.results["step_seconds_mean"] == pytest.approx(sum(seconds) / 3)
    assert run.results["images_per_second"] == pytest.approx(6 / sum(seconds))
    assert run.results["loss"] == found[-1].values["loss"]
    assert all(0 < event.values["device_seconds"] <= event.latency_seconds for event in found)


@pytest.mark.parametrize("dtype", image_training.DTYPES)
def test_resnet_untrained_loss_is_log_of_classes(dtype):
    trainer, batches = _trainer(dtype)

    assert float(trainer.step(*next(batches))) == pytest.approx(math.log(10), abs=1)


def test_resnet_repeated_images_reduce_loss():
    trainer, batches = _trainer("float32")
    losses = [float(trainer.step(*batch)) for batch in itertools.islice(batches, 15)]

    assert losses[-1] < losses[0] / 4


def test_resnet_epoch_covers_folder_once(exporter, photos):
    arguments = ("--images", str(photos), "--epochs", "3", "--workers", "2")
    done = exporter.workloads("job", "resnet", *TINY, *arguments, **ONE_THREAD)

    assert done.returncode == 0, done.stderr
    assert exporter.api.only_run.work == {"images": 12, "steps": 6}  # 5 images make 2 full batches per epoch


def test_resnet_signal_ends_run_as_interrupted(exporter):
    process = exporter.start("-m", "workloads.jobs.resnet", *TINY, "--duration", "60", **ONE_THREAD)
    with process:
        eventually(lambda: exporter.api.runs and exporter.api.only_run.work)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)

    assert process.returncode == -signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"
    assert "Traceback" not in stderr


def test_load_image_batches_unreadable_image_is_named(photos):
    broken = photos / "dog" / "images" / "0.PNG"
    broken.write_text("no image")
    with pytest.raises(ImagesError, match=r"dog/images/0\.PNG is not a readable image: .*; remove it"):
        next(training.load_image_batches(training.find_images(photos), 8, 5, seed=0, threads=2))


def test_resnet_missing_folder_is_one_line_error(exporter, tmp_path):
    done = exporter.workloads("job", "resnet", "--images", str(tmp_path / "gone"))

    assert done.returncode == 1
    assert (
        f"resnet: {tmp_path / 'gone'} cannot be read: No such file or directory; give another --images" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert exporter.api.only_run.outcome == "failed"


def test_resnet_under_launcher_fails(exporter):
    done = exporter.python("-m", "workloads.jobs.resnet", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")

    assert done.returncode == 1
    assert done.stderr == (
        "resnet: one process uses all GPUs of the run; start it without a launcher, with --gpus 0,1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--depths", "3,4,6"], "argument --depths: 3,4,6 is not a list of four positive numbers"),
        (["--depths", "deep"], "argument --depths: invalid"),
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["--label-smoothing", "1"], "argument --label-smoothing: 1 is not a ratio; give a number from 0 to below 1"),
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
    simulation.create(path, gpus, simulation.boottime())
    api = RunApi(known_gpus=tuple(gpu.uuid for gpu in gpus), simulation=str(path))
    with serving(api) as address:
        exporter = Exporter(api, address)
        done = exporter.workloads("job", "resnet", "--gpus", "all", "--batch-size", "128", "--iterations", "20")

    assert done.returncode == 0, done.stderr
    assert api.only_run.work == {"images": 2560, "steps": 20}
    # 128 x 24.3 GFLOP at 2 x 67 TFLOP/s
    assert api.only_run.results["step_seconds_p50"] >= 128 * 24.3e9 / 134e12
    assert api.only_run.results["images_per_second"] <= 134e12 / 24.3e9
    assert "loss" not in api.only_run.results


def test_find_images_folders_are_classes(photos):
    found = training.find_images(photos)

    assert found.classes == ("cat", "dog")
    assert [label for _, label in found.files] == [0, 0, 0, 1, 1]


def test_load_image_batches_gives_squares_with_labels(photos):
    batches = training.load_image_batches(training.find_images(photos), 8, 5, seed=0, threads=2)
    pixels, labels = next(batches)
    batches.close()

    assert pixels.shape == (5, 8, 8, 3)
    assert sorted(labels) == [0, 0, 0, 1, 1]
    colours = {0: [255, 0, 0], 1: [0, 255, 0]}
    assert all((image == colours[label]).all() for image, label in zip(pixels, labels, strict=True))


def test_load_image_batches_order_depends_on_seed_and_epoch(photos):
    def labels(seed, count=20):
        batches = training.load_image_batches(training.find_images(photos), 8, 1, seed=seed, threads=1)
        found = [label for _, (label,) in itertools.islice(batches, count)]
        batches.close()
        return found

    assert labels(1) == labels(1)
    epochs = [labels(1)[first : first + 5] for first in range(0, 20, 5)]
    assert all(sorted(epoch) == [0, 0, 0, 1, 1] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_find_images_empty_or_missing_folder_names_layout(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(ImagesError, match=r"has no images in subfolders, one per class, like .*/cat/1\.jpeg"):
        training.find_images(tmp_path)
    with pytest.raises(ImagesError, match=r"gone cannot be read: No such file or directory; give another --images"):
        training.find_images(tmp_path / "gone")


def test_load_image_batches_too_few_images_are_rejected(photos):
    with pytest.raises(ImagesError, match="5 images are too few for a batch of 6; give a smaller --batch-size"):
        next(training.load_image_batches(training.find_images(photos), 8, 6, seed=0, threads=1))


def test_resnet_training_flop_equals_count_of_torch():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
        images = torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        model(images).logits.sum().backward()

    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032  # published count of ResNet-50
    assert counter.get_total_flops() == pytest.approx(resnet._TRAINING_FLOP, rel=0.001)


def _trainer(dtype):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    settings = image_training.TrainingSettings(4, 32, 10, (1, 1, 1, 1), dtype, 0.0, seed=0)
    cpu = torch.device("cpu")
    return image_training.ResnetTrainer([cpu], settings), image_training.synthetic_images(cpu, settings)
