"""Choice of the source by the text of --source."""

import re

import pytest

from tests.analyzer.loopback import history_api, http_server
from tests.analyzer.node import write_history
from tests.unprivileged import unprivileged
from wattline_analyzer.core.sources.base import Access, FetchError
from wattline_analyzer.core.sources.open import choose_source


def test_choose_source_host_and_port_is_a_server():
    source = choose_source("127.0.0.1:9090", Access(), print)

    assert source.name == "http://127.0.0.1:9090"
    source.close()


def test_choose_source_without_exporter_or_history_names_the_commands(tmp_path):
    environ = {"HOME": str(tmp_path), "WATTLINE_EXPORTER": "http://127.0.0.1:9"}

    with pytest.raises(
        FetchError, match=r"no source found.*exporter serve.*workloads run.*--source"
    ) as error:
        choose_source(None, Access(), print, environ, tmp_path)

    assert "\n" not in str(error.value)


def test_choose_source_missing_file_is_refused(tmp_path):
    with pytest.raises(FetchError, match="no such file"):
        choose_source(str(tmp_path / "history.sqlite"), Access(), print)


def choose_in(named, environ, tmp_path):
    messages = []
    source = choose_source(
        named, Access(), messages.append, environ, system_folder=tmp_path / "system"
    )
    source.close()
    return source.name, messages


def test_choose_source_named_is_used_without_message(steady_history, tmp_path):
    assert choose_in(str(steady_history), {}, tmp_path) == (str(steady_history), [])
    assert choose_in(str(steady_history.parent), {}, tmp_path) == (str(steady_history), [])
    assert choose_in("http://prometheus:9090/", {}, tmp_path) == ("http://prometheus:9090", [])


def test_choose_source_prefers_running_exporter_and_logs(steady_history, tmp_path):
    with http_server(history_api(steady_history)) as (address, _):
        environ = {"WATTLINE_EXPORTER": f"http://{address}", "XDG_STATE_HOME": str(tmp_path)}

        assert choose_in(None, environ, tmp_path) == (
            f"http://{address}",
            [f"reading from http://{address}"],
        )


@pytest.mark.parametrize("folder", ["system", "wattline"])
def test_choose_source_without_exporter_uses_state_folder(folder, tmp_path):
    (tmp_path / folder).mkdir()
    path = write_history(tmp_path / folder, [])
    with http_server(lambda *_: None) as (address, _):
        pass  # the port is closed

    environ = {"WATTLINE_EXPORTER": f"http://{address}", "XDG_STATE_HOME": str(tmp_path)}

    assert choose_in(None, environ, tmp_path) == (str(path), [f"reading from {path}"])


def test_choose_source_none_found_names_all_places(tmp_path):
    with http_server(lambda *_: None) as (address, _):
        pass

    with pytest.raises(
        FetchError, match=rf"http://{address}.*{re.escape(str(tmp_path))}/wattline; .*give --source"
    ):
        choose_in(
            None,
            {"WATTLINE_EXPORTER": f"http://{address}", "XDG_STATE_HOME": str(tmp_path)},
            tmp_path,
        )


def test_choose_source_without_permission_names_file_and_cause(steady_history, tmp_path):
    folder = steady_history.parent
    folder.chmod(0)
    environ = {"WATTLINE_EXPORTER": "http://127.0.0.1:9", "XDG_STATE_HOME": str(tmp_path / "none")}
    try:
        with unprivileged(), pytest.raises(FetchError) as found:
            choose_source(None, Access(), print, environ, folder)
        with unprivileged(), pytest.raises(FetchError) as named:
            choose_source(str(steady_history), Access(), print)
    finally:
        folder.chmod(0o700)

    text = str(found.value)
    assert f"and cannot read {steady_history}: Permission denied" in text
    assert "; let this user read it, start one with exporter serve, " in text
    assert str(named.value).startswith(f"cannot read {steady_history}: ")
    assert "permissions" in str(named.value)


def test_choose_source_home_of_unknown_user_is_refused():
    with pytest.raises(
        FetchError, match="cannot read ~nobody-here/x: Could not determine home directory"
    ):
        choose_source("~nobody-here/x", Access(), print)


def test_choose_source_port_out_of_range_is_the_cause(tmp_path):
    with pytest.raises(FetchError, match=r"invalid server address .*: Port out of range 0-65535;"):
        choose_in("http://host:99999", {}, tmp_path)


@pytest.mark.parametrize("address", ["ftp://host", "http://", "http://host:port", "http://[::1"])
def test_choose_source_invalid_address_is_rejected(address, tmp_path):
    with pytest.raises(FetchError, match=r"invalid server address .*; write it as"):
        choose_in(address, {}, tmp_path)
