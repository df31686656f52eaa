"""Advice on the measurements of Zeus (shared/data/zeus), compared with its publication."""

from pathlib import Path

import pandas as pd
import pytest

from tests.analyzer.recommend.sample_sweeps import sample_run
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.objective import Objective, SweepQuestion
from wattline_analyzer.recommend.sweep import Sweep

ZEUS = Path(__file__).parents[3] / "shared" / "data" / "zeus"
TRAINED = {
    "cifar100": (0.60, 1024, "adadelta"),
    "imagenet": (0.65, 256, "adadelta"),
    "librispeech": (40.0, 192, "adamw"),
    "movielens-1m": (0.41, 1024, "adam"),
    "sentiment140": (0.84, 128, "adamw"),
    "squad": (84.0, 32, "adamw"),
}
"""Target metric, default batch size and optimizer of each training."""

pytestmark = pytest.mark.skipif(
    not ZEUS.is_dir(), reason=f"{ZEUS} is missing; its data may not be redistributed"
)


def profile(gpu):
    rows = pd.read_csv(ZEUS / f"{gpu}+resnet50+gpu0.csv")
    result = []
    for name, time_s, joules in rows[["window_name", "elapsed_time", "gpu0_energy"]].itertuples(
        index=False
    ):
        result.append(
            sample_run(
                float(name.rpartition("_")[2]), joules, time_s, capped_s=None, p95_power_w=None
            )
        )
    return Sweep(gpu, tuple(result))


@pytest.mark.parametrize(
    ("gpu", "slowdown", "cap_w", "saving", "slower"),
    [
        ("A40", None, 175, 0.218, 0.164),
        ("A40", 0.05, 200, 0.194, 0.049),
        ("V100", None, 150, 0.204, 0.215),
        ("V100", 0.05, 225, 0.041, 0.023),
    ],
)
def test_zeus_profiles_of_resnet_50_give_known_caps(gpu, slowdown, cap_w, saving, slower):
    advice = advise(profile(gpu), SweepQuestion(Objective.ENERGY, max_slowdown=slowdown))

    assert advice.best.setting.power_limit_w == cap_w
    assert advice.best.saving.value == pytest.approx(saving, abs=0.0006)
    assert advice.best.slowdown.value == pytest.approx(slower, abs=0.0006)
    assert advice.verdict == "too_few_repeats"  # each was measured once


def trainings(dataset):
    """Energy and time to the target, by batch size and power limit."""
    target, default, optimizer = TRAINED[dataset]  # noqa: RUF059  # used by the query below
    epochs = pd.read_csv(ZEUS / "summary_train.csv").query("dataset == @dataset")
    epochs = epochs[(epochs["target_metric"] - target).abs() < 1e-9]
    needed = (
        epochs.groupby(["batch_size", "learning_rate"])["target_epoch"]
        .mean()
        .groupby("batch_size")
        .min()
        .dropna()
    )
    power = pd.read_csv(ZEUS / "summary_power_v100.csv").query(
        "dataset == @dataset and optimizer == @optimizer"
    )
    rows = power[power["batch_size"].isin(needed.index)]
    result = []
    for row in rows.itertuples():
        time_s = needed[row.batch_size] * row.time_per_epoch
        settings = (("batch_size", str(row.batch_size)),)
        facts = {"capped_s": None, "p95_power_w": float(row.power_limit)}
        result.append(
            sample_run(
                float(row.power_limit),
                row.average_power * time_s,
                time_s,
                steps=0,
                settings=settings,
                **facts,
            )
        )
    return result, str(default)


def saving(runs, default, **question):
    asked = SweepQuestion(Objective.ENERGY, baseline={"batch_size": default}, **question)
    return 100 * advise(Sweep("zeus", tuple(runs)), asked).best.saving.value


def test_zeus_trace_savings_match_cap_and_batch_size():
    alone, joint = [], []
    for dataset in TRAINED:
        runs, default = trainings(dataset)
        joint.append(saving(runs, default))
        alone.append(
            saving([each for each in runs if each.setting.others[0][1] == default], default)
        )

    assert (round(min(alone), 1), round(max(alone), 1)) == (3.0, 31.4)
    assert (round(min(joint), 1), round(max(joint), 1)) == (23.8, 74.7)
