"""What a library has to offer so that a device can be measured through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from flopwise.probes.file import ProbedDevice
from flopwise.probes.timing import Run
from flopwise.values import dataclass

ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
AttentionPass = Literal["prefill", "training", "decode"]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sequences, heads and KV heads, tokens of a sequence, width of a head."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    dim: int


class Backend(Protocol):
    """A device through a library. What makes an operation takes its memory at once and gives what runs it."""

    library: Literal["torch", "numpy"]
    device: ProbedDevice
    dtypes: tuple[str, ...]  # that products come in
    trains: bool  # follows operations for their backward pass
    versions: Mapping[str, str]

    def wait(self) -> None:
        """Return when the device has done all that it was given."""

    def free_bytes(self) -> float:
        """Memory of the device that can be had now."""

    def release(self) -> None:
        """Give back what is no longer used."""

    def close(self) -> None:
        """Set back what the whole process shares: threads, ways of rounding."""

    def matmul(self, m: int, n: int, k: int, dtype: str, weights: int = 1) -> Run:
        """An (m, k) by a (k, n) matrix, by `weights` of them in turn."""

    def memory(self, what: str, nbytes: int) -> Run:
        """Copy, read or write memory: `nbytes` in all, of which a copy reads one half and writes the other."""

    def attention(self, shape: AttentionShape, what: AttentionPass, dtype: str) -> Run:
        """Causal attention over whole sequences, with its backward pass for training; decode: one new token each."""

    def elementwise(self, elements: int, *, backward: bool) -> Run:
        """Norm, activation, product and sum over fp32 elements, and their backward pass."""

    def small_operation(self, count: int, *, backward: bool) -> Run:
        """`count` additions of a few elements, each on the result of the one before, and their backward pass."""
