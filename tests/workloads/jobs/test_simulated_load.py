from __future__ import annotations

import pytest

from wattline_exporter.simulation import PRODUCTS
from wattline_workloads.jobs.simulated_load import PowerLaw

H200 = PRODUCTS["H200"]
LIGHT_W = 180  # 0.9 of the H200's minimum cap of 200 W


def step_j(law, cap_w, clock_ratio=1.0):
    """Return the energy of a step that takes 50 ms at full speed."""
    demanded_w = H200.idle_w + (H200.peak_w - H200.idle_w) * law.utilization * clock_ratio**3
    power_w = min(cap_w, demanded_w)
    return power_w * 0.05 / law.speed(power_w, clock_ratio)


def job(exporter, *options):
    done = exporter.workloads("job", "simulated-load", "--gpus", "0", *options)
    assert done.returncode == 0, done.stderr
    return exporter.api.only_run


def test_compute_law_cheapest_cap_of_h200_is_450_w():
    law = PowerLaw("compute", H200)

    assert law.cheapest_w == pytest.approx(
        450
    )  # 3/2 of a static power of 300 W, which is 3/7 of the peak
    assert law.speed(700, 1) == 1
    assert law.speed(350, 1) == pytest.approx(
        0.5
    )  # the cube root of (350 - 300) / (700 - 300) = 1/8
    assert step_j(law, 700) == pytest.approx(35)  # 700 W x 0.05 s
    assert step_j(law, 350) == pytest.approx(35)  # 350 W x 0.1 s
    assert step_j(law, 450) == pytest.approx(
        450 * 0.05 / 0.375 ** (1 / 3)
    )  # 31.2 J: (450 - 300) / 400 = 0.375
    assert step_j(law, 450) == pytest.approx(31.2, abs=0.01)
    assert min(range(300, 701), key=lambda cap_w: step_j(law, cap_w)) == 450


def test_simulated_load_tiny_duration_makes_one_step(simulated):
    exporter, _ = simulated

    assert job(exporter, "--duration", "1e-9").work == {"steps": 1}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_compute_law_cheapest_cap_is_supported_by_each_gpu(product):
    best_w = PowerLaw("compute", product).cheapest_w

    assert product.limit_min_w < best_w < product.limit_default_w


def test_compute_law_best_option_moves_cheapest_cap():
    law = PowerLaw("compute", H200, best_w=375)

    assert min(range(300, 701), key=lambda cap_w: step_j(law, cap_w)) == 375
    with pytest.raises(
        ValueError, match="--best 150: SIMULATED NVIDIA H200 supports caps of 200 to 700 W"
    ):
        PowerLaw("compute", H200, best_w=150)


def test_compute_law_below_static_power_speed_is_a_fifth():
    assert PowerLaw("compute", H200).speed(200, 1) == 0.2


def test_memory_law_energy_is_independent_of_cap():
    law = PowerLaw("memory", H200)

    assert [step_j(law, cap_w) for cap_w in (200, 350, 700)] == pytest.approx(
        [35, 35, 35]
    )  # 700 W x 0.05 s
    assert [law.speed(cap_w, 1) for cap_w in (350, 700)] == [0.5, 1]


def test_light_law_is_independent_of_cap():
    law = PowerLaw("light", H200)

    assert [step_j(law, cap_w) for cap_w in (200, 450, 700)] == pytest.approx(
        [9, 9, 9]
    )  # 180 W x 0.05 s
    assert law.speed(LIGHT_W, 1) == 1


def test_light_law_locked_clock_reduces_energy():
    law = PowerLaw("light", H200)
    clocks_mhz = range(345, 1_981, 15)
    best_mhz = min(clocks_mhz, key=lambda mhz: step_j(law, 700, mhz / 1_980))

    # the cube root of 78 / (2 x (180 - 78)) = 0.726 of 1,980 MHz is 1,436 MHz; the nearest clock is
    # 1,440 MHz
    assert best_mhz == 1_440
    assert step_j(law, 700, 0.5) == pytest.approx((78 + 102 / 8) * 0.1)


@pytest.mark.parametrize(
    ("law", "cap_w", "expected_j", "expected_s"),
    [
        ("compute", 700, 35, 0.05),
        ("compute", 450, 31.2, 0.0693),
        ("memory", 350, 35, 0.1),
        ("light", 200, 9, 0.05),
    ],
)
def test_simulated_load_capped_run_follows_law(simulated, law, cap_w, expected_j, expected_s):
    exporter, gpus = simulated
    gpus.set_limit(0, cap_w)
    run = job(exporter, "--law", law, "--steps", "10")

    assert run.work == {"steps": 10}
    assert run.results["law_joules_per_step"] == pytest.approx(expected_j, rel=1e-3)
    assert (
        run.results["step_seconds_mean"] >= expected_s * 0.8
    )  # delays of a busy machine between steps are caught up
    assert run.results["steps_per_second"] <= 1.01 / expected_s
    assert gpus.gpus[0].processes == ()


def test_simulated_load_gpu_energy_follows_law(simulated):
    exporter, gpus = simulated
    gpus.set_limit(0, 350)
    job(exporter, "--steps", "10")

    loaded, idle = gpus.gpus[0].segments[-2:]
    loaded_s = idle.begin_s - loaded.begin_s
    assert loaded_s >= 1.0  # ten steps of 0.05 s at half speed
    assert idle.begin_j - loaded.begin_j == pytest.approx(350 * loaded_s)


def test_simulated_load_locked_clock_slows_light_law(simulated):
    exporter, gpus = simulated
    gpus.lock_clock(0, 990)
    run = job(exporter, "--law", "light", "--steps", "5")

    assert run.results["law_joules_per_step"] == pytest.approx(
        (78 + 102 / 8) * 0.1
    )  # 90.75 W for twice the time
    assert run.results["steps_per_second"] <= 10.1


def test_simulated_load_duration_option_limits_run(simulated):
    exporter, _ = simulated
    run = job(exporter, "--duration", "0.3", "--step-seconds", "0.01")

    assert run.duration_s >= 0.3
    assert run.work["steps"] >= 1


def test_simulated_load_on_real_gpus_fails_with_remedy(exporter):
    done = exporter.workloads("job", "simulated-load")

    assert done.returncode == 1
    assert "the GPUs of this run are not simulated; start exporter serve --simulate" in done.stderr
    assert "Traceback" not in done.stderr


def test_simulated_load_unsupported_best_is_one_line_error(simulated):
    exporter, _ = simulated
    done = exporter.workloads("job", "simulated-load", "--best", "900")

    assert done.returncode == 1
    assert (
        "wattline: simulated-load: --best 900: SIMULATED NVIDIA H200 supports caps of 200 to 700 W"
        in done.stderr
    )
