"""Callback for `transformers.Trainer`: energy of a training, with steps, tokens or samples as its
work.

    trainer = Trainer(…, callbacks=[EnergyCallback()])

The values are in `trainer.state.log_history`. Trackers such as Weights & Biases read the logs
before callbacks of the program; `EnergyCallback().attach(trainer)` puts the callback first, so that
they have the values as well.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sized
from typing import Any, Self

from transformers import TrainerCallback

import wattline
from wattline.client.gpus import GpusOfRun
from wattline.integrations.epochs import EVALUATION, epoch_phase
from wattline.integrations.training_energy import TrainingEnergy

_LAST_LOG = {"train_loss", "train_steps_per_second"}
"""Values that the Trainer adds to its last log only."""


class EnergyCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not analyzed
    """Measures the training as a run, or as a part of the run that is open.

    `workload`, `labels` and `gpus` are passed to `wattline.run`. Epochs and evaluations are phases.
    The work is in steps, and in `trained_tokens` if `include_num_input_tokens_seen` is set, else in
    `samples`.
    """

    def __init__(
        self,
        workload: str = "train",
        *,
        labels: dict[str, object] | None = None,
        gpus: GpusOfRun = None,
    ) -> None:
        self._workload = workload
        self._labels = labels
        self._gpus = gpus
        self.run: wattline.ActiveRun | None = None
        """Run of the last training."""
        self._energy: TrainingEnergy | None = None
        self._phase = epoch_phase(1)
        self._is_evaluating = False
        self._step = 0
        self._tokens = 0
        self._left_samples = 0

    def attach(self, trainer: Any) -> Self:
        """Add the callback to a Trainer, before its trackers."""
        trainer.add_callback(self)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run is not None and self._energy is not None:
            self.run.end(
                "failed"
            )  # an exception ended the training before, which no callback reports
        self.run = wattline.start(self._workload, labels=self._labels, gpus=self._gpus)
        self._energy = TrainingEnergy(self.run, state.global_step)
        self._step, self._tokens = state.global_step, _tokens(state)

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        self._phase = epoch_phase(int(state.epoch or 0) + 1)
        self._left_samples = _epoch_samples(args, train_dataloader, state.epoch or 0.0)
        if self.run:
            self.run.phase(self._phase)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run is None or self._energy is None:
            return
        steps = state.global_step - self._step
        self._step = state.global_step
        work: dict[str, float] = {}  # the first unit is the primary one
        if tokens := _tokens(state):
            # the Trainer adds up the tokens of all processes
            added = tokens - self._tokens
            self._tokens = tokens
            work |= {"trained_tokens": added} if state.is_world_process_zero else {}
        elif self._left_samples:
            samples = min(
                args.train_batch_size * args.gradient_accumulation_steps * steps, self._left_samples
            )
            self._left_samples -= samples
            work["samples"] = samples
        self.run.work(**work | ({"steps": steps} if state.is_world_process_zero else {}))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run is not None and self._energy is not None and not self._is_evaluating:
            self._is_evaluating = True
            self.run.phase(EVALUATION)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run is not None and self._energy is not None and self._is_evaluating:
            self.run.phase(self._phase)
        self._is_evaluating = False

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: MutableMapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self.run is None or self._energy is None or logs is None:
            return
        energy = self._energy
        is_last = logs.keys() >= _LAST_LOG
        if is_last:
            self._end()  # before the trackers read the log, so that they have the final figures
        if not state.is_world_process_zero:
            return
        values = (
            energy.final_values(state.global_step) if is_last else energy.values(state.global_step)
        )
        logs.update(values)
        if state.log_history:
            state.log_history[-1].update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end()

    def _end(self) -> None:
        if self.run is not None and self._energy is not None:
            self.run.end()
        self._energy = None


def _epoch_samples(args: Any, loader: Any, epoch: float) -> int:
    """Return the samples of this process in the rest of an epoch; 0 if the dataset has no length.

    A training that continues from a checkpoint skips the batches before it.
    """
    data = getattr(loader, "dataset", None)
    if not isinstance(data, Sized):
        return 0
    batches = len(loader)
    size = int(args.train_batch_size)
    samples = min(-(-len(data) // int(args.world_size)), batches * size)
    part = 0.0 if args.ignore_data_skip else (epoch + 1e-6) % 1.0
    return max(0, samples - round(part * batches) * size)


def _tokens(state: Any) -> int:
    return int(getattr(state, "num_input_tokens_seen", 0))
