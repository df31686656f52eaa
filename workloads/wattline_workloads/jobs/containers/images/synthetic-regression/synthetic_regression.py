"""Training of a perceptron with four hidden layers on random numbers."""

from __future__ import annotations

import argparse
import itertools
import time

import torch
from benchmark import device, write_score
from torch import nn

_HIDDEN_LAYERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_024_000)
    parser.add_argument("--inputs", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=9_000, help="width of the hidden layers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--results", default="/root/results")
    options = parser.parse_args()
    torch.manual_seed(0)
    begin_s = time.perf_counter()
    loss = _train(options)
    time_s = time.perf_counter() - begin_s
    samples = options.epochs * options.samples
    write_score(options.results, time_s, loss=loss, samples_per_second=samples / time_s)


def _train(options: argparse.Namespace) -> float:
    """Train and return the mean loss of the last epoch."""
    model = _perceptron([options.inputs, *[options.hidden] * _HIDDEN_LAYERS, 1]).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    x = torch.randn(options.samples, options.inputs)
    y = (x**2 + 15 * x.sin() ** 3).sum(dim=1, keepdim=True)
    total = torch.zeros((), device=device())
    for epoch in range(options.epochs):
        total.zero_()
        for batch in torch.randperm(options.samples).split(options.batch_size):
            loss = nn.functional.mse_loss(model(x[batch].to(device())), y[batch].to(device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(batch)
        print(
            f"\repoch {epoch + 1}/{options.epochs}: loss {total.item() / options.samples:.4f}",
            end="",
        )
    print()
    return total.item() / options.samples


def _perceptron(widths: list[int]) -> nn.Sequential:
    layers = [
        (nn.Linear(wide, next_wide), nn.Sigmoid()) for wide, next_wide in itertools.pairwise(widths)
    ]
    return nn.Sequential(*itertools.chain.from_iterable(layers[:-1]), layers[-1][0])


if __name__ == "__main__":
    main()
