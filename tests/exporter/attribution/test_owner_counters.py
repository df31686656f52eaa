import pytest

from wattline.contract.api import MAX_OWNERS, OTHER_OWNERS
from wattline_exporter.attribution.device_loads import NO_RUN, DeviceLoads
from wattline_exporter.attribution.owner_counters import Owner, OwnerAmount, OwnerCounters
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.sensors.readings import Device

GPU, PACKAGE = Device("gpu", "GPU-0"), Device("package", "0")
ADA, BOB = Owner("slurm", "ada", "physics", "slurm"), Owner("run", "bob", "", "training")
ENERGY, EMISSIONS = "wattline_owner_energy_joules_total", "wattline_owner_emissions_grams_total"
GPU_SECONDS = "wattline_owner_gpu_seconds_total"


def values(attribution, **recorded):
    """Return the values by metric name and labels, as scrapes see them or, with `recorded`, the
    local history.
    """
    attribution.owners.show(1e6)
    attribution.owners.show(2e6)
    return {(r.metric.name, *r.labels): r.value for r in attribution.owners.readings(**recorded)}


def divided(attribution, seconds_w, loads, *, device=GPU, grams_per_j=0.0):
    """Divide (seconds, watts) from time 0 on, in steps of a second, with fixed loads of the
    holders.
    """
    attribution.hold(device, DeviceLoads(loads), 0.0)
    at_s = energy_j = 0.0
    attribution.divide(device, 1e-6, at_s)
    for seconds, watts in seconds_w:
        for _ in range(seconds):
            at_s, energy_j = at_s + 1.0, energy_j + watts
            attribution.divide(
                device, energy_j, at_s, {("average", "actual"): energy_j * grams_per_j}
            )
    return at_s, energy_j


def test_owner_counters_shared_gpu_add_up_to_the_device():
    attribution = Attribution(idle_w={GPU: 100.0})
    attribution.owners.assign({"a": ADA, "b": BOB})
    divided(attribution, [(100, 400.0)], {"a": 3.0, "b": 1.0}, grams_per_j=0.5)
    found = values(attribution)
    # 300 W above idle by load, 3 to 1; idle_shared divides the 100 W equally
    assert found[ENERGY, *ADA, "gpu", "idle_apart"] == pytest.approx(22_500, abs=1e-3)
    assert found[ENERGY, *BOB, "gpu", "idle_apart"] == pytest.approx(7_500, abs=1e-3)
    assert found[ENERGY, "none", "", "", "", "gpu", "idle_apart"] == pytest.approx(10_000, abs=1e-3)
    assert found[ENERGY, *ADA, "gpu", "idle_shared"] == pytest.approx(27_500, abs=1e-3)
    assert found[ENERGY, *BOB, "gpu", "idle_shared"] == pytest.approx(12_500, abs=1e-3)
    for policy in ("idle_apart", "idle_shared"):
        assert sum(
            j for key, j in found.items() if key[0] == ENERGY and key[-1] == policy
        ) == pytest.approx(40_000)
    assert found[EMISSIONS, *ADA, "gpu", "average", "actual"] == pytest.approx(13_750, rel=1e-6)
    assert sum(g for key, g in found.items() if key[0] == EMISSIONS) == pytest.approx(
        20_000, rel=1e-9
    )
    assert found[GPU_SECONDS, *ADA] == found[GPU_SECONDS, *BOB] == pytest.approx(50.0)


def test_owner_counters_gpu_without_holder_counts_as_none():
    attribution = Attribution()
    divided(attribution, [(60, 80.0)], {})
    assert values(attribution)[GPU_SECONDS, "none", "", "", ""] == pytest.approx(60.0)
    assert values(attribution)[ENERGY, "none", "", "", "", "gpu", "idle_shared"] == pytest.approx(
        4_800, abs=1e-3
    )


def test_owner_counters_two_runs_of_one_owner_share_one_series():
    attribution = Attribution()
    attribution.owners.assign({"a": ADA, "b": ADA})
    divided(attribution, [(10, 300.0)], {"a": 1.0, "b": 0.0})
    assert values(attribution)[ENERGY, *ADA, "gpu", "idle_shared"] == pytest.approx(3_000, abs=1e-3)
    assert values(attribution)[GPU_SECONDS, *ADA] == pytest.approx(10.0)


def test_owner_counters_stay_when_the_run_is_forgotten():
    attribution = Attribution()
    attribution.owners.assign({"a": ADA})
    at_s, energy_j = divided(attribution, [(10, 300.0)], {"a": 1.0})
    attribution.hold(GPU, DeviceLoads(), at_s)
    attribution.divide(GPU, energy_j + 80.0, at_s + 1.0)
    attribution.keep([])
    attribution.divide(GPU, energy_j + 160.0, at_s + 2.0)
    found = values(attribution)
    assert found[ENERGY, *ADA, "gpu", "idle_shared"] == pytest.approx(3_000, abs=1e-3)
    assert found[ENERGY, "none", "", "", "", "gpu", "idle_shared"] == pytest.approx(160, abs=1e-3)


def test_owner_counters_new_series_is_scraped_at_zero_for_65_s():
    owners = OwnerCounters()
    owners.assign({"a": ADA})
    owners.add_energy("gpu", "idle_shared", {"a": 5_000_000}, 100.0)
    seen = []
    for at_s in (100.0, 102.0, 164.9, 165.0):
        owners.show(at_s)
        (scraped,), (recorded,) = owners.readings(), owners.readings(recorded=True)
        seen.append((scraped.value, recorded.value))
    assert seen == [(0.0, 0.0), (0.0, 5.0), (0.0, 5.0), (5.0, 5.0)]


def test_owner_counters_shown_before_a_restart_are_never_at_zero_again():
    first = OwnerCounters()
    first.assign({"a": ADA, "b": BOB})
    first.add_energy("gpu", "idle_shared", {"a": 5_000_000}, 100.0)
    first.take_changes()
    first.add_energy("gpu", "idle_shared", {"b": 7_000_000}, 160.0)
    first.show(165.0)
    saved = first.take_changes()
    assert saved == {
        (ENERGY, (*ADA, "gpu", "idle_shared")): OwnerAmount(5_000_000, is_shown=True),
        (ENERGY, (*BOB, "gpu", "idle_shared")): OwnerAmount(7_000_000, is_shown=False),
    }
    second = OwnerCounters(saved)
    second.show(10.0)
    assert {r.labels[1]: r.value for r in second.readings()} == {"ada": 5.0, "bob": 0.0}
    assert {r.labels[1]: r.value for r in second.readings(recorded=True)} == {
        "ada": 5.0,
        "bob": 7.0,
    }
    second.show(75.0)
    assert {r.labels[1]: r.value for r in second.readings()} == {"ada": 5.0, "bob": 7.0}


def test_owner_counters_beyond_the_limit_count_as_other_of_their_kind():
    owners = OwnerCounters()
    owners.assign(
        {f"run-{n}": Owner("slurm", f"user-{n}", "", "slurm") for n in range(MAX_OWNERS + 10)}
    )
    owners.add_energy(
        "gpu", "idle_shared", {f"run-{n}": 1_000_000 for n in range(MAX_OWNERS + 10)}, 0.0
    )
    owners.show(0.0)
    owners.show(100.0)
    found = {r.labels: r.value for r in owners.readings()}
    assert len(found) == MAX_OWNERS + 1
    assert found["slurm", OTHER_OWNERS, "", "", "gpu", "idle_shared"] == 10.0
    restored = OwnerCounters(owners.take_changes())
    restored.assign({"new": ADA, "old": Owner("slurm", "user-3", "", "slurm")})
    restored.add_energy("gpu", "idle_shared", {"new": 1_000_000, "old": 1_000_000}, 0.0)
    changed = {labels[1]: amount for (_, labels), (amount, _) in restored.take_changes().items()}
    assert changed == {OTHER_OWNERS: 11_000_000, "user-3": 2_000_000}


def test_owner_counters_state_of_an_earlier_version_counts_as_none():
    owners = OwnerCounters({}, {("gpu", GPU.id, "average", "actual"): 0.25})
    attribution = Attribution(
        energy_j={GPU: 100.0, PACKAGE: 50.0, Device("core", "0"): 20.0}, owners=owners
    )
    assert values(attribution) == {
        (EMISSIONS, "none", "", "", "", "gpu", "average", "actual"): 0.25,
        (ENERGY, "none", "", "", "", "gpu", "idle_apart"): 100.0,
        (ENERGY, "none", "", "", "", "gpu", "idle_shared"): 100.0,
        (ENERGY, "none", "", "", "", "cpu", "idle_apart"): 50.0,
        (ENERGY, "none", "", "", "", "cpu", "idle_shared"): 50.0,
    }


def test_owner_counters_changes_that_are_not_saved_are_in_the_next_ones():
    attribution = Attribution()
    attribution.owners.assign({"a": ADA})
    divided(attribution, [(10, 300.0)], {"a": 1.0})
    changes = attribution.take_changes()
    assert (ENERGY, (*ADA, "gpu", "idle_shared")) in changes.owners
    assert not attribution.take_changes().owners
    attribution.put_back(changes)
    assert attribution.take_changes().owners == changes.owners


def test_owner_counters_holder_without_owner_counts_as_none():
    attribution = Attribution()
    divided(attribution, [(10, 300.0)], {NO_RUN: 1.0})
    assert values(attribution)[ENERGY, "none", "", "", "", "gpu", "idle_shared"] == pytest.approx(
        3_000, abs=1e-3
    )


def test_owner_counters_deferred_amount_goes_to_the_later_owner():
    owners = OwnerCounters()
    unnamed = Owner("run", "", "", "training")
    owners.assign({"a": unnamed}, {"a": 105.0})
    owners.add_energy("gpu", "idle_shared", {"a": 40_000_000}, 100.5)
    owners.show(100.5)
    assert list(owners.readings(recorded=True)) == []
    owners.assign({"a": BOB})
    owners.add_energy("gpu", "idle_shared", {"a": 2_000_000}, 101.0)
    owners.show(101.0)
    assert owners.take_changes() == {
        (ENERGY, (*BOB, "gpu", "idle_shared")): OwnerAmount(42_000_000, is_shown=False)
    }


@pytest.mark.parametrize("is_retained", [True, False])
def test_owner_counters_deferred_amount_without_owner_is_added_in_time(is_retained):
    owners = OwnerCounters()
    unnamed = Owner("run", "", "", "training")
    owners.assign({"a": unnamed}, {"a": 105.0})
    owners.add_energy("gpu", "idle_shared", {"a": 40_000_000}, 100.5)
    owners.retain(["a"] if is_retained else [])
    owners.show(105.0)
    assert owners.take_changes() == {
        (ENERGY, (*unnamed, "gpu", "idle_shared")): OwnerAmount(40_000_000, is_shown=False)
    }
