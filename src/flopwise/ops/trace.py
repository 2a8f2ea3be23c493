"""What has been kept so far while a layer's items are followed, and what decides what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flopwise.facts.architecture import Stream
from flopwise.ops.habits import Habit
from flopwise.ops.shapes import Shape, Split, Trainable, local_units, rows
from flopwise.ops.types import Floats, Ints

Implementation = Literal["eager", "sdpa", "fused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything beside the items that decides what is kept.

    Source: PyTorch's autograd and dropout kernels. Assumes: activations share one element size.
    """

    shape: Shape
    split: Split
    implementation: Implementation
    habit: Habit
    elem_bytes: float = 2.0
    cpu: bool = False  # PyTorch's CPU code: dropout masks and a norm's statistics in the activations' own dtype
    flash: bool = True  # fused: attention without a score matrix
    trainable: Trainable = "all"
    rank: int = 0  # of the adapters on the items that `trainable` names

    @property
    def mask_bytes(self) -> float:
        """One element of a dropout mask: bool on GPUs."""
        return self.elem_bytes if self.cpu else 1.0

    @property
    def wide(self) -> bool:
        """Whether a cast to fp32 makes a new tensor."""
        return self.elem_bytes < 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """An output of an item: its name, its size on one rank, whether a gradient is needed."""

    key: str
    nbytes: Floats
    grad: bool  # something before it is trained: its gradient is needed


@dataclass(slots=True)
class Trace:
    """The tensors kept so far, by name, and the outputs of the items so far.

    Source: PyTorch's saved tensors: one that two operations keep is held once.
    Assumes: nothing is freed before the backward pass.
    """

    setting: Setting
    last: Tensor
    kept: dict[str, Floats] = field(default_factory=dict)
    made: dict[str, Tensor] = field(default_factory=dict)
    scores: set[str] = field(default_factory=set)  # kept tensors that selective recompute gives up
    rotated: dict[str, int] = field(default_factory=dict)  # attention blocks with rope: dimensions rotated

    def keep(self, tensor: Tensor) -> None:
        """Keep a tensor that exists anyway."""
        self.kept[tensor.key] = tensor.nbytes

    def note(self, key: str, nbytes: Floats, *, scores: bool = False) -> None:
        """Keep a tensor that nothing else refers to."""
        self.kept[key] = nbytes
        if scores:
            self.scores.add(key)

    def source(self, reads: str) -> Tensor:
        """What an item reads: the output of the item named, the layer's own input, or what came last."""
        if not reads:
            return self.last
        return self.made.get(reads, self.made["input"])

    def put(self, name: str, nbytes: Floats, *, grad: bool) -> None:
        """Register the output of an item."""
        self.last = self.made[name] = Tensor(name, nbytes, grad)

    @property
    def trains_weights(self) -> bool:
        """Whether the items' own weights get gradients."""
        return self.setting.trainable == "all"

    def has_adapter(self, name: str) -> bool:
        """Whether an adapter sits on the item."""
        chosen = self.setting.trainable
        return isinstance(chosen, frozenset) and (name in chosen or name.rsplit("/", 1)[-1] in chosen)


def outside(dim: Ints, stream: Stream, s: Setting) -> Floats:
    """Elements of a tensor of `dim` a row outside the region that tensor parallelism cuts.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198) section 4.2.2. Assumes: sequence parallelism cuts evenly.
    """
    whole = rows(stream, s.shape, s.split) * dim
    return whole / s.split.tp if s.split.sequence_parallel else whole


def inside(dim: Ints, stream: Stream, s: Setting, unit: int = 1) -> Floats:
    """Elements of a tensor whose columns are cut.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198) section 4.2.1. Assumes: the fullest rank is described.
    """
    return rows(stream, s.shape, s.split) * local_units(dim, s.split.tp, unit)
