"""What reading the data does to a step: the time in which all wait for storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Linear, Model
from flopwise.units import format_rate
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.training.layout import Layout, Recipe

SMALL_VOCABULARY = 2**16
"""Tokens of vocabularies up to this are stored in two bytes, others in four (Megatron's and Levanter's data sets)."""
LINE = "storage_io"
"""The line of a step's breakdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The storage that training reads from: bandwidth to a node, and the bytes of a stored token."""

    storage: str
    bytes_per_s: float
    token_bytes: float
    origin: str = "given"
    date: str = ""

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.storage}: {format_rate(self.bytes_per_s)} per node; {self.token_bytes:g} bytes per token"

    def batch_bytes(self, recipe: Recipe) -> float:
        """Bytes of the records of one step."""
        return recipe.useful_tokens * self.token_bytes

    def nodes(self, layout: Layout, gpus_per_node: int) -> int:
        """Nodes that read: all, or one for each replica where a replica spans several."""
        return max(1, min(-(-int(layout.num_gpus) // gpus_per_node), int(layout.dp)))

    def read_s(self, recipe: Recipe, layout: Layout, gpus_per_node: int) -> float:
        """Seconds to read the records of one step; ranks of one replica share what one of them reads."""
        return self.batch_bytes(recipe) / (self.bytes_per_s * self.nodes(layout, gpus_per_node))


def stored_token_bytes(model: Model) -> float:
    """Bytes of a sample's record for each token: 2 or 4 for text; the decoded pixels of an image's patch."""
    if model.stacks[0].tokens_per_sample is not None:
        stem = next((i for i in model.stacks[0].before if isinstance(i, Linear)), None)
        if stem is None:
            raise MissingFactError(f"{model.name}: the size of a sample is not known; give its bytes")
        return float(stem.inputs)
    return 2.0 if model.vocab <= SMALL_VOCABULARY else 4.0
