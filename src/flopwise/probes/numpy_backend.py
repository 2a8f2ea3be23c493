"""The CPU through NumPy, if PyTorch is not installed."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Literal

from flopwise.errors import SpecError
from flopwise.probes.backend import AttentionPass, AttentionShape
from flopwise.probes.file import ProbedDevice
from flopwise.probes.machine import cpu_device, free_ram_bytes, usable_threads
from flopwise.probes.timing import Run

POOL_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class NumpyBackend:
    """Products by NumPy's BLAS, memory operations with as many threads, attention in plain operations."""

    library: Literal["torch", "numpy"] = "numpy"
    dtypes: tuple[str, ...] = ("fp32", "fp64")
    trains = False

    def __init__(self, threads: int | None) -> None:
        """Raises: SpecError: the number of threads can no longer be set."""
        self._limit: Any = _limit_threads(threads) if threads else None
        import numpy as np  # noqa: PLC0415 - the number of threads is set before

        self._np = np
        self._threads = threads or _usual_threads()
        self._pool = ThreadPoolExecutor(self._threads)
        self.device: ProbedDevice = cpu_device(self._threads)
        blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
        self.versions: Mapping[str, str] = {
            "python": platform.python_version(), "numpy": np.__version__,
            "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        }  # fmt: skip

    def wait(self) -> None:
        """Nothing to wait for: operations are synchronous."""

    def free_bytes(self) -> float:
        """Memory available without swapping, in bytes."""
        return free_ram_bytes()

    def release(self) -> None:
        """Nothing to do: Python releases memory."""

    def close(self) -> None:
        """End the threads, and restore the BLAS's number of threads."""
        self._pool.shutdown()
        if self._limit is not None:
            self._limit.restore_original_limits()

    def matmul(self, m: int, n: int, k: int, dtype: str, weights: int = 1) -> Run:
        """An (m, k) by a (k, n) matrix, by `weights` of them in turn."""
        np, kind = self._np, {"fp32": "float32", "fp64": "float64"}[dtype]
        x, w, out = self._random(m, k).astype(kind), self._random(k, n).astype(kind), np.empty((m, n), kind)
        each = [w, *(w.copy() for _ in range(weights - 1))]

        def run() -> Any:
            for one in each:
                np.matmul(x, one, out=out)
            return out

        return run

    def memory(self, what: str, nbytes: int) -> Run:
        """Copy, read or write memory, a part in each thread."""
        np = self._np
        whole = np.ones(nbytes // 4, np.float32)
        if what == "copy":
            target, source = whole[: whole.size // 2], whole[whole.size // 2 : 2 * (whole.size // 2)]
            return self._in_parts(np.copyto, target, source)
        return self._in_parts(np.ndarray.max if what == "read" else lambda part: part.fill(1.0), whole)

    def attention(self, shape: AttentionShape, what: AttentionPass, dtype: str) -> Run:
        """Scores, softmax and their product with the values, one after the other, including masked pairs."""
        np = self._np
        assert dtype == "fp32"
        tokens = 1 if what == "decode" else shape.seq
        q = self._random(shape.batch, shape.heads, tokens, shape.dim)
        k, v = (self._random(shape.batch, shape.kv_heads, shape.seq, shape.dim) for _ in range(2))
        q = q.reshape(shape.batch, shape.kv_heads, -1, shape.dim)
        future = np.triu(np.ones((tokens, shape.seq), dtype=bool), k=1) if tokens > 1 else None

        def run() -> Any:
            scores = q @ k.swapaxes(-1, -2) * np.float32(shape.dim**-0.5)
            if future is not None:
                scores.reshape(shape.batch, shape.heads, tokens, shape.seq)[:, :, future] = -np.inf
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            return scores @ v

        return run

    def elementwise(self, elements: int, *, backward: bool) -> Run:
        """Norm, activation, product and sum."""
        np = self._np
        assert not backward
        x, weight = self._random(elements // 256, 256), np.ones(256, np.float32)

        def run() -> Any:
            y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(1e-6)) * weight
            return y / (1 + np.exp(-y)) * x + x

        return run

    def small_operation(self, count: int, *, backward: bool) -> Run:
        """Additions of eight elements."""
        assert not backward
        x, one = self._np.zeros(8, self._np.float32), self._np.ones(8, self._np.float32)

        def run() -> Any:
            y = x
            for _ in range(count):
                y = y + one
            return y

        return run

    def _random(self, *shape: int) -> Any:
        return self._np.random.default_rng(0).standard_normal(shape, self._np.float32)

    def _in_parts(self, operation: Callable[..., Any], *arrays: Any) -> Run:
        """The operation on equal parts of the arrays in all threads; small arrays are not divided."""
        if self._threads == 1 or arrays[0].nbytes < 1 << 20:
            return lambda: operation(*arrays)
        parts = list(zip(*(self._np.array_split(a, self._threads) for a in arrays), strict=True))
        return lambda: list(self._pool.map(lambda part: operation(*part), parts))


def _usual_threads() -> int:
    """Number of threads of the BLAS."""
    setting = next((value for name in POOL_VARIABLES if (value := os.environ.get(name, "")).isdecimal()), None)
    return min(int(setting), usable_threads()) if setting and int(setting) else usable_threads()


def _limit_threads(threads: int) -> object:
    """Set the BLAS's number of threads; returns a function that restores it, if possible.

    Raises: SpecError: NumPy is loaded already, and the threadpoolctl package is not installed.
    """
    if "numpy" not in sys.modules:
        os.environ |= dict.fromkeys(POOL_VARIABLES, str(threads))
        return None
    try:
        return import_module("threadpoolctl").threadpool_limits(threads)
    except ImportError:
        raise SpecError(
            "the number of threads cannot be set after NumPy is loaded; set OPENBLAS_NUM_THREADS before the start, or "
            'pip install threadpoolctl, or PyTorch: pip install "flopwise[torch]"'
        ) from None
