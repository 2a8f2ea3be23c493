"""Builders of blocks that carry a state along the sequence: Mamba, delta rules, lightning, short convolution.

Names and `reads` as in `blocks`; dimensions: see the legend of `facts.architecture`.
"""

from __future__ import annotations

from flopwise.facts.architecture import Convolution, Linear, Pointwise, Recurrence, Weight
from flopwise.facts.models.blocks import RMS, Items


def mamba1(
    width: int,
    source: str,
    *,
    inner: int,
    state: int,
    rank: int,
    kernel: int,
    bias: bool = False,
    conv_bias: bool = True,
    norms: bool = False,
) -> Items:
    """Mamba's selective scan (arXiv 2312.00752): `inner` channels of `state` elements, step sizes of rank `rank`.

    `norms` adds Jamba's norms of step size, B and C.
    """
    inside = (
        RMS("mamba/dt_norm", rank, reads="mamba/x_proj"),
        RMS("mamba/b_norm", state, reads="mamba/x_proj"),
        RMS("mamba/c_norm", state, reads="mamba/x_proj"),
    )
    return (
        Linear(name="mamba/in_proj", inputs=width, outputs=2 * inner, bias=bias, shard="column", reads=source),
        Convolution(name="mamba/conv", channels=inner, kernel=kernel, bias=conv_bias, shard="column"),
        Pointwise(name="mamba/act", dim=inner, kind="silu", shard="column"),
        Linear(name="mamba/x_proj", inputs=inner, outputs=rank + 2 * state, shard="row"),
        *(inside if norms else ()),
        Linear(
            name="mamba/dt_proj",
            inputs=rank,
            outputs=inner,
            bias=True,
            shard="column",
            reads="mamba/dt_norm" if norms else "mamba/x_proj",
        ),
        Weight(name="mamba/A_log", numel=inner * state, shard="column"),
        Weight(name="mamba/D", numel=inner, shard="column"),
        Recurrence(
            name="mamba/scan",
            kind="mamba1",
            heads=inner,
            key_dim=state,
            value_dim=1,
            state=inner * (state + kernel - 1),
        ),
        Pointwise(name="mamba/gate", dim=inner, kind="silu", gated=True, shard="column"),
        Linear(name="mamba/out_proj", inputs=inner, outputs=width, bias=bias, shard="row"),
    )


def mamba2(
    width: int,
    source: str,
    *,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    kernel: int,
    bias: bool = False,
    conv_bias: bool = True,
    out_bias: bool | None = None,
    norm: bool = True,
    chunk: int = 256,
) -> Items:
    """Mamba 2 (arXiv 2405.21060): `heads` x `head_dim` channels, B and C of `state` elements in `groups` groups."""
    inner, mixed = heads * head_dim, heads * head_dim + 2 * groups * state
    kept = heads * head_dim * state + mixed * (kernel - 1)
    gate = (Pointwise(name="mamba/gate", dim=inner, kind="silu", gated=True, shard="column"),)
    return (
        Linear(
            name="mamba/in_proj", inputs=width, outputs=inner + mixed + heads, bias=bias, shard="column", reads=source
        ),
        Convolution(name="mamba/conv", channels=mixed, kernel=kernel, bias=conv_bias, shard="column"),
        Pointwise(name="mamba/act", dim=mixed, kind="silu", shard="column"),
        Weight(name="mamba/A_log, D, dt_bias", numel=3 * heads, shard="column"),
        Recurrence(
            name="mamba/scan", kind="mamba2", heads=heads, key_dim=state, value_dim=head_dim, state=kept, chunk=chunk
        ),
        *gate,
        *((RMS("mamba/norm", inner, shard="column"),) if norm else ()),
        Linear(
            name="mamba/out_proj", inputs=inner, outputs=width, bias=bias if out_bias is None else out_bias, shard="row"
        ),
    )


def delta_net(
    width: int,
    source: str,
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    joined: bool,
) -> Items:
    """Gated DeltaNet (arXiv 2412.06464); `joined`: two input matrices (Qwen3-Next) where Qwen3.5 has four."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values

    def into(name: str, outputs: int) -> Linear:
        return Linear(name=f"delta/{name}", inputs=width, outputs=outputs, shard="column", reads=source)

    split = (into("qkv_proj", mixed), into("z_proj", values), into("b_proj", value_heads), into("a_proj", value_heads))
    return (
        *((into("qkvz_proj", mixed + values), into("ba_proj", 2 * value_heads)) if joined else split),
        Convolution(name="delta/conv", channels=mixed, kernel=kernel, bias=False, shard="column"),
        Pointwise(name="delta/act", dim=mixed, kind="silu", shard="column"),
        Weight(name="delta/A_log, dt_bias", numel=2 * value_heads, shard="column"),
        Recurrence(
            name="delta/rule",
            kind="delta",
            heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            state=value_heads * key_dim * value_dim + mixed * (kernel - 1),
        ),
        RMS("delta/norm", value_dim, groups=value_heads, shard="column"),
        Pointwise(name="delta/gate", dim=values, kind="silu", gated=True, shard="column"),
        Linear(name="delta/out_proj", inputs=values, outputs=width, shard="row"),
    )


def lightning(width: int, heads: int, head_dim: int, source: str, *, chunk: int = 256) -> Items:
    """Lightning attention (arXiv 2401.04658) as in MiniMax-01: a decay, a norm and an output gate."""
    inner = heads * head_dim
    return (
        Linear(name="lightning/qkv_proj", inputs=width, outputs=3 * inner, shard="column", reads=source),
        Pointwise(name="lightning/act", dim=3 * inner, kind="silu", shard="column"),
        Recurrence(
            name="lightning/attend",
            kind="lightning",
            heads=heads,
            key_dim=head_dim,
            value_dim=head_dim,
            state=inner * head_dim,
            chunk=chunk,
        ),
        RMS("lightning/norm", inner, shard="column"),
        Linear(name="lightning/gate_proj", inputs=width, outputs=inner, shard="column", reads=source),
        Pointwise(name="lightning/gate", dim=inner, kind="sigmoid", gated=True, shard="column"),
        Linear(name="lightning/out_proj", inputs=inner, outputs=width, shard="row"),
    )


def short_convolution(width: int, kernel: int, source: str, *, bias: bool = False) -> Items:
    """LFM2's double-gated short convolution."""
    return (
        Linear(name="conv/in_proj", inputs=width, outputs=3 * width, bias=bias, shard="column", reads=source),
        Pointwise(name="conv/gate", dim=width, kind="gate", shard="column"),
        Convolution(name="conv/conv", channels=width, kernel=kernel, bias=bias, shard="column"),
        Recurrence(name="conv/state", kind="conv", heads=1, key_dim=0, value_dim=0, state=width * (kernel - 1)),
        Pointwise(name="conv/gate_out", dim=width, kind="gate", shard="column"),
        Linear(name="conv/out_proj", inputs=width, outputs=width, bias=bias, shard="row"),
    )


def kimi_delta(width: int, heads: int, head_dim: int, kernel: int, source: str) -> Items:
    """Kimi Delta Attention (arXiv 2510.26692): a delta rule whose decay has a value for each channel."""
    inner = heads * head_dim

    def column(name: str, inputs: int, outputs: int, reads: str = source) -> Linear:
        return Linear(name=f"kda/{name}", inputs=inputs, outputs=outputs, shard="column", reads=reads)

    def low_rank(name: str) -> Linear:
        return Linear(name=f"kda/{name}", inputs=width, outputs=head_dim, reads=source)

    return (
        column("q_proj", width, inner),
        column("k_proj", width, inner),
        column("v_proj", width, inner),
        Convolution(name="kda/conv", channels=3 * inner, kernel=kernel, bias=False, shard="column"),
        Pointwise(name="kda/act", dim=3 * inner, kind="silu", shard="column"),
        low_rank("f_a_proj"),
        column("f_b_proj", head_dim, inner, ""),
        Weight(name="kda/A_log, dt_bias", numel=inner + heads, shard="column"),
        column("b_proj", width, heads),
        Recurrence(
            name="kda/rule",
            kind="kda",
            heads=heads,
            key_dim=head_dim,
            value_dim=head_dim,
            state=inner * (head_dim + 3 * (kernel - 1)),
        ),
        low_rank("g_a_proj"),
        column("g_b_proj", head_dim, inner, ""),
        RMS("kda/norm", head_dim, groups=heads, shard="column", reads="kda/rule"),
        Pointwise(name="kda/gate", dim=inner, kind="sigmoid", gated=True, shard="column"),
        Linear(name="kda/out_proj", inputs=inner, outputs=width, shard="row"),
    )
