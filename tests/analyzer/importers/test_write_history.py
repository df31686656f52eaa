"""Labels of imported runs: all notes of the import, and labels of the file within the limits of a
run.
"""

import json

import pytest

from tests.analyzer.importers.sample_files import BEGIN_S, finding_texts_of, single_report
from wattline_analyzer.importers.write_history import UnwritableError, note_labels

NOTES = [
    "whole_log",
    "gpu0_only",
    "gpus_by_order",
    "duplicate_samples",
    "gpus_without_energy",
    "nominal_time",
]


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_note_labels_hold_every_note(repeats):
    notes = [f"{note}{'x' * n}" for n in range(repeats) for note in NOTES]
    labels = note_labels(notes)

    assert ",".join(labels.values()).split(",") == notes
    assert max(map(len, labels.values())) <= 128
    assert list(labels) == ["import_notes", "import_notes_2", "import_notes_3"][: len(labels)]


@pytest.mark.parametrize("notes", [NOTES * 6, ["x" * 129]])
def test_note_labels_refuse_what_they_cannot_hold(notes):
    with pytest.raises(UnwritableError, match="cannot store the notes of the import"):
        note_labels(notes)


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ({f"label_{n}": "x" for n in range(12)}, 12),
        ({f"label_{n}": "x" for n in range(16)}, 13),  # format, file and notes need three of 16
        ({"a": "x" * 128, "b": "y"}, 2),
    ],
)
def test_import_of_many_labels_warns_of_those_left_out(imported, tmp_path, labels, kept):
    folder = tmp_path / "run"
    folder.mkdir()
    about = {
        "run_id": "r-1",
        "workload": "llm",
        "labels": labels,
        "gpus": ["GPU-a"],
        "command": ["x"],
        "config": {},
    }
    events = [
        {"event": "start", "t": BEGIN_S, **about},
        {"event": "end", "t": BEGIN_S + 9, "outcome": "ok", "exit_code": 0},
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    (folder / "metrics.yml").write_text("energy_joules: {gpu: {GPU-a: 6000.0}}\n")

    report = single_report(imported(folder))

    assert len(labels.keys() & report.labels.keys()) == kept
    assert bool(finding_texts_of(report, "labels_cut")) == (kept < len(labels))
