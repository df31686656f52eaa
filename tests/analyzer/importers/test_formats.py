"""Formats of files: names, recognition, and a format that is added."""

import subprocess
import sys

import pytest

from wattline_analyzer.importers.formats import format_names
from wattline_analyzer.importers.recognize import load_formats, recognize_format

ADDED = '''"""Power logs of a tool of a test."""

from pathlib import Path

from wattline_analyzer.importers.content import FileContent, ReadOptions, UnreadableError
from wattline_analyzer.importers.file_format import FileFormat, FileHead

DAY_LOG_FORMAT = "day-log"


def is_day_log(head: FileHead) -> bool:
    return head.first_line == "day log"


def read_day_log(path: Path, options: ReadOptions) -> FileContent:
    raise UnreadableError(f"read {path.name} as a day log")


FORMATS = (FileFormat(DAY_LOG_FORMAT, is_day_log, read_day_log),)
'''
WITH_FILE = """
import sys
from wattline_analyzer.importers import formats
formats.__path__.append(sys.argv.pop(1))
from wattline_analyzer.cli import main
main()
"""


def test_names_read_without_import_are_those_of_the_loaded_formats():
    assert format_names() == list(load_formats())


def test_format_file_added_is_in_help_recognized_and_read(tmp_path):
    folder = tmp_path / "formats"
    folder.mkdir()
    (folder / "day_log.py").write_text(ADDED)
    log = tmp_path / "log.csv"
    log.write_text("day log\n")

    def run(*arguments):
        command = [sys.executable, "-P", "-c", WITH_FILE, str(folder), "import", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "|vllm-bench|day-log" in "".join(run("--help").stdout.split())
    imported = run(str(log), "--out", str(tmp_path / "history.sqlite"))
    assert imported.returncode == 1
    assert "read log.csv as a day log" in imported.stderr


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("events.jsonl", '{"event": "start"}\n', "wattline"),
        ("log.jsonl", '{"type": "run_start"}\n', "tenant-events"),
        ("power_metrics.json", "{}", "aipowermeter"),
        ("log.json", '{"metrics": {}}\n', "aipowermeter"),
        ("results.json", '{"steady_state_energy": 1,\n"steady_state_duration": 2}', "ml-energy"),
        ("spl.txt", "anything\n", "ptdaemon"),
        ("log.txt", "Time,03-07-2020 10:00:00.000,Watts,220.1,Volts,230,Mark,run\n", "ptdaemon"),
        ("log.csv", "timestamp,tokens_per_sec,max_watt,power.draw\n", "gpu-tune"),
        ("log.csv", "timestamp, power.draw [W], watts\n", "nvidia-smi"),
        ("log.csv", "time,watts\n", "wall-meter"),
        ("log.csv", "a,b\n", None),
    ],
)
def test_format_is_recognized_by_name_or_content(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    found = recognize_format(tmp_path / name, load_formats())

    assert (found.name if found else None) == expected
