"""Training of a small convolutional network on MNIST or on noise."""

from __future__ import annotations

import argparse
import time

import torch
from benchmark import device, write_score
from torch import nn

_CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--data", default="/data", help="folder of torchvision's MNIST")
    parser.add_argument(
        "--synthetic", type=int, default=0, metavar="N", help="number of noise images"
    )
    parser.add_argument("--results", default="/root/results")
    options = parser.parse_args()
    torch.manual_seed(0)
    images, digits = _noise(options.synthetic) if options.synthetic else _mnist(options.data)
    begin_s = time.perf_counter()
    loss = _train(images.to(device()), digits.to(device()), options)
    time_s = time.perf_counter() - begin_s
    write_score(
        options.results, time_s, loss=loss, images_per_second=options.epochs * len(images) / time_s
    )


def _noise(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count, 1, 28, 28), torch.randint(_CLASSES, (count,))


def _mnist(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    import torchvision

    data = torchvision.datasets.MNIST(folder)
    return data.data.unsqueeze(1).float() / 255, data.targets


def _train(images: torch.Tensor, digits: torch.Tensor, options: argparse.Namespace) -> float:
    """Train and return the mean loss of the last epoch."""
    layers = [
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    model = nn.Sequential(
        *layers, nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, _CLASSES)
    ).to(device())
    optimizer = torch.optim.Adam(model.parameters())
    total = 0.0
    for epoch in range(options.epochs):
        total = 0.0
        for batch in torch.randperm(len(images), device=images.device).split(options.batch_size):
            loss = nn.functional.cross_entropy(model(images[batch]), digits[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        print(f"\repoch {epoch + 1}/{options.epochs}: loss {total / len(images):.4f}", end="")
    print()
    return total / len(images)


if __name__ == "__main__":
    main()
