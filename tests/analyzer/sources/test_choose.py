"""Choice of the source by the text of --source."""

import pytest

from analyzer.sources.base import Access, FetchError
from analyzer.sources.choose import choose_source


def test_choose_source_host_and_port_is_a_server():
    source = choose_source("127.0.0.1:9090", Access(), print)

    assert source.name == "http://127.0.0.1:9090"
    source.close()


def test_choose_source_without_exporter_or_history_names_the_commands(tmp_path):
    environ = {"HOME": str(tmp_path), "WATTLINE_EXPORTER": "http://127.0.0.1:9"}

    with pytest.raises(FetchError, match=r"no source found.*exporter serve.*workloads run.*--source") as error:
        choose_source(None, Access(), print, environ, tmp_path)

    assert "\n" not in str(error.value)


def test_choose_source_missing_file_is_refused(tmp_path):
    with pytest.raises(FetchError, match="no such file"):
        choose_source(str(tmp_path / "history.sqlite"), Access(), print)
