"""Options of the job `llm-server`."""

import pytest

from wattline_workloads.jobs import llm_server


@pytest.mark.parametrize(
    ("option", "url"),
    [
        ("http://gpu-node:8000", "http://gpu-node:8000/v1"),
        ("http://gpu-node:8000/", "http://gpu-node:8000/v1"),
        ("https://gpu-node/v1/", "https://gpu-node/v1"),
        ("http://[::1]:11434/openai/v1", "http://[::1]:11434/openai/v1"),
    ],
)
def test_url_option_without_path_gets_v1(option, url):
    assert llm_server.parser().parse_args(["--url", option]).url == url


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--url"),
        (["--url", "localhost:8000"], "http://localhost:8000"),
        (["--url", "http://user:secret@localhost"], "--api-key-file"),
        (["--url", "http://localhost", "--slo", "ttft"], "ttft=0.5"),
        (["--url", "http://localhost", "--extra-body", "[]"], "ignore_eos"),
        (["--url", "http://localhost", "--prompts", "/gone.txt"], "cannot read /gone.txt"),
        (["--url", "http://localhost", "--rate", "2", "--concurrency", "3"], "not allowed with"),
        (["--url", "http://localhost", "--requests", "2", "--duration", "3"], "not allowed with"),
        (["--url", "http://localhost", "--max-tokens", "9:3"], "64:256"),
        (["--url", "http://localhost", "--rate", "0"], "--rate"),
        (["--url", "http://localhost", "--warmup", "-1"], "less than 0"),
    ],
)
def test_llm_server_invalid_option_is_one_line_error(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        llm_server.parser().parse_args(options)
    stderr = capsys.readouterr().err

    assert ended.value.code == 2
    assert message in stderr
    assert len(stderr.splitlines()) == 1
