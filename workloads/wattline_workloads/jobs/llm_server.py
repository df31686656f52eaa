"""Send load to an OpenAI-compatible endpoint, and measure latencies, throughput and goodput."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import wattline
from wattline.client.messages import message_line
from wattline.contract.secret_file import SecretFileError, read_secret
from wattline_workloads.jobs.base import (
    JobParser,
    job_parser,
    non_negative_int,
    positive_int,
    positive_seconds,
)
from wattline_workloads.jobs.llm_load import generator, summary
from wattline_workloads.runner.signals import unwind_on_signal

API_KEY_VARIABLE = "OPENAI_API_KEY"


def parser() -> JobParser:
    options = job_parser("llm-server", __doc__)
    options.add_argument(
        "--url",
        type=base_url,
        required=True,
        help="address like http://host:8000, or with a path up to /v1",
    )
    options.add_argument(
        "--model", help="model to request; default: the first one that the endpoint lists"
    )
    options.add_argument(
        "--api",
        choices=("chat", "completions"),
        default="chat",
        help="API of the endpoint; default: chat",
    )
    options.add_argument(
        "--api-key-file", metavar="FILE", help=f"file with the API key; default: {API_KEY_VARIABLE}"
    )
    until = options.add_mutually_exclusive_group()
    until.add_argument(
        "--requests", type=positive_int, metavar="N", help="number of requests; default: 100"
    )
    until.add_argument(
        "--duration",
        type=positive_seconds,
        metavar="SECONDS",
        help="time during which requests are sent",
    )
    shape = options.add_mutually_exclusive_group()
    shape.add_argument(
        "--rate", type=parse_rate, metavar="R", help="open loop: requests per second"
    )
    shape.add_argument(
        "--concurrency",
        type=positive_int,
        metavar="N",
        help="closed loop: requests in flight; default: 1",
    )
    options.add_argument(
        "--arrivals",
        choices=("poisson", "fixed"),
        default="poisson",
        help="arrival process of an open loop; default: poisson",
    )
    options.add_argument(
        "--prompts",
        type=generator.read_prompts,
        metavar="FILE",
        help=".jsonl file with prompt or messages, else a file with one prompt per line",
    )
    tokens: dict[str, Any] = {
        "type": generator.parse_token_range,
        "default": generator.TokenRange(128, 128),
        "metavar": "N[:M]",
    }
    options.add_argument(
        "--prompt-tokens", help="approximate length of synthetic prompts; default: 128", **tokens
    )
    options.add_argument("--max-tokens", help="maximum of generated tokens; default: 128", **tokens)
    options.add_argument(
        "--warmup",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="warm-up requests; default: 0",
    )
    options.add_argument(
        "--timeout",
        type=positive_seconds,
        default=600.0,
        metavar="SECONDS",
        help="timeout of a request; default: 600",
    )
    options.add_argument(
        "--slo", type=summary.parse_slo, metavar="ttft=S,tpot=S,e2e=S", help="limits of the goodput"
    )
    options.add_argument(
        "--seed",
        type=non_negative_int,
        default=0,
        help="seed of arrivals, prompts and lengths; default: 0",
    )
    options.add_argument(
        "--extra-body",
        type=parse_json_object,
        default={},
        metavar="JSON",
        help="additional fields of each request; null removes a field",
    )
    return options


def base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(
            f"{text} is not an address; give one like http://localhost:8000"
        )
    if parts.username or parts.password:
        raise argparse.ArgumentTypeError(
            f"--url must not contain a password; set {API_KEY_VARIABLE} or give --api-key-file"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def parse_rate(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text} is not a rate; give requests per second, like 10 or 0.5"
        )
    return value


def parse_json_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid JSON: {error}") from None
    if not isinstance(document, dict):
        raise argparse.ArgumentTypeError(
            """not a JSON object; give one like {"ignore_eos": true}"""
        )
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if (
        options.api == "completions"
        and options.prompts
        and any(one.messages for one in options.prompts.prompts)
    ):
        parser().error(
            f"{options.prompts} contains messages, which --api completions does not accept; use "
            "--api chat"
        )
    key = _key(options.api_key_file)
    _allow_connections()
    from wattline_workloads.jobs.llm_load.measure import measure_endpoint

    with unwind_on_signal(), wattline.run("llm-server", unit="generated_tokens") as run:
        measure_endpoint(options, key, run)
    return 0


def _key(path: str | None) -> str | None:
    try:
        key = read_secret(Path(path)) if path else os.environ.get(API_KEY_VARIABLE, "").strip()
    except SecretFileError as error:
        text = f"llm-server: --api-key-file: {error}; store the key there, in one line"
        sys.exit(message_line(text))
    if not (key.isascii() and all(33 <= ord(letter) <= 126 for letter in key)):
        where = path or API_KEY_VARIABLE
        text = f"llm-server: the key of {where} is not one word of ASCII; store only the key there"
        sys.exit(message_line(text))
    return key or None


def _allow_connections() -> None:
    """Raise the limit of open files, since an open loop may exceed the usual 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
