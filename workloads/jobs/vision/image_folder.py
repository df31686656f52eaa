"""A folder of images in one folder for each class, read by threads ahead of whoever trains on them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_BATCHES_AHEAD = 2


class ImagesError(ValueError):
    """One line: the cause and the next step."""


@dataclass(frozen=True, slots=True)
class Images:
    """`files` with the index of each one's class."""

    files: tuple[tuple[Path, int], ...]
    classes: tuple[str, ...]


def find(folder: Path) -> Images:
    """Raises ImagesError."""
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise ImagesError(f"{folder} cannot be read: {error.strerror}; give another --images") from error
    files = tuple(
        (path, index)
        for index, each in enumerate(classes)
        for path in sorted(each.rglob("*"))
        if path.suffix.lower() in _SUFFIXES
    )
    if not files:
        raise ImagesError(f"{folder} holds no images in folders, one a class, like {folder / 'cat' / '1.jpeg'}")
    return Images(files, tuple(path.name for path in classes))


def batches(
    images: Images, size_px: int, batch_size: int, *, seed: int, threads: int
) -> Iterator[tuple[NDArray[np.uint8], Sequence[int]]]:
    """Without end, in a new order each epoch: pixels (batch, row, column, RGB) and classes. Raises ImagesError.

    The images that fill no batch at the end of an epoch are left out.
    """
    import numpy as np

    if len(images.files) < batch_size:
        raise ImagesError(
            f"there are {len(images.files)} images for a batch of {batch_size}; give a smaller --batch-size"
        )
    ahead: deque[tuple[list[Future[NDArray[np.uint8]]], list[int]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for chosen in _shuffled(images.files, batch_size, seed):
            ahead.append(([pool.submit(_load, path, size_px) for path, _ in chosen], [label for _, label in chosen]))
            if len(ahead) > _BATCHES_AHEAD:
                loading, labels = ahead.popleft()
                yield np.stack([each.result() for each in loading]), labels
    finally:
        pool.shutdown(cancel_futures=True)


def _shuffled(files: Sequence[tuple[Path, int]], batch_size: int, seed: int) -> Iterator[Sequence[tuple[Path, int]]]:
    chance = random.Random(seed)  # noqa: S311  # an order, no secret
    order = list(files)
    while True:
        chance.shuffle(order)
        for first in range(0, len(order) - batch_size + 1, batch_size):
            yield order[first : first + batch_size]


def _load(path: Path, size_px: int) -> NDArray[np.uint8]:
    """The square in its middle, scaled."""
    import numpy as np
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            return np.asarray(ImageOps.fit(image.convert("RGB"), (size_px, size_px)))
    except OSError as error:  # Pillow's own are OSErrors
        raise ImagesError(f"{path} is no image that can be read: {error}; take it out of the folder") from error
