"""Simulated disaggregated server: one pool of devices prefills, another one decodes; Shapley joules
of both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tests.exporter.requests.division.server import LAW, Batches, Law, Served
from tests.exporter.requests.division.traffic import TRAFFIC
from wattline_exporter.requests.division.spans import RequestSpans

TRANSFER_S = 0.02
"""Time to transfer the KV cache from one pool to the other, which costs no energy here."""


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Requests, and the pools that served them; the Shapley joules of both are in the order of the
    requests.
    """

    spans: RequestSpans
    prefill: Served
    decode: Served


class _Decode(Batches):
    """Server that gets requests with a complete KV cache and their first token."""

    def __init__(
        self,
        arrived: np.ndarray,
        prompt: np.ndarray,
        output: np.ndarray,
        rng: np.random.Generator,
        law: Law,
    ) -> None:
        super().__init__(arrived, prompt, output, rng, law)
        self._left[:], self._made[:] = 0, 1
        self._first[:] = arrived


def serve_disaggregated(
    rng: np.random.Generator, traffic: str, rate: float, count: int, law: Law = LAW
) -> Disaggregated:
    """Return `count` requests at `rate` per second, completed by both pools."""
    arrived = np.cumsum(rng.exponential(1 / rate, count))
    prompt, output = TRAFFIC[traffic].lengths(rng, count)
    prefill = Batches(arrived, prompt, np.ones(count, dtype=int), rng, law).run()
    order = np.argsort(prefill.spans.ended_s, kind="stable")
    decode = _Decode(
        prefill.spans.ended_s[order] + TRANSFER_S, prompt[order], output[order], rng, law
    ).run()
    back = np.argsort(order)
    spans = RequestSpans(
        arrived,
        prefill.spans.ended_s,
        decode.spans.ended_s[back],
        prompt * 1.0,
        np.zeros(count),
        output * 1.0,
    )
    return Disaggregated(spans, prefill, replace(decode, shapley_j=decode.shapley_j[back]))
