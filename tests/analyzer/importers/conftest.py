import pytest

from tests.analyzer.importers.sample_files import imported_run_report


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
