"""Small transformers in plain PyTorch for `measure_training.py`: GPT-2-like, Llama-like and with routed experts.

Nothing here is a copy of a published model; the shapes are those of `Shape`, the layers what the names say. No dropout.
"""

# mypy: disable-error-code="misc, no-any-return, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's users write it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model is made of; `experts` 0: a dense one."""

    name: str
    family: str  # gpt2, llama or mixtral
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    longest: int
    experts: int = 0
    top_k: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """The shape as a configuration in the layout that flopwise reads."""
        if self.family == "gpt2":
            return {
                "model_type": "gpt2", "n_embd": self.width, "n_layer": self.layers, "n_head": self.heads,
                "n_inner": self.inner, "vocab_size": self.vocab, "n_positions": self.longest,
            }  # fmt: skip
        found = {
            "model_type": self.family, "hidden_size": self.width, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "intermediate_size": self.inner,
            "vocab_size": self.vocab, "max_position_embeddings": self.longest, "tie_word_embeddings": False,
        }  # fmt: skip
        if self.experts:
            found |= {"num_local_experts": self.experts, "num_experts_per_tok": self.top_k}
        return found


class Attention(nn.Module):
    """Causal self-attention, flash where PyTorch has such a kernel, or with its scores written out."""

    def __init__(self, shape: Shape, *, eager: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.eager = shape.heads, shape.kv_heads, eager
        self.dim, self.rotates = shape.width // shape.heads, shape.family != "gpt2"
        bias = shape.family == "gpt2"
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * self.dim, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)
        if self.rotates:
            angle = torch.arange(shape.longest)[:, None] / 10_000 ** (torch.arange(0, self.dim, 2) / self.dim)
            self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1), persistent=False)
            self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1), persistent=False)

    def _rotated(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return x * self.cos[:length].to(x.dtype) + turned * self.sin[:length].to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        sizes = [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim]
        q, k, v = (part.view(batch, length, -1, self.dim).transpose(1, 2) for part in self.qkv(x).split(sizes, -1))
        if self.rotates:
            q, k = self._rotated(q), self._rotated(k)
        if self.kv_heads < self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (k, v))
        if self.eager:
            mask = torch.full((length, length), float("-inf"), device=x.device, dtype=q.dtype).triu(1)
            scores = (q @ k.transpose(-1, -2)) * self.dim**-0.5 + mask
            mixed = scores.softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """Two products with GELU between (GPT), or three with SwiGLU (Llama)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.family != "gpt2"
        self.up = nn.Linear(shape.width, shape.inner, bias=not self.gated)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False) if self.gated else None
        self.down = nn.Linear(shape.inner, shape.width, bias=not self.gated)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Routed(nn.Module):
    """Each token to its `top_k` experts, one expert after the other."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top_k = shape.top_k
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = nn.ModuleList(Mlp(shape) for _ in range(shape.experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(flat).float().softmax(-1).topk(self.top_k, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(flat.dtype)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, token, (expert(flat[token]) * weight[token, place, None]).to(out.dtype))
        return out.view_as(x)


class Block(nn.Module):
    """Norm, attention, norm, feed-forward, with residuals."""

    def __init__(self, shape: Shape, *, eager: bool) -> None:
        super().__init__()
        norm = nn.LayerNorm if shape.family == "gpt2" else nn.RMSNorm
        self.before, self.between = norm(shape.width), norm(shape.width)
        self.attention = Attention(shape, eager=eager)
        self.feed = Routed(shape) if shape.experts else Mlp(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.feed(self.between(x))


class Transformer(nn.Module):
    """Embedding, blocks, norm, head and loss; `recompute` runs each block's forward pass again in the backward pass."""

    def __init__(self, shape: Shape, *, eager: bool = False, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.places = nn.Embedding(shape.longest, shape.width) if shape.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(shape, eager=eager) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width) if shape.family == "gpt2" else nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        if shape.family == "gpt2":
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss; `tokens` and `targets`: batch x sequence."""
        x = self.embed(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            again = self.recompute
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if again else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())
