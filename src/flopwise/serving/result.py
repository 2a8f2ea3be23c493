"""What an estimate of serving says: figures with their intervals, memory, cost and energy of one replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flopwise.cost.intervals import ErrorBand
    from flopwise.serving.estimate import ServeJob
    from flopwise.serving.memory import ServingMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranged:
    """A figure with its 10-90 % interval."""

    value: float
    low: float
    high: float
    band: ErrorBand  # the measured errors that the interval is from
    bound: float | None = None  # what datasheet rates allow at best; the interval ends there


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeEstimate:
    """What one replica delivers. Seconds, tokens per second; tokens of all its GPUs unless said otherwise."""

    job: ServeJob
    ttft_s: Ranged
    tpot_s: Ranged | None  # None for models that do not generate
    e2e_s: float
    requests_per_s: float
    throughput: Ranged  # requests per second
    output_tokens_per_s: Ranged | None  # None for models that do not generate
    total_tokens_per_s: float
    concurrency: float
    max_whole_contexts: int  # requests whose prompt and whole answer are cached
    max_concurrency: int  # requests in flight: where caches grow with the answers, half of these on average
    kv_capacity_tokens: int
    memory: ServingMemory
    bound: str
    breakdown: tuple[tuple[str, float], ...]  # of one step with its average share of prefill
    lower_bound_s: float  # of that step
    mfu_frac: float  # of the peak rate of its matrix products, in that step
    usd_per_hour: float | None
    prefill_frac: float  # of the engine's time, spent on prompts
    usd_per_million_output_tokens: float | None  # the share of the bill that decoding takes; None where none does
    usd_per_million_input_tokens: float | None  # the share that prompts take: both together are the bill
    joules_per_request: float | None
    joules_per_output_token: float | None
    assumptions: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs of the replica."""
        return self.job.num_gpus
