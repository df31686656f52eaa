"""Command line: valid options, and one line for invalid ones."""

import socket
import subprocess
import sys

import pytest

from tests.daemon import daemon
from tests.exporter.commands import SIMULATED, assert_one_line, exporter


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--simulate", "8xB9000"], ["--simulate", "B9000", "H200"]),
        (["--simulate", "0xH200"], ["--simulate", "1 to 64"]),
        (["--simulate", "65xH200"], ["--simulate", "1 to 64"]),
        (
            ["--web.listen-address", "localhost"],
            ["--web.listen-address", "HOST:PORT", "127.0.0.1:9847"],
        ),
        (
            ["--web.listen-address", "127.0.0.1:99999"],
            ["--web.listen-address: expected a port up to 65535, not 99999"],
        ),
        (["--web.listen-address", "127.0.0.1:http"], ["--web.listen-address"]),
        (["--carbon.provider", "us"], ["--carbon.provider", "'us'", "gb, static"]),
        (["--carbon.provider", "static"], ["--carbon.region"]),
        (["--carbon.region", "Germny"], ["Germny", "did you mean Germany"]),
        (["--carbon.provider", "gb", "--carbon.region", "Atlantis"], ["Atlantis"]),
        (["--carbon.intensity", "-5"], ["-5"]),
        (["--carbon.intensity", "nan"], ["--carbon"]),
        (["--carbon.intensity", "230", "--carbon.region", "DE"], ["--carbon.intensity", "remove"]),
        (["--carbon.intensity", "much"], ["--carbon.intensity"]),
        (["--log.level", "loud"], ["--log.level", "'loud'", "info"]),
        (["--log.format", "xml"], ["--log.format", "'xml'", "json"]),
        (["--path.sysfs", "/no/such"], ["--path.sysfs", "/no/such"]),
        (
            ["--simulate", "1xH200", "--no-collector.nvml"],
            ["--simulate and --no-collector.nvml exclude each other"],
        ),
        (["--collector.processes.pid"], ["--collector.processes.pid needs --collector.processes"]),
        (["--collector.processes.group", "name"], ["--collector.processes.group needs"]),
        (["--no-such-option"], ["--no-such-option", "--help"]),
        (["extra"], ["extra"]),
    ],
)
def test_option_invalid_value_is_one_line(tmp_path, options, words):
    assert_one_line(exporter("serve", "--state.path", str(tmp_path / "state"), *options), 2, *words)
    assert not (tmp_path / "state" / "state.sqlite").exists()


def test_command_unknown_is_one_line():
    assert_one_line(exporter("sevre"), 2, "sevre", "did you mean serve?")


@pytest.mark.parametrize("folder", ["/dev/null/state", "/proc/wattline"])
def test_state_folder_not_writable_is_one_line(folder):
    assert_one_line(
        exporter("serve", "--simulate", "1xH200", "--state.path", folder), 1, folder, "--state.path"
    )


def test_port_in_use_is_one_line(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        options = (
            "--simulate",
            "1xH200",
            "--state.path",
            str(tmp_path),
            "--web.listen-address",
            address,
        )
        assert_one_line(
            exporter("serve", *options), 1, address, "in use", "ss -ltnp", "--web.listen-address"
        )


@pytest.mark.parametrize("address", ["192.0.2.1:9847", "no-such-host.invalid:9847"])
def test_listen_address_of_other_host_is_one_line(tmp_path, address):
    options = (
        "--simulate",
        "1xH200",
        "--state.path",
        str(tmp_path),
        "--web.listen-address",
        address,
    )
    done = exporter("serve", *options)

    assert_one_line(done, 1, address, "--web.listen-address")
    assert "ss -ltnp" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["check", "--help"]])
def test_help_is_printed_to_stdout(arguments):
    done = exporter(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout


def test_help_imports_no_heavy_module():
    heavy = ("aiohttp", "pydantic", "psutil", "pynvml")
    program = (
        f"import sys, wattline_exporter.cli.main; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_regions_are_listed_by_provider():
    countries, britain = exporter("regions"), exporter("regions", "--carbon.provider", "gb")

    assert any(line.startswith("DEU Germany: ") for line in countries.stdout.splitlines())
    assert {"GB Great Britain", "13 London"} <= set(britain.stdout.splitlines())
    assert_one_line(
        exporter("regions", "--carbon.provider", "us"), 2, "--carbon.provider", "gb, static"
    )


def test_log_lines_can_be_json(tmp_path):
    import json

    with daemon(tmp_path, *SIMULATED, "--log.format", "json", ready=False) as running:
        lines = [json.loads(line) for line in running.log().splitlines()]
    assert lines[0]["level"] == "info"
    assert "serving on" in lines[0]["msg"]
