"""Simulated server with continuous batching and a known law of energy, and the Shapley joules of its requests.

A step reads all weights and the context of all its requests, and computes its tokens. It takes the longer of both
times. The energy above idle has three parts: the bytes, the operations, and a power while the step lasts. Prompts
are prefilled in chunks, in the same steps as the decoding requests. The Shapley value of a step divides its energy
among its requests: the context and the operations of each are its own, the weights are shared equally, and the time by
the mean over orders in which the requests join the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analyzer.model.samples import FloatArray
from exporter.request_energy.spans import EnergySlots, RequestSpans

IDLE_W = 90.0
WEIGHTS_BYTES = 15e9
CONTEXT_BYTES = 131_072.0
OPERATIONS = 16e9
BYTES_PER_S, OPERATIONS_PER_S = 3.0e12, 400e12
JOULES_PER_BYTE, JOULES_PER_OPERATION = 60e-12, 0.45e-12
STEP_W = 120.0
OVERHEAD_S = 0.002
MAX_BATCH, CHUNK_TOKENS = 64, 512
ORDERS = 4
_STEPS_PER_S = 1 / (WEIGHTS_BYTES / BYTES_PER_S + OVERHEAD_S)

TRAFFIC = {
    "conversation": ((1_020, 0.9), (129, 1.0)),
    "code": ((1_500, 0.8), (13, 1.0)),
    "long": ((6_000, 0.7), (300, 0.8)),
    "chat": ((200, 1.0), (400, 0.9)),
}
"""Median and logarithmic spread of the prompt and generated tokens. The medians of `conversation` and `code` are
those of the Azure LLM inference trace of 2023."""


@dataclass(frozen=True, slots=True)
class Served:
    """Requests in the order of arrival, their true starts and Shapley joules, and steps (begin, seconds, joules).

    `prefill_j` are the Shapley joules of all prefills, `context_j` the energy of the context that the generated tokens
    attend to, and `context_tokens` the number of tokens of that context.
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
        measured = np.diff(self.energy_j(edges - rng.uniform(0.0, age_s, len(edges)) if age_s else edges))
        measured += rng.normal(0.0, noise_w * width_s, len(measured))
        return EnergySlots.of_samples(edges, measured, idle_w, age_s)


def serve(rng: np.random.Generator, traffic: str, load: float, seconds: float) -> Served:
    """Return the requests that a server completes; `load` is relative to its approximate capacity."""
    (prompt_median, prompt_spread), (output_median, output_spread) = TRAFFIC[traffic]
    mean_prompt = prompt_median * np.exp(prompt_spread**2 / 2)
    mean_output = output_median * np.exp(output_spread**2 / 2)
    step_s = WEIGHTS_BYTES / BYTES_PER_S + OVERHEAD_S
    rate = load / (mean_prompt * OPERATIONS / OPERATIONS_PER_S + mean_output * step_s / 24)
    burst = rng.choice([0.3, 1.0])
    count = max(8, int(rate * seconds))
    arrived = np.cumsum(rng.gamma(burst, 1 / (burst * rate), count))
    prompt, output = _lengths(rng, traffic, count)
    return Batches(arrived, prompt, output, rng).run()


def serve_one_at_a_time(rng: np.random.Generator, traffic: str, seconds: float, power: float) -> Served:
    """Return the requests of one user, each of which begins after the one before.

    The pauses are 0, or 1 s on average. `power` is a factor of all power above idle; 0 for a server that works at the
    idle power.
    """
    pause_s = rng.choice([0.0, 1.0])
    prompt, output = _lengths(rng, traffic, max(8, int(seconds * _STEPS_PER_S)))
    keep = 8 + int(np.searchsorted(np.cumsum(output / _STEPS_PER_S + pause_s), seconds))
    prompt, output = prompt[:keep], output[:keep]
    apart_s = np.arange(len(prompt)) * 1e4
    served = Batches(apart_s, prompt, output, rng).run()
    spans = served.spans
    durations_s = spans.ended_s - apart_s
    arrived_s = np.cumsum(rng.exponential(pause_s, len(prompt))) + np.cumsum(durations_s) - durations_s
    shift_s = arrived_s - apart_s
    steps = served.steps * [1.0, 1.0, power]
    steps[:, 0] += shift_s[np.searchsorted(apart_s, steps[:, 0], side="right") - 1]
    return replace(
        served,
        spans=replace(
            spans, arrived_s=arrived_s, first_token_s=spans.first_token_s + shift_s, ended_s=spans.ended_s + shift_s
        ),
        started_s=served.started_s + shift_s,
        shapley_j=served.shapley_j * power,
        steps=steps,
        prefill_j=served.prefill_j * power,
        context_j=served.context_j * power,
    )


def _lengths(rng: np.random.Generator, traffic: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the prompt and the generated tokens of each request."""
    (prompt_median, prompt_spread), (output_median, output_spread) = TRAFFIC[traffic]
    prompt = np.clip(rng.lognormal(np.log(prompt_median), prompt_spread, count), 8, 16_000).astype(int)
    output = np.clip(rng.lognormal(np.log(output_median), output_spread, count), 2, 2_000).astype(int)
    return prompt, output


class Batches:
    def __init__(self, arrived: FloatArray, prompt: np.ndarray, output: np.ndarray, rng: np.random.Generator) -> None:
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
            while waiting and len(running) < MAX_BATCH:
                running.append(waiting.pop(0))
            chosen, tokens = self._plan(running, now_s)
            seconds, joules = self._step(chosen, tokens)
            steps.append((now_s, seconds, joules))
            now_s += seconds
            self._advance(chosen, tokens, now_s)
            running = [one for one in running if np.isnan(self._ended[one])]
        none = np.zeros(count)
        spans = RequestSpans(self._arrived, self._first, self._ended, self._prompt * 1.0, none, self._output * 1.0)
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
        budget = CHUNK_TOKENS - len(tokens)
        for one in running:
            if self._left[one] > 0 and budget > 0:
                tokens[one] = min(budget, int(self._left[one]))
                budget -= tokens[one]
                if np.isnan(self._started[one]):
                    self._started[one] = now_s
        return np.array(list(tokens)), np.array(list(tokens.values()), dtype=float)

    def _step(self, chosen: np.ndarray, tokens: FloatArray) -> tuple[float, float]:
        context = self._prompt[chosen] - self._left[chosen] + self._made[chosen]
        moved, computed = (context + tokens) * CONTEXT_BYTES, tokens * OPERATIONS
        seconds = max((WEIGHTS_BYTES + moved.sum()) / BYTES_PER_S, computed.sum() / OPERATIONS_PER_S)
        share, context_s = np.zeros(len(chosen)), np.zeros(len(chosen))
        for _ in range(ORDERS // 2):
            order = self._rng.permutation(len(chosen))
            for joined in (order, order[::-1]):
                memory_s = (WEIGHTS_BYTES + np.cumsum(moved[joined])) / BYTES_PER_S
                so_far = np.maximum(memory_s, np.cumsum(computed[joined]) / OPERATIONS_PER_S)
                added_s = np.diff(so_far, prepend=0.0)
                share[joined] += added_s
                context_s[joined] += np.where(memory_s >= so_far, np.minimum(added_s, moved[joined] / BYTES_PER_S), 0.0)
        shared_j = JOULES_PER_BYTE * WEIGHTS_BYTES + STEP_W * OVERHEAD_S
        own_j = JOULES_PER_BYTE * moved + JOULES_PER_OPERATION * computed + STEP_W * share / ORDERS
        self._shapley_j[chosen] += own_j + shared_j / len(chosen)
        decodes = self._left[chosen] == 0
        self._prefill_j += float((own_j + shared_j / len(chosen))[~decodes].sum())
        context_j = JOULES_PER_BYTE * context * CONTEXT_BYTES + STEP_W * context_s / ORDERS
        self._context_j += float(context_j[decodes].sum())
        self._context_tokens += float(context[decodes].sum())
        return seconds + OVERHEAD_S, float(own_j.sum() + shared_j)

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
