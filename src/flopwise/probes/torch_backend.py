"""A device through PyTorch: CUDA and ROCm cards, Apple GPUs, the CPU."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Literal

from flopwise.errors import SpecError
from flopwise.probes.backend import AttentionPass, AttentionShape
from flopwise.probes.file import ProbedDevice
from flopwise.probes.machine import cpu_device, free_ram_bytes
from flopwise.probes.timing import Run
from flopwise.values import replace

INSTALL = 'pip install "flopwise[torch]"'
WIDTH = 256  # of a row that is normalised


def device_names(torch: Any) -> list[str]:
    """The devices that PyTorch can use here, accelerators first."""
    cards = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*cards, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


class TorchBackend:
    """Operations as models use them: `linear`, `scaled_dot_product_attention`, `rms_norm`."""

    library: Literal["torch", "numpy"] = "torch"
    trains = True

    def __init__(self, torch: Any, name: str, threads: int | None) -> None:
        """Open the device that PyTorch calls `name`.

        Raises: SpecError: there is no such device here; says what is missing.
        """
        usable = device_names(torch)
        name = "cuda:0" if name == "cuda" else name
        if name not in usable:
            raise SpecError(_absence(torch, name, usable))
        self._before = (torch.get_num_threads(), torch.get_float32_matmul_precision())
        if threads:
            torch.set_num_threads(threads)
        self._torch, self._functional = torch, import_module("torch.nn.functional")
        self._at = torch.device(name)
        self.device: ProbedDevice = _device_of(torch, name)
        self.dtypes = _dtypes(torch, self.device.kind, self._at)
        self._types = {
            "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
            "fp16": torch.float16, "int8": torch.int8, "fp8": getattr(torch, "float8_e4m3fn", None),
        }  # fmt: skip
        versions = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
        self.versions: Mapping[str, str] = {
            "python": platform.python_version(), "torch": str(torch.__version__),
            **{name: version for name, version in versions.items() if version},
        }  # fmt: skip
        torch.manual_seed(0)

    def wait(self) -> None:
        """Wait until the device has finished all operations."""
        if self._at.type == "cuda":
            self._torch.cuda.synchronize(self._at)
        elif self._at.type == "mps":
            self._torch.mps.synchronize()

    def free_bytes(self) -> float:
        """Free memory of the device, in bytes."""
        if self._at.type == "cuda":
            return float(self._torch.cuda.mem_get_info(self._at)[0])
        if self._at.type == "mps":
            return float(self._torch.mps.recommended_max_memory() - self._torch.mps.driver_allocated_memory())
        return free_ram_bytes()

    def release(self) -> None:
        """Release the allocator's cache."""
        if self._at.type in {"cuda", "mps"}:
            getattr(self._torch, self._at.type).empty_cache()

    def close(self) -> None:
        """Restore threads and rounding."""
        threads, precision = self._before
        self._torch.set_num_threads(threads)
        self._torch.set_float32_matmul_precision(precision)

    def matmul(self, m: int, n: int, k: int, dtype: str, weights: int = 1) -> Run:
        """The product of a linear layer without bias; fp8 and int8 with separate scales and wider accumulation."""
        torch = self._torch
        if dtype == "int8":
            x, w = (torch.randint(-9, 9, (a, k), dtype=torch.int8, device=self._at) for a in (m, n))
            return partial(torch._int_mm, x, w.t())  # noqa: SLF001 - it has no other name
        x, w = (self._random(a, k, dtype="fp32" if dtype == "fp8" else dtype) for a in (m, n))
        if dtype == "fp8":
            one = torch.ones((), device=self._at)
            x, w = x.to(self._types["fp8"]), w.to(self._types["fp8"])
            return partial(torch._scaled_mm, x, w.t(), one, one, out_dtype=torch.bfloat16)  # noqa: SLF001 - as above
        linear = self._functional.linear
        if self._at.type != "cuda":
            each = [w, *(w.clone() for _ in range(weights - 1))]
            return lambda: [linear(x, one) for one in each][-1]
        precision = "high" if dtype == "tf32" else "highest"

        def run() -> Any:
            torch.set_float32_matmul_precision(precision)
            return linear(x, w)

        return run

    def memory(self, what: str, nbytes: int) -> Run:
        """Copy, read or write `nbytes` of memory; a copy reads one half and writes the other."""
        torch = self._torch
        if what == "copy":
            source, target = (torch.ones(nbytes // 8, device=self._at) for _ in range(2))
            return partial(target.copy_, source)
        whole = torch.ones(nbytes // 4, device=self._at)
        return whole.sum if what == "read" else partial(whole.fill_, 1.0)

    def attention(self, shape: AttentionShape, what: AttentionPass, dtype: str) -> Run:
        """Attention in the implementation that PyTorch selects."""
        torch, tokens = self._torch, 1 if what == "decode" else shape.seq
        sizes = ((shape.heads, tokens), (shape.kv_heads, shape.seq), (shape.kv_heads, shape.seq))
        q, k, v = (self._random(shape.batch, heads, length, shape.dim, dtype=dtype) for heads, length in sizes)
        options: dict[str, bool] = {"is_causal": what != "decode"}
        if shape.heads != shape.kv_heads:
            options["enable_gqa"] = True
        attention = partial(self._functional.scaled_dot_product_attention, q, k, v, **options)
        if what != "training":
            return attention
        for one in (q, k, v):
            one.requires_grad_()
        ones = torch.ones_like(q)
        return lambda: torch.autograd.grad(attention(), (q, k, v), ones)

    def elementwise(self, elements: int, *, backward: bool) -> Run:
        """Norm, activation, product and sum over rows of activations."""
        torch, functional = self._torch, self._functional
        x = self._random(elements // WIDTH, WIDTH, dtype="fp32").requires_grad_(backward)
        ones = torch.ones(elements // WIDTH, WIDTH, device=self._at)
        weight = torch.ones(WIDTH, device=self._at, requires_grad=backward)

        def forward() -> Any:
            y = functional.rms_norm(x, (WIDTH,), weight)
            return functional.silu(y) * x + x

        return (lambda: torch.autograd.grad(forward(), (x, weight), ones)) if backward else forward

    def small_operation(self, count: int, *, backward: bool) -> Run:
        """Additions of eight elements."""
        torch = self._torch
        x, one = torch.zeros(8, device=self._at, requires_grad=backward), torch.ones(8, device=self._at)

        def forward() -> Any:
            y = x
            for _ in range(count):
                y = y + one
            return y

        return (lambda: torch.autograd.grad(forward(), x, one)) if backward else forward

    def transfer(self, nbytes: int, source: str, target: str, *, pinned: bool) -> Run:
        """A copy between places: PyTorch's names of devices, `cpu` for the host's memory."""
        torch = self._torch
        there, here = (
            torch.ones(nbytes, dtype=torch.uint8, device=at, pin_memory=pinned and at == "cpu")
            for at in (target, source)
        )
        return partial(there.copy_, here, non_blocking=pinned)

    def peers(self) -> list[int]:
        """The other devices of the same kind, by their indices."""
        if self._at.type != "cuda":
            return []
        return [index for index in range(self._torch.cuda.device_count()) if index != self._at.index]

    def _random(self, *shape: int, dtype: str) -> Any:
        return self._torch.randn(*shape, device=self._at).to(self._types[dtype])


def _dtypes(torch: Any, kind: str, at: Any) -> tuple[str, ...]:
    """Dtypes of matrix products on such a device."""
    if kind == "mps":
        return ("fp32", "fp16", "bf16")
    if kind == "cpu":
        return ("fp32", "bf16", "fp16", "int8", "fp64")
    capability = torch.cuda.get_device_capability(at)
    fp8 = ("fp8",) if kind == "cuda" and capability >= (8, 9) else ()
    tf32 = ("tf32",) if kind == "cuda" and capability >= (8, 0) else ()
    bf16 = ("bf16",) if kind == "rocm" or capability >= (8, 0) else ()
    return (*bf16, "fp16", *fp8, *tf32, "fp32", "int8", "fp64")


def _device_of(torch: Any, name: str) -> ProbedDevice:
    """The device as described by its driver."""
    kind = name.partition(":")[0]
    if kind == "cpu":
        return cpu_device(torch.get_num_threads())
    if kind == "mps":
        chip = cpu_device(1)
        return ProbedDevice(id=name, kind="mps", name=chip.name, memory_bytes=chip.memory_bytes)
    facts = torch.cuda.get_device_properties(torch.device(name))
    device = ProbedDevice(
        id=name, kind="rocm" if torch.version.hip else "cuda", name=facts.name, memory_bytes=facts.total_memory,
        cores=facts.multi_processor_count,
    )  # fmt: skip
    return replace(device, driver=_driver_version())


def _driver_version() -> str | None:
    """The version of NVIDIA's driver."""
    with suppress(Exception):  # on any fault of the driver's library only its version is missing
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    return None


def _absence(torch: Any, name: str, usable: list[str]) -> str:
    """The reason why a device cannot be used, and what to do."""
    kind, _, index = name.partition(":")
    there = f"usable here: {', '.join(usable)}"
    if kind not in {"cuda", "mps", "cpu"} or (index and not index.isdecimal()):
        return f"unknown device {name[:40]!r}; {there} (AMD GPUs are called cuda:0 ... as well)"
    if kind == "mps":
        return f"device mps: PyTorch {torch.__version__} finds no Apple GPU here; {there}"
    if kind == "cpu":
        return f"device {name!r}: the name of the CPU is cpu; {there}"
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"device {name}: this PyTorch ({torch.__version__}) is built without CUDA and ROCm; install a build for "
            f"your GPU (https://pytorch.org/get-started/locally), or measure the CPU: --device cpu"
        )
    if len(usable) == 1:
        return (
            f"device {name}: PyTorch {torch.__version__} sees no GPU; look at what nvidia-smi or rocm-smi says, and at "
            "CUDA_VISIBLE_DEVICES"
        )
    return f"device {name}: no device has that number; {there}"
