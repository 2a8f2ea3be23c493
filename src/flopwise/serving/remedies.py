"""Single changes that would make a model being served need less memory, each with the bytes that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.cost.fabric import fabric
from flopwise.cost.rates import Rates, rates
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.engine_support import support
from flopwise.facts.formats import cache_elem_bytes, weight_format
from flopwise.facts.software import engine
from flopwise.ops.weights import weight_bytes
from flopwise.serving.estimate import check_layout
from flopwise.serving.memory import ServingLayout, serving_memory
from flopwise.serving.precision import product_path

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model

LOWER_WEIGHTS = ("fp8", "awq", "nvfp4", "Q4_K_M")
_LOWER_CACHE = ("fp8", "q4_0")
MOST_TP = 8
"""Degree beyond which tensor parallelism is no remedy."""


def runnable_formats(
    model: Model, engine_name: str, achieved: Rates | None, names: Sequence[str] = LOWER_WEIGHTS
) -> tuple[str, ...]:
    """Those of `names` that the engine is documented to run and the device has kernels for.

    Files of llama.cpp are for engines of one's own machine. `achieved`: rates of the device; None: any.
    """
    local, row = engine(engine_name).local, support(engine_name)

    def runs(name: str) -> bool:
        form = weight_format(name)
        if not row.runs(form) or (form.kind == "gguf") > local:
            return False
        try:
            return achieved is None or bool(product_path(model, name, achieved))
        except MissingFactError:
            return False

    return tuple(name for name in names if runs(name))


def allows(model: Model, layout: ServingLayout) -> bool:
    """Whether heads, experts and layers of a model allow a layout."""
    try:
        check_layout(model, layout)
    except SpecError:
        return False
    return True


def _joins(device: Accelerator) -> bool:
    """Whether a link or PCIe is known that joins such devices."""
    try:
        return bool(fabric(device, gpus_per_node=2))
    except MissingFactError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change of a service: what to do, what it saves on the fullest GPU, what is left, and whether that fits."""

    change: str
    saves_bytes: float
    total_bytes: float
    fits: bool


def serving_remedies(
    model: Model,
    layout: ServingLayout,
    *,
    concurrency: int,
    context: int,
    device: Accelerator | None,
    weights: str = "bf16",
    kv_dtype: str = "bf16",
    engine_name: str = "vllm",
    **how: Any,
) -> list[Remedy]:
    """Single changes of one service that save memory: those that fit first, then by what they save.

    `device` None: any, and nothing is known to fit. Other keyword arguments: as `serving_memory`.
    """
    asked: dict[str, Any] = {
        "layout": layout, "concurrency": concurrency, "context": context, "weights": weights, "kv_dtype": kv_dtype,
        "engine_name": engine_name, **how,
    }  # fmt: skip
    if device is not None:
        asked |= {"hbm_bytes": device.hbm_bytes, "device_kind": device.kind}
    changes: list[tuple[str, dict[str, Any]]] = []
    size = weight_bytes(model, weights)
    changes += [
        (f"weights in {name}", {"weights": name})
        for name in runnable_formats(model, engine_name, None if device is None else rates(device))
        if weight_bytes(model, name) < size
    ]
    changes += [
        (f"KV cache in {name}", {"kv_dtype": name})
        for name in _LOWER_CACHE
        if cache_elem_bytes(name) < cache_elem_bytes(kv_dtype)
        and (name == "fp8" or engine(engine_name).name.startswith("llama.cpp"))
    ]
    wider = {"tp": replace(layout, tp=2 * layout.tp), "pp": replace(layout, pp=2 * layout.pp)}
    changes += [
        (f"{axis} {getattr(more, axis)}", {"layout": more})
        for axis, more in wider.items()
        if more.tp <= max(MOST_TP, layout.tp) and allows(model, more) and (device is None or _joins(device))
    ]
    if concurrency > 1:
        changes.append((f"{concurrency // 2:,} concurrent sequences", {"concurrency": concurrency // 2}))
    if context >= 2048:
        changes.append((f"a context of {context // 2:,} tokens", {"context": context // 2}))
    now = float(serving_memory(model, **asked).total_bytes)
    found: list[Remedy] = []
    for change, keys in changes:
        after = serving_memory(model, **(asked | keys))
        total = float(after.total_bytes)
        if total < now:
            fits = device is not None and bool(after.fits)
            found.append(Remedy(change=change, saves_bytes=now - total, total_bytes=total, fits=fits))
    return sorted(found, key=lambda r: (not r.fits, -r.saves_bytes))
