"""Fleet and usage of a source without samples in the window."""

import pytest

from tests.analyzer.node import START_S, series_of_scrapes, write_history
from wattline.contract import metrics as m


@pytest.mark.parametrize("command", ["usage"])
def test_fleet_commands_empty_file_remedy_fits_a_file(call, tmp_path, command):
    history = write_history(
        tmp_path, series_of_scrapes([(START_S, [(m.BUILD_INFO, {"version": "1"}, 1.0)])])
    )

    code, _, stderr = call(command, "--source", history, "--since", "1h")

    assert code == 1
    assert (
        "check that the file is of the right node, and that its exporter was running; see --since"
        in stderr
    )
    assert "scrape" not in stderr
