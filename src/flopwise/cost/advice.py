"""What would make the shapes of a model suit a device better, each with the seconds that it saves.

A rule (`flopwise.cost.shape_rules`) looks at the model's tables and asks a `Clock` what a pass takes with one dimension
changed: the same estimate, once more. Nothing is advised that saves less than `WORTH` of the pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flopwise.cost.shapes import Operation, scalar

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.ops.types import Array, Ints

WORTH = 0.005
"""Share of the pass below which a gain is not worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change. `gain_s` is saved in each pass, `gain_frac` of the pass; negative where it must be and costs."""

    what: str
    now: str
    better: str
    why: str
    gain_s: float
    gain_frac: float
    needed: bool = False  # software refuses the shape as it is


@dataclass(frozen=True, slots=True)
class Fine:
    """What is as it should be."""

    what: str
    why: str


class Clock(Protocol):
    """What a pass of a model takes on one rank, everything else being equal.

    Source: the estimate of training or of serving that implements it. Assumes: as there.
    """

    @property
    def cluster(self) -> Cluster:
        """The device and its links."""

    @property
    def model(self) -> Model:
        """The model as it is."""

    @property
    def dtype(self) -> str:
        """Precision of the products inside the layers."""

    @property
    def task(self) -> str:
        """`train` or `serve`."""

    @property
    def flash(self) -> bool:
        """Whether attention runs in flash kernels."""

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""

    @property
    def batch(self) -> int:
        """Sequences of a pass."""

    @property
    def seq(self) -> int:
        """Tokens of a sequence: its own in training, cached ones in decoding."""

    def pass_s(
        self, model: Model | None = None, *, batch: Ints | None = None, seq: int | None = None, tp: Ints | None = None
    ) -> Array:
        """Seconds of one pass, for columns of batches or degrees: shape (n,)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A clock, what it says of the model as it is, and the operations behind that.

    Source: the clock. Assumes: gains of single changes; two together need not add up.
    """

    clock: Clock
    now_s: float
    operations: tuple[Operation, ...]

    def seconds_saved(self, model: Model) -> float:
        """Seconds of a pass that the changed model saves."""
        return self.now_s - scalar(self.clock.pass_s(model))

    def advice(
        self, what: str, now: object, better: object, why: str, gain_s: float, *, needed: bool = False
    ) -> Advice:
        """The advice with its gain as a share of the pass."""
        share = gain_s / self.now_s
        return Advice(
            what=what, now=str(now), better=str(better), why=why, gain_s=gain_s, gain_frac=share, needed=needed
        )

    def percent(self, gain_s: float) -> str:
        """A small gain as a share of the pass, for people."""
        share = 100 * gain_s / self.now_s
        return f"{share:.2f} %" if share >= 0.005 else "nothing"

    def worth(self, gain_s: float) -> bool:
        """Whether a gain is worth a line."""
        return gain_s >= WORTH * self.now_s


Finding = Advice | Fine


def sorted_advice(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """The largest gain first, what software refuses before all.

    Source: none needed. Assumes: gains in seconds of the same pass.
    """
    return tuple(sorted(advice, key=lambda a: (not a.needed, -a.gain_s)))
