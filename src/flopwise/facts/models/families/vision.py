"""Image encoders: ViT, CLIP, SigLIP, DINOv2, and the towers of multimodal models; a token is a patch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from flopwise.facts.architecture import Embedding, Item, Linear, Model, Norm, Pointwise, Stack, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import LAYER_NORM, Items, Normal, activation, arranged, distinct, mlp, residual
from flopwise.facts.models.fields import Fields

DYNAMIC_PIXELS = 1024  # side of the square image assumed where a model takes any resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A transformer over patches."""

    width: int
    heads: int
    hidden: int
    layers: int
    patch_inputs: int  # pixels of a patch times channels (times frames)
    patches: int
    patch_bias: bool = True
    head_dim: int = 0
    extra_tokens: int = 0  # class token and registers, learned
    positions: int = 0  # rows of the position table
    norm: Normal = LAYER_NORM
    bias: bool = True
    qkv_bias: bool = True
    mlp_bias: bool = True
    k_bias: bool | None = None
    fused: bool = False
    gated: bool = False
    act: str = "gelu"
    rope: bool = False
    qk_norm: bool = False
    pre_norm: bool = False  # a norm before the layers
    post_norm: bool = True
    layer_scale: bool = False
    window: int | None = None
    full_every: tuple[int, ...] = ()  # layers that see everything where `window` holds for the others
    weights: int = 0  # other learned values (a mask token)

    def stack(self, name: str = "vision", after: Items = (), tokens: int | None = None) -> Stack:
        """The tower as a stack."""
        w, dim = self.width, self.head_dim or self.width // self.heads
        base = Attention(
            width=w,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=dim,
            bias=self.qkv_bias,
            out_bias=self.bias,
            causal=False,
            cached=False,
            fused=self.fused,
            rope_dim=dim if self.rope else 0,
            k_bias=self.k_bias,
            qk_norm="full" if self.qk_norm else "",
        )
        scales = (Weight(name="layer_scale", numel=2 * w),) if self.layer_scale else ()

        def layer(window: int | None) -> Items:
            def feed(source: str) -> Items:
                return mlp(w, self.hidden, activation(self.act), source, gated=self.gated, bias=self.mlp_bias)

            attend = partial(attention, replace(base, window=window))
            return *arranged("pre", w, self.norm, attend, feed, scale=self.layer_scale), *scales

        plain, full = layer(self.window), layer(None)
        kinds, order = distinct(
            [full if self.window is None or i in self.full_every else plain for i in range(self.layers)]
        )
        before: list[Item] = [Linear(name="patch_embed", inputs=self.patch_inputs, outputs=w, bias=self.patch_bias)]
        if self.extra_tokens or self.weights:
            before.append(Weight(name="class_token", numel=self.extra_tokens * w + self.weights))
        if self.positions:
            before += [
                Embedding(name="embed_positions", rows=self.positions, dim=w, position=True),
                residual("embed/add", w),
            ]
        if self.pre_norm:
            before.append(self.norm("pre_norm", w))
        ends = (self.norm("norm", w),) if self.post_norm else ()
        count = tokens or self.patches + self.extra_tokens
        return Stack(
            name=name,
            width=w,
            before=tuple(before),
            kinds=kinds,
            order=order,
            after=(*ends, *after),
            tokens_per_sample=count,
            extra_tokens=self.extra_tokens,
        )


def pair(c: Fields, key: str) -> tuple[int, int]:
    """A size given as one number or as height and width."""
    value = c.value(key)
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int) and not isinstance(v, bool) and 0 < v < 10**6 for v in value)
    ):
        return value[0], value[1]
    side = c.size(key, high=10**6)
    return side, side


def patches_of(c: Fields, image: int | None = None) -> tuple[int, int]:
    """Number of patches of an image, and values in one patch."""
    high, wide = (image, image) if image else pair(c, "image_size")
    p, q = pair(c, "patch_size")
    if p > high or q > wide:
        raise c.wrong("patch_size", c.value("patch_size"), f"it must not exceed image_size = {high}")
    return (high // p) * (wide // q), p * q * c.count("num_channels", 3)


def heads_and_width(
    c: Fields, width_key: str = "hidden_size", heads_key: str = "num_attention_heads"
) -> tuple[int, int]:
    """Width and heads, which must divide it."""
    width, heads = c.size(width_key), c.size(heads_key)
    if width % heads:
        raise c.wrong(width_key, width, f"it must be a multiple of {heads_key} = {heads}")
    return width, heads


def plain_tower(c: Fields, *, extra: int = 1) -> Tower:
    """What ViT, CLIP, SigLIP and DINOv2 have in common."""
    width, heads = heads_and_width(c)
    patches, inputs = patches_of(c)
    return Tower(
        width=width,
        heads=heads,
        hidden=c.size("intermediate_size", 4 * width),
        layers=c.layers(),
        patch_inputs=inputs,
        patches=patches,
        extra_tokens=extra,
        positions=patches + extra,
        act=c.text("hidden_act", "gelu"),
    )


def _model(
    c: Fields, kind: Literal["vision", "vision-text"], *stacks: Stack, vocab: int = 0, positions: int | None = None
) -> Model:
    return Model(name="", model_type=c.model_type, kind=kind, stacks=stacks, vocab=vocab, max_position=positions)


def classifier(c: Fields, width: int) -> Items:
    """The head of an image classifier: `num_labels` classes (1000 where the configuration leaves it open)."""
    labels = c.value("id2label")
    count = c.maybe("num_labels") or (len(labels) if isinstance(labels, dict) and labels else 1000)
    return (Linear(name="classifier", inputs=width, outputs=count, bias=True, stream="samples"),)


def vit(c: Fields) -> Model:
    """ViT with its classification head."""
    t = replace(plain_tower(c), qkv_bias=c.flag("qkv_bias", default=True))
    return _model(c, "vision", t.stack("encoder", classifier(c, t.width)))


def dinov2(c: Fields) -> Model:
    """DINOv2: ViT with layer scales, optionally SwiGLU and registers; no head."""
    width, heads = heads_and_width(c)
    patches, inputs = patches_of(c)
    registers = c.count("num_register_tokens") if "registers" in c.model_type else 0
    hidden = int(width * c.number("mlp_ratio", 4.0))
    swiglu = c.flag("use_swiglu_ffn")
    if swiglu:
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
    t = Tower(
        width=width,
        heads=heads,
        hidden=hidden,
        layers=c.layers(),
        patch_inputs=inputs,
        patches=patches,
        extra_tokens=1 + registers,
        positions=patches + 1,
        qkv_bias=c.flag("qkv_bias", default=True),
        layer_scale=True,
        gated=swiglu,
        act="silu" if swiglu else c.text("hidden_act", "gelu"),
        weights=width if c.flag("use_mask_token", default=True) else 0,
    )
    return _model(c, "vision", t.stack("encoder"))


def clip_tower(c: Fields) -> Tower:
    """CLIP's image tower: no bias on patches, a norm before and after the layers."""
    return replace(plain_tower(c), patch_bias=False, pre_norm=True)


def siglip_tower(c: Fields) -> Tower:
    """SigLIP's image tower: no class token."""
    return plain_tower(c, extra=0)


def pooling_head(c: Fields, width: int) -> Items:
    """SigLIP's head: one learned query attends over the patches, then a feed-forward block."""
    if c.value("vision_use_head") is False:
        return ()
    hidden = c.size("intermediate_size")
    block = mlp(
        width, hidden, activation(c.text("hidden_act", "gelu")), "head/norm", gated=False, bias=True, prefix="head/mlp"
    )
    rows = [replace(i, stream="samples") for i in block if isinstance(i, Linear | Pointwise)]
    return (
        Weight(name="head/probe", numel=width),
        Linear(name="head/q_proj", inputs=width, outputs=width, bias=True, stream="samples"),
        Linear(name="head/kv_proj", inputs=width, outputs=2 * width, bias=True, reads="norm"),
        Linear(name="head/o_proj", inputs=width, outputs=width, bias=True, stream="samples"),
        Norm(name="head/norm", dim=width, kind="layernorm", bias=True, stream="samples"),
        *rows,
    )


def _text_tower(c: Fields, after: Items, *, causal: bool) -> Stack:
    """The text tower of CLIP (causal) and SigLIP."""
    width, heads = heads_and_width(c)
    a = Attention(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        bias=True,
        out_bias=True,
        causal=causal,
        cached=False,
    )
    hidden, act = c.size("intermediate_size"), activation(c.text("hidden_act", "gelu"))
    layer = arranged(
        "pre",
        width,
        LAYER_NORM,
        lambda s: attention(a, s),
        lambda s: mlp(width, hidden, act, s, gated=False, bias=True),
    )
    kinds, order = distinct([layer] * c.layers())
    positions = c.size("max_position_embeddings")
    before = (
        Embedding(name="embed_tokens", rows=c.size("vocab_size"), dim=width, shard="row"),
        Embedding(name="embed_positions", rows=positions, dim=width, position=True),
        residual("embed/add", width),
    )
    return Stack(
        name="text",
        width=width,
        before=before,
        kinds=kinds,
        order=order,
        after=(LAYER_NORM("norm", width), *after),
        tokens_per_sample=positions,
    )


def clip(c: Fields) -> Model:
    """CLIP: image and text towers, each projected without bias; both run on a sample, an image with its caption."""
    text, image = c.part("text_config", "clip_text_model"), c.part("vision_config", "clip_vision_model")
    dim = c.size("projection_dim", 512)

    def project(width: int) -> Items:
        return (Linear(name="projection", inputs=width, outputs=dim, stream="samples"),)

    t = clip_tower(image)
    scale = (Weight(name="logit_scale", numel=1),)
    return _model(
        c,
        "vision",
        t.stack("vision", (*project(t.width), *scale)),
        _text_tower(text, project(text.size("hidden_size")), causal=True),
        vocab=text.size("vocab_size"),
        positions=text.maybe("max_position_embeddings"),
    )


def siglip(c: Fields) -> Model:
    """SigLIP: as CLIP, with a pooling head on images and a biased projection of the last text token."""
    text, image = c.part("text_config", "siglip_text_model"), c.part("vision_config", "siglip_vision_model")
    t = siglip_tower(image)
    width = text.size("hidden_size")
    head = (
        Linear(name="head", inputs=width, outputs=text.size("projection_size", width), bias=True, stream="samples"),
    )
    scale = (Weight(name="logit_scale, logit_bias", numel=2),)
    return _model(
        c,
        "vision",
        t.stack("vision", (*pooling_head(image, t.width), *scale)),
        _text_tower(text, head, causal=False),
        vocab=text.size("vocab_size"),
        positions=text.maybe("max_position_embeddings"),
    )
