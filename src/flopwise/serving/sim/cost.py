"""What a step takes, as integers: tables, and the one formula over them that the simulators share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flopwise.errors import SpecError
from flopwise.serving.sim.trace import PS, Column
from flopwise.values import dataclass

LARGEST_PS = PS * 3600
"""No entry of a table may be longer than an hour, so that sums stay far below 2**63."""
(
    STEP, TOKEN, PAIR, NEAR_PAIR, DECODE_TOKENS, LAUNCH, LAUNCH_DECODING, GRAPH_TOKENS, BEYOND, BEYOND_DECODING, BESIDE
) = range(11)  # fmt: skip
"""Places in `StepCost.scalars`: of `prefill`, `decode_tokens`, `launch_ps`, `graph_tokens`, `beyond_ps`, `beside`."""


def step_ps(
    tokens_ps: Sequence[int],
    decode_ps: Sequence[int],
    cached_ps: Sequence[int],
    window_ps: Sequence[int],
    scalars: Sequence[int],
    batch: int,
    cached: int,
    windowed: int,
    chunk: int,
    pairs: int,
    window_pairs: int,
) -> int:
    """Picoseconds of a step that decodes `batch` sequences and works through `chunk` tokens of prompts.

    `cached`: tokens that the decoding sequences have in cache together; `windowed`: the same, each up to the window;
    `pairs`, `window_pairs`: (new token, token it sees) of the prompts. Tables: as the fields of `StepCost`; `scalars`:
    as of `StepCost`. Compiled as it stands by the fast simulator.

    Source: the terms of `flopwise.serving.iteration.Runner.step`.
    Assumes: attention is linear in what it reads, with coefficients by batch.
    """
    tokens = batch * scalars[DECODE_TOKENS] + chunk
    total = tokens_ps[tokens]
    if batch > 0:
        place = batch + scalars[BESIDE] if chunk > 0 else batch
        total += decode_ps[place] + cached_ps[place] * cached + window_ps[place] * windowed
    if chunk > 0:
        total += scalars[STEP] + scalars[TOKEN] * chunk
        total += (scalars[PAIR] * pairs + scalars[NEAR_PAIR] * window_pairs) // 1000
        if tokens <= scalars[GRAPH_TOKENS]:
            least = scalars[LAUNCH] + (scalars[LAUNCH_DECODING] if batch > 0 else 0)
        else:
            least = scalars[BEYOND] + (scalars[BEYOND_DECODING] if batch > 0 else 0)
        total = max(total, least)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Step times of one replica; int64 columns indexed by tokens of the step or by sequences that decode."""

    tokens_ps: Column  # [T]: products, norms, messages and the engine's overhead of a step of T tokens
    decode_ps: Column  # [b]: decode attention of b sequences beside their caches, and their rows of the head
    cached_ps: Column  # [b]: each cached token that b sequences read
    window_ps: Column  # [b]: each cached token inside the window that b sequences read, windowed layers
    window: int = 0  # tokens that windowed layers see; 0: there are none
    prefill: tuple[int, int, int, int] = (0, 0, 0, 0)  # ps a step, ps a token, fs a pair, fs a pair in the window
    request_ps: int = 0  # from a request's arrival until the scheduler sees it, where no other is handled
    front_ps: int = 0  # of that, what the front end takes for this request alone: it handles one after another
    front_token_ps: int = 0  # and besides, for each token of the prompt
    stream_ps: int = 0  # that it takes to hand out one token; tokens of a step go out one after another
    decode_tokens: int = 1  # of each decoding sequence that go through a step together
    launch_ps: tuple[int, int] = (0, 0)  # least of a step with prompts, and what is added if sequences decode in it
    graph_tokens: int = 0  # tokens of a step up to which `launch_ps` holds
    beyond_ps: tuple[int, int] = (0, 0)  # `launch_ps` of a step with more
    tokens_after_launch: bool = False  # first tokens wait until the next step of prompts is launched, if one follows
    beside: int = 0  # place in the columns by sequences from which on they are of steps with prompts; 0: as of others

    @property
    def scalars(self) -> tuple[int, ...]:
        """The scalars that `step_ps` takes in addition to the tables."""
        return (*self.prefill, self.decode_tokens, *self.launch_ps, self.graph_tokens, *self.beyond_ps, self.beside)

    @property
    def batches(self) -> int:
        """Entries of the columns by sequences for one kind of step: one more than the largest batch."""
        return self.beside or len(self.decode_ps)

    @property
    def next_launch_ps(self) -> int:
        """Time from the beginning of a step of prompts until the next one is launched; 0: tokens wait for no launch.

        Assumes: a launch takes as long whatever the tokens, and no graphs hold prompts.
        """
        return 2 * self.beyond_ps[0] * (self.tokens_after_launch and not self.graph_tokens)

    @property
    def front_scalars(self) -> tuple[int, int, int, int]:
        """The scalars of the front end."""
        return self.request_ps, self.front_ps, self.front_token_ps, self.stream_ps

    def __post_init__(self) -> None:
        """Refuse what the clock cannot count."""
        if len({len(self.decode_ps), len(self.cached_ps), len(self.window_ps)}) != 1:
            raise SpecError("decode_ps, cached_ps and window_ps must be of one length: the largest batch plus one")
        if 2 * self.beside not in (0, len(self.decode_ps)):
            raise SpecError(f"beside {self.beside} is out of range; allowed: 0, or half the length of decode_ps")
        others = np.asarray(self.prefill + self.launch_ps + self.beyond_ps)
        columns = (self.tokens_ps, self.decode_ps, self.cached_ps, self.window_ps, others)
        if any(np.any(c < 0) or np.any(c > LARGEST_PS) for c in columns) or min(self.window, *self.front_scalars) < 0:
            raise SpecError("a step cost is out of range; allowed: 0 up to an hour of picoseconds")
        if self.decode_tokens < 1:
            raise SpecError(f"decode_tokens {self.decode_tokens} is out of range; allowed: from 1")
        if np.any(self.tokens_ps[1:] < 1):
            raise SpecError("tokens_ps: a step with tokens takes at least 1 ps")

    def seconds(self, *, batch: int = 0, cached: int = 0, windowed: int = 0, chunk: int = 0, start: int = 0) -> float:
        """One step in seconds: `chunk` tokens of one prompt of which `start` are cached; rest as `step_ps`."""
        tables = (self.tokens_ps, self.decode_ps, self.cached_ps, self.window_ps)
        pairs = seen_pairs(start, chunk, 0), seen_pairs(start, chunk, self.window) if self.window else 0
        # Arrays stand for the sequences of integers that the reference passes: mypy knows them as no `Sequence`.
        return int(step_ps(*tables, self.scalars, batch, cached, windowed, chunk, *pairs)) / PS  # type: ignore[arg-type]


def seen_pairs(start: int, chunk: int, window: int) -> int:
    """(new token, token it sees) of `chunk` tokens after `start` cached ones; each sees itself and what is before.

    `window`: sees at most so many; 0: all. Compiled as it stands by the fast simulator.

    Source: counting. Assumes: a causal mask.
    """
    if window == 0 or start + chunk <= window:
        return chunk * start + chunk * (chunk + 1) // 2
    if start >= window:
        return chunk * window
    below = window - start
    return below * start + below * (below + 1) // 2 + (chunk - below) * window
