"""Series in bounded memory: parts, order, median and integral; memory of an import by rows."""

import tracemalloc
from datetime import UTC

import numpy as np
import pytest

from tests.analyzer.importers.sample_files import BEGIN_S, write_nvidia_smi_log
from wattline_analyzer.importers.assemble import assemble_runs
from wattline_analyzer.importers.content import ReadOptions
from wattline_analyzer.importers.recognize import read_files
from wattline_analyzer.importers.spool import Spool, StoredSamples, merge_by_time
from wattline_analyzer.importers.text import read_lines
from wattline_analyzer.importers.write_history import write_history


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, part=4)
    yield spool
    spool.close()


def series_of(spool, samples):
    series = StoredSamples(spool)
    for t_s, value in samples:
        series.add(t_s, value)
    return series


def test_stored_samples_in_parts_have_integral_of_whole(spool):
    """Power rises by 1 W each second from 0 W, without samples from 10 to 20 s: 50 J to 10 s, 250 J
    from 20 to 30 s.
    """
    series = series_of(spool, [(t, float(t)) for t in (*range(11), *range(20, 41))])

    found = series.integral(0, 30, longest_s=2.5)

    assert (found.energy_j, found.covered_s) == (pytest.approx(50 + 250), pytest.approx(20))
    assert series.spacing_s == 1
    assert series.spacing_between_s(9, 21) == 1
    assert series.highest(0.5, 8.5) == 8
    assert series.highest(11, 19) is None
    assert series.ends_s == (0, 40)


def test_stored_samples_part_edges_belong_to_integral(spool):
    """100 W from 3.5 to 4.5 s, across the first sample of the second part: 100 J."""
    series = series_of(spool, [(float(t), 100.0) for t in range(12)])

    assert series.integral(3.5, 4.5, longest_s=2.5).energy_j == pytest.approx(100)


def test_in_order_sorts_and_keeps_first_of_one_time(spool):
    late = series_of(spool, [(float(t), 2.0) for t in range(9, 15)])
    early = series_of(spool, [(float(t), 1.0) for t in range(10)])

    joined = merge_by_time([late, early]).samples
    t, value = np.concatenate([[part.t, part.value] for part in joined.parts()], axis=1)

    assert sorted(set(t)) == list(range(15))
    assert dict(zip(t, value, strict=True)) == {
        **dict.fromkeys(range(9), 1),
        **dict.fromkeys(range(9, 15), 2),
    }


def import_peak_bytes(folder, rows):
    """Return the peak memory of an import of this many rows, whose parts have 512 samples."""
    folder.mkdir()
    log = write_nvidia_smi_log(folder / "log.csv", [(0.1 * k, 100 + k % 7) for k in range(rows)])
    spool = Spool(folder, part=512)
    tracemalloc.start()
    try:
        contents = read_files([log], "auto", ReadOptions(UTC, spool), print)
        assembly = assemble_runs(contents, "node", (None, None))
        count = write_history(folder / "history.sqlite", assembly, "node")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        spool.close()
    assert count > 3 * rows
    assert assembly.runs[0].energies[0].covered_ratio == pytest.approx(1)
    return peak


def test_import_memory_does_not_grow_with_rows(tmp_path):
    """Each row has three samples of 16 bytes; a further row takes less than one of them."""
    import_peak_bytes(tmp_path / "warm", 100)

    few, many = (import_peak_bytes(tmp_path / str(rows), rows) for rows in (1_000, 5_000))

    assert (many - few) / 4_000 < 16


def test_read_lines_reports_progress_by_position_in_file(tmp_path):
    (tmp_path / "log.csv").write_text("100 W\n" * 30_000)
    steps = []

    count = sum(1 for _ in read_lines(tmp_path / "log.csv", lambda *step: steps.append(step)))

    assert count == 30_000
    assert {what for what, _ in steps} == {"reading log.csv"}
    assert [ratio for _, ratio in steps] == pytest.approx([1 / 3, 2 / 3, 1, 1], abs=0.1)


def test_import_file_with_one_series_per_line_is_refused(call, tmp_path):
    log = tmp_path / "log.csv"
    lines = [f"{BEGIN_S + k:.0f}, {k}, 100 W" for k in range(10_001)]
    log.write_text("\n".join(["timestamp, index, power.draw [W]", *lines]))

    code, _, stderr = call("import", log, "--out", tmp_path / "h.sqlite")

    assert code == 1
    assert "more than 10000 series; check the column of the GPU's index" in stderr
