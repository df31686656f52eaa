"""An exporter is started where none is in reach; the stand-in for it is the run API in memory."""

import errno
import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import textwrap
import threading

import pytest
import trustme

from tests.fakes.run_api import RunApi, serving
from tests.workloads.conftest import ROOT, free_port, plain_environment
from workloads.client.api import Api, BarredError
from workloads.runner.exporter import find as find_named

_FIND = """
import json, os, sys
from workloads.runner import exporter as reach
from workloads.client.api import ExporterError
try:
    found = reach.find_or_start(sys.argv[1], os.environ, json.loads(sys.argv[2]))
except ExporterError as error:
    sys.exit(str(error))
print(found.source)
"""


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def find(tmp_path, port):
    """Find or start an exporter at the port, in a process of its own."""

    def start(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _FIND, f"http://127.0.0.1:{port}", json.dumps(command)],
            env=plain_environment() | {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def stand_in(tmp_path, port):
    """A command that serves the run API at the port, each start of it noting its pid; all are ended afterwards."""
    pids = tmp_path / "pids"
    script = tmp_path / "stand_in.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys
        with open({str(pids)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        sys.argv[1:] = ["{port}"]
        from tests.fakes.run_api import main
        main()
        """)
    )
    yield [sys.executable, str(script)]
    for pid in pids.read_text().split() if pids.exists() else ():
        try:
            os.kill(int(pid), signal.SIGTERM)
        except ProcessLookupError:
            continue


def _finish(process):
    with process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out.strip(), err.strip()


def test_where_none_answers_one_is_started_and_its_history_named(find, stand_in, tmp_path, port):
    code, source, said = _finish(find(*stand_in))

    assert code == 0
    assert source == f"{tmp_path}/wattline/history.sqlite"
    assert said == (f"wattline: no exporter at http://127.0.0.1:{port}, so one was started; it ends with its last run")


def test_the_started_exporter_outlives_who_started_it_and_the_next_uses_it(find, stand_in, tmp_path):
    _finish(find(*stand_in))
    code, source, said = _finish(find(*stand_in))

    assert (code, source, said) == (0, "None", "")
    assert len((tmp_path / "pids").read_text().split()) == 1


def test_several_who_start_at_once_all_find_the_one_that_got_the_port(find, stand_in):
    results = [_finish(process) for process in [find(*stand_in) for _ in range(4)]]

    assert [code for code, _, _ in results] == [0, 0, 0, 0]
    assert sum("was started" in said for _, _, said in results) == 1


def test_one_that_fails_to_start_is_quoted(find):
    code, _, said = _finish(
        find(sys.executable, "-c", "import sys; print('talk', flush=True); sys.exit('disk full\\n')")
    )

    assert code == 1
    assert "ended with exit code 1: disk full; try it by hand: exporter serve" in said
    assert said.count("\n") == 0


def test_a_state_folder_that_cannot_be_made_is_named(find, tmp_path):
    (tmp_path / "wattline").write_text("a file where the folder should be")
    code, _, said = _finish(find("true"))

    assert code == 1
    assert f"{tmp_path}/wattline cannot be written" in said


def test_one_in_reach_is_used(find, port):
    with serving(RunApi(), port):
        assert _finish(find("false")) == (0, "None", "")


def test_one_that_is_still_starting_is_waited_for(find, port):
    api = RunApi()
    ready = threading.Event()
    answer = api.answer
    api.answer = lambda *request: answer(*request) if ready.is_set() else (503, {})
    with serving(api, port):
        process = find("false")
        threading.Timer(0.5, ready.set).start()
        assert _finish(process) == (0, "None", "")


@pytest.fixture
def https(tmp_path):
    """The address of a TLS listener whose certificate a CA of the test has signed, in `tmp_path/ca.pem`."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", ca
    server.shutdown()
    thread.join()
    server.server_close()


def _said_to(exporter, **more):
    command = [sys.executable, "-m", "workloads", "run", "--exporter", exporter, "--", "true"]
    done = subprocess.run(
        command, env=plain_environment() | more, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr


def test_a_certificate_of_a_ca_that_is_not_trusted_is_told_with_how_to_trust_it(https, tmp_path):
    address, _ = https
    told = _said_to(address)

    assert f"the certificate of {address} is not accepted: " in told
    assert "trust the CA that signed it with SSL_CERT_FILE=ca.pem (--exporter)" in told
    assert "exporter serve" not in told
    assert "certificate" not in _said_to(address, SSL_CERT_FILE=str(tmp_path / "ca.pem"))


def test_a_certificate_for_another_name_is_not_a_matter_of_trust(https, tmp_path):
    told = _said_to(https[0].replace("127.0.0.1", "localhost"), SSL_CERT_FILE=str(tmp_path / "ca.pem"))

    assert "ask for the exporter by a name that the certificate has (--exporter)" in told


def test_a_socket_that_may_not_be_opened_has_one_remedy():
    told = str(Api("unix:///run/api.sock")._unreachable(PermissionError(errno.EACCES, "Permission denied")))

    assert told == (
        "unix:///run/api.sock may not be opened: Permission denied; be a member of the socket's group (ls -l shows it)"
    )


def test_what_bars_a_user_is_no_reason_to_start_an_exporter(monkeypatch):
    def barred(_self):
        raise BarredError("it may not be opened; be a member of the socket's group")

    monkeypatch.setattr(Api, "readiness", barred)
    with pytest.raises(BarredError) as told:
        find_named("unix:///run/api.sock", {})
    assert str(told.value) == "it may not be opened; be a member of the socket's group (--exporter)"
