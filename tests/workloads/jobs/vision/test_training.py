import itertools
import math

import pytest

from wattline_workloads.jobs.vision import training
from wattline_workloads.jobs.vision import training as image_training
from wattline_workloads.jobs.vision.training import ImagesError


@pytest.mark.parametrize("dtype", image_training.DTYPES)
def test_resnet_untrained_loss_is_log_of_classes(dtype):
    trainer, batches = _trainer(dtype)

    assert float(trainer.step(*next(batches))) == pytest.approx(math.log(10), abs=1)


def test_resnet_repeated_images_reduce_loss():
    trainer, batches = _trainer("float32")
    losses = [float(trainer.step(*batch)) for batch in itertools.islice(batches, 15)]

    assert losses[-1] < losses[0] / 4


def test_load_image_batches_unreadable_image_is_named(photos):
    broken = photos / "dog" / "images" / "0.PNG"
    broken.write_text("no image")
    with pytest.raises(
        ImagesError, match=r"dog/images/0\.PNG is not a readable image: .*; remove it"
    ):
        next(training.load_image_batches(training.find_images(photos), 8, 5, seed=0, threads=2))


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
        batches = training.load_image_batches(
            training.find_images(photos), 8, 1, seed=seed, threads=1
        )
        found = [label for _, (label,) in itertools.islice(batches, count)]
        batches.close()
        return found

    assert labels(1) == labels(1)
    epochs = [labels(1)[first : first + 5] for first in range(0, 20, 5)]
    assert all(sorted(epoch) == [0, 0, 0, 1, 1] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_find_images_empty_or_missing_folder_names_layout(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(
        ImagesError, match=r"has no images in subfolders, one per class, like .*/cat/1\.jpeg"
    ):
        training.find_images(tmp_path)
    with pytest.raises(
        ImagesError, match=r"cannot read .*gone: No such file or directory; give another --images"
    ):
        training.find_images(tmp_path / "gone")


def test_load_image_batches_too_few_images_are_rejected(photos):
    with pytest.raises(
        ImagesError, match="5 images are too few for a batch of 6; give a smaller --batch-size"
    ):
        next(training.load_image_batches(training.find_images(photos), 8, 6, seed=0, threads=1))


def _trainer(dtype):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    settings = image_training.TrainingSettings(4, 32, 10, (1, 1, 1, 1), dtype, 0.0, seed=0)
    cpu = torch.device("cpu")
    return image_training.ResnetTrainer([cpu], settings), image_training.synthetic_images(
        cpu, settings
    )
