"""Simulated server with continuous batching and a known law of energy, and the Shapley joules of
its requests.

A step reads all weights and the context of all its requests, and computes its tokens. It takes the
longer of both times. The energy above idle has three parts: the bytes, the operations, and a power
while the step lasts. Prompts are prefilled in chunks, in the same steps as the decoding requests.
The Shapley value of a step divides its energy among its requests: the context and the operations of
each are its own, the weights are shared equally, and the time by the mean over orders in which the
requests join the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tests.exporter.requests.division.traffic import TRAFFIC
from wattline_analyzer.core.samples import FloatArray
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans

IDLE_W = 90.0
ORDERS = 4


@dataclass(frozen=True, slots=True)
class Law:
    """Sizes, speeds and energies of a server; bytes and operations are per token, `weights_bytes`
    per step.
    """

    weights_bytes: float = 15e9
    context_bytes: float = 131_072.0
    operations: float = 16e9
    bytes_per_s: float = 3.0e12
    operations_per_s: float = 400e12
    joules_per_byte: float = 60e-12
    joules_per_operation: float = 0.45e-12
    step_w: float = 120.0
    overhead_s: float = 0.002
    max_batch: int = 64
    chunk_tokens: int = 512

    @property
    def steps_per_s(self) -> float:
        """Steps per second without context."""
        return 1 / (self.weights_bytes / self.bytes_per_s + self.overhead_s)


LAW = Law()


def draw_law(rng: np.random.Generator) -> Law:
    """Return a server with half to twice the energies, speeds, and bytes of context, and other
    limits of its steps.
    """
    factors = np.exp(rng.uniform(np.log(0.5), np.log(2.0), 6))
    return replace(
        LAW,
        context_bytes=LAW.context_bytes * factors[0],
        bytes_per_s=LAW.bytes_per_s * factors[1],
        operations_per_s=LAW.operations_per_s * factors[2],
        joules_per_byte=LAW.joules_per_byte * factors[3],
        joules_per_operation=LAW.joules_per_operation * factors[4],
        step_w=LAW.step_w * factors[5],
        overhead_s=rng.uniform(0.0, 0.004),
        max_batch=int(rng.choice([32, 64, 128])),
        chunk_tokens=int(rng.choice([256, 512, 2_048])),
    )


@dataclass(frozen=True, slots=True)
class Served:
    """Requests in the order of arrival, their true starts and Shapley joules, and steps (begin,
    seconds, joules).

    `prefill_j` are the Shapley joules of all prefills, `context_j` the energy of the context that
    the generated tokens attend to, and `context_tokens` the number of tokens of that context.
    """

    spans: RequestSpans
    started_s: FloatArray
    shapley_j: FloatArray
    steps: FloatArray
    prefill_j: float
    context_j: float
    context_tokens: float

    def energy_j(self, times_s: FloatArray) -> FloatArray:
        """Return the true energy up to each time."""
        begin, seconds, joules = self.steps.T
        total = np.cumsum(joules)
        times = np.concatenate([[0.0], np.column_stack([begin, begin + seconds]).ravel()])
        energy = np.concatenate([[0.0], np.column_stack([total - joules, total]).ravel()])
        above_idle: FloatArray = np.interp(times_s, times, energy)
        return above_idle + IDLE_W * times_s

    def slots(
        self,
        width_s: float,
        rng: np.random.Generator,
        noise_w: float = 1.0,
        age_s: float = 0.0,
        idle_w: float = IDLE_W,
    ) -> EnergySlots:
        """Return the energy in samples every `width_s`, with values that are up to `age_s` old."""
        begin, seconds, _ = self.steps.T
        edges = np.arange(0.0, begin[-1] + seconds[-1] + width_s, width_s)
        measured = np.diff(
            self.energy_j(edges - rng.uniform(0.0, age_s, len(edges)) if age_s else edges)
        )
        measured += rng.normal(0.0, noise_w * width_s, len(measured))
        return EnergySlots.of_samples(edges, measured, idle_w, age_s)


def serve(
    rng: np.random.Generator, traffic: str, load: float, seconds: float, law: Law = LAW
) -> Served:
    """Return the requests that a server completes; `load` is relative to its approximate
    capacity.
    """
    used = TRAFFIC[traffic]
    mean_prompt, mean_output = used.means
    rate = load / (
        mean_prompt * law.operations / law.operations_per_s + mean_output / law.steps_per_s / 24
    )
    count = max(8, int(rate * seconds))
    arrived = used.arrivals(rng, rate, count)
    return Batches(arrived, *used.lengths(rng, count), rng, law).run()


def serve_one_at_a_time(
    rng: np.random.Generator, traffic: str, seconds: float, power: float, law: Law = LAW
) -> Served:
    """Return the requests of one user, each of which begins after the one before.

    The pauses are 0, or 1 s on average. `power` is a factor of all power above idle; 0 for a server
    that works at the idle power.
    """
    pause_s = rng.choice([0.0, 1.0])
    prompt, output = TRAFFIC[traffic].lengths(rng, max(8, int(seconds * law.steps_per_s)))
    keep = 8 + int(np.searchsorted(np.cumsum(output / law.steps_per_s + pause_s), seconds))
    prompt, output = prompt[:keep], output[:keep]
    apart_s = np.arange(len(prompt)) * 1e4
    served = Batches(apart_s, prompt, output, rng, law).run()
    spans = served.spans
    durations_s = spans.ended_s - apart_s
    arrived_s = (
        np.cumsum(rng.exponential(pause_s, len(prompt))) + np.cumsum(durations_s) - durations_s
    )
    shift_s = arrived_s - apart_s
    steps = served.steps * [1.0, 1.0, power]
    steps[:, 0] += shift_s[np.searchsorted(apart_s, steps[:, 0], side="right") - 1]
    return replace(
        served,
        spans=replace(
            spans,
            arrived_s=arrived_s,
            first_token_s=spans.first_token_s + shift_s,
            ended_s=spans.ended_s + shift_s,
        ),
        started_s=served.started_s + shift_s,
        shapley_j=served.shapley_j * power,
        steps=steps,
        prefill_j=served.prefill_j * power,
        context_j=served.context_j * power,
    )


class Batches:
    def __init__(
        self,
        arrived: FloatArray,
        prompt: np.ndarray,
        output: np.ndarray,
        rng: np.random.Generator,
        law: Law = LAW,
    ) -> None:
        self._law = law
        self._arrived, self._prompt, self._output, self._rng = arrived, prompt, output, rng
        count = len(arrived)
        self._left = prompt.copy()
        self._made = np.zeros(count, dtype=int)
        self._started, self._first, self._ended = (np.full(count, np.nan) for _ in range(3))
        self._shapley_j = np.zeros(count)
        self._prefill_j = self._context_j = self._context_tokens = 0.0

    def run(self) -> Served:
        now_s, next_arrival, waiting, running, steps = 0.0, 0, [], [], []
        count = len(self._arrived)
        while next_arrival < count or waiting or running:
            while next_arrival < count and self._arrived[next_arrival] <= now_s:
                waiting.append(next_arrival)
                next_arrival += 1
            if not waiting and not running:
                now_s = float(self._arrived[next_arrival])
                continue
            while waiting and len(running) < self._law.max_batch:
                running.append(waiting.pop(0))
            chosen, tokens = self._plan(running, now_s)
            seconds, joules = self._step(chosen, tokens)
            steps.append((now_s, seconds, joules))
            now_s += seconds
            self._advance(chosen, tokens, now_s)
            running = [one for one in running if np.isnan(self._ended[one])]
        none = np.zeros(count)
        spans = RequestSpans(
            self._arrived, self._first, self._ended, self._prompt * 1.0, none, self._output * 1.0
        )
        return Served(
            spans,
            self._started,
            self._shapley_j,
            np.array(steps),
            self._prefill_j,
            self._context_j,
            self._context_tokens,
        )

    def _plan(self, running: list[int], now_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the requests of the next step and the tokens that it computes of each."""
        tokens = {one: 1 for one in running if self._left[one] == 0}
        budget = self._law.chunk_tokens - len(tokens)
        for one in running:
            if self._left[one] > 0 and budget > 0:
                tokens[one] = min(budget, int(self._left[one]))
                budget -= tokens[one]
                if np.isnan(self._started[one]):
                    self._started[one] = now_s
        return np.array(list(tokens)), np.array(list(tokens.values()), dtype=float)

    def _step(self, chosen: np.ndarray, tokens: FloatArray) -> tuple[float, float]:
        law = self._law
        context = self._prompt[chosen] - self._left[chosen] + self._made[chosen]
        moved, computed = (context + tokens) * law.context_bytes, tokens * law.operations
        seconds = max(
            (law.weights_bytes + moved.sum()) / law.bytes_per_s,
            computed.sum() / law.operations_per_s,
        )
        share_s, context_s = self._shares(moved, computed)
        shared_j = law.joules_per_byte * law.weights_bytes + law.step_w * law.overhead_s
        own_j = (
            law.joules_per_byte * moved + law.joules_per_operation * computed + law.step_w * share_s
        )
        self._shapley_j[chosen] += own_j + shared_j / len(chosen)
        decodes = self._left[chosen] == 0
        self._prefill_j += float((own_j + shared_j / len(chosen))[~decodes].sum())
        context_j = law.joules_per_byte * context * law.context_bytes + law.step_w * context_s
        self._context_j += float(context_j[decodes].sum())
        self._context_tokens += float(context[decodes].sum())
        return seconds + law.overhead_s, float(own_j.sum() + shared_j)

    def _shares(self, moved: FloatArray, computed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the Shapley shares of each request in the time of a step, and the time of its
        context.
        """
        law, count = self._law, len(moved)
        weights_s, moved_s = law.weights_bytes / law.bytes_per_s, moved / law.bytes_per_s
        if computed.sum() / law.operations_per_s <= weights_s:  # the bytes decide in each order
            return weights_s / count + moved_s, moved_s
        share_s, context_s = np.zeros(count), np.zeros(count)
        for _ in range(ORDERS // 2):
            order = self._rng.permutation(count)
            for joined in (order, order[::-1]):
                memory_s = weights_s + np.cumsum(moved_s[joined])
                so_far = np.maximum(memory_s, np.cumsum(computed[joined]) / law.operations_per_s)
                added_s = np.diff(so_far, prepend=0.0)
                share_s[joined] += added_s / ORDERS
                context_s[joined] += (
                    np.where(memory_s >= so_far, np.minimum(added_s, moved_s[joined]), 0.0) / ORDERS
                )
        return share_s, context_s

    def _advance(self, chosen: np.ndarray, tokens: FloatArray, now_s: float) -> None:
        for one, done in zip(chosen, tokens, strict=True):
            if self._left[one] > 0:
                self._left[one] -= int(done)
                if self._left[one] == 0:
                    self._first[one], self._made[one] = now_s, 1
            else:
                self._made[one] += 1
            if self._left[one] == 0 and self._made[one] >= self._output[one]:
                self._ended[one] = now_s
