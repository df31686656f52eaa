"""Search and start of an exporter, with the run API in memory in place of the exporter."""

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

from tests.fakes.run_api import RunApi, run_api_server
from tests.workloads.programs import ROOT, free_port, plain_environment
from wattline.client.api import AccessDeniedError, Api
from wattline_workloads.runner.exporter import find_exporter as find_named

_FIND = """
import json, os, sys
from wattline_workloads.runner import exporter as reach
from wattline.client.api import ExporterError
try:
    connection = reach.find_or_start_exporter(sys.argv[1], os.environ, json.loads(sys.argv[2]))
except ExporterError as error:
    sys.exit(str(error))
print(connection.source)
"""


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def find(tmp_path, port):
    """Find or start an exporter at the port in a separate process."""

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
def fake_exporter(tmp_path, port):
    """Command that serves the run API at the port and records its pid; all are killed at the
    end.
    """
    pids = tmp_path / "pids"
    script = tmp_path / "fake_exporter.py"
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


def test_find_or_start_exporter_without_exporter_starts_one(find, fake_exporter, tmp_path, port):
    code, source, stderr = _finish(find(*fake_exporter))

    assert code == 0
    assert source == f"{tmp_path}/wattline/history.sqlite"
    assert (
        stderr
        == f"wattline: started an exporter at http://127.0.0.1:{port}; it ends with its last run"
    )


def test_find_or_start_exporter_reuses_running_exporter(find, fake_exporter, tmp_path):
    _finish(find(*fake_exporter))
    code, source, stderr = _finish(find(*fake_exporter))

    assert (code, source, stderr) == (0, "None", "")
    assert len((tmp_path / "pids").read_text().split()) == 1


def test_find_or_start_exporter_concurrent_starts_share_one(find, fake_exporter):
    results = [_finish(process) for process in [find(*fake_exporter) for _ in range(4)]]

    assert [code for code, _, _ in results] == [0, 0, 0, 0]
    assert sum("started an exporter" in stderr for _, _, stderr in results) == 1


def test_find_or_start_exporter_failed_start_quotes_log(find):
    code, _, stderr = _finish(
        find(
            sys.executable, "-c", "import sys; print('talk', flush=True); sys.exit('disk full\\n')"
        )
    )

    assert code == 1
    assert "it ended with exit code 1: disk full; try exporter serve" in stderr
    assert stderr.count("\n") == 0


def test_find_or_start_exporter_unwritable_state_folder_fails(find, tmp_path):
    (tmp_path / "wattline").write_text("a file where the folder should be")
    code, _, stderr = _finish(find("true"))

    assert code == 1
    assert f"cannot write {tmp_path}/wattline" in stderr


def test_find_or_start_exporter_uses_exporter_at_port(find, port):
    with run_api_server(RunApi(), port):
        assert _finish(find("false")) == (0, "None", "")


def test_find_or_start_exporter_waits_for_starting_exporter(find, port):
    api = RunApi()
    ready = threading.Event()
    answer = api.answer
    api.answer = lambda *request: answer(*request) if ready.is_set() else (503, {})
    with run_api_server(api, port):
        process = find("false")
        threading.Timer(0.5, ready.set).start()
        assert _finish(process) == (0, "None", "")


@pytest.fixture
def https(tmp_path):
    """Address of a TLS listener; its certificate is signed by the CA in `tmp_path/ca.pem`."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", ca
    server.shutdown()
    thread.join()
    server.server_close()


def _stderr_with(exporter, **more):
    command = [
        sys.executable,
        "-m",
        "wattline_workloads",
        "run",
        "--exporter",
        exporter,
        "--",
        "true",
    ]
    done = subprocess.run(
        command,
        env=plain_environment() | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr


def test_api_untrusted_certificate_names_remedy(https, tmp_path):
    address, _ = https
    error = _stderr_with(address)

    assert f"cannot verify the certificate of {address}: " in error
    assert "trust the CA that signed it with SSL_CERT_FILE=ca.pem (--exporter)" in error
    assert "exporter serve" not in error
    assert "certificate" not in _stderr_with(address, SSL_CERT_FILE=str(tmp_path / "ca.pem"))


def test_api_certificate_of_other_host_names_remedy(https, tmp_path):
    error = _stderr_with(
        https[0].replace("127.0.0.1", "localhost"), SSL_CERT_FILE=str(tmp_path / "ca.pem")
    )

    assert "use a host name of the exporter that is in the certificate (--exporter)" in error


def test_api_denied_socket_names_remedy():
    error = str(
        Api("unix:///run/api.sock")._unreachable(PermissionError(errno.EACCES, "Permission denied"))
    )

    assert error == (
        "cannot open unix:///run/api.sock: Permission denied; join the socket's group (see ls -l)"
    )


def test_find_exporter_access_denied_starts_none(monkeypatch):
    def denied(_self):
        raise AccessDeniedError("cannot open it; join the socket's group")

    monkeypatch.setattr(Api, "readiness", denied)
    with pytest.raises(AccessDeniedError) as error:
        find_named("unix:///run/api.sock", {})
    assert str(error.value) == "cannot open it; join the socket's group (--exporter)"


_RUN_ON_UNKNOWN_GPU = """
import os, sys
from wattline.client.api import Api, ExporterError
from wattline.client.gpus import choose_gpus
from wattline_workloads.runner import exporter as reach
from wattline_workloads.runner.runner import JobRequest, run_command
job = JobRequest(("true",), "true", choose_gpus("99", {}))
try:
    run_command(job, lambda: reach.find_or_start_exporter(sys.argv[1], os.environ), os.environ)
except ExporterError as error:
    print(error)
try:
    print(Api(sys.argv[1]).readiness())
except ExporterError:
    print("ended")
"""


def test_started_exporter_ends_if_the_run_cannot_begin(tmp_path, port):
    done = subprocess.run(
        [sys.executable, "-c", _RUN_ON_UNKNOWN_GPU, f"http://127.0.0.1:{port}"],
        env=plain_environment() | {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    error, state = done.stdout.splitlines()
    assert error.startswith("gpus: no GPU '99'")
    assert state == "ended", done.stderr
