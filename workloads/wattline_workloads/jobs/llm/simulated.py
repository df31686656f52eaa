"""Transformer models on a simulated GPU: only their time and power are simulated.

A token costs 2 operations for each parameter, 6 in training (Kaplan et al., 2020,
https://arxiv.org/abs/2001.08361). Decoding is limited by memory: a step takes as long as one of at
least `_FEWEST` texts, and the GPU draws less power.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from wattline.client.messages import log_message
from wattline_workloads.jobs.llm.decoding import DecodingSteps
from wattline_workloads.jobs.llm.models import ModelError
from wattline_workloads.jobs.llm.options import PRESETS, ModelPreset, find_preset
from wattline_workloads.runner.simulated_gpu import GpuLoad, drive_simulated_gpus

_FEWEST = (
    28  # pairs of 32-bit operations that a data center GPU computes while it reads one parameter
)
_BYTES_PER_PARAMETER = 4
_FORWARD = 2.0
_TRAINING = 6.0
UTILIZATION = {"llm-generate": 0.6, "llm-forward": 1.0, "llm-train": 1.0}
"""Share of dynamic power and of peak speed, by job."""


class SimulatedModel:
    """Model on a simulated GPU, created by `open_simulated_model`."""

    def __init__(self, gpu: GpuLoad, preset: ModelPreset, utilization: float) -> None:
        self._gpu = gpu
        self._preset = preset
        self._utilization = utilization
        self._has_started = False

    def forward(self, tokens: int) -> float:
        """Simulate a forward pass and return its duration in seconds."""
        return self._compute(_FORWARD * tokens)

    def train(self, tokens: int) -> float:
        return self._compute(_TRAINING * tokens)

    def generate(self, texts: int, columns: int, new_tokens: int) -> DecodingSteps:
        """Simulate generation; `columns` is the padded prompt length, every text gets all
        `new_tokens`.
        """
        began_s = time.perf_counter()
        self.forward(texts * columns)
        token_times_s = [time.perf_counter()]
        for _ in range(new_tokens - 1):
            self.forward(max(texts, _FEWEST))
            token_times_s.append(time.perf_counter())
        return DecodingSteps(began_s, tuple(token_times_s), (texts,) * new_tokens)

    def _compute(self, operations_per_parameter: float) -> float:
        if not self._has_started:
            self._gpu.start(0.0)  # the idle time before is not caught up
            self._has_started = True
        began_s = time.perf_counter()
        self._gpu.compute(operations_per_parameter * self._preset.parameters / self._utilization)
        return time.perf_counter() - began_s


@contextlib.contextmanager
def open_simulated_model(
    job: str, options: argparse.Namespace, state: str
) -> Iterator[SimulatedModel]:
    """Open a model on the run's first simulated GPU. Raises ModelError."""
    name = options.random or options.model
    preset = find_preset(name)
    if preset is None:
        raise ModelError(
            f"unknown model {name!r} for a simulated GPU; give --random with one of "
            f"{', '.join(PRESETS)}"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ModelError("simulated GPUs support one process; start it without a launcher")
    log_message(
        f"simulated: no model runs, times follow an approximate law for {preset.parameters:,} "
        "parameters"
    )
    visible, *others = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if others:
        log_message(
            f"this process uses the first of {1 + len(others)} GPUs; the run includes the energy "
            "of the others"
        )
    memory_bytes = preset.parameters * _BYTES_PER_PARAMETER
    try:
        with drive_simulated_gpus(Path(state), [visible], memory_bytes, UTILIZATION[job]) as (gpu,):
            yield SimulatedModel(gpu, preset, UTILIZATION[job])
    except ValueError as error:
        raise ModelError(str(error)) from error
