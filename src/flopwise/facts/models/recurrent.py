"""Builders of blocks that carry a state along the sequence: Mamba, delta rules, lightning, short convolution.

Names and `reads` as in `blocks`; dimensions: see the legend of `facts.architecture`.
"""

from __future__ import annotations

from flopwise.facts.architecture import Convolution, Linear, Pointwise, Recurrence, Weight
from flopwise.facts.models.blocks import RMS, Items


def mamba1(
    width: int, source: str, *, inner: int, state: int, rank: int, kernel: int, bias: bool = False,
    conv_bias: bool = True, norms: bool = False,
) -> Items:  # fmt: skip
    """Mamba's selective scan (arXiv 2312.00752): `inner` channels of `state` elements, step sizes of rank `rank`.

    `norms` adds Jamba's norms of step size, B and C.
    """
    mixed = "mamba/x_proj"
    inside = [RMS(f"mamba/{n}_norm", dim, reads=mixed) for n, dim in (("dt", rank), ("b", state), ("c", state))]
    return (
        Linear("mamba/in_proj", width, 2 * inner, bias=bias, shard="column", reads=source),
        Convolution("mamba/conv", inner, kernel, bias=conv_bias, shard="column"),
        Pointwise("mamba/act", inner, "silu", shard="column"),
        Linear(mixed, inner, rank + 2 * state, shard="row"),
        *(inside if norms else ()),
        Linear("mamba/dt_proj", rank, inner, bias=True, shard="column", reads="mamba/dt_norm" if norms else mixed),
        Weight("mamba/A_log", inner * state, shard="column"),
        Weight("mamba/D", inner, shard="column"),
        Recurrence("mamba/scan", "mamba1", heads=inner, key_dim=state, value_dim=1, state=inner * (state + kernel - 1)),
        Pointwise("mamba/gate", inner, "silu", gated=True, shard="column"),
        Linear("mamba/out_proj", inner, width, bias=bias, shard="row"),
    )


def mamba2(
    width: int, source: str, *, heads: int, head_dim: int, state: int, groups: int, kernel: int, bias: bool = False,
    conv_bias: bool = True, norm: bool = True, chunk: int = 256,
) -> Items:  # fmt: skip
    """Mamba 2 (arXiv 2405.21060): `heads` x `head_dim` channels, B and C of `state` elements in `groups` groups."""
    inner, mixed = heads * head_dim, heads * head_dim + 2 * groups * state
    kept = heads * head_dim * state + mixed * (kernel - 1)
    return (
        Linear("mamba/in_proj", width, inner + mixed + heads, bias=bias, shard="column", reads=source),
        Convolution("mamba/conv", mixed, kernel, bias=conv_bias, shard="column"),
        Pointwise("mamba/act", mixed, "silu", shard="column"),
        Weight("mamba/A_log, D, dt_bias", 3 * heads, shard="column"),
        Recurrence("mamba/scan", "mamba2", heads=heads, key_dim=state, value_dim=head_dim, state=kept, chunk=chunk),
        Pointwise("mamba/gate", inner, "silu", gated=True, shard="column"),
        *((RMS("mamba/norm", inner, shard="column"),) if norm else ()),
        Linear("mamba/out_proj", inner, width, bias=bias, shard="row"),
    )


def delta_net(
    width: int, source: str, *, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int,
    joined: bool,
) -> Items:  # fmt: skip
    """Gated DeltaNet (arXiv 2412.06464); `joined`: two input matrices (Qwen3-Next) where Qwen3.5 has four."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values
    state = value_heads * key_dim * value_dim + mixed * (kernel - 1)

    def into(name: str, outputs: int) -> Linear:
        return Linear(f"delta/{name}", width, outputs, shard="column", reads=source)

    split = (into("qkv_proj", mixed), into("z_proj", values), into("b_proj", value_heads), into("a_proj", value_heads))
    return (
        *((into("qkvz_proj", mixed + values), into("ba_proj", 2 * value_heads)) if joined else split),
        Convolution("delta/conv", mixed, kernel, bias=False, shard="column"),
        Pointwise("delta/act", mixed, "silu", shard="column"),
        Weight("delta/A_log, dt_bias", 2 * value_heads, shard="column"),
        Recurrence("delta/rule", "delta", heads=value_heads, key_dim=key_dim, value_dim=value_dim, state=state),
        RMS("delta/norm", value_dim, groups=value_heads, shard="column"),
        Pointwise("delta/gate", values, "silu", gated=True, shard="column"),
        Linear("delta/out_proj", values, width, shard="row"),
    )


def lightning(width: int, heads: int, head_dim: int, source: str, *, chunk: int = 256) -> Items:
    """Lightning attention (arXiv 2401.04658) as in MiniMax-01: a decay, a norm and an output gate."""
    inner = heads * head_dim
    attend = Recurrence(
        "lightning/attend", "lightning", heads=heads, key_dim=head_dim, value_dim=head_dim, state=inner * head_dim,
        chunk=chunk,
    )  # fmt: skip
    return (
        Linear("lightning/qkv_proj", width, 3 * inner, shard="column", reads=source),
        Pointwise("lightning/act", 3 * inner, "silu", shard="column"),
        attend,
        RMS("lightning/norm", inner, shard="column"),
        Linear("lightning/gate_proj", width, inner, shard="column", reads=source),
        Pointwise("lightning/gate", inner, "sigmoid", gated=True, shard="column"),
        Linear("lightning/out_proj", inner, width, shard="row"),
    )


def short_convolution(width: int, kernel: int, source: str, *, bias: bool = False) -> Items:
    """LFM2's double-gated short convolution."""
    return (
        Linear("conv/in_proj", width, 3 * width, bias=bias, shard="column", reads=source),
        Pointwise("conv/gate", width, "gate", shard="column"),
        Convolution("conv/conv", width, kernel, bias=bias, shard="column"),
        Recurrence("conv/state", "conv", heads=1, key_dim=0, value_dim=0, state=width * (kernel - 1)),
        Pointwise("conv/gate_out", width, "gate", shard="column"),
        Linear("conv/out_proj", width, width, bias=bias, shard="row"),
    )


def kimi_delta(width: int, heads: int, head_dim: int, kernel: int, source: str) -> Items:
    """Kimi Delta Attention (arXiv 2510.26692): a delta rule whose decay has a value for each channel."""
    inner = heads * head_dim
    state = inner * (head_dim + 3 * (kernel - 1))

    def column(name: str, inputs: int, outputs: int, reads: str = source) -> Linear:
        return Linear(f"kda/{name}", inputs, outputs, shard="column", reads=reads)

    def low_rank(name: str) -> Linear:
        return Linear(f"kda/{name}", width, head_dim, reads=source)

    return (
        *(column(name, width, inner) for name in ("q_proj", "k_proj", "v_proj")),
        Convolution("kda/conv", 3 * inner, kernel, bias=False, shard="column"),
        Pointwise("kda/act", 3 * inner, "silu", shard="column"),
        low_rank("f_a_proj"),
        column("f_b_proj", head_dim, inner, ""),
        Weight("kda/A_log, dt_bias", inner + heads, shard="column"),
        column("b_proj", width, heads),
        Recurrence("kda/rule", "kda", heads=heads, key_dim=head_dim, value_dim=head_dim, state=state),
        low_rank("g_a_proj"),
        column("g_b_proj", head_dim, inner, ""),
        RMS("kda/norm", head_dim, groups=heads, shard="column", reads="kda/rule"),
        Pointwise("kda/gate", inner, "sigmoid", gated=True, shard="column"),
        Linear("kda/out_proj", inner, width, shard="row"),
    )
