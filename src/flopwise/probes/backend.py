"""The interface of a library through which a device is measured, and the inputs of a kind of measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
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
    """A device through a library. Methods that make an operation allocate its memory and return a function."""

    library: Literal["torch", "numpy"]
    device: ProbedDevice
    dtypes: tuple[str, ...]  # of matrix products
    trains: bool  # has a backward pass
    versions: Mapping[str, str]

    def wait(self) -> None:
        """Wait until the device has finished all operations."""

    def free_bytes(self) -> float:
        """Free memory of the device, in bytes."""

    def release(self) -> None:
        """Release unused memory."""

    def close(self) -> None:
        """Restore settings of the whole process: threads, rounding."""

    def matmul(self, m: int, n: int, k: int, dtype: str, weights: int = 1) -> Run:
        """The product of an (m, k) and a (k, n) matrix, with `weights` such (k, n) matrices in turn."""

    def memory(self, what: str, nbytes: int) -> Run:
        """Copy, read or write `nbytes` of memory; a copy reads one half and writes the other."""

    def attention(self, shape: AttentionShape, what: AttentionPass, dtype: str) -> Run:
        """Causal attention over whole sequences, with the backward pass for training; or decoding one token each."""

    def elementwise(self, elements: int, *, backward: bool) -> Run:
        """Norm, activation, product and sum over fp32 elements, optionally with the backward pass."""

    def small_operation(self, count: int, *, backward: bool) -> Run:
        """`count` dependent additions of a few elements, optionally with the backward pass."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The device through its library, whether the probe is quick, the folder to measure, and the remaining seconds."""

    backend: Backend
    quick: bool
    folder: Path
    left_s: float = math.inf


class NothingToMeasureError(Exception):
    """The device or the library does not support this kind; the message gives the reason."""
