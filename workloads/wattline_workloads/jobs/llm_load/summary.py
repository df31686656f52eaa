"""Summary of all requests: results of the run, and log lines."""

from __future__ import annotations

import argparse
import collections
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wattline.figures import short_text
from wattline_workloads.jobs.base import percentile_results
from wattline_workloads.jobs.llm_load.generator import LoadGenerator
from wattline_workloads.jobs.llm_load.stream import RequestOutcome

_FORM = "give seconds by name, like ttft=0.5,tpot=0.05,e2e=10"
_MOST_KINDS = 12
"""Maximum of failure kinds, since a run has at most 64 results."""
_LONGEST_MESSAGE = 200
_REMEDIES = {
    "connection": "check that the server runs and accepts that many connections",
    "timeout": "set a longer --timeout or a lower load",
    "not_streamed": "the endpoint must support stream: true",
    "http_400": "--prompt-tokens and --max-tokens set lengths; "
    "--extra-body '{\"FIELD\": null}' removes a field that the server rejects",
    "http_401": "set OPENAI_API_KEY or give --api-key-file",
    "http_403": "set OPENAI_API_KEY or give --api-key-file",
    "http_404": "check --model and --api, and that --url ends in /v1",
    "http_503": "the server is overloaded or still loads its model; try again later",
}
_REMEDIES["http_422"] = _REMEDIES["http_400"]


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective: maximum of each latency in seconds."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    e2e_s: float = math.inf
    text: str = ""

    def __str__(self) -> str:
        return self.text

    def is_met_by(self, answer: RequestOutcome) -> bool:
        """Return whether the request meets all limits; an unknown latency fails, one token has no
        TPOT.
        """
        if answer.failure or answer.e2e_s > self.e2e_s:
            return False
        if self.ttft_s < math.inf and (answer.ttft_s is None or answer.ttft_s > self.ttft_s):
            return False
        return (
            self.tpot_s == math.inf
            or answer.tokens == 1
            or (answer.tpot_s is not None and answer.tpot_s <= self.tpot_s)
        )


def parse_slo(text: str) -> Slo:
    """Parse `ttft=0.5,e2e=10`. Raises argparse.ArgumentTypeError."""
    limits_s: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in {"ttft", "tpot", "e2e"} or name in limits_s:
            raise argparse.ArgumentTypeError(f"{part!r} is not an objective; {_FORM}")
        try:
            limits_s[name] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} has no number; {_FORM}") from None
        if not 0 < limits_s[name] < math.inf:
            raise argparse.ArgumentTypeError(f"{part!r} is not a positive number; {_FORM}")
    return Slo(**{f"{name}_s": limit_s for name, limit_s in limits_s.items()}, text=text)


def load_results(load: LoadGenerator, slo: Slo | None) -> dict[str, float]:
    """Return the results by name, without those that could not be measured."""
    answers = load.answers
    window_s = load.window_s
    good = [answer for answer in answers if answer.failure is None]
    results = {"requests_failed": float(load.failed), **_by_kind(answers)}
    if load.cancelled:
        results["requests_cancelled"] = float(load.cancelled)
    if answers:
        results["error_ratio"] = load.failed / len(answers)
    if slo and answers:
        met = sum(slo.is_met_by(answer) for answer in answers)
        results["goodput_ratio"] = met / len(answers)
        results |= _per_second("goodput_requests", met, window_s)
    if good:
        results["requests_without_usage"] = float(sum(answer.tokens is None for answer in good))
        results["requests_without_text"] = float(sum(answer.first_s is None for answer in good))
        results |= _latencies(good) | _throughput(good, window_s)
    delays_s = [answer.sent_s - answer.scheduled_s for answer in answers]
    if any(delays_s):
        results["send_delay_seconds_p99"] = percentile_results("s", delays_s)["s_p99"]
    return results


def _latencies(good: Sequence[RequestOutcome]) -> dict[str, float]:
    gaps_s = array("d")
    for answer in good:
        gaps_s.extend(answer.gaps_s)
    return {
        **percentile_results("ttft_seconds", _known(good, lambda answer: answer.ttft_s)),
        **percentile_results("itl_seconds", gaps_s),
        **percentile_results("tpot_seconds", _known(good, lambda answer: answer.tpot_s)),
        **percentile_results("e2e_seconds", [answer.e2e_s for answer in good]),
    }


def _throughput(good: Sequence[RequestOutcome], window_s: float) -> dict[str, float]:
    """Return rates over the window, and the mean concurrency."""
    generated = _known(good, lambda answer: answer.tokens)
    prompt = _known(good, lambda answer: answer.usage.prompt_tokens if answer.usage else None)
    results = {"measured_seconds": window_s, **_per_second("requests", len(good), window_s)}
    if generated:
        results |= _per_second("generated_tokens", sum(generated), window_s)
        chunks = sum(answer.chunks for answer in good if answer.tokens is not None)
        if chunks:
            results["tokens_per_chunk_mean"] = sum(generated) / chunks
    if prompt:
        results |= _per_second("prompt_tokens", sum(prompt), window_s)
    if window_s > 0:
        results["concurrency_mean"] = (
            sum(answer.ended_s - answer.sent_s for answer in good) / window_s
        )
    return results


def _known(
    answers: Sequence[RequestOutcome], of: Callable[[RequestOutcome], float | None]
) -> list[float]:
    return [value for answer in answers if (value := of(answer)) is not None]


def _per_second(what: str, amount: float, window_s: float) -> dict[str, float]:
    return {f"{what}_per_second": amount / window_s} if window_s > 0 else {}


def _by_kind(answers: Sequence[RequestOutcome]) -> dict[str, float]:
    kinds = collections.Counter(
        answer.failure.kind for answer in answers if answer.failure
    ).most_common()
    named = {f"requests_failed_{kind}": float(count) for kind, count in kinds[:_MOST_KINDS]}
    others = sum(count for _, count in kinds[_MOST_KINDS:])
    return named | ({"requests_failed_other": float(others)} if others else {})


def describe_failures(answers: Sequence[RequestOutcome], key: str | None) -> str:
    """Describe failures: count per kind, message of the first, and remedy, with the API key
    removed.
    """
    first: dict[str, str] = {}
    kinds: collections.Counter[str] = collections.Counter()
    for answer in answers:
        if answer.failure:
            kinds[answer.failure.kind] += 1
            first.setdefault(answer.failure.kind, answer.failure.message)
    return ", ".join(
        f"{count} {kind} ({printable_line(first[kind], key)})"
        for kind, count in kinds.most_common()
    ) + "".join(f"; {_REMEDIES[kind]}" for kind, _ in kinds.most_common(1) if kind in _REMEDIES)


def printable_line(message: str, key: str | None) -> str:
    """Shorten untrusted text to one printable line, with the API key removed."""
    if key:
        message = message.replace(key, "[key]")
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in message).split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…"


def load_summary_lines(
    load: LoadGenerator, results: Mapping[str, float], key: str | None
) -> Iterator[str]:
    """Yield the lines for stderr."""
    answers = load.answers
    good = len(answers) - load.failed
    rate = "".join(
        f", {short_text(results[name])} {words}"
        for name, words in (
            ("requests_per_second", "requests/s"),
            ("generated_tokens_per_second", "generated tokens/s"),
        )
        if name in results
    )
    yield f"{good} requests answered in {load.window_s:.1f} s{rate}"
    times = [
        f"{name} {short_text(results[f'{name}_seconds_p50'])} s "
        f"(p99 {short_text(results[f'{name}_seconds_p99'])} s)"
        for name in ("ttft", "itl", "tpot", "e2e")
        if f"{name}_seconds_p50" in results
    ]
    if times:
        yield "median " + ", ".join(times)
    if "goodput_ratio" in results:
        yield f"{results['goodput_ratio']:.1%} of the requests met the objective"
    if load.failed:
        yield f"{load.failed} of {len(answers)} requests failed: {describe_failures(answers, key)}"
    if load.cancelled:
        yield (
            f"{load.cancelled} requests in flight were cancelled; they count neither as "
            "answered nor as failed"
        )
    if without := int(results.get("requests_without_text", 0)):
        yield (
            f"{without} of {good} answers had no text: they have no ttft, and miss objectives "
            "of ttft and tpot"
        )
    if without := int(results.get("requests_without_usage", 0)):
        yield (
            f"{without} of {good} answers came without usage: their tokens are not counted as work"
        )
