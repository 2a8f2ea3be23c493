"""What a deployment may do besides running the model as it is: each technique with its numbers, none by default.

Nothing here computes: `technique_runner`, `speculative`, `offload` and `disaggregated` hold the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.facts.formats import BF16, WeightFormat

if TYPE_CHECKING:
    from flopwise.cost.rates import Rates
    from flopwise.facts.architecture import Model
    from flopwise.ops.types import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A draft proposes `tokens` tokens a step, of which each is accepted with probability `acceptance`."""

    name: str  # as users say it: a model, eagle, mtp, ngram
    tokens: int
    acceptance: float
    draft: Model | None = None  # None: looked up in the text so far, at no cost on the device
    weights: WeightFormat = BF16  # of the draft
    tp: Ints = 1
    shares_ends: bool = False  # embedding and head are the target's own: they run, but take no further memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """A share of the layers keeps its weights in the host's memory.

    `host` None: weights come to the device each step; else the host computes those layers, and holds their cache.
    """

    frac: float
    host: Rates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Techniques:
    """All of them; the defaults change nothing."""

    shared_tokens: int = 0  # with which all prompts begin: computed once, cached once
    hit_frac: float = 0.0  # of the tokens of a prompt, found in the cache, whoever put them there
    kept_frac: float = 1.0  # of the tokens of a sequence, whose keys and values are kept
    speculation: Speculation | None = None
    offload: Offload | None = None
    prefill_gpus: int = 0  # devices that work on prompts only, beside those of the layout; 0: all do both
    expert_skew: float = 1.0  # tokens of the most popular expert over the mean of all

    @property
    def steps_changed(self) -> bool:
        """Whether a step of the engine is another one."""
        return self != Techniques(prefill_gpus=self.prefill_gpus)


PLAIN = Techniques()
