"""What reading the data does to a step: the time in which all wait for storage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Convolution, Linear, Model, Stack
from flopwise.ops.flops import runs
from flopwise.units import format_rate
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.training.layout import Layout, Recipe

SMALL_VOCABULARY = 2**16
"""Tokens of vocabularies up to this are stored in two bytes, others in four (Megatron's and Levanter's data sets)."""
SAMPLE_BYTES = 2
"""Of one sample of sound: 16 bits."""
SAMPLES_PER_FRAME = 160
"""Samples of sound between two frames of a log-mel spectrum: 10 ms at 16 kHz."""
LINE = "storage_io"
"""The line of a step's breakdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The storage that training reads from: bandwidth to a node and to all, and the bytes of a stored token."""

    storage: str
    bytes_per_s: float
    token_bytes: float
    total_bytes_per_s: float | None = None  # to all nodes together; None: not known, they add up
    origin: str = "given"
    date: str = ""

    @property
    def text(self) -> str:
        """For people."""
        total = self.total_bytes_per_s
        most = "" if total is None else f", at most {format_rate(total)} in total"
        return f"{self.storage}: {format_rate(self.bytes_per_s)} per node{most}; {self.token_bytes:g} bytes per token"

    def batch_bytes(self, recipe: Recipe) -> float:
        """Bytes of the records of one step."""
        return recipe.useful_tokens * self.token_bytes

    def nodes(self, layout: Layout, gpus_per_node: int) -> int:
        """Nodes that read: all, or one for each replica where a replica spans several."""
        return max(1, min(-(-int(layout.num_gpus) // gpus_per_node), int(layout.dp)))

    def read_s(self, recipe: Recipe, layout: Layout, gpus_per_node: int) -> float:
        """Seconds to read the records of one step; ranks of one replica share what one of them reads."""
        together = self.bytes_per_s * self.nodes(layout, gpus_per_node)
        return self.batch_bytes(recipe) / min(together, self.total_bytes_per_s or together)


def stored_token_bytes(model: Model, seq_len: float) -> float:
    """Bytes of a sample's record for each of its `seq_len` tokens.

    2 or 4 for text, the decoded pixels of an image's patch, the sound behind a frame; where an encoder hears a clip
    of fixed length (Whisper), its share of that clip as well.

    Raises:
        MissingFactError: the size of an image's patch is not known.
    """
    first, hears = model.stacks[0], _hearing_stack(model)
    if first.tokens_per_sample is not None:
        stem = next((i for i in first.before if isinstance(i, Linear)), None)
        if stem is None:
            raise MissingFactError(f"{model.name}: the size of a sample is not known; give its bytes")
        return float(stem.inputs)
    if hears is first:
        return _sound_bytes(first)
    text = 2.0 if model.vocab <= SMALL_VOCABULARY else 4.0
    return text if hears is None else text + _sound_bytes(hears) * (hears.tokens_per_sample or seq_len) / seq_len


def holds_text_alone(model: Model) -> bool:
    """True if the records that train `model` hold token ids and nothing else."""
    return model.stacks[0].tokens_per_sample is None and _hearing_stack(model) is None


def _hearing_stack(model: Model) -> Stack | None:
    """The stack that sound enters, by convolutions, in each pass; None where there is none."""
    return next((s for s in model.stacks if s.before[:1] and _is_stem(s) and runs(model, s)), None)


def _is_stem(stack: Stack) -> bool:
    return isinstance(stack.before[0], Convolution)


def _sound_bytes(stack: Stack) -> float:
    """Bytes of sound behind one token of a stack: those of all strides of its stem.

    Source: sound of 16 kHz in 16 bits, as wav2vec 2.0 takes it (arXiv:2006.11477) and Whisper, whose frames of the
    log-mel spectrum are 10 ms apart (arXiv:2212.04356, section 2.2). Assumes: not compressed.
    """
    stem = [item for item in stack.before if isinstance(item, Convolution)]
    samples = 1 if stem[0].channels == 1 else SAMPLES_PER_FRAME
    return float(samples * SAMPLE_BYTES * math.prod(item.stride for item in stem))
