"""Choice of the source by the text of --source."""

import pytest

from analyzer.sources.base import Access, FetchError
from analyzer.sources.choose import choose_source


def test_choose_source_host_and_port_is_a_server():
    source = choose_source("127.0.0.1:9090", Access(), print)

    assert source.name == "http://127.0.0.1:9090"
    source.close()


def test_choose_source_missing_file_is_refused(tmp_path):
    with pytest.raises(FetchError, match="no such file"):
        choose_source(str(tmp_path / "history.sqlite"), Access(), print)
