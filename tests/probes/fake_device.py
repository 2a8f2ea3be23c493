"""A device on which time passes by its rates: what an operation does is counted here once more, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flopwise.probes.backend import AttentionShape
from flopwise.probes.file import ProbedDevice

FLOPS = {"bf16": 4e12, "fp16": 3e12, "fp32": 1e12, "int8": 6e12}
MOVED = {"copy": 1.0e11, "read": 1.1e11, "write": 1.2e11}
ATTENTION = {"prefill": 2e12, "training": 1.5e12, "decode": 9e10}
ELEMENTWISE, LAUNCH_S, WAIT_S = 8e10, 2e-6, 5e-6
TRANSFERS = {("cpu", "cuda:0"): 2.0e9, ("cuda:0", "cpu"): 2.5e9, ("cuda:0", "cuda:1"): 8e9}
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "int8": 1}
FORWARD = ((1, 1), (1, 1), (2, 1), (2, 1))  # tensors read and written by norm, activation, product, sum
BACKWARD = ((2, 1), (2, 1), (3, 2), (1, 1))  # by the same


class FakeDevice:
    library: Any = "torch"
    trains = True
    versions: Mapping[str, str] = {"torch": "9.9"}

    def __init__(
        self, slower: float = 1.0, *, kind: Any = "cuda", free: float = 8e10, beside: FakeDevice | None = None
    ) -> None:
        name = "cuda:0" if kind == "cuda" else "cpu"
        self.device = ProbedDevice(id=name, kind=kind, name="NVIDIA H100 80GB HBM3", threads=2)
        self.slower, self.free, self.waited = slower, free, 0
        self.time: list[float] = [0.0] if beside is None else beside.time
        self.dtypes: tuple[str, ...] = tuple(FLOPS)
        self.fault: Callable[[str, float], None] = lambda *_: None
        self.done: list[tuple[str, float]] = []

    def clock(self) -> float:
        return self.time[0]

    def wait(self) -> None:
        self.waited += 1

    def free_bytes(self) -> float:
        return self.free

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _takes(self, name: str, work: float, rate: float) -> Callable[[], None]:
        self.fault(name, work)

        def run() -> None:
            self.fault(name, work)
            self.done.append((name, work))
            self.time[0] += self.slower * work / rate

        return run

    def matmul(self, m: int, n: int, k: int, dtype: str, weights: int = 1) -> Callable[[], None]:
        return self._takes("matmul", m * n * (k + k) * weights, FLOPS[dtype])  # a product and a sum for each of k

    def memory(self, what: str, nbytes: int) -> Callable[[], None]:
        return self._takes(what, nbytes, MOVED[what])

    def attention(self, shape: AttentionShape, what: Any, dtype: str) -> Callable[[], None]:
        pairs = sum(token + 1 for token in range(shape.seq))
        flops = shape.batch * shape.heads * pairs * (2 * shape.dim + 2 * shape.dim)
        cache = 2 * shape.batch * shape.kv_heads * shape.seq * shape.dim * SIZES[dtype]
        work = {"prefill": flops, "training": flops + flops // 2 * 5, "decode": cache}[what]
        return self._takes(what, work, ATTENTION[what])

    def elementwise(self, elements: int, *, backward: bool) -> Callable[[], None]:
        tensors = sum(map(sum, FORWARD)) + backward * sum(map(sum, BACKWARD))
        return self._takes("elementwise", 4 * elements * tensors, ELEMENTWISE)

    def small_operation(self, count: int, *, backward: bool) -> Callable[[], None]:
        return self._takes("launch", count * (2 if backward else 1), 1 / LAUNCH_S)

    def transfer(self, nbytes: int, source: str, target: str, *, pinned: bool) -> Callable[[], None]:
        return self._takes("transfer", nbytes, TRANSFERS[source, target] * (1 if pinned else 0.5))

    def peers(self) -> list[int]:
        return [1]
