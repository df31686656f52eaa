"""Training of ResNet-50 to classify space groups of crystals, under torchrun.

`--data` is a folder of .npz files with `data` (3 × 128 × 128) and `label`. Without such files noise
is used.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from benchmark import device, write_score
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

_SPACE_GROUPS = 231
_SHAPE = (3, 128, 128)


class _Patterns(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.npz"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with np.load(self._files[index]) as sample:
            return torch.from_numpy(sample["data"]).float(), int(sample["label"][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/data"))
    parser.add_argument(
        "--synthetic", type=int, default=20_000, metavar="N", help="number of noise images"
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="images per GPU and step")
    parser.add_argument("--results", default="/root/results")
    options = parser.parse_args()
    torch.manual_seed(0)
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    data = _Patterns(options.data) if any(options.data.glob("*.npz")) else _noise(options.synthetic)
    distributed.barrier()
    begin_s = time.perf_counter()
    loss = _train(data, options)
    distributed.barrier()
    time_s = time.perf_counter() - begin_s
    if distributed.get_rank() == 0:
        write_score(
            options.results,
            time_s,
            loss=loss,
            images_per_second=options.epochs * len(data) / time_s,
        )
    distributed.destroy_process_group()


def _noise(count: int) -> TensorDataset:
    """Return `count` samples that share one image, so that memory does not grow with their
    number.
    """
    return TensorDataset(
        torch.rand(1, *_SHAPE).expand(count, *_SHAPE), torch.randint(_SPACE_GROUPS, (count,))
    )


def _train(data: Dataset[tuple[torch.Tensor, int]], options: argparse.Namespace) -> float:
    """Train, in half precision on a GPU, and return the loss of the last batch."""
    here = device()
    model = nn.parallel.DistributedDataParallel(
        torchvision.models.resnet50(num_classes=_SPACE_GROUPS).to(here),
        device_ids=[here.index] if here.type == "cuda" else None,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    scaler = torch.amp.GradScaler(here.type, enabled=here.type == "cuda")
    sampler = DistributedSampler(data)
    workers = min(4, os.cpu_count() or 1)
    batches = DataLoader(
        data, options.batch_size, sampler=sampler, num_workers=workers, pin_memory=True
    )
    loss = torch.zeros(())
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for step, (images, groups) in enumerate(batches, start=1):
            with torch.autocast(here.type, enabled=here.type == "cuda"):
                loss = nn.functional.cross_entropy(model(images.to(here)), groups.to(here))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if distributed.get_rank() == 0:
                print(f"\repoch {epoch + 1}/{options.epochs}: {step}/{len(batches)}", end="")
    if distributed.get_rank() == 0:
        print()
    return loss.item()


if __name__ == "__main__":
    main()
