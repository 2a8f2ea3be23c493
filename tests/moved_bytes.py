"""Bytes that PyTorch's own kernels move, counted on its meta device as it dispatches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VIEWS = frozenset({
    "view", "_unsafe_view", "split", "split_with_sizes", "slice", "expand", "detach", "unsqueeze", "squeeze", "t",
    "transpose", "alias", "select", "chunk", "zeros_like", "new_zeros", "ones_like", "empty_like", "scalar_tensor",
})  # fmt: skip
"""Operations that move nothing, or stand for what another operation brings."""


def moved_bytes(forward: Callable[..., Any], *inputs: Any) -> tuple[float, float]:
    """Bytes that `forward` reads and writes, and those of the derivatives by `inputs`, which need not be leaves."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed where it is not installed
        total = 0.0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ not in VIEWS:
                leaves = tree_leaves((args, kwargs, made))
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                self.total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            return made

    with Counter() as there:
        result = forward(*inputs)
    gradient = torch.empty_like(result)
    with Counter() as back:
        torch.autograd.grad(result, inputs, gradient)
    return there.total, back.total


def meta_tensor(*shape: int, dtype: str = "bfloat16") -> Any:
    """A tensor on no device that needs a gradient."""
    import torch

    return torch.empty(*shape, dtype=getattr(torch, dtype), device="meta", requires_grad=True)
