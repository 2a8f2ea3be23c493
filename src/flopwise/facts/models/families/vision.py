"""Image encoders: ViT, CLIP, SigLIP, DINOv2, and the towers of multimodal models; a token is a patch."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Embedding, Item, Linear, Model, Norm, Pointwise, Stack, Weight
from flopwise.facts.models.attend import Attention, attention
from flopwise.facts.models.blocks import (
    LAYER_NORM,
    Items,
    Normal,
    activation,
    layer_of,
    mlp,
    one_of_each,
    residual,
    stack_of,
)
from flopwise.facts.models.fields import Fields
from flopwise.values import dataclass, replace

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
    k_bias: bool | None = None  # where the keys' differs
    mlp_bias: bool = True
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
    layer_weights: int = 0  # the same of each layer (a table of relative positions, a bias of values alone)

    def stack(self, name: str = "vision", after: Items = ()) -> Stack:
        """The tower as a stack."""
        w, dim = self.width, self.head_dim or self.width // self.heads
        base = Attention(
            width=w, heads=self.heads, kv_heads=self.heads, head_dim=dim, bias=self.qkv_bias, out_bias=self.bias,
            causal=False, cached=False, fused=self.fused, rope_dim=dim if self.rope else 0,
            qk_norm="full" if self.qk_norm else "", k_bias=self.k_bias,
        )  # fmt: skip
        scales = (Weight("layer_scale", 2 * w),) if self.layer_scale else ()
        others = (Weight("attention/weights", self.layer_weights),) if self.layer_weights else ()

        def layer(window: int | None) -> Items:
            def feed(source: str) -> Items:
                return mlp(w, self.hidden, activation(self.act), source, gated=self.gated, bias=self.mlp_bias)

            attend = partial(attention, replace(base, window=window))
            return *layer_of("pre", w, self.norm, attend, feed, scale=self.layer_scale), *scales, *others

        rows = one_of_each((None if i in self.full_every else self.window for i in range(self.layers)), layer)
        before: list[Item] = [Linear("patch_embed", self.patch_inputs, w, bias=self.patch_bias)]
        if self.extra_tokens or self.weights:
            before.append(Weight("class_token", self.extra_tokens * w + self.weights))
        if self.positions:
            before += [Embedding("embed_positions", self.positions, w, position=True), residual("embed/add", w)]
        if self.pre_norm:
            before.append(self.norm("pre_norm", w))
        ends = (self.norm("norm", w),) if self.post_norm else ()
        return stack_of(
            name, w, tuple(before), rows, (*ends, *after), tokens=self.patches + self.extra_tokens,
            extra_tokens=self.extra_tokens,
        )  # fmt: skip


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


def patches_of(c: Fields) -> tuple[int, int]:
    """Number of patches of an image, and values in one patch."""
    high, wide = pair(c, "image_size")
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
    """The tower that ViT, CLIP, SigLIP and DINOv2 share."""
    width, heads = heads_and_width(c)
    patches, inputs = patches_of(c)
    return Tower(
        width=width, heads=heads, hidden=c.size("intermediate_size", 4 * width), layers=c.layers(), patch_inputs=inputs,
        patches=patches, extra_tokens=extra, positions=patches + extra, act=c.text("hidden_act", "gelu"),
    )  # fmt: skip


def classifier(c: Fields, width: int) -> Items:
    """The head of an image classifier: `num_labels` classes (1000 where the configuration leaves it open)."""
    labels = c.value("id2label")
    count = c.maybe("num_labels") or (len(labels) if isinstance(labels, dict) and labels else 1000)
    return (Linear("classifier", width, count, bias=True, stream="samples"),)


EXTRA_TOKENS = {"ijepa": 0, "deit": 2}
"""Learned tokens beside the patches, where it is not the class token alone: DeiT has one for distillation."""
POOLED = {"vit", "deit"}
"""Families whose base model ends in a projection of the class token."""


def named_head(c: Fields, width: int, pooler: Items = ()) -> Items:
    """The head that `architectures` names: none but the `pooler` of a base model, else a classifier of images.

    Raises: SpecError: it is of a task that is not described.
    """
    named = c.sequence("architectures") or [""]
    first = named[0] if isinstance(named[0], str) else ""
    if first.endswith("Model"):
        return pooler
    if first and not first.endswith(("ForImageClassification", "ForAudioClassification", "WithTeacher")):
        raise c.wrong("architectures", first, "base models and classifiers of images are described")
    scores = classifier(c, width)
    return (*scores, replace(scores[0], name="distillation")) if first.endswith("WithTeacher") else scores


def vit(c: Fields) -> Model:
    """ViT, DeiT, ViT-MSN and I-JEPA (no class token), by default with their classification head."""
    extra = EXTRA_TOKENS.get(c.model_type, 1)
    t = replace(plain_tower(c, extra=extra), qkv_bias=c.flag("qkv_bias", default=True))
    pooler: Items = ()
    if c.model_type in POOLED:
        size = c.size("pooler_output_size", t.width)
        pooler = (
            Linear("pooler", t.width, size, bias=True, stream="samples"),
            Pointwise("pooler/tanh", size, "tanh", stream="samples"),
        )
    return Model(kind="vision", stacks=(t.stack("encoder", named_head(c, t.width, pooler)),))


def beit(c: Fields) -> Model:
    """BEiT and Data2Vec's vision model: relative positions in each layer, no bias of keys, mean pooling with a norm.

    Source: arXiv:2106.08254 section 2; BeitModel of transformers 5.
    """
    t = plain_tower(c)
    high, wide = pair(c, "image_size")
    p, q = pair(c, "patch_size")
    table = ((2 * (high // p) - 1) * (2 * (wide // q) - 1) + 3) * t.heads
    pooled = c.flag("use_mean_pooling", default=True)
    shared = table if c.flag("use_shared_relative_position_bias") else 0
    t = replace(
        t, k_bias=False, layer_scale=c.number("layer_scale_init_value", 0.1) > 0, post_norm=not pooled,
        layer_weights=table if c.flag("use_relative_position_bias") else 0,
        weights=(t.width if c.flag("use_mask_token") else 0) + shared,
        positions=t.positions if c.flag("use_absolute_position_embeddings") else 0,
    )  # fmt: skip
    norm = Norm("pooler/norm", t.width, kind="layernorm", bias=True, stream="samples")
    head = named_head(c, t.width)
    ends: Items = (norm,) if pooled and (head or c.model_type == "beit") else ()  # Data2Vec's base model has no pooler
    return Model(kind="vision", stacks=(t.stack("encoder", (*ends, *head)),))


def spectrogram(c: Fields) -> Model:
    """AST: ViT over overlapping patches of a spectrogram, with DeiT's two tokens and a norm before its scores.

    Source: arXiv:2104.01778 section 2.1; ASTModel of transformers 5.
    """
    width, heads = heads_and_width(c)
    side, mels, length = c.size("patch_size", 16), c.size("num_mel_bins", 128), c.size("max_length", 1024)
    if side > min(mels, length):
        raise c.wrong("patch_size", side, f"it must not exceed num_mel_bins = {mels} and max_length = {length}")
    high = (mels - side) // c.size("frequency_stride", 10) + 1
    patches = high * ((length - side) // c.size("time_stride", 10) + 1)
    t = Tower(
        width=width, heads=heads, hidden=c.size("intermediate_size"), layers=c.layers(), patch_inputs=side * side,
        patches=patches, extra_tokens=2, positions=patches + 2, qkv_bias=c.flag("qkv_bias", default=True),
        act=c.text("hidden_act", "gelu"),
    )  # fmt: skip
    scores = named_head(c, width)
    norm = Norm("classifier/norm", width, kind="layernorm", bias=True, stream="samples")
    return Model(kind="vision", stacks=(t.stack("encoder", (norm, *scores) if scores else ()),))


def dinov2(c: Fields) -> Model:
    """DINOv2: ViT with layer scales, optionally SwiGLU and registers; a classifier reads class token and mean."""
    width, heads = heads_and_width(c)
    patches, inputs = patches_of(c)
    registers = c.count("num_register_tokens") if "registers" in c.model_type else 0
    hidden = int(width * c.number("mlp_ratio", 4.0))
    swiglu = c.flag("use_swiglu_ffn")
    if swiglu:
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
    t = Tower(
        width=width, heads=heads, hidden=hidden, layers=c.layers(), patch_inputs=inputs, patches=patches,
        extra_tokens=1 + registers, positions=patches + 1, qkv_bias=c.flag("qkv_bias", default=True), layer_scale=True,
        gated=swiglu, act="silu" if swiglu else c.text("hidden_act", "gelu"),
        weights=width if c.flag("use_mask_token", default=True) else 0,
    )  # fmt: skip
    head = named_head(c, 2 * width) if c.has("architectures") else ()
    return Model(kind="vision", stacks=(t.stack("encoder", head),))


def dinov3(c: Fields) -> Model:
    """DINOv3: ViT with rotary positions, layer scales, registers, optionally gated; no head."""
    t = plain_tower(c, extra=1 + c.count("num_register_tokens"))
    t = replace(
        t, positions=0, rope=True, layer_scale=True, gated=c.flag("use_gated_mlp"), weights=t.width,
        qkv_bias=c.flag("query_bias", default=True), k_bias=c.flag("key_bias"),
        bias=c.flag("proj_bias", default=True), mlp_bias=c.flag("mlp_bias", default=True),
    )  # fmt: skip
    query, value = c.flag("query_bias", default=True), c.flag("value_bias", default=True)
    if query != value:
        t = replace(t, qkv_bias=False, layer_weights=t.width)
    return Model(kind="vision", stacks=(t.stack("encoder"),))


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
        Weight("head/probe", width),
        Linear("head/q_proj", width, width, bias=True, stream="samples"),
        Linear("head/kv_proj", width, 2 * width, bias=True, reads="norm"),
        Linear("head/o_proj", width, width, bias=True, stream="samples"),
        Norm("head/norm", width, kind="layernorm", bias=True, stream="samples"),
        *rows,
    )


def _text_tower(c: Fields, after: Items, *, causal: bool) -> Stack:
    """The text tower of CLIP (causal) and SigLIP."""
    width, heads = heads_and_width(c)
    a = Attention(
        width=width, heads=heads, kv_heads=heads, head_dim=width // heads, bias=True, out_bias=True, causal=causal,
        cached=False,
    )  # fmt: skip
    act = activation(c.text("hidden_act", "gelu"))
    feed = partial(mlp, width, c.size("intermediate_size"), act, gated=False, bias=True)
    layer = layer_of("pre", width, LAYER_NORM, partial(attention, a), feed)
    positions = c.size("max_position_embeddings")
    before = (
        Embedding("embed_tokens", c.size("vocab_size"), width, shard="row"),
        Embedding("embed_positions", positions, width, position=True),
        residual("embed/add", width),
    )
    after = (LAYER_NORM("norm", width), *after)
    return stack_of("text", width, before, [layer] * c.layers(), after, tokens=positions)


def _pair(tower: Stack, text: Fields, head: Linear, *, causal: bool) -> Model:
    """An image tower and a text tower; both run on a sample, an image with its caption."""
    stacks = (tower, _text_tower(text, (head,), causal=causal))
    positions = text.maybe("max_position_embeddings")
    return Model(kind="vision", stacks=stacks, vocab=text.size("vocab_size"), max_position=positions)


def clip(c: Fields) -> Model:
    """CLIP: image and text towers, each projected without bias."""
    text, image = c.part("text_config", "clip_text_model"), c.part("vision_config", "clip_vision_model")
    dim, t = c.size("projection_dim", 512), clip_tower(image)
    head = Linear("projection", text.size("hidden_size"), dim, stream="samples")
    tower = t.stack("vision", (replace(head, inputs=t.width), Weight("logit_scale", 1)))
    return _pair(tower, text, head, causal=True)


def siglip(c: Fields) -> Model:
    """SigLIP: as CLIP, with a pooling head on images and a biased projection of the last text token."""
    text, image = c.part("text_config", "siglip_text_model"), c.part("vision_config", "siglip_vision_model")
    t, width = siglip_tower(image), text.size("hidden_size")
    head = Linear("head", width, text.size("projection_size", width), bias=True, stream="samples")
    tower = t.stack("vision", (*pooling_head(image, t.width), Weight("logit_scale, logit_bias", 2)))
    return _pair(tower, text, head, causal=False)
