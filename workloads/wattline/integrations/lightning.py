"""Callback for Lightning: energy of a fit, with steps and samples as its work.

trainer = Trainer(callbacks=[EnergyCallback()])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the same library under its other name
    from pytorch_lightning import Callback  # type: ignore[assignment]  # the same class of the other library

import wattline
from wattline.client.gpus import GpusOfRun
from wattline.integrations.epochs import EVALUATION, epoch_phase
from wattline.integrations.training_energy import TrainingEnergy


class EnergyCallback(Callback):
    """Measures a fit as a run, or as a part of the run that is open.

    `workload`, `labels` and `gpus` are passed to `wattline.run`. Epochs and validations are phases.
    Energy, power and emissions are logged with `log_dict`, so that each logger and
    `trainer.callback_metrics` have them; the loggers also get the final figures.
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
        """Run of the last fit."""
        self._energy: TrainingEnergy | None = None
        self._step = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.run = wattline.start(self._workload, labels=self._labels, gpus=self._gpus)
        self._step = trainer.global_step
        self._energy = TrainingEnergy(self.run, self._step)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._start_phase(epoch_phase(trainer.current_epoch + 1))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.run is None or self._energy is None:
            return
        steps = trainer.global_step - self._step
        self._step = trainer.global_step
        work: dict[str, float] = {"samples": _batch_size(batch)}
        self.run.work(**work | ({"steps": steps} if trainer.is_global_zero else {}))
        if trainer.is_global_zero:
            pl_module.log_dict(
                self._energy.values(trainer.global_step), rank_zero_only=True, batch_size=1
            )

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._start_phase(EVALUATION)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._start_phase(epoch_phase(trainer.current_epoch + 1))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end("interrupted" if isinstance(exception, KeyboardInterrupt) else "failed")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        energy = self._energy
        self._end("ok")
        values = (
            energy.final_values(trainer.global_step)
            if energy is not None and trainer.is_global_zero
            else {}
        )
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.global_step)

    def _start_phase(self, name: str) -> None:
        if self.run is not None and self._energy is not None:
            self.run.phase(name)

    def _end(self, outcome: str) -> None:
        if self.run is not None and self._energy is not None:
            self.run.end(outcome)
        self._energy = None


def _batch_size(batch: Any) -> int:
    """Return the size of the first dimension of the first tensor of a batch; 0 without one."""
    if getattr(batch, "ndim", 0):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch
    is_nested = isinstance(parts, Iterable) and not isinstance(parts, str | bytes)
    return next((size for part in parts if (size := _batch_size(part))), 0) if is_nested else 0
