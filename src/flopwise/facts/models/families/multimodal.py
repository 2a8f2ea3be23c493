"""Models that read images: a language model, an image tower, and a projector between them, each its own stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.architecture import Embedding, Item, Linear, Model, Pointwise, Stack, Weight
from flopwise.facts.models.attend import attention, cross_attention
from flopwise.facts.models.blocks import LAYER_NORM, RMS, Items, arranged, distinct
from flopwise.facts.models.families import family
from flopwise.facts.models.families.llama import Traits, language_model, plain_feed, standard_attention
from flopwise.facts.models.families.towers import (
    internvl_tower,
    llama4_tower,
    moonvit_tower,
    pixtral_tower,
    qwen_tower,
)
from flopwise.facts.models.families.vision import (
    DYNAMIC_PIXELS,
    Tower,
    clip_tower,
    plain_tower,
    pooling_head,
    siglip_tower,
)
from flopwise.facts.models.fields import Fields


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


def projector(width: int, items: Items, tokens: int) -> Stack:
    """What maps image features to the language model's width, once a merged patch."""
    return Stack(name="projector", width=width, before=(), kinds=(), order=(), after=items, tokens_per_sample=tokens)


def joined(c: Fields, text: Model, tower: Stack, items: Items, tokens: int, *, dynamic: bool = False) -> Model:
    """The language model first, then tower and projector."""
    notes = text.notes
    if dynamic:
        notes = (*notes, f"image tokens are those of one image of {DYNAMIC_PIXELS} x {DYNAMIC_PIXELS} pixels")
    stacks = (*text.stacks, tower, projector(text.stacks[0].width, items, tokens)) if items else (*text.stacks, tower)
    return replace(text, model_type=c.model_type, kind="vision-text", stacks=stacks, notes=notes)


def two_layers(inputs: int, hidden: int, outputs: int, *, bias: bool = True, prefix: str = "projector") -> Items:
    """Two linear layers with GELU between."""
    return (
        Linear(name=f"{prefix}/fc1", inputs=inputs, outputs=hidden, bias=bias),
        Pointwise(name=f"{prefix}/gelu", dim=hidden, kind="gelu"),
        Linear(name=f"{prefix}/fc2", inputs=hidden, outputs=outputs, bias=bias),
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


def llava(c: Fields) -> Model:
    """LLaVA: a CLIP tower and two projection layers; LLaVA-NeXT adds the learned end of an image row."""
    text = text_part(c, "llama")
    stack, t = _tower(c.part("vision_config", "clip_vision_model"))
    width = text.stacks[0].width
    layers = c.value("vision_feature_layer")
    inputs = t.width * (len(layers) if isinstance(layers, list) and layers else 1)
    items = two_layers(inputs, width, width, bias=c.flag("multimodal_projector_bias", default=True))
    if c.model_type != "llava":
        items = (*items, Weight(name="image_newline", numel=width))
    return joined(c, text, stack, items, t.patches)


def mistral3(c: Fields) -> Model:
    """Mistral Small 3.1 and later: a Pixtral tower, patches merged 2 x 2, two projection layers."""
    text = text_part(c, "mistral")
    stack, t = _tower(c.part("vision_config", "pixtral"))
    width, merge = text.stacks[0].width, c.size("spatial_merge_size", 2)
    bias = c.flag("multimodal_projector_bias")
    items = (
        RMS("projector/norm", t.width),
        Linear(name="projector/merge", inputs=t.width * merge * merge, outputs=t.width),
        *two_layers(t.width, width, width, bias=bias),
    )
    return joined(c, text, stack, items, max(1, t.patches // merge**2))


def gemma3(c: Fields) -> Model:
    """Gemma 3 and PaliGemma: a SigLIP tower; Gemma 3 pools to 256 tokens, norms and projects without bias."""
    pali = c.model_type == "paligemma"
    text = text_part(c, "gemma" if pali else "gemma3_text")
    stack, t = _tower(c.part("vision_config", "siglip_vision_model"))
    width = text.stacks[0].width
    if pali:
        dim = c.size("projection_dim", width)
        return joined(c, text, stack, (Linear(name="projector/fc", inputs=t.width, outputs=dim, bias=True),), t.patches)
    items = (RMS("projector/norm", t.width), Linear(name="projector/fc", inputs=t.width, outputs=width))
    return joined(c, text, stack, items, c.size("mm_tokens_per_image", 256))


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
    return joined(c, text, t.stack("vision"), tuple(items), max(1, t.patches // merge), dynamic=True)


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
            name="projector/fc",
            inputs=v.size("vision_output_dim"),
            outputs=text.stacks[0].width,
            bias=c.flag("multi_modal_projector_bias"),
        ),
    )
    return joined(c, text, t.stack("vision"), items, max(1, int(t.patches * ratio**2)))


def internvl(c: Fields) -> Model:
    """InternVL: pixel shuffle, a norm and two projection layers."""
    text = text_part(c, "qwen2")
    t = internvl_tower(c.part("vision_config", "internvl_vision"))
    factor = max(1, round(1 / max(1e-3, c.number("downsample_ratio", 0.5)))) ** 2
    width = text.stacks[0].width
    items = (LAYER_NORM("projector/norm", t.width * factor), *two_layers(t.width * factor, width, width))
    return joined(c, text, t.stack("vision"), items, max(1, t.patches // factor))


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
    return joined(c, text, t.stack("vision"), items, max(1, t.patches // merge), dynamic=True)


def mllama(c: Fields) -> Model:
    """Llama 3.2 Vision: gated cross-attention layers, a tower of local and global layers over tiles."""
    text = text_part(c, "mllama_text_model")
    v = c.part("vision_config", "mllama_vision_model")
    local = replace(
        plain_tower(v),
        hidden=v.size("intermediate_size"),
        patch_bias=False,
        qkv_bias=False,
        bias=False,
        pre_norm=True,
    )
    tiles, tokens = v.size("max_num_tiles", 4), local.positions
    ratios = len(v.sequence("supported_aspect_ratios") or [None] * 8) + 1
    once, globals_ = local.stack("vision"), replace(local, layers=v.layers("num_global_layers")).stack("vision")
    gates = Weight(name="gates", numel=2)
    layers = [once.kinds[i].items for i in once.order] + [(*globals_.kinds[i].items, gates) for i in globals_.order]
    kinds, order = distinct(layers)
    tables: Items = (
        Embedding(name="embed_tiles/positions", rows=ratios, dim=tiles * tokens * local.width, position=True),
        Embedding(name="embed_tiles/before", rows=ratios, dim=tiles * local.width, position=True),
        Embedding(name="embed_tiles/after", rows=ratios, dim=tiles * local.width, position=True),
        Weight(name="embed_tiles/gates", numel=3),
    )
    weights = tuple(Weight(name=t.name, numel=t.rows * t.dim) if isinstance(t, Embedding) else t for t in tables)
    tower = replace(once, kinds=kinds, order=order, before=(*once.before, *weights), tokens_per_sample=tiles * tokens)
    items = (Linear(name="projector/fc", inputs=v.size("vision_output_dim"), outputs=text.stacks[0].width, bias=True),)
    return joined(c, text, tower, items, tiles * tokens)


def mllama_text(c: Fields) -> Model:
    """The language model of Llama 3.2 Vision: Llama with cross-attention layers at the places listed."""
    t = Traits(mlp_bias=False, bias=False, out_bias=False)
    base = standard_attention(c, t)
    feed = plain_feed(c, t, base.width, c.size("intermediate_size"))
    plain = arranged("pre", base.width, RMS, lambda s: attention(base, s), feed)
    crossing = replace(base, qk_norm="head", rope_dim=0)

    def cross(source: str) -> Items:
        return cross_attention(crossing, source, base.width)

    crossed = (*arranged("pre", base.width, RMS, cross, feed), Weight(name="gates", numel=2))
    listed: Any = c.sequence("cross_attention_layers") or []
    names = ["cross" if i in listed else "block" for i in range(c.layers())]
    model = language_model(c, t, base, [crossed if n == "cross" else plain for n in names], names)
    stack = model.stacks[0]
    spare = 8  # rows that the class adds to the table
    table = Embedding(name="embed_tokens", rows=c.size("vocab_size") + spare, dim=base.width, shard="row")
    return replace(model, stacks=(replace(stack, before=(table, *stack.before[1:])),))
