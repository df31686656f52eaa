"""A real exporter that pushes: outage, SIGKILL, TLS and a hanging server."""

import json
import signal
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from tests import servers
from tests.daemon import begin, end, environment
from tests.exporter.push.history_client import PROMETHEUS, VICTORIA, compare_with_server
from tests.exporter.push.proxy import proxy
from tests.fork_server import ForkServer
from tests.polling import eventually
from wattline_exporter.simulation import Square

ANALYZER = ForkServer("wattline_analyzer.cli")


@dataclass
class Pushed:
    folder: Path
    name: str


@contextmanager
def server_of(path, folder):
    folder.mkdir()
    if path == VICTORIA:
        with servers.victoria_metrics(folder, [], flags=["-dedup.minScrapeInterval=1ms"]) as url:
            yield url
    else:
        with servers.prometheus(folder, [], flags=["--web.enable-remote-write-receiver"]) as url:
            yield url


def report(run_id, source):
    arguments = [
        "-c",
        "from wattline_analyzer.cli import main; main()",
        "report",
        "--run-id",
        run_id,
        "--source",
        str(source),
        "--format",
        "json",
    ]
    done = ANALYZER.run(arguments, environment(), timeout_s=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_pushed_run_after_outage_and_kill_has_its_joules(tmp_path, start, path):
    with server_of(path, tmp_path / "server") as server, proxy(server) as between:
        options = [
            "--push.url",
            between.url + path,
            "--push.every",
            "1s",
            "--push.label",
            "instance=n-7",
        ]
        with start(*options) as exporter:
            with exporter.simulation() as simulation:
                simulation.set_load(0, Square(72.0, 640.0, 0.7))
            begin(exporter, run_id="r-1", gpus=["0"])
            exporter.wait_for_metric(
                lambda value: value, "wattline_push_samples_total", outcome="accepted"
            )
            between.always = "away"
            exporter.wait_for_metric(lambda value: value == 0.0, "wattline_push_up")
            exporter.process.send_signal(signal.SIGKILL)
            exporter.process.wait(30)
        with start(*options) as exporter:
            exporter.wait_for_metric(lambda value: value == 0.0, "wattline_push_up")
            end(exporter, "r-1")
            between.always = "pass"
            exporter.wait_for_metric(lambda value: value == 1.0, "wattline_push_up")
            log = exporter.log()
        # after the exporter has stopped, the server has all samples
        assert compare_with_server(server, Pushed(exporter.folder, "n-7"), time.time() + 2) > 300
        from_file, from_server = report("r-1", exporter.folder), report("r-1", server)

    assert log.count("cannot push to") == 1
    assert "recovered after" in log
    assert from_file["energy"]["gpu"]["energy_joules"] > 100
    # VictoriaMetrics stores start and end to 10 µs, so the integral may differ by 2 × 10 µs × 640 W
    for part, within_j in (("energy", 1e-6), ("gpu", 0.0128)):
        numbers = [flat(value[part]) for value in (from_file, from_server)]
        assert numbers[0].keys() == numbers[1].keys()
        assert list(numbers[1].values()) == pytest.approx(
            list(numbers[0].values()), rel=1e-9, abs=within_j
        )


def flat(value, before=""):
    """The numbers in it."""
    if isinstance(value, dict):
        return {
            name: n
            for key, part in value.items()
            for name, n in flat(part, f"{before}.{key}").items()
        }
    return {} if value is None else {before: float(value)}


@contextmanager
def receiver(tls=None, hang=None):
    """A server that accepts everything: yields its port, and the Authorization and path of each
    request.
    """
    requests_received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            requests_received.append((self.headers["Authorization"], self.path))
            if hang:
                hang.wait(60)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        listening.socket = tls.wrap_socket(
            listening.socket, server_side=True, do_handshake_on_connect=False
        )
    listening.handle_error = lambda *_: None
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield listening.server_port, requests_received
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def test_push_certificate_is_verified_before_password_is_sent(tmp_path, start):
    trusted, foreign = trustme.CA(), trustme.CA()
    for name, authority in (("trusted", trusted), ("foreign", foreign)):
        authority.cert_pem.write_to_path(str(tmp_path / name))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusted.issue_cert("localhost").configure_cert(tls)
    (tmp_path / "password").write_text("s3cret")
    with receiver(tls) as (port, requests_received):
        options = ["--push.every", "1s", "--push.basic-auth", f"joe:{tmp_path / 'password'}"]
        url = ["--push.url", f"https://localhost:{port}/api/v1/write"]
        for wrong in (["--push.ca-file", str(tmp_path / "foreign")], []):
            with start(*url, *options, *wrong) as exporter:
                begin(exporter)
                exporter.wait_for_metric(lambda value: value == 0.0, "wattline_push_up")
                assert "no trusted TLS connection" in exporter.log()
                assert "set --push.ca-file" in exporter.log()
        with start(
            "--push.url",
            f"https://127.0.0.1:{port}/api/v1/write",
            *options,
            "--push.ca-file",
            str(tmp_path / "trusted"),
        ) as exporter:
            begin(exporter)
            exporter.wait_for_metric(lambda value: value == 0.0, "wattline_push_up")
        assert requests_received == []
        with start(*url, *options, "--push.ca-file", str(tmp_path / "trusted")) as exporter:
            begin(exporter)
            exporter.wait_for_metric(lambda value: value == 1.0, "wattline_push_up")
            assert "s3cret" not in exporter.log()

    assert set(requests_received) == {("Basic am9lOnMzY3JldA==", "/api/v1/write")}  # joe:s3cret


def test_push_hanging_server_does_not_block_the_exporter(tmp_path, start):
    hang = threading.Event()
    with receiver(hang=hang) as (port, requests_received):
        try:
            with start(
                "--push.url", f"http://127.0.0.1:{port}/api/v1/write", "--push.every", "1s"
            ) as exporter:
                begin(exporter, run_id="r-1")
                eventually(lambda: requests_received, "a request", exporter.log)
                before = exporter.value("wattline_gpu_energy_joules_total", gpu="0")
                exporter.wait_for_metric(
                    lambda value: value > before, "wattline_gpu_energy_joules_total", gpu="0"
                )
                assert end(exporter, "r-1")["notes"] == []
                assert exporter.stop() == 0
        finally:
            hang.set()


def test_push_sends_no_password_of_the_environment(tmp_path, start):
    """Credentials in ~/.netrc are not meant for the exporter."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login joe password s3cret\n")
    (tmp_path / ".netrc").chmod(0o600)
    (tmp_path / "token").write_text("t0ken")
    url = "http://127.0.0.1:{}/api/v1/import/prometheus"
    with receiver() as (port, requests_received):
        for options in ([], ["--push.token-file", str(tmp_path / "token")]):
            env = {"HOME": str(tmp_path), "NETRC": str(tmp_path / ".netrc")}
            with start(
                "--push.url", url.format(port), "--push.every", "1s", *options, env=env
            ) as exporter:
                begin(exporter)
                exporter.wait_for_metric(lambda value: value == 1.0, "wattline_push_up")

    assert {authorization for authorization, _ in requests_received} == {None, "Bearer t0ken"}
