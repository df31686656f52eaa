"""Callback for Lightning, with the real Trainer on a simulated GPU."""

import csv
import time

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from wattline.integrations.lightning import EnergyCallback

SAMPLES, BATCH, EPOCHS, STEPS, STEP_S = 10, 4, 2, 6, 0.15


class TinyModule(LightningModule):
    def __init__(self, fails_at=None):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.fails_at = fails_at

    def training_step(self, batch, batch_idx):
        time.sleep(STEP_S)
        if self.global_step == self.fails_at:
            raise RuntimeError("out of memory")
        return self.linear(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val", self.linear(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def data(samples):
    rows = torch.utils.data.TensorDataset(torch.ones(samples, 2))
    return torch.utils.data.DataLoader(rows, batch_size=BATCH)


def fit(tmp_path, callback, **options):
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[callback],
        logger=CSVLogger(tmp_path),
        log_every_n_steps=1,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TinyModule(**options), data(SAMPLES), data(2))
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_fit_has_steps_samples_epochs_and_the_energy_of_its_run(job, tmp_path):
    callback = EnergyCallback("finetune", gpus="all")
    trainer = fit(tmp_path, callback)

    _, run = job.get(f"/api/v1/runs/{callback.run.run_id}")
    assert (run["outcome"], run["workload"]) == ("ok", "finetune")
    assert run["work"] == {"steps": STEPS, "samples": SAMPLES * EPOCHS}
    assert {"epoch-1", "evaluate", "epoch-2"} <= {phase["name"] for phase in run["phases"]}
    logged = float(trainer.callback_metrics["energy_joules"])
    assert 0 < logged <= callback.run.energy_joules
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        *_, final = csv.DictReader(file)
    assert "energy_joules_per_step" in final
    assert float(final["energy_joules"]) == pytest.approx(callback.run.energy_joules)
    assert float(final["mean_power_watts"]) == pytest.approx(78.0, rel=0.03), (
        "of an idle simulated GPU"
    )


@pytest.mark.filterwarnings("ignore")
def test_fit_that_fails_ends_its_run_as_failed(job, tmp_path):
    callback = EnergyCallback(gpus="all")
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(tmp_path, callback, fails_at=1)

    _, run = job.get(f"/api/v1/runs/{callback.run.run_id}")
    assert (run["state"], run["outcome"], run["work"]["steps"]) == ("ended", "failed", 1)
