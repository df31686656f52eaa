"""Energy per unit where the energy of some runs of a group was not measured."""

import json

import pytest

from tests.analyzer.small_fleet import BARE_S

GPU_W, RUN_S, TOKENS = 300, 100, 400


@pytest.mark.parametrize("command", ["usage"])
@pytest.mark.parametrize("source", ["prometheus", "victoria-metrics", "history"])
def test_energy_per_unit_leaves_out_work_without_energy(
    call, fleet_addresses, fleet_history, source, command
):
    """Three runs have 400 tokens each; the energy of one was measured, 300 W x 100 s on the GPU."""
    place = {**fleet_addresses, "history": fleet_history}[source]
    window = (
        "--source",
        place,
        "--since",
        BARE_S,
        "--until",
        BARE_S + 900,
        "--by",
        "model,user",
    )

    code, stdout, stderr = call(command, *window, "--format", "json")

    assert code == 0, stderr
    document = json.loads(stdout)
    (group,) = document["groups"]
    work = group["work"]["generated_tokens"]
    assert (work["amount"], work["amount_without_energy"]) == (3 * TOKENS, 2 * TOKENS)
    assert work["energy_per_unit_joules"] == pytest.approx(GPU_W * RUN_S / TOKENS)
    if command == "usage":
        assert document["runs"]["work"]["generated_tokens"][
            "energy_per_unit_joules"
        ] == pytest.approx(75)
    note = "energy per unit leaves out 800 generated tokens of runs whose energy was not measured"
    assert note in document["notes"]
