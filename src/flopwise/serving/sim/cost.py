"""What a step takes, as integers: tables made once from the iteration model, one formula that the simulators share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.errors import SpecError
from flopwise.facts.architecture import Attend
from flopwise.ops.types import Array, Floats
from flopwise.serving.iteration import Runner, StepLoad
from flopwise.serving.memory import generates
from flopwise.serving.sim.trace import PS, Column
from flopwise.serving.techniques import TechniqueRunner

if TYPE_CHECKING:
    from flopwise.serving.memory import ServingLayout

LARGEST_PS = PS * 3600
"""No entry of a table may be longer than an hour, so that sums stay far below 2**63."""
EXACT_TOKENS, EVERY_TOKENS = 1024, 64
"""Steps of up to so many tokens are timed one by one, larger ones at multiples: kernels come in tiles of that size."""


def step_ps(
    tokens_ps: Sequence[int],
    decode_ps: Sequence[int],
    cached_ps: Sequence[int],
    window_ps: Sequence[int],
    prefill: Sequence[int],
    batch: int,
    cached: int,
    windowed: int,
    chunk: int,
    pairs: int,
    window_pairs: int,
) -> int:
    """Picoseconds of a step that decodes `batch` sequences and works through `chunk` tokens of prompts.

    `cached`: tokens that the decoding sequences have in cache together; `windowed`: the same, each up to the window;
    `pairs`, `window_pairs`: (new token, token it sees) of the prompts. Tables: as the fields of `StepCost`; `prefill`
    is `StepCost.numbers`. Compiled as it stands by the fast simulator.

    Source: the terms of `flopwise.serving.iteration.Runner.step`.
    Assumes: attention is linear in what it reads, with coefficients by batch.
    """
    total = tokens_ps[batch * prefill[4] + chunk]
    if batch > 0:
        total += decode_ps[batch] + cached_ps[batch] * cached + window_ps[batch] * windowed
    if chunk > 0:
        total += prefill[0] + prefill[1] * chunk + (prefill[2] * pairs + prefill[3] * window_pairs) // 1000
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
    request_ps: int = 0  # from a request's arrival until the scheduler sees it
    decode_tokens: int = 1  # of each decoding sequence that go through a step together

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """What `step_ps` takes beside the tables."""
        return (*self.prefill, self.decode_tokens)

    def __post_init__(self) -> None:
        """Refuse what the clock cannot count."""
        if len({len(self.decode_ps), len(self.cached_ps), len(self.window_ps)}) != 1:
            raise SpecError("decode_ps, cached_ps and window_ps must be of one length: the largest batch plus one")
        columns = (self.tokens_ps, self.decode_ps, self.cached_ps, self.window_ps, np.asarray(self.prefill))
        if any(np.any(c < 0) or np.any(c > LARGEST_PS) for c in columns) or min(self.window, self.request_ps) < 0:
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
        return int(step_ps(*tables, self.numbers, batch, cached, windowed, chunk, *pairs)) / PS  # type: ignore[arg-type]


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


def step_cost(runner: Runner, layout: ServingLayout, *, max_batch: int, step_tokens: int, context: int) -> StepCost:
    """Tables of a replica that runs up to `max_batch` sequences of up to `context` tokens, `step_tokens` a step.

    Source: `flopwise.serving.iteration.Runner.step`, timed at a few hundred loads and interpolated.
    Assumes: text only: no image or sound is encoded. Attention over the cache is linear in the tokens cached, and that
    of prompts in tokens and pairs (least squares of relative errors over contexts up to `context`). Chunked layers are
    taken as windowed ones; where windows differ, as the widest.
    Raises: SpecError: a model that does not decode from a cache, or that has an encoder besides.
    """
    if not generates(runner.model) or runner.model.kind == "encoder-decoder":
        raise SpecError(f"{runner.model.name} is no decoder: the simulator runs models that generate from their cache")
    timed = _Assisted(runner, layout) if isinstance(runner, TechniqueRunner) else _Timed(runner, layout)
    most = max(step_tokens, max_batch) + (timed.each - 1) * max_batch
    grid = np.unique(np.r_[1 : min(most, EXACT_TOKENS) + 1, EXACT_TOKENS : most + 1 : EVERY_TOKENS, most])
    tokens_s = np.interp(np.arange(1, most + 1), grid, timed.tokens_s(grid))
    batch = np.arange(1, max_batch + 1)
    decode, cached, window = timed.decode_s(batch, context, tokens_s)
    return StepCost(
        tokens_ps=np.maximum(_table(tokens_s), 1) * (np.arange(most + 1) > 0),
        decode_ps=_table(decode),
        cached_ps=_table(cached),
        window_ps=_table(window),
        window=timed.window,
        prefill=timed.prefill(step_tokens, context),
        request_ps=round(runner.engine.request_s * PS),
        decode_tokens=timed.each,
    )


def _table(seconds: Array) -> Column:
    """Picoseconds, with the entry of nothing before them."""
    return np.concatenate([[0], np.rint(seconds * PS).astype(np.int64)])


class _Timed:
    """Seconds of the parts of a step, by load."""

    def __init__(self, runner: Runner, layout: ServingLayout) -> None:
        self.runner, self.layout, self.each = runner, layout, 1
        stack = runner.model.stacks[0]
        counts = np.bincount(np.asarray(stack.order, dtype=np.intp), minlength=len(stack.kinds)).tolist()
        self.attention = [
            (item, count, bool(item.window or item.chunk) and not item.compress)
            for kind, count in zip(stack.kinds, counts, strict=True)
            for item in kind.items
            if isinstance(item, Attend)
        ]
        self.window = max((_reach(item) for item, _, windowed in self.attention if windowed), default=0)

    def attention_s(self, load: StepLoad, *, windowed: bool) -> Floats:
        """Attention of all layers of one sort."""
        total: Floats = 0.0
        for item, count, sort in self.attention:
            if sort == windowed:
                kernels = self.runner.kernels_of((item,), load, self.layout, inside=True)
                total = total + count * sum((k.timing.seconds for k in kernels), start=0.0)
        return total

    def beside_s(self, load: StepLoad, *, windowed: bool) -> Floats:
        """What a step takes beside its tokens by what is cached: attention in layers with windows, or in others."""
        return self.attention_s(load, windowed=windowed)

    def rest_s(self, load: StepLoad) -> Array:
        """A step without its attention."""
        step = self.runner.step(load, self.layout).seconds
        return np.asarray(step - self.attention_s(load, windowed=False) - self.attention_s(load, windowed=True))

    def tokens_s(self, tokens: Array) -> Array:
        """Steps of so many tokens of one prompt."""
        return self.rest_s(StepLoad(prefill_tokens=tokens, prefill_context=tokens, prompts=1.0))

    def rows_s(self, batch: Array) -> Array:
        """Steps of so many decoding sequences: each has a row of the head."""
        return self.rest_s(StepLoad(decode_batch=batch, decode_context=1024))

    def decode_s(self, batch: Array, context: int, tokens_s: Array) -> tuple[Array, Array, Array]:
        """Fixed seconds, seconds a cached token and a token in the window, by batch; `tokens_s` by tokens from 1."""
        fixed, slopes = np.zeros(len(batch)), []
        for windowed, longest in ((False, context), (True, min(self.window or 1, context))):
            contexts = np.unique(np.geomspace(min(128, longest), longest, 7).astype(np.int64))
            load = StepLoad(decode_batch=batch[:, None], decode_context=contexts[None, :])
            seconds = np.broadcast_to(self.beside_s(load, windowed=windowed), (len(batch), len(contexts)))
            each, slope = _lines(contexts.astype(np.float64), seconds)
            fixed = fixed + each
            slopes.append(slope / batch)
        fixed = fixed + np.maximum(self.rows_s(batch) - tokens_s[: len(batch)], 0.0)
        return fixed, slopes[0], slopes[1]

    def prefill(self, step_tokens: int, context: int) -> tuple[int, int, int, int]:
        """Coefficients of prompts' attention, as `StepCost.prefill`."""
        chunks = np.unique(np.geomspace(min(64, step_tokens), min(step_tokens, context), 8).astype(np.int64))
        chunk, before = (a.ravel() for a in np.meshgrid(chunks, np.r_[0, np.geomspace(128, context, 6)].astype(int)))
        chunk, before = chunk[chunk + before <= context], before[chunk + before <= context]
        load = StepLoad(prefill_tokens=chunk, prefill_context=chunk + before, prompts=1.0)
        found = np.zeros(4)
        for place, windowed in ((2, False), (3, True)):
            seconds = np.broadcast_to(self.beside_s(load, windowed=windowed), chunk.shape)
            reach = self.window if windowed else 0
            rows = zip(before.tolist(), chunk.tolist(), strict=True)
            pairs = np.array([seen_pairs(b, c, reach) for b, c in rows], dtype=np.float64)
            if np.any(seconds):
                found[[0, 1, place]] += _positive(np.stack([np.ones(len(chunk)), chunk, pairs], axis=1), seconds)
        a, b, c, d = (found * [PS, PS, 1000 * PS, 1000 * PS]).round().astype(np.int64).tolist()
        return a, b, c, d


class _Assisted(_Timed):
    """The same of a runner with techniques: what they add to a step counts with what is cached.

    Tokens are timed without drafts; a step that decodes, or reads prompts, is then as long as `TechniqueRunner.step`.
    """

    def __init__(self, runner: TechniqueRunner, layout: ServingLayout) -> None:
        alone = replace(runner, draft=None, proposals=0, cached_tokens=0.0, grown_tokens=0.0, kept_frac=1.0)
        super().__init__(alone, layout)
        self.whole, self.each = replace(runner, cached_tokens=0.0), 1 + runner.proposals

    def beside_s(self, load: StepLoad, *, windowed: bool) -> Floats:
        """What is left of a whole step."""
        how = self.whole
        held = (load.decode_context + how.grown_tokens) * how.kept_frac + how.proposals
        inside = self.attention_s(replace(load, decode_context=held, decode_tokens=self.each), windowed=True)
        if windowed:
            return inside
        tokens = load.decode_batch * self.each + load.prefill_tokens
        left: Floats = how.step(load, self.layout).seconds - self.tokens_s(np.asarray(tokens)) - inside
        return np.maximum(left, 1.0 / PS)

    def rows_s(self, batch: Array) -> Array:
        """Nothing more: rows of the head are in what is left of a step."""
        return np.zeros(len(batch))


def _reach(item: Attend) -> int:
    """Tokens that a windowed layer sees at most."""
    return int(item.window or item.chunk or 0)


def _lines(x: Array, y: Array) -> tuple[Array, Array]:
    """Intercept and slope, neither negative, of each row of `y` over `x`; relative errors count alike."""
    if not np.any(y):
        return np.zeros(len(y)), np.zeros(len(y))
    weight = 1.0 / y**2
    total, mean_x, mean_y = weight.sum(1), (weight * x).sum(1), (weight * y).sum(1)
    spread = (weight * x * x).sum(1) * total - mean_x**2
    slope = ((weight * x * y).sum(1) * total - mean_x * mean_y) / np.where(spread > 0, spread, 1.0)
    slope = np.maximum(slope, 0.0)
    fixed = (mean_y - slope * mean_x) / total
    through_zero = (weight * x * y).sum(1) / (weight * x * x).sum(1)
    return np.maximum(fixed, 0.0), np.where(fixed < 0, through_zero, slope)


def _positive(columns: Array, seconds: Array) -> Array:
    """Coefficients of the columns, none negative, with the least squares of relative errors."""
    used = list(range(columns.shape[1]))
    found: Any = np.zeros(columns.shape[1])
    while used:
        scale = np.abs(columns[:, used] / seconds[:, None]).max(0)
        part = np.linalg.lstsq(columns[:, used] / seconds[:, None] / scale, np.ones(len(seconds)), rcond=None)[0]
        if np.all(part >= 0):
            found[used] = part / scale
            break
        used.pop(int(np.argmin(part)))
    return np.asarray(found)
