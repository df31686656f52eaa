"""Warnings and notes on a run whose energy is divided among requests."""

import numpy as np
import pytest

from wattline.contract.run import Run, RunDevice
from wattline.figures import Figure
from wattline_analyzer.requests.gpu_energy import RunGpus
from wattline_analyzer.requests.notes import attributed_notes, run_notes, undivided_notes


def recorded(*, state="ended", attributed_j=(300.0,), **results):
    """Return a run with the shares of its GPUs, of 1,000 J each."""
    devices = [
        RunDevice("gpu", f"GPU-{number}", Figure(1_000.0), attributed_j=each)
        for number, each in enumerate(attributed_j)
    ]
    return Run(
        run_id="server",
        workload="llm-server",
        state=state,
        started_at=1.8e9,
        duration_s=60.0,
        devices=tuple(devices),
        results=results,
    )


def notes_of(beside, run, *, reporter="server", divided_j=1_000.0, is_stored=False):
    """Return the notes on a run beside others, on GPUs without other reports."""
    return run_notes(RunGpus(reporter, {}), beside, run, divided_j, is_stored=is_stored)


def test_ended_run_without_other_runs_has_no_notes():
    assert notes_of([], recorded()) == ([], [])


def test_open_run_has_a_note_that_its_energies_change():
    _, (note,) = notes_of([], recorded(state="running"))

    assert note.startswith("run server has not ended:")
    assert "the energies of its past requests change, too" in note


def test_open_run_of_an_exporter_has_no_such_note():
    assert notes_of([], recorded(state="running"), is_stored=True) == ([], [])


@pytest.mark.parametrize(
    ("is_stored", "division"),
    [
        (True, "each run has the energy by the loads of its processes; the half-widths"),
        (False, "their energy is divided by attribution; the half-widths"),
    ],
)
def test_shared_gpu_has_a_note_on_its_division(is_stored, division):
    gpus = RunGpus("server", {("", "GPU-0"): frozenset({"b"}), ("", "GPU-1"): frozenset()})

    _, (note,) = run_notes(gpus, ["b"], recorded(), 1_000.0, is_stored=is_stored)

    assert note.startswith("GPUs shared with b, whose requests are reported, too: " + division)


@pytest.mark.parametrize(
    ("within_s", "seconds"),
    [((), "14"), (((4.0, 30.0),), "10"), (((4.0, 30.0), (0.0, 21.0)), "1")],
)
def test_time_without_divided_energy_is_declared(within_s, seconds):
    """No energy is divided from 0 to 5 s and from 21 to 30 s."""
    gaps_s = np.array([[0.0, 5.0], [21.0, 30.0]])

    known, unknown = (
        undivided_notes(gaps_s, *within_s, is_known=is_known) for is_known in (True, False)
    )

    begin = f"the exporter divided no energy in {seconds} s of the time: that energy "
    assert (known, unknown) == ([begin + "is in the rest"], [begin + "is not known, and left out"])
    assert undivided_notes(gaps_s, (4.5, 21.0), is_known=True) == []


def test_answers_without_numbers_of_tokens_have_a_warning_with_the_remedy():
    (warning,), _ = notes_of([], recorded(requests_without_usage=1_200.0))

    assert warning.startswith("1,200 answers of the server had no numbers of tokens")
    assert '"stream_options": {"include_usage": true}' in warning


@pytest.mark.parametrize("count", [0.0, None])
def test_run_whose_answers_all_have_tokens_has_no_warning(count):
    results = {} if count is None else {"requests_without_usage": count}

    assert not notes_of([], recorded(**results)).warnings


def test_run_without_requests_on_the_gpus_has_a_warning_with_energies():
    (warning,), _ = notes_of(
        ["training"], recorded(attributed_j=(300.0, 120.5)), divided_j=12_345.0
    )

    assert warning.startswith("GPUs also used by training, without requests")
    assert "reported requests (12,345 J, of which 420.5 J are attributed to this run)" in warning
    assert (
        "the half-widths include only work that shows while no request is in progress; report"
        in warning
    )


@pytest.mark.parametrize(("attributed_j", "notes"), [(960.5, 0), (1_040.0, 0), (1_132.0, 1)])
def test_client_has_a_note_of_an_attributed_energy_that_differs(attributed_j, notes):
    found = attributed_notes("job", attributed_j, Figure(1_000.0, 40.0))

    assert len(found) == notes
    assert all(
        note.startswith("1,132 J are attributed to run job, as in analyzer report: ")
        for note in found
    )


def test_client_of_a_server_with_unknown_half_width_is_not_compared():
    (note,) = attributed_notes("job", 1_000.0, Figure(1_000.0))

    assert note == (
        "1,000 J are attributed to run job, as in analyzer report: not compared with the 1,000 J "
        "of the server at its time, since the uncertainty of that figure is unknown"
    )


def test_warning_of_a_clients_run_has_no_attributed_energy():
    (warning,), _ = notes_of(["training"], recorded(), reporter="other", divided_j=12_345.0)

    assert "attributed" not in warning
