"""Callback for `transformers.Trainer`, with the real Trainer on a simulated GPU."""

import time

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from wattline.integrations.transformers import EnergyCallback

SAMPLES, BATCH, EPOCHS = 10, 4, 2
STEPS = 6
"""Three steps in each epoch: 4, 4 and 2 samples."""
STEP_S = 0.15


class TinyModel(torch.nn.Module):
    main_input_name = "x"

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        time.sleep(STEP_S)
        predicted = self.linear(x)
        return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}


class Tracker(TrainerCallback):
    """Keeps the logs that a tracker would send."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append(dict(logs))


def trainer(tmp_path, *callbacks, **options):
    data = [{"x": torch.ones(2) * n, "labels": torch.ones(1)} for n in range(SAMPLES)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **{"report_to": []} | options,
    )
    return Trainer(
        TinyModel(), arguments, train_dataset=data, eval_dataset=data[:2], callbacks=list(callbacks)
    )


def test_trainer_has_steps_samples_epochs_and_the_energy_of_its_run(job, tmp_path):
    callback = EnergyCallback("finetune", labels={"model": "tiny"}, gpus="all")
    trained = trainer(tmp_path, callback, eval_strategy="epoch")
    trained.train()

    status, run = job.get(f"/api/v1/runs/{callback.run.run_id}")
    assert (status, run["outcome"], run["workload"], run["labels"]["model"]) == (
        200,
        "ok",
        "finetune",
        "tiny",
    )
    assert run["work"] == {"steps": STEPS, "samples": SAMPLES * EPOCHS}
    assert [phase["name"] for phase in run["phases"]] == ["epoch-1", "evaluate", "epoch-2"]
    logged = [
        entry["energy_joules"] for entry in trained.state.log_history if "energy_joules" in entry
    ]
    *so_far, final = logged
    assert so_far == sorted(so_far)
    assert final == callback.run.energy_joules
    # final figures use sensor updates after the last log, so they may be lower than it by both
    # half-widths
    assert final >= so_far[-1] - 2 * callback.run.uncertainty_joules, (
        "the last log covers the whole training"
    )
    assert callback.run.energy_joules == pytest.approx(sum(run["energy_joules"]["gpu"].values()))


def test_trainer_tokens_are_the_work_where_the_trainer_counts_them(job, tmp_path):
    callback = EnergyCallback(gpus="all")
    trainer(tmp_path, callback, include_num_input_tokens_seen="all").train()

    # the Trainer counts the elements of the main input: SAMPLES x 2 in each epoch
    _, run = job.get(f"/api/v1/runs/{callback.run.run_id}")
    assert run["work"] == {"steps": STEPS, "trained_tokens": SAMPLES * 2 * EPOCHS}


@pytest.mark.parametrize("attached", [True, False])
def test_trainer_trackers_have_the_energy_if_the_callback_is_attached(job, tmp_path, attached):
    tracker, callback = Tracker(), EnergyCallback(gpus="all")
    trained = trainer(tmp_path, tracker, *([] if attached else [callback]))
    if attached:
        assert callback.attach(trained) is callback
    trained.train()

    assert any("energy_joules" in logs for logs in tracker.logs) is attached
    assert any("energy_joules" in logs for logs in trained.state.log_history)


def test_trainer_without_an_exporter_trains_unmeasured(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WATTLINE_EXPORTER", "http://127.0.0.1:9")
    callback = EnergyCallback()
    trained = trainer(tmp_path, callback)
    trained.train()

    assert trained.state.global_step == STEPS
    assert callback.run.energy_joules is None
    assert "127.0.0.1:9" in capfd.readouterr().err


class CountingModel(TinyModel):
    """Counts the samples with which it was trained."""

    samples = 0

    def forward(self, x, labels):
        self.samples += len(x) if self.training else 0
        predicted = self.linear(x)
        return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}


def counting_trainer(tmp_path, *callbacks, **options):
    trained = trainer(tmp_path, *callbacks, **options)
    trained.model = trained.model_wrapped = CountingModel()
    return trained


def test_trainer_samples_are_those_of_whole_batches_without_the_last_one(job, tmp_path):
    callback = EnergyCallback(gpus="all")
    trained = counting_trainer(
        tmp_path, callback, gradient_accumulation_steps=3, dataloader_drop_last=True
    )
    trained.train()

    _, run = job.get(f"/api/v1/runs/{callback.run.run_id}")
    assert run["work"] == {"steps": EPOCHS, "samples": trained.model.samples}


def test_trainer_that_continues_counts_only_its_own_samples(job, tmp_path):
    first = counting_trainer(tmp_path)
    first.args.save_strategy, first.args.save_steps, first.args.max_steps = "steps", 1, 1
    first.train()
    callback = EnergyCallback(gpus="all")
    trained = counting_trainer(tmp_path, callback)
    trained.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))

    _, run = job.get(f"/api/v1/runs/{callback.run.run_id}")
    assert run["work"] == {"steps": STEPS - 1, "samples": trained.model.samples}


def test_trainer_evaluation_after_the_training_is_no_part_of_its_run(job, tmp_path, capfd):
    callback = EnergyCallback(gpus="all")
    trained = counting_trainer(tmp_path, callback)
    trained.train()
    trained.evaluate()

    assert "cannot" not in capfd.readouterr().err


def test_trainer_that_was_interrupted_ends_its_run_before_the_next_one(job, tmp_path):
    class Interruption(TrainerCallback):
        def on_step_end(self, *_, **__):
            raise KeyboardInterrupt

    callback, interruption = EnergyCallback(gpus="all"), Interruption()
    trained = counting_trainer(tmp_path, callback, interruption)
    with pytest.raises(KeyboardInterrupt):
        trained.train()
    interrupted_id = callback.run.run_id
    trained.remove_callback(interruption)
    trained.train()

    _, run = job.get(f"/api/v1/runs/{interrupted_id}")
    assert (run["state"], run["outcome"]) == ("ended", "failed")
