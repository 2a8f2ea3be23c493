"""The image towers of multimodal models: Pixtral, Qwen-VL, Llama 4, InternViT, MoonViT."""

from __future__ import annotations

import math
from dataclasses import replace

from flopwise.facts.models.blocks import LAYER_NORM, RMS
from flopwise.facts.models.families.vision import DYNAMIC_PIXELS, Tower, heads_and_width, plain_tower
from flopwise.facts.models.fields import Fields


def pixtral_tower(c: Fields) -> Tower:
    """Pixtral: RMSNorm, rope over rows and columns, gated, no biases, a norm before the layers and none after."""
    return replace(
        plain_tower(c, extra=0), hidden=c.size("intermediate_size"), positions=0, patch_bias=False,
        head_dim=c.maybe("head_dim") or 0, norm=RMS, bias=False, qkv_bias=False, mlp_bias=False, gated=True, rope=True,
        pre_norm=True, post_norm=False,
    )  # fmt: skip


def qwen_tower(c: Fields, generation: str) -> Tower:
    """Qwen-VL's towers: two frames a patch, rope; 2.5 is gated with windows, 3 has learned positions."""
    width_key = "embed_dim" if generation == "2" else "hidden_size"
    width, heads = heads_and_width(c, width_key, "num_heads")
    patch = c.size("patch_size")
    inputs = patch * patch * c.count("in_channels", 3) * c.size("temporal_patch_size", 2)
    side = DYNAMIC_PIXELS // patch
    third, second = generation == "3", generation == "2.5"
    full = tuple(i for i in c.sequence("fullatt_block_indexes") or () if isinstance(i, int)) if second else ()
    return Tower(
        width=width, heads=heads, layers=c.layers("depth"), patch_inputs=inputs, patches=side * side, patch_bias=third,
        hidden=int(c.number("mlp_ratio", 4.0) * width) if generation == "2" else c.size("intermediate_size"),
        fused=True, rope=True, norm=RMS if second else LAYER_NORM, gated=second, act=c.text("hidden_act", "gelu"),
        post_norm=False, positions=c.size("num_position_embeddings", 2304) if third else 0,
        window=(c.size("window_size", 112) // patch) ** 2 or None if second else None, full_every=full,
    )  # fmt: skip


def llama4_tower(c: Fields) -> Tower:
    """Llama 4's tower: patches unfolded and projected without bias, rope, the class token at the end."""
    return replace(plain_tower(c), hidden=c.size("intermediate_size"), patch_bias=False, rope=True, pre_norm=True)


def internvl_tower(c: Fields) -> Tower:
    """InternViT as transformers has it: layer scales, biases as the configuration says, no norm at the end."""
    plain = plain_tower(c)
    rms = c.text("norm_type", "layer_norm") == "rms_norm"
    return replace(
        plain, hidden=c.size("intermediate_size"), qkv_bias=c.flag("attention_bias"), layer_scale=True,
        positions=plain.positions if c.flag("use_absolute_position_embeddings", default=True) else 0,
        norm=RMS if rms else LAYER_NORM, qk_norm=c.flag("use_qk_norm"),
        post_norm=not c.flag("use_mean_pooling", default=True), weights=plain.width if c.flag("use_mask_token") else 0,
    )  # fmt: skip


def moonvit_tower(c: Fields) -> Tower:
    """Kimi's MoonViT: a learned position grid and rope."""
    width = c.maybe("vt_hidden_size") or c.size("hidden_size")
    heads = c.maybe("vt_num_attention_heads") or c.size("num_attention_heads")
    grid = [c.maybe(f"init_pos_emb_{s}") or c.size(f"pos_emb_{s}", 64) for s in ("height", "width")]
    patch = c.size("patch_size")
    return Tower(
        width=width, heads=heads, hidden=c.maybe("vt_intermediate_size") or c.size("intermediate_size"),
        layers=c.maybe("vt_num_hidden_layers") or c.layers(), patch_inputs=3 * patch * patch,
        patches=(DYNAMIC_PIXELS // patch) ** 2, positions=math.prod(grid), rope=True,
    )  # fmt: skip
