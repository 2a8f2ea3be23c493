"""DeepSeek V2, V3, V3.2 and what is built like them: Kimi K2 and Linear, GLM-4.7-Flash, GLM-5, LongCat-Flash."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Convolution, Linear, Model, Pointwise, Recurrence, Weight
from flopwise.facts.models.attend import Latent, latent_attention
from flopwise.facts.models.blocks import RMS, Block, Items, Mixture, activation, layer_of, mlp, moe, one_of_each
from flopwise.facts.models.families.llama import add_predictors, language_model
from flopwise.facts.models.families.moe import FINE_GRAINED, Manner, expert_names, mixture, sparse_layers
from flopwise.facts.models.fields import Fields
from flopwise.values import replace


def latent(c: Fields) -> Latent:
    """The latent attention that a configuration describes, with the indexer of V3.2 where it has one."""
    indexed = c.model_type in ("deepseek_v32", "glm_moe_dsa")
    return Latent(
        width=c.size("hidden_size"), heads=c.size("num_attention_heads"), q_rank=c.maybe("q_lora_rank"),
        kv_rank=c.size("kv_lora_rank"), nope_dim=c.size("qk_nope_head_dim"), rope_dim=c.size("qk_rope_head_dim"),
        v_dim=c.size("v_head_dim"), bias=c.flag("attention_bias"),
        index_heads=c.size("index_n_heads") if indexed else 0, index_dim=c.size("index_head_dim") if indexed else 0,
        index_topk=c.size("index_topk") if indexed else 0,
    )  # fmt: skip


def deepseek(c: Fields) -> Model:
    """Pre-norm decoder of latent attention; the first layers dense, the others with routed and shared experts."""
    a, layers = latent(c), c.layers()
    sparse = sparse_layers(c, layers) if c.model_type not in ("youtu", "minicpm3") else [False] * layers
    feeds = _feeds(c, a.width, sparse)

    def layer(key: tuple[bool, Latent]) -> Items:
        return layer_of("pre", a.width, RMS, partial(latent_attention, key[1]), feeds[key[0]])

    rows = one_of_each(zip(sparse, _layer_attentions(c, a, layers), strict=True), layer)
    return add_predictors(c, language_model(c, rows, expert_names(sparse), tied=False), rows[-1:])


def _feeds(c: Fields, width: int, sparse: list[bool], manner: Manner = FINE_GRAINED) -> dict[bool, Block]:
    """The feed-forward block of layers with experts (True) and of dense ones."""
    act = activation(c.text("hidden_act", "silu"))
    biased = c.model_type in ("deepseek_v2", "minicpm3") and c.flag("mlp_bias")
    manner = replace(manner, shared_bias="mlp_bias") if biased else manner
    dense = partial(mlp, width, c.size("intermediate_size"), act, bias=biased)
    if not any(sparse):
        return {False: dense, True: dense}
    experts = mixture(c, manner, width)
    after = (RMS("experts/norm", width),) if c.model_type == "axk1" else ()
    return {False: dense, True: lambda source: (*moe(experts, source), *after)}


def _layer_attentions(c: Fields, a: Latent, layers: int) -> list[Latent]:
    """The attention of each layer: layers that share the selection of an earlier one have no indexer of their own."""
    if not a.index_heads:
        return [a] * layers
    pattern = c.value("index_topk_pattern")
    if c.has("indexer_types"):
        own = [k == "full" for k in c.per_layer("indexer_types", layers, "full")]
    elif isinstance(pattern, str) and len(pattern) >= layers:
        own = [letter == "F" for letter in pattern[:layers]]
    else:
        every, offset = c.size("index_topk_freq", 1), c.count("index_skip_topk_offset", 2)
        own = [max(i - offset + 1, 0) % every == 0 for i in range(layers)]
    return [a if o else replace(a, index_heads=0) for o in own]


def longcat_flash(c: Fields) -> Model:
    """LongCat-Flash: twice as many layers as it says, every other with experts beside its dense block.

    Some experts return their input, so of those that a token chooses only their share does work.

    Source: transformers 5.24, LongcatFlashDecoderLayer (two attentions and two dense blocks; what the experts make of
    the first block's input is added after the second); report, arXiv 2509.01322, section 2.1: on average 27 of 560
    billion parameters, 8 of 12 choices. Assumes: experts are chosen evenly.
    """
    a, layers, hidden = latent(c), c.layers(), c.size("ffn_hidden_size")
    act, experts, idle = (
        activation(c.text("hidden_act", "silu")),
        c.size("n_routed_experts"),
        c.count("zero_expert_num"),
    )
    top_k = c.size("moe_topk")
    if top_k > experts:
        raise c.wrong("moe_topk", top_k, f"it must not exceed n_routed_experts = {experts}")
    beside = Mixture(
        width=a.width, experts=experts, idle=idle, top_k=max(1, round(top_k * experts / (experts + idle))),
        hidden=c.size("expert_ffn_hidden_size"), act=act, shared_hidden=hidden,
    )  # fmt: skip
    feeds: dict[bool, Block] = {True: partial(moe, beside), False: partial(mlp, a.width, hidden, act)}

    def layer(sparse: bool) -> Items:
        return layer_of("pre", a.width, RMS, partial(latent_attention, a), feeds[sparse])

    sparse = [True, False] * layers
    return language_model(c, one_of_each(sparse, layer), expert_names(sparse), tied=False)


def kimi_delta(width: int, heads: int, head_dim: int, kernel: int, source: str, *, low_rank: bool = True) -> Items:
    """Kimi Delta Attention (arXiv 2510.26692): a delta rule whose decay has a value for each channel.

    `low_rank`: decay and output gate through the dimension of a head; Ling 3 has a whole matrix for each.
    """
    inner = heads * head_dim
    state = inner * (head_dim + 3 * (kernel - 1))

    def column(name: str, inputs: int, outputs: int, reads: str = source) -> Linear:
        return Linear(f"kda/{name}", inputs, outputs, shard="column", reads=reads)

    def per_channel(name: str) -> Items:
        if not low_rank:
            return (column(f"{name}_proj", width, inner),)
        return Linear(f"kda/{name}_a_proj", width, head_dim, reads=source), column(
            f"{name}_b_proj", head_dim, inner, ""
        )

    return (
        *(column(name, width, inner) for name in ("q_proj", "k_proj", "v_proj")),
        Convolution("kda/conv", 3 * inner, kernel, bias=False, shard="column"),
        Pointwise("kda/act", 3 * inner, "silu", shard="column"),
        *per_channel("f"),
        Weight("kda/A_log, dt_bias", inner + heads, shard="column"),
        column("b_proj", width, heads),
        Recurrence("kda/rule", "kda", heads=heads, key_dim=head_dim, value_dim=head_dim, state=state),
        *per_channel("g"),
        RMS("kda/norm", head_dim, groups=heads, shard="column", reads="kda/rule"),
        Pointwise("kda/gate", inner, "sigmoid", gated=True, shard="column"),
        Linear("kda/out_proj", inner, width, shard="row"),
    )


def kimi_linear(c: Fields) -> Model:
    """Kimi Linear: three Kimi-delta layers, then one of latent attention; experts after the first layer."""
    a, layers = latent(c), c.layers()
    given = c.value("linear_attn_config")
    linear = c.within(given if isinstance(given, dict) else {}, "", f"{c.where}: linear_attn_config", nested=True)
    heads = linear.size("num_heads", c.size("linear_num_heads", 32))
    dim = linear.size("head_dim", c.size("linear_head_dim", 128))
    kernel = linear.size("short_conv_kernel_size", c.size("linear_conv_kernel_dim", 4))
    full = linear.sequence("full_attn_layers")
    if c.has("layer_types"):
        kinds = c.per_layer("layer_types", layers, "")
    elif full is not None:  # counted from one in the checkpoints
        kinds = ["full_attention" if i + 1 in full else "linear_attention" for i in range(layers)]
    else:
        kinds = ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers)]
    first = c.count("first_k_dense_replace", 1)
    sparse = [i >= first for i in range(layers)] if not c.has("mlp_layer_types") else sparse_layers(c, layers)
    feeds = _feeds(c, a.width, sparse, replace(FINE_GRAINED, experts="num_local_experts"))
    linear_block = partial(kimi_delta, a.width, heads, dim, kernel)

    def layer(key: tuple[str, bool]) -> Items:
        attend = partial(latent_attention, a) if key[0] == "full_attention" else linear_block
        return layer_of("pre", a.width, RMS, attend, feeds[key[1]])

    model = language_model(c, one_of_each(zip(kinds, sparse, strict=True), layer), kinds, tied=False)
    (stack,) = model.stacks  # its head is never tied, whatever the configuration says (KimiLinearForCausalLM)
    ends = tuple(replace(item, tied=False) if isinstance(item, Linear) else item for item in stack.after)
    return replace(model, stacks=(replace(stack, after=ends),))


def ling_hybrid(c: Fields) -> Model:
    """Ling 3: Kimi-delta layers, the last of each group of latent attention with a gate for each head.

    Source: transformers 5.24, modular_bailing_hybrid.py.
    """
    a, layers, group = latent(c), c.layers(), c.size("layer_group_size")
    heads, head_dim = a.heads, c.size("head_dim")
    plain = ["linear_attention" if (i + 1) % group else "full_attention" for i in range(layers)]
    kinds = c.per_layer("layer_types", layers, "") if c.has("layer_types") else plain
    sparse = sparse_layers(c, layers)
    feeds = _feeds(c, a.width, sparse, replace(FINE_GRAINED, experts="num_local_experts"))
    delta = partial(kimi_delta, a.width, heads, head_dim, c.size("short_conv_kernel_size"), low_rank=False)

    def attend(source: str) -> Items:
        *first, out = latent_attention(a, source)
        gate = Linear("attention/g_proj", a.width, heads, shard="column", reads=source)
        times = Pointwise("attention/gate", heads * a.v_dim, "sigmoid", shard="column")
        return *first, gate, times, out

    def layer(key: tuple[str, bool]) -> Items:
        return layer_of("pre", a.width, RMS, attend if key[0] == "full_attention" else delta, feeds[key[1]])

    return language_model(c, one_of_each(zip(kinds, sparse, strict=True), layer), kinds, tied=False)
