"""Models that read images: a language model, an image tower, and a projector between them, each its own stack."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.architecture import Embedding, Item, Linear, Model, Pointwise, Stack, Weight
from flopwise.facts.models.attend import attention, cross_attention
from flopwise.facts.models.blocks import LAYER_NORM, RMS, Items, layer_of, stack_of
from flopwise.facts.models.families import family
from flopwise.facts.models.families.llama import NO_BIASES, language_model, plain_feed, standard_attention
from flopwise.facts.models.families.vision import (
    DYNAMIC_PIXELS,
    Tower,
    clip_tower,
    heads_and_width,
    plain_tower,
    pooling_head,
    siglip_tower,
)
from flopwise.facts.models.fields import Fields
from flopwise.values import replace


def text_part(c: Fields, default: str) -> Model:
    """The language model, from `text_config` or, in older files, from the keys beside `vision_config`."""
    if c.has("text_config") or c.nested or not c.has("hidden_size"):
        text = c.part("text_config", default)
        if not text.model_type:
            text = text.within(text.given, default, text.where, nested=True)
    else:
        text = c.within(
            {k: v for k, v in c.given.items() if k not in ("vision_config", "model_type")}, default, c.where
        )
    given = dict(text.given)
    tied = c.given.get("tie_word_embeddings")
    if tied is None:
        tied = c.flag("tie_word_embeddings") if "tie_word_embeddings" not in given else given["tie_word_embeddings"]
    given["tie_word_embeddings"] = tied
    build = family(text.model_type)
    if build is None:
        raise SpecError(f"{text.where}: model_type {text.model_type!r} is not known; --assume-family names one like it")
    return build(text.within(given, text.model_type, text.where, nested=text.nested))


def vision_model(text: Model, tower: Stack, items: Items, tokens: int, *, dynamic: bool = False) -> Model:
    """The language model first, then tower and projector: `items` run once for each of `tokens` merged patches."""
    notes = text.notes
    if dynamic:
        notes = (*notes, f"image tokens are those of one image of {DYNAMIC_PIXELS} x {DYNAMIC_PIXELS} pixels")
    projector = stack_of("projector", text.stacks[0].width, (), [], items, tokens=tokens)
    stacks = (*text.stacks, tower, *((projector,) if items else ()))
    return replace(text, kind="vision-text", stacks=stacks, notes=notes)


def two_layers(inputs: int, hidden: int, outputs: int, *, bias: bool = True, prefix: str = "projector") -> Items:
    """Two linear layers with GELU between."""
    return (
        Linear(f"{prefix}/fc1", inputs, hidden, bias=bias),
        Pointwise(f"{prefix}/gelu", hidden, "gelu"),
        Linear(f"{prefix}/fc2", hidden, outputs, bias=bias),
    )


def _tower(c: Fields) -> tuple[Stack, Tower]:
    """A CLIP, SigLIP or Pixtral tower, as the nested configuration says."""
    kind = c.model_type
    if kind.startswith("clip"):
        t = clip_tower(c)
    elif kind.startswith("siglip"):
        t = siglip_tower(c)
        return t.stack("vision", pooling_head(c, t.width)), t
    elif kind == "pixtral":
        t = pixtral_tower(c)
    else:
        raise SpecError(
            f"{c.where}: the image tower {kind!r} is not known; known: clip_vision_model, siglip_vision_model, pixtral"
        )
    return t.stack("vision"), t


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


def llava(c: Fields) -> Model:
    """LLaVA: a CLIP tower and two projection layers; LLaVA-NeXT adds the learned end of an image row."""
    text = text_part(c, "llama")
    stack, t = _tower(c.part("vision_config", "clip_vision_model"))
    width = text.stacks[0].width
    layers = c.value("vision_feature_layer")
    inputs = t.width * (len(layers) if isinstance(layers, list) and layers else 1)
    items = two_layers(inputs, width, width, bias=c.flag("multimodal_projector_bias", default=True))
    if c.model_type != "llava":
        items = (*items, Weight("image_newline", width))
    return vision_model(text, stack, items, t.patches)


def mistral3(c: Fields) -> Model:
    """Mistral Small 3.1 and later: a Pixtral tower, patches merged 2 x 2, two projection layers."""
    text = text_part(c, "mistral")
    stack, t = _tower(c.part("vision_config", "pixtral"))
    width, merge = text.stacks[0].width, c.size("spatial_merge_size", 2)
    bias = c.flag("multimodal_projector_bias")
    items = (
        RMS("projector/norm", t.width),
        Linear("projector/merge", t.width * merge * merge, t.width),
        *two_layers(t.width, width, width, bias=bias),
    )
    return vision_model(text, stack, items, max(1, t.patches // merge**2))


def gemma3(c: Fields) -> Model:
    """Gemma 3 and PaliGemma: a SigLIP tower; Gemma 3 pools to 256 tokens, norms and projects without bias."""
    pali = c.model_type == "paligemma"
    text = text_part(c, "gemma" if pali else "gemma3_text")
    stack, t = _tower(c.part("vision_config", "siglip_vision_model"))
    width = text.stacks[0].width
    if pali:
        dim = c.size("projection_dim", width)
        return vision_model(text, stack, (Linear("projector/fc", t.width, dim, bias=True),), t.patches)
    items = (RMS("projector/norm", t.width), Linear("projector/fc", t.width, width))
    return vision_model(text, stack, items, c.size("mm_tokens_per_image", 256))


def qwen_vl(c: Fields) -> Model:
    """Qwen2-VL to Qwen3.5: patches merged 2 x 2 by two layers; Qwen3-VL adds mergers for deeper layers' features."""
    generation = {"qwen2_vl": "2", "qwen2_5_vl": "2.5"}.get(c.model_type, "3")
    default = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}.get(c.model_type, f"{c.model_type}_text")
    text = text_part(c, default)
    v = c.part("vision_config", f"{c.model_type}_vision")
    if v.model_type != f"{c.model_type}_vision":
        v = v.within(v.given, f"{c.model_type}_vision", v.where, nested=True)
    t = qwen_tower(v, generation)
    merge = v.size("spatial_merge_size", 2) ** 2
    inner = t.width * merge
    out = v.size("hidden_size") if generation == "2" else v.size("out_hidden_size")
    items: list[Item] = [t.norm("merger/norm", t.width, groups=merge), *two_layers(inner, inner, out, prefix="merger")]
    deep = v.sequence("deepstack_visual_indexes") if c.model_type.startswith("qwen3_vl") else None
    for i in range(len(deep or ())):
        items += [LAYER_NORM(f"deepstack.{i}/norm", inner), *two_layers(inner, inner, out, prefix=f"deepstack.{i}")]
    return vision_model(text, t.stack("vision"), tuple(items), max(1, t.patches // merge), dynamic=True)


def llama4(c: Fields) -> Model:
    """Llama 4: pixel shuffle, a two-layer adapter and a projection, all without bias."""
    text = text_part(c, "llama4_text")
    v = c.part("vision_config", "llama4_vision_model")
    t = llama4_tower(v)
    ratio = v.number("pixel_shuffle_ratio", 0.5)
    middle, out = v.size("projector_input_dim"), v.size("projector_output_dim")
    items = (
        *two_layers(v.size("intermediate_size"), middle, out, bias=False, prefix="adapter"),
        Linear(
            "projector/fc", v.size("vision_output_dim"), text.stacks[0].width, bias=c.flag("multi_modal_projector_bias")
        ),
    )
    return vision_model(text, t.stack("vision"), items, max(1, int(t.patches * ratio**2)))


def internvl(c: Fields) -> Model:
    """InternVL: pixel shuffle, a norm and two projection layers."""
    text = text_part(c, "qwen2")
    t = internvl_tower(c.part("vision_config", "internvl_vision"))
    factor = max(1, round(1 / max(1e-3, c.number("downsample_ratio", 0.5)))) ** 2
    width = text.stacks[0].width
    items = (LAYER_NORM("projector/norm", t.width * factor), *two_layers(t.width * factor, width, width))
    return vision_model(text, t.stack("vision"), items, max(1, t.patches // factor))


def kimi(c: Fields) -> Model:
    """Kimi K2.5: MoonViT, patches merged 2 x 2, a norm and two projection layers."""
    text = text_part(c, "deepseek_v3")
    v = c.part("vision_config", "kimi_k25_vision")
    t = moonvit_tower(v)
    kernel = v.sequence("merge_kernel_size") or [2, 2]
    merge = 1
    for side in kernel:
        merge *= side if isinstance(side, int) and 0 < side < 100 else 1
    inner = t.width * merge
    items = (LAYER_NORM("projector/norm", t.width, groups=merge), *two_layers(inner, inner, text.stacks[0].width))
    return vision_model(text, t.stack("vision"), items, max(1, t.patches // merge), dynamic=True)


def mllama(c: Fields) -> Model:
    """Llama 3.2 Vision: gated cross-attention layers, a tower of local and global layers over tiles."""
    text = text_part(c, "mllama_text_model")
    v = c.part("vision_config", "mllama_vision_model")
    local = replace(
        plain_tower(v), hidden=v.size("intermediate_size"), patch_bias=False, qkv_bias=False, bias=False, pre_norm=True
    )
    tiles, tokens = v.size("max_num_tiles", 4), local.positions
    ratios = len(v.sequence("supported_aspect_ratios") or [None] * 8) + 1
    once, globals_ = local.stack("vision"), replace(local, layers=v.layers("num_global_layers")).stack("vision")
    gates = Weight("gates", 2)
    layers = [once.kinds[i].items for i in once.order] + [(*globals_.kinds[i].items, gates) for i in globals_.order]
    tables = (
        Weight("embed_tiles/positions", ratios * tiles * tokens * local.width),
        Weight("embed_tiles/before", ratios * tiles * local.width),
        Weight("embed_tiles/after", ratios * tiles * local.width),
        Weight("embed_tiles/gates", 3),
    )
    tower = stack_of(
        "vision", once.width, (*once.before, *tables), layers, once.after, tokens=tiles * tokens,
        extra_tokens=once.extra_tokens,
    )  # fmt: skip
    items = (Linear("projector/fc", v.size("vision_output_dim"), text.stacks[0].width, bias=True),)
    return vision_model(text, tower, items, tiles * tokens)


def mllama_text(c: Fields) -> Model:
    """The language model of Llama 3.2 Vision: Llama with cross-attention layers at the places listed."""
    base = standard_attention(c, NO_BIASES)
    feed = plain_feed(c, NO_BIASES, c.size("intermediate_size"))
    cross = partial(cross_attention, replace(base, qk_norm="head", rope_dim=0), encoder_width=base.width)
    rows = {
        "block": layer_of("pre", base.width, RMS, partial(attention, base), feed),
        "cross": (*layer_of("pre", base.width, RMS, cross, feed), Weight("gates", 2)),
    }
    listed: Any = c.sequence("cross_attention_layers") or []
    names = ["cross" if i in listed else "block" for i in range(c.layers())]
    model = language_model(c, [rows[name] for name in names], names)
    stack = model.stacks[0]
    spare = 8  # rows that the class adds to the table
    table = Embedding("embed_tokens", c.size("vocab_size") + spare, base.width, shard="row")
    return replace(model, stacks=(replace(stack, before=(table, *stack.before[1:])),))
