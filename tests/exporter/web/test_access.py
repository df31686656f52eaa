"""Access to metrics and run API by socket, token, password and host, on a real exporter."""

import pytest
import requests

from tests.daemon import environment
from tests.exporter.commands import assert_one_line
from tests.exporter.commands import exporter as command
from tests.exporter.web.files import PASSWORD, TOKEN, hashed, make_keys, web_config
from tests.fork_server import ForkServer
from tests.servers import free_port

CLIENTS = ForkServer("wattline", "wattline_workloads.cli")
RUN = {"workload": "train"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o640)
    return path


def begin_request(exporter, **more):
    return requests.post(f"{exporter.url}/api/v1/runs", json=RUN, timeout=30, **more)


def problem(answer, status, *words):
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    for word in words:
        assert word in answer.json()["detail"]


def test_run_api_on_loopback_is_open(start):
    with start() as exporter:
        assert begin_request(exporter).status_code == 201
        assert "level=warning" not in exporter.log()


def test_request_with_foreign_host_header_is_refused(start):
    with start("--web.allowed-host", "gpu.example.org") as exporter:
        for path in (
            "/",
            "/metrics",
            "/api/v1/runs",
            "/api/v1/query?query=up[1s]",
            "/-/healthy",
            "/nowhere",
        ):
            answer = requests.get(exporter.url + path, headers={"Host": "evil.example"}, timeout=30)
            problem(answer, 421, "evil.example", "--web.allowed-host")
        problem(begin_request(exporter, headers={"Host": "evil.example"}), 421)
        assert begin_request(exporter, headers={"Host": "gpu.example.org:9847"}).status_code == 201


def test_token_scraper_without_it_cannot_change_runs(start, token):
    with start("--web.api-token-file", str(token)) as exporter:
        response = begin_request(exporter)
        problem(response, 401, "--web.api-token-file", "WATTLINE_TOKEN_FILE")
        assert response.headers["WWW-Authenticate"].startswith("Bearer ")
        wrong = begin_request(exporter, headers={"Authorization": "Bearer wrong"})
        problem(wrong, 401, "invalid bearer token", "--web.api-token-file")
        problem(requests.post(f"{exporter.url}/api/v1/runs/x/end", json={}, timeout=30), 401)
        assert exporter.get("/metrics")[0] == exporter.get("/api/v1/runs")[0] == 200
        assert exporter.get("/api/v1/runs")[1] == []

        run_id = begin_request(exporter, headers=BEARER).json()["run_id"]
        ended = requests.post(
            f"{exporter.url}/api/v1/runs/{run_id}/end", json={}, headers=BEARER, timeout=30
        )
        assert ended.json()["state"] == "ended"


def test_run_api_beyond_loopback_needs_authentication(start, tmp_path):
    with start("--web.listen-address", "0.0.0.0:0") as exporter:
        exporter.url = exporter.url.replace("0.0.0.0", "127.0.0.1")
        problem(
            begin_request(exporter),
            403,
            "--web.api-socket",
            "--web.api-token-file",
            "--web.config.file",
        )
        assert exporter.get("/metrics")[0] == 200
        assert exporter.log().count("run API disabled over TCP") == 1

    path = web_config(tmp_path, {"basic_auth_users": {"ann": hashed()}})
    with start(
        "--web.listen-address", "0.0.0.0:0", "--web.config.file", str(path), ready=False
    ) as exporter:
        exporter.url = exporter.url.replace("0.0.0.0", "127.0.0.1")
        assert begin_request(exporter, auth=("ann", PASSWORD)).status_code == 201
        assert "run API disabled" not in exporter.log()


def test_password_guards_all_routes(start, tmp_path):
    path = web_config(tmp_path, {"basic_auth_users": {"ann": hashed()}})
    with start("--web.config.file", str(path), ready=False) as exporter:
        for where in (
            "/",
            "/metrics",
            "/api/v1/runs",
            "/api/v1/openapi.json",
            "/-/healthy",
            "/-/ready",
            "/nowhere",
        ):
            answer = requests.get(exporter.url + where, timeout=30)
            problem(answer, 401)
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")
            assert (
                requests.get(exporter.url + where, auth=("ann", PASSWORD), timeout=30).status_code
                != 401
            )
            assert (
                requests.get(exporter.url + where, auth=("eve", PASSWORD), timeout=30).status_code
                == 401
            )
        problem(
            begin_request(exporter, headers=BEARER),
            401,
            "bearer tokens are not accepted; send user and password",
        )


def test_password_and_token_scrape_and_change_runs(start, token, tmp_path):
    path = web_config(tmp_path, {"basic_auth_users": {"ann": hashed()}})
    options = ("--web.config.file", str(path), "--web.api-token-file", str(token))
    with start(*options, ready=False) as exporter:
        assert (
            requests.get(f"{exporter.url}/metrics", auth=("ann", PASSWORD), timeout=30).status_code
            == 200
        )
        assert requests.get(f"{exporter.url}/-/ready", headers=BEARER, timeout=30).status_code in (
            200,
            503,
        )
        problem(begin_request(exporter, auth=("ann", PASSWORD)), 401, "token")
        problem(
            begin_request(exporter, headers={"Authorization": "Bearer wrong"}),
            401,
            "invalid bearer token",
        )
        other = tmp_path / "other"
        other.write_text("x" * 32)
        more = {"WATTLINE_EXPORTER": exporter.url, "WATTLINE_TOKEN_FILE": str(other)}
        message = python(None, more, "-m", "wattline_workloads", "run", "--", "true").stderr
        assert (
            f"the exporter rejected the token in {other} (WATTLINE_TOKEN_FILE): invalid bearer "
            "token" in message
        )
        assert begin_request(exporter, headers=BEARER).status_code == 201


def test_client_and_runner_use_socket_or_token(start, token, tmp_path):
    socket_path = tmp_path / "api.sock"
    options = ("--web.api-socket", str(socket_path), "--web.api-token-file", str(token))
    client = (
        "import wattline\nwith wattline.run('train') as run:\n  "
        "run.work(steps=3)\nprint(run.run_id)"
    )
    with start(*options) as exporter:
        for more in (
            {"WATTLINE_EXPORTER": f"unix://{socket_path}"},
            {"WATTLINE_EXPORTER": exporter.url, "WATTLINE_TOKEN_FILE": str(token)},
        ):
            done = python(client, more)
            run = exporter.get(f"/api/v1/runs/{done.stdout.strip()}")[1]
            *notes, summary = done.stderr.splitlines()
            assert [line.removeprefix("wattline: ") for line in notes] == run["notes"]
            assert summary.startswith(f"wattline: run {run['run_id']} ok in ")
            assert (run["state"], run["outcome"], run["work"]) == ("ended", "ok", {"steps": 3.0})
            ran = python(
                None,
                more,
                "-m",
                "wattline_workloads",
                "run",
                "-l",
                f"by={more['WATTLINE_EXPORTER']}",
                "--",
                "true",
            )
            assert ran.returncode == 0, ran.stderr
        labels = [run["labels"].get("by") for run in exporter.get("/api/v1/runs")[1]]
        assert sorted(filter(None, labels)) == sorted([f"unix://{socket_path}", exporter.url])

        response = python(client, {"WATTLINE_EXPORTER": exporter.url})
        assert response.returncode == 0  # a training job continues
        assert "WATTLINE_TOKEN_FILE=FILE" in response.stderr
        assert len(response.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"WATTLINE_EXPORTER": "unix:///no/such/api.sock"}, "No such file"),
        ({"WATTLINE_EXPORTER": "unix://host/api.sock"}, "is not an exporter address"),
        ({"WATTLINE_EXPORTER": "unix:///" + "x" * 200}, "too long"),
        (
            {"WATTLINE_EXPORTER": "http://127.0.0.1:1", "WATTLINE_TOKEN_FILE": "/no/token"},
            "/no/token: No such file",
        ),
        (
            {"WATTLINE_EXPORTER": "http://127.0.0.1:1", "WATTLINE_TOKEN_FILE": "/dev/null"},
            "/dev/null: the file is empty",
        ),
    ],
)
def test_client_without_credentials_continues_and_reports_it(more, words):
    done = python("import wattline\nwith wattline.run('train'): print('trained')", more)

    assert (done.returncode, done.stdout) == (0, "trained\n")
    (line,) = done.stderr.splitlines()
    assert words in line


def python(program, more, *arguments):
    return CLIENTS.run(arguments or ("-c", program), environment(more), timeout_s=60)


# -- invalid options, and `exporter check`


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--web.config.file", "none.yml"], ["none.yml", "No such file"]),
        (["--web.api-token-file", "none"], ["none", "openssl rand"]),
        (["--web.api-socket", "/tmp/" + "x" * 120], ["--web.api-socket", "the limit is 107"]),
        (
            ["--web.api-socket", "s", "--web.api-socket-mode", "rw"],
            ["--web.api-socket-mode", "0660"],
        ),
        (["--web.api-socket-mode", "0660"], ["--web.api-socket-mode needs --web.api-socket PATH"]),
        (
            ["--web.api-socket-group", "root"],
            ["--web.api-socket-group needs --web.api-socket PATH"],
        ),
        (
            ["--web.allowed-host", "http://gpu.example"],
            ["--web.allowed-host", "'http://gpu.example'"],
        ),
        (
            ["--web.allowed-host", "gpu.example:9847"],
            ["--web.allowed-host", "without scheme, port"],
        ),
        (
            ["--web.api-socket", "s", "--web.api-socket-group", "nobody-here"],
            ["nobody-here", "getent group"],
        ),
    ],
)
def test_web_option_invalid_value_is_one_line(tmp_path, options, words):
    assert_one_line(
        command("serve", "--simulate", "1xH200", "--state.path", str(tmp_path / "state"), *options),
        2,
        *words,
    )
    assert not (tmp_path / "state" / "state.sqlite").exists()


def test_api_socket_without_folder_is_one_line(tmp_path):
    options = ("--state.path", str(tmp_path / "state"), "--web.listen-address", "127.0.0.1:0")
    done = command(
        "serve",
        "--simulate",
        "1xH200",
        *options,
        "--web.api-socket",
        str(tmp_path / "no" / "api.sock"),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "create the folder" in done.stderr.splitlines()[-1]


def check_line(tmp_path, *options):
    done = command(
        "check",
        "--idle-seconds",
        "0",
        "--simulate",
        "1xH200",
        "--state.path",
        str(tmp_path / "state"),
        *options,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("web ")]
    return line


def test_check_reports_the_web_configuration(tmp_path, token):
    keys = make_keys(tmp_path)
    keys.server()
    content = {"tls_server_config": {"cert_file": "server.crt", "key_file": "server.key"}}
    path = web_config(tmp_path, {**content, "basic_auth_users": {"ann": hashed()}})

    free = f"127.0.0.1:{free_port()}"
    assert check_line(tmp_path, "--web.listen-address", free) == (
        f"web     works: http on {free}, no authentication; run API: enabled over TCP; no "
        "capability needed"
    )
    options = ("--web.listen-address", free, "--web.config.file", str(path))
    line = check_line(tmp_path, *options, "--web.api-token-file", str(token))
    assert "works: https" in line
    assert "basic auth; run API: TCP with the token" in line
    assert "refused over TCP" in check_line(
        tmp_path, "--web.listen-address", f"0.0.0.0:{free_port()}"
    )
    (tmp_path / "server.key").unlink()
    broken = check_line(tmp_path, *options)
    assert broken.startswith("web     fails: --web.config.file")
    assert "server.key" in broken
