"""Tools of `--compatible`: their names, and a tool that is added."""

import subprocess
import sys

from wattline_analyzer.report.compatible import tool_names
from wattline_analyzer.report.compatible.tool_format import load_tool_formats

ADDED = '''"""Forms of a tool of a test."""

from wattline_analyzer.report.compatible.tool_format import ToolFormat

DAY_FORM_TOOL = "day-form"


def day_form_files(report, table):
    return {"form.txt": b"a form"}


FORMATS = (ToolFormat(DAY_FORM_TOOL, day_form_files),)
'''
WITH_FILE = """
import sys
from wattline_analyzer.report import compatible
compatible.__path__.append(sys.argv.pop(1))
"""
HELP = "from wattline_analyzer.cli import main; main()"
WRITE = """
from wattline_analyzer.report.compatible.tool_format import load_tool_formats
print(load_tool_formats()["day-form"].write(None, None))
"""


def test_names_read_without_import_are_those_of_the_loaded_tools():
    assert tool_names() == [
        "gpu-tune",
        "iris-gpubench",
        "hugging-face",
        "ai-energy-score",
        "cyclonedx",
        "spdx",
        "eu-gpai",
        "ml-energy",
        "inferencex",
    ]
    assert set(load_tool_formats()) == set(tool_names())


def test_tool_file_added_is_in_help_and_written(tmp_path):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "day_form.py").write_text(ADDED)

    def run(code, *arguments):
        command = [sys.executable, "-P", "-c", WITH_FILE + code, str(folder), *arguments]
        return subprocess.check_output(command, text=True)

    assert "|inferencex|day-form" in "".join(run(HELP, "report", "--help").split())
    assert run(WRITE) == "{'form.txt': b'a form'}\n"
