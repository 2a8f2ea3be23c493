"""Sessions of several turns: how long their prompts are, and how much of each the caches still hold, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from flopwise.ops.types import Array, Floats
from flopwise.serving.spec import mean_tokens
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.serving.sim.source import Traffic

DRAWN_SESSIONS = 2**16
"""Sessions whose turns are drawn for the moments of their number."""
HALVINGS = 40
"""Halvings of the logarithmic interval in which the time until an eviction is searched."""
LONGEST_S = 1e9
"""No cache keeps what nobody used for longer."""

ANSWERS_ELSEWHERE = (
    "instances for prompts cache prompts alone: of a session's history they compute the latest answer again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTraffic:
    """Sessions as they are asked for; lengths are a turn's own, as `flopwise.serving.sim.lengths` reads them."""

    turns: int | str
    input_tokens: int | str
    output_tokens: int | str
    think_s: float = 0.0
    tool_share: float = 0.0
    tool_pause_s: float = 0.0
    kv_stores: str | None = None
    shared_tokens: int = 0  # with which the first prompts of all sessions begin

    @property
    def mean_turns(self) -> float:
        """Turns of a session, on average."""
        return _moments(str(self.turns))[0]

    @property
    def prompt_tokens(self) -> float:
        """Tokens of a prompt, on average over turns: the k-th has k own inputs and k - 1 answers.

        Source: definition; a session of n turns has n (n + 1) / 2 own inputs in its prompts and n (n - 1) / 2 answers.
        """
        first, second = _moments(str(self.turns))
        own, answer = mean_tokens(self.input_tokens), mean_tokens(self.output_tokens)
        return (own * (second + first) + answer * (second - first)) / (2.0 * first)

    @property
    def history_tokens(self) -> float:
        """Tokens of earlier turns, part of `prompt_tokens`."""
        return self.prompt_tokens - mean_tokens(self.input_tokens)

    @property
    def pauses(self) -> tuple[tuple[float, float], ...]:
        """(share of the later turns, mean seconds of the exponential pause before them), of people and of tools."""
        return (1.0 - self.tool_share, self.think_s), (self.tool_share, self.tool_pause_s)

    def traffic(self, sessions_per_s: float, seed: int = 0) -> Traffic:
        """The sessions as traffic of the simulator."""
        from flopwise.serving.sim.source import Traffic  # noqa: PLC0415 - the simulator starts where one runs

        return Traffic(
            rate=sessions_per_s, turns=self.turns, think_s=self.think_s, tool_share=self.tool_share or None,
            tool_pause=self.tool_pause_s or None, input_tokens=self.input_tokens, output_tokens=self.output_tokens,
            seed=seed,
        )  # fmt: skip


@lru_cache(maxsize=64)
def _moments(turns: str) -> tuple[float, float]:
    """Mean and mean square of the turns of a session."""
    from flopwise.serving.sim.lengths import Lengths  # noqa: PLC0415 - as few workloads have sessions

    drawn = Lengths.parse(turns).draw(DRAWN_SESSIONS, np.random.default_rng(0)).astype(float)
    return float(drawn.mean()), float((drawn**2).mean())


class Found(NamedTuple):
    """Shares of prompt tokens: those found in the device's cache, and those that each store brings."""

    device_frac: Floats
    store_fracs: tuple[Floats, ...]

    @property
    def whole_frac(self) -> Floats:
        """The share of the histories that is not computed again."""
        return self.device_frac + sum(self.store_fracs)

    @classmethod
    def of(
        cls, sessions: SessionTraffic, turns_per_s: Floats, service_s: Floats, capacities: Sequence[Floats],
        block_tokens: int = 1, *, prompts_only: bool = False,
    ) -> Self:  # fmt: skip
        """The shares of histories that one cache still holds of turns that come `turns_per_s`; shape of the broadcast.

        `capacities`: tokens of the device's cache and of each store below it, which has what the one above evicts.
        `service_s`: from a turn's arrival to the end of its answer, while its tokens cannot be evicted.
        `prompts_only`: answers are made elsewhere: the cache has of a history all but the latest answer.

        A least-recently-used cache keeps what was used within some time T, the same for all where they are many: what
        is kept then fills it. A turn's tokens are there while it is answered, and then until the next turn, or for T;
        those of a session's last turn for all of T. Whole blocks of what all sessions share are there once, always.

        Source: Che, Tung and Wang 2002, Hierarchical web caching systems, section IV (the characteristic time of an
        LRU cache); a cascade of exclusive caches is one cache of their common size. Assumes: pauses are exponential;
        each turn comes to the cache that has its history, which is found whole or not at all, but for its last block.
        """
        zeros = np.zeros(np.broadcast_shapes(*map(np.shape, (turns_per_s, service_s, *capacities))))
        shared = sessions.shared_tokens // block_tokens * block_tokens
        missing = shared + (mean_tokens(sessions.output_tokens) if prompts_only else 0)  # of a turn's own in the cache
        hits, whole = list[Array](), zeros - shared
        for capacity in capacities:
            whole = whole + np.asarray(capacity)
            time_s = _kept_s(sessions, np.asarray(turns_per_s) + zeros, np.asarray(service_s) + zeros, whole, missing)
            hits.append(_back_within(sessions, time_s))
        later = 1.0 - 1.0 / sessions.mean_turns
        own = sessions.history_tokens - later * (missing + (block_tokens + 1) / 2.0)
        history = max(own, 0.0) / sessions.prompt_tokens
        parts = [history * (one - before) for one, before in zip(hits, [0.0, *hits], strict=False)]
        return cls(parts[0] + shared / sessions.prompt_tokens, tuple(parts[1:]))


def _back_within(sessions: SessionTraffic, time_s: Array) -> Array:
    """Probability that a pause is no longer than `time_s`; shape of it."""
    parts = [share * (-np.expm1(-time_s / mean_s) if mean_s else 1.0) for share, mean_s in sessions.pauses]
    return np.asarray(sum(parts)) + np.zeros(np.shape(time_s))


def _resident_tokens(
    sessions: SessionTraffic, turns_per_s: Array, service_s: Array, time_s: Array, missing: float = 0.0
) -> Array:
    """Tokens that a cache holds which keeps what was used within `time_s`, `missing` fewer of each turn's context.

    Source: Little's law: the rate at which tokens come times how long they stay, min(pause, T) on average.
    """
    first, second = _moments(str(sessions.turns))
    turn = mean_tokens(sessions.input_tokens) + mean_tokens(sessions.output_tokens)
    last = first * turn - missing  # tokens of the contexts that the last turns leave, of a session
    others = turn * (second + first) / 2.0 - first * missing - last
    stays_s = sum(share * mean_s * -np.expm1(-time_s / mean_s) for share, mean_s in sessions.pauses if mean_s)
    return turns_per_s / first * ((others + last) * service_s + others * stays_s + last * time_s)


def _kept_s(
    sessions: SessionTraffic, turns_per_s: Array, service_s: Array, capacity: Array, missing: float = 0.0
) -> Array:
    """The time T for which a cache of so many tokens keeps what nobody uses; by bisection."""
    low, high = np.full(np.shape(capacity), 1.0 / LONGEST_S), np.full(np.shape(capacity), LONGEST_S)
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        over = _resident_tokens(sessions, turns_per_s, service_s, middle, missing) > capacity
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return low
