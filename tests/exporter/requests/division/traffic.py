"""Traffic of simulated servers: lengths of prompts and answers, and times of arrival.

The two traffics of Azure follow the LLM inference trace of 2023 (Patel et al., Splitwise, ISCA
2024; CC BY, github.com/Azure/AzurePublicDataset): 8,819 requests for code and 19,366 of
conversations in an hour. Its medians are 1,500 and 13 tokens for code, 1,020 and 129 for
conversations. Means are 2,048 and 28, and 1,155 and 211 tokens; 95 % quantiles 7,303 and 90, and
4,083 and 451. Conversations arrive like a Poisson process, in four kinds of requests, of which one
has prompts of 4,080 tokens. Requests for code come in bursts of seconds, and their prompts are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline_exporter.requests.division.arrays import FloatArray, IntArray

LONGEST_PROMPT, LONGEST_ANSWER = 16_000, 2_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Median and logarithmic spread of the prompt and generated tokens, and the part of the
    requests that have them.
    """

    prompt: tuple[float, float]
    output: tuple[float, float]
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Kinds of requests.

    `shapes` has shapes of the gamma distribution of the times between arrivals; 1 is a Poisson
    process. With `pause_s`, requests arrive in bursts that last as long as the pauses, on average.
    """

    kinds: Sequence[Lengths]
    longest_prompt: int = LONGEST_PROMPT
    shapes: Sequence[float] = (0.3, 1.0)
    pause_s: float = 0.0

    def lengths(self, rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        """Return the prompt and the generated tokens of each request."""
        kind = rng.choice(len(self.kinds), count, p=[each.part for each in self.kinds])
        prompt, output = (
            rng.lognormal(np.log(medians)[kind], np.array(spreads)[kind], count)
            for medians, spreads in (
                np.transpose([each.prompt for each in self.kinds]),
                np.transpose([each.output for each in self.kinds]),
            )
        )
        return (
            np.clip(prompt, 8, self.longest_prompt).astype(np.intp),
            np.clip(output, 2, LONGEST_ANSWER).astype(np.intp),
        )

    @property
    def means(self) -> tuple[float, float]:
        """Mean prompt and generated tokens, without limits."""
        prompt, output = (
            sum(
                each.part * median * float(np.exp(spread**2 / 2))
                for each, (median, spread) in pairs
            )
            for pairs in (
                [(each, each.prompt) for each in self.kinds],
                [(each, each.output) for each in self.kinds],
            )
        )
        return prompt, output

    def arrivals(self, rng: np.random.Generator, rate: float, count: int) -> FloatArray:
        """Return the times of arrival of requests at a mean rate per second."""
        if not self.pause_s:
            shape = rng.choice(self.shapes)
            steady_s: FloatArray = np.cumsum(rng.gamma(shape, 1 / (shape * rate), count))
            return steady_s
        busy_s: FloatArray = np.cumsum(rng.exponential(0.5 / rate, count))
        periods = 2 + 10 * int(busy_s[-1] / self.pause_s + 1)
        lengths_s, pauses_s = np.cumsum(rng.exponential(self.pause_s, (2, periods)), axis=1)
        result: FloatArray = busy_s + np.append(0.0, pauses_s)[np.searchsorted(lengths_s, busy_s)]
        return result


TRAFFIC = {
    "conversation": Traffic([Lengths((1_020, 0.9), (129, 1.0))]),
    "code": Traffic([Lengths((1_500, 0.8), (13, 1.0))]),
    "long": Traffic([Lengths((6_000, 0.7), (300, 0.8))]),
    "chat": Traffic([Lengths((200, 1.0), (400, 0.9))]),
    "azure conversation": Traffic(
        [
            Lengths((400, 0.06), (92, 0.3), 0.35),
            Lengths((4_080, 0.005), (55, 0.5), 0.09),
            Lengths((1_090, 0.07), (425, 0.15), 0.38),
            Lengths((1_000, 1.1), (100, 0.5), 0.18),
        ],
        shapes=(1.0,),
    ),
    "azure code": Traffic([Lengths((1_500, 1.0), (13, 1.15))], longest_prompt=7_437, pause_s=8.0),
}
