"""Training of a ResNet (transformers' model) with momentum SGD, and its image input."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_BATCHES_AHEAD = 2
DTYPES = ("float32", "bfloat16", "float16")
ImageBatch = tuple["torch.Tensor", "torch.Tensor"]
"""Images (batch, colour, row, column) and their classes."""
_RATE_OF_256_IMAGES = 0.1
_MEAN, _DEVIATION = (
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)  # of ImageNet's pixels, from 0 to 1


class ImagesError(ValueError):
    """Unusable image or folder; one line with cause and remedy."""


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Image files with the index of their class."""

    files: tuple[tuple[Path, int], ...]
    classes: tuple[str, ...]


def find_images(folder: Path) -> ImageFolder:
    """Find the images of a folder. Raises ImagesError."""
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise ImagesError(
            f"cannot read {folder}: {error.strerror}; give another --images"
        ) from error
    files = tuple(
        (path, index)
        for index, each in enumerate(classes)
        for path in sorted(each.rglob("*"))
        if path.suffix.lower() in _SUFFIXES
    )
    if not files:
        raise ImagesError(
            f"{folder} has no images in subfolders, one per class, like {folder / 'cat' / '1.jpeg'}"
        )
    return ImageFolder(files, tuple(path.name for path in classes))


def load_image_batches(
    images: ImageFolder, size_px: int, batch_size: int, *, seed: int, threads: int
) -> Generator[tuple[NDArray[np.uint8], Sequence[int]]]:
    """Yield pixels (batch, row, column, RGB) and classes endlessly, shuffled each epoch. Raises
    ImagesError.

    An incomplete batch at the end of an epoch is skipped.
    """
    import numpy as np

    if len(images.files) < batch_size:
        raise ImagesError(
            f"{len(images.files)} images are too few for a batch of {batch_size}; give a smaller "
            "--batch-size"
        )
    ahead: deque[tuple[list[Future[NDArray[np.uint8]]], list[int]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for chosen in _shuffled(images.files, batch_size, seed):
            ahead.append(
                (
                    [pool.submit(_load, path, size_px) for path, _ in chosen],
                    [label for _, label in chosen],
                )
            )
            if len(ahead) > _BATCHES_AHEAD:
                loading, labels = ahead.popleft()
                yield np.stack([each.result() for each in loading]), labels
    finally:
        pool.shutdown(cancel_futures=True)


def _shuffled(
    files: Sequence[tuple[Path, int]], batch_size: int, seed: int
) -> Iterator[Sequence[tuple[Path, int]]]:
    rng = random.Random(seed)  # noqa: S311  # an order, not a secret
    order = list(files)
    while True:
        rng.shuffle(order)
        for first in range(0, len(order) - batch_size + 1, batch_size):
            yield order[first : first + batch_size]


def _load(path: Path, size_px: int) -> NDArray[np.uint8]:
    """Load the central square of an image, scaled."""
    import numpy as np
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            return np.asarray(ImageOps.fit(image.convert("RGB"), (size_px, size_px)))
    except OSError as error:  # Pillow raises OSErrors
        raise ImagesError(
            f"{path} is not a readable image: {error}; remove it from the folder"
        ) from error


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings; `batch_size` is the total of all devices, bfloat16 and float16 are mixed
    precision.
    """

    batch_size: int
    size_px: int
    classes: int
    depths: Sequence[int]
    dtype: str
    label_smoothing: float
    seed: int


class ResnetTrainer:
    """Data-parallel trainer; the weights are kept on the first device.

    The learning rate is 0.1 for 256 images a batch and proportional to them, see
    https://arxiv.org/abs/1706.02677.
    """

    def __init__(self, devices: Sequence[torch.device], settings: TrainingSettings) -> None:
        import torch

        transformers: Any = importlib.import_module("transformers")  # its stubs lack the models
        torch.manual_seed(settings.seed)
        torch.backends.cudnn.benchmark = True  # all batches have one shape
        config = transformers.ResNetConfig(
            depths=list(settings.depths), num_labels=settings.classes
        )
        self._devices = list(devices)
        self._dtype = getattr(torch, settings.dtype)
        self._label_smoothing = settings.label_smoothing
        self._model = transformers.ResNetForImageClassification(config).to(devices[0]).train()
        rate = _RATE_OF_256_IMAGES * settings.batch_size / 256
        self._optimizer: Any = torch.optim.SGD(
            self._model.parameters(), rate, momentum=0.9, weight_decay=1e-4
        )
        # only float16 loses small gradients
        self._scaler: Any = torch.amp.GradScaler(
            devices[0].type, enabled=settings.dtype == "float16"
        )

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on a batch and return the loss, still on the device."""
        from torch.nn import functional

        self._optimizer.zero_grad(set_to_none=True)
        logits = self._logits(images).float()
        loss = functional.cross_entropy(logits, labels, label_smoothing=self._label_smoothing)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return loss.detach()

    def _logits(self, images: torch.Tensor) -> Any:
        """Run the forward pass like torch's DataParallel, which loses the selected half
        precision.
        """
        from torch.nn import parallel

        if len(self._devices) == 1:
            return self._forward(self._model)(images)
        parts: Any = parallel.scatter(images, self._devices)
        devices = self._devices[: len(parts)]  # a small batch may use fewer devices
        replicas: Any = [
            self._forward(replica) for replica in parallel.replicate(self._model, devices)
        ]
        return parallel.gather(
            parallel.parallel_apply(replicas, [(part,) for part in parts], None, devices),
            devices[0],
        )

    def _forward(self, model: Any) -> Callable[[torch.Tensor], Any]:
        import torch

        def forward(images: torch.Tensor) -> Any:
            mixed = self._dtype is not torch.float32
            with torch.autocast(
                images.device.type, dtype=self._dtype if mixed else None, enabled=mixed
            ):
                return model(images).logits

        return forward


def synthetic_images(
    device: torch.device, settings: TrainingSettings
) -> Generator[ImageBatch, None, None]:
    """Yield one batch endlessly, created once on the device."""
    import torch

    random = torch.Generator(device).manual_seed(settings.seed)
    shape = settings.batch_size, 3, settings.size_px, settings.size_px
    images = torch.randn(shape, device=device, generator=random)
    labels = torch.randint(
        settings.classes, (settings.batch_size,), device=device, generator=random
    )
    while True:
        yield images, labels


def read_images(
    images: ImageFolder, device: torch.device, settings: TrainingSettings, threads: int
) -> Generator[ImageBatch, None, None]:
    """Yield batches of a folder, copied as bytes and normalized on the device. Raises
    ImagesError.
    """
    import torch

    mean, deviation = (
        torch.tensor(each, device=device).view(1, 3, 1, 1) for each in (_MEAN, _DEVIATION)
    )
    for pixels, labels in load_image_batches(
        images, settings.size_px, settings.batch_size, seed=settings.seed, threads=threads
    ):
        batch = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float() / 255
        yield (batch - mean) / deviation, torch.tensor(labels, device=device)
