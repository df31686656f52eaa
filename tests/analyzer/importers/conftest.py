import sys

import pytest

from analyzer.cli import main
from tests.analyzer.importers.sample_files import imported_run_report


@pytest.fixture
def call(capsys, monkeypatch):
    """Run the command line; return exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["analyzer", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        return exit_info.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def imported(call, tmp_path):
    """Import into a history and return the report of each run by its id."""

    def reports(*arguments, zone="UTC"):
        out = tmp_path / "history.sqlite"
        code, stdout, stderr = call("import", *arguments, "--out", out, "--timezone", zone)
        assert code == 0, stderr
        return {
            line.partition(":")[0]: imported_run_report(out, line.partition(":")[0])
            for line in stdout.splitlines()
            if not line.startswith(" ")
        }

    return reports
