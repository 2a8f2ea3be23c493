"""Single changes that would make a model being served need less memory, each with the bytes that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Experts, Model
from flopwise.facts.formats import cache_elem_bytes, weight_format
from flopwise.ops.weights import weight_bytes
from flopwise.serving.memory import ServingLayout, serving_memory
from flopwise.serving.precision import product_path

if TYPE_CHECKING:
    from flopwise.cost.rates import Rates

LOWER_WEIGHTS = ("fp8", "awq", "nvfp4", "Q4_K_M")
_LOWER_CACHE = ("fp8", "q4_0")


def runnable_formats(model: Model, rates: Rates) -> tuple[str, ...]:
    """Those of `LOWER_WEIGHTS` that a device has kernels for."""

    def runs(name: str) -> bool:
        try:
            product_path(model, name, rates)
        except MissingFactError:
            return False
        return True

    return tuple(name for name in LOWER_WEIGHTS if runs(name))


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
    hbm_bytes: float | None,
    weights: str = "bf16",
    kv_dtype: str = "bf16",
    engine_name: str = "vllm",
    weight_formats: Sequence[str] = LOWER_WEIGHTS,
    **how: Any,
) -> list[Remedy]:
    """Single changes of one service that save memory: those that fit first, then by what they save.

    `weight_formats`: those to try, that the device has kernels for. Other keyword arguments: as `serving_memory`.
    """
    asked: dict[str, Any] = {
        "layout": layout, "concurrency": concurrency, "context": context, "weights": weights, "kv_dtype": kv_dtype,
        "engine_name": engine_name, "hbm_bytes": hbm_bytes, **how,
    }  # fmt: skip
    changes: list[tuple[str, dict[str, Any]]] = []
    size = weight_bytes(model, weights)
    for name in weight_formats:
        gguf = weight_format(name).kind == "gguf"
        if gguf == (engine_name == "llama.cpp") and weight_bytes(model, name) < size:
            changes.append((f"weights in {name}", {"weights": name}))
    changes += [
        (f"KV cache in {name}", {"kv_dtype": name})
        for name in _LOWER_CACHE
        if cache_elem_bytes(name) < cache_elem_bytes(kv_dtype) and (name == "fp8" or engine_name == "llama.cpp")
    ]
    if layout.tp < 8:
        changes.append((f"tp {2 * layout.tp}", {"layout": replace(layout, tp=2 * layout.tp)}))
    changes.append((f"pp {2 * layout.pp}", {"layout": replace(layout, pp=2 * layout.pp)}))
    if any(isinstance(i, Experts) for k in model.stacks[0].kinds for i in k.items):
        changes.append((f"ep {2 * layout.ep}", {"layout": replace(layout, ep=2 * layout.ep)}))
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
            fits = hbm_bytes is not None and bool(after.fits)
            found.append(Remedy(change=change, saves_bytes=now - total, total_bytes=total, fits=fits))
    return sorted(found, key=lambda r: (not r.fits, -r.saves_bytes))
