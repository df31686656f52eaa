"""State file with several readers and writers."""

from __future__ import annotations

import multiprocessing
import struct
from pathlib import Path

import pytest

from wattline_exporter.simulation import Constant, Fault, Simulation, Square, StateFileError


def test_state_file_older_version_is_refused_with_the_reason(simulation, tmp_path):
    (tmp_path / "old").write_bytes(b"WATTSIM1" + simulation.path.read_bytes()[8:])

    with pytest.raises(StateFileError, match="written by another version of Wattline"):
        Simulation.open(tmp_path / "old")


def test_state_file_faults_are_set_one_by_one(simulation):
    simulation.set_fault(3, Fault.HANG, on=True)
    simulation.set_fault(3, Fault.NO_COUNTER, on=True)
    simulation.set_fault(3, Fault.HANG, on=False)

    assert simulation.gpus[3].faults == Fault.NO_COUNTER
    assert simulation.gpus[2].faults == Fault.NONE


def test_state_file_changes_are_visible_to_all_readers(simulation):
    with Simulation.open(simulation.path) as other:
        other.set_load(5, Square(100, 500, 0.3), at=1_001.0)
        other.set_fault(5, Fault.LOST, on=True)

    assert simulation.gpus[5].segments[-1].load == Square(100, 500, 0.3)
    assert simulation.gpus[5].faults == Fault.LOST


def _drive_and_release(path: Path, pid: int, times: int) -> None:
    with Simulation.open(path) as simulation:
        for _ in range(times):
            simulation.drive(0, 0.1, pid=pid, at=1_000.0)
            simulation.release(0, pid=pid, at=1_000.0)


def test_state_file_four_writers_lose_no_change(simulation):
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_drive_and_release, args=(simulation.path, pid, 50))
        for pid in (1, 2, 3, 4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0] * 4
    assert simulation.gpus[0].changes == 1 + 4 * 50 * 2
    assert not simulation.gpus[0].processes


def test_state_file_killed_writer_does_not_block_writers(simulation):
    with simulation.path.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack("<I", 7))  # odd: a writer is active, but holds no lock

    simulation.set_load(0, Constant(300), at=1_001.0)

    assert simulation.power_w(0, 1_002.0) == 300


def test_state_file_reader_repairs_the_sequence_number(simulation):
    with simulation.path.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack("<I", 7))

    assert len(simulation.gpus) == 8


def test_state_file_refused_change_has_no_effect(simulation):
    before = simulation.state

    with pytest.raises(ValueError, match="not 5 W"):
        simulation.set_limit(0, 5)
    assert simulation.state == before


@pytest.mark.parametrize("content", [b"", b"WATTSIM1", b"#!/bin/sh\n" * 100])
def test_state_file_other_content_is_refused_with_its_name(tmp_path, content):
    (tmp_path / "other").write_bytes(content)

    with pytest.raises(StateFileError, match="other is not a state file of simulated GPUs"):
        Simulation.open(tmp_path / "other")


def test_state_file_truncated_is_refused(simulation, tmp_path):
    (tmp_path / "half").write_bytes(simulation.path.read_bytes()[:-100])

    with pytest.raises(StateFileError, match="truncated"):
        Simulation.open(tmp_path / "half")


def test_state_file_missing_is_reported_with_its_path(tmp_path):
    with pytest.raises(StateFileError, match=r"nothing\.state: No such file"):
        Simulation.open(tmp_path / "nothing.state")
