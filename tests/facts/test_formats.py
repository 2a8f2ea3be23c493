from __future__ import annotations

from typing import Any

import pytest

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts import formats
from flopwise.facts.architecture import Embedding, Experts, Linear
from flopwise.facts.formats import LayerPlace, tensor_role
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.tensors import parameters
from named import FACTS, weight_bytes, weight_groups


def llama(width: int, layers: int, heads: int, kv_heads: int, hidden: int, vocab: int, **more: Any) -> Any:
    config = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": hidden, "vocab_size": vocab, "tie_word_embeddings": False,
        **more,
    }  # fmt: skip
    return model_from_config(config, name="llama-like")


LLAMA_8B = llama(4096, 32, 32, 8, 14336, 128256)
LLAMA_70B = llama(8192, 80, 64, 8, 28672, 128256)
LLAMA_405B = llama(16384, 126, 128, 8, 53248, 128256)
QWEN_72B = llama(8192, 80, 64, 8, 29568, 152064, model_type="qwen2")
MIXTRAL = llama(4096, 32, 32, 8, 14336, 32000, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)


@pytest.mark.parametrize(
    ("name", "bits"),
    [  # llama.cpp, tools/quantize/README.md: bits a weight of Llama-3.1-8B
        ("IQ1_S", 2.0042), ("IQ2_XXS", 2.3824), ("IQ2_M", 2.9294), ("IQ3_XXS", 3.2548), ("IQ3_M", 3.7628),
        ("Q2_K", 3.1593), ("Q3_K_S", 3.6429), ("Q3_K_L", 4.2979), ("Q4_K_S", 4.6672), ("Q4_K_M", 4.8944),
        ("Q5_K_S", 5.5704), ("Q5_K_M", 5.7036), ("Q6_K", 6.5633), ("Q8_0", 8.5008), ("F16", 16.0005),
    ],
)  # fmt: skip
def test_gguf_files_of_an_8b_have_their_published_bits(name: str, bits: float) -> None:
    assert 8 * weight_bytes(LLAMA_8B, name) / parameters(LLAMA_8B) == pytest.approx(bits, rel=0.001)


@pytest.mark.parametrize(
    ("name", "published_gb"),
    [  # a public listing of a Llama-3.1-70B's files, decimal GB
        ("Q8_0", 74.98), ("Q6_K", 57.89), ("Q5_K_L", 50.60), ("Q5_K_M", 49.95), ("Q5_K_S", 48.66), ("Q4_K_L", 43.30),
        ("Q4_K_M", 42.52), ("Q4_K_S", 40.35), ("IQ4_XS", 37.90), ("Q3_K_XL", 38.06), ("Q3_K_L", 37.14),
        ("Q3_K_M", 34.27), ("IQ3_M", 31.94), ("Q3_K_S", 30.91),
    ],
)  # fmt: skip
def test_gguf_files_of_a_70b_have_their_published_size(name: str, published_gb: float) -> None:
    assert weight_bytes(LLAMA_70B, name) / 1e9 == pytest.approx(published_gb, rel=0.001)


def test_rows_that_do_not_divide_into_blocks_fall_back_to_larger_types() -> None:
    # 29,568 is not a multiple of 256: Qwen2.5-72B's Q4_K_M takes 5.22 bits a weight (gguf-parser-go's README)
    assert weight_bytes(QWEN_72B, "Q4_K_M") == pytest.approx(47_405_701_530, rel=0.001)


def test_meta_keeps_attention_in_16_bits_where_quark_does_not() -> None:
    # vLLM prints 56.7677 GiB on each of 8 GPUs for Meta's FP8 checkpoint of Llama-3.1-405B
    assert weight_bytes(LLAMA_405B, "FP8 (meta)") == pytest.approx(8 * 56.7677 * 2**30, rel=0.002)
    # 97.4347 GiB on each of 4 for Quark's: ROCm pads the rows of fp8 weights, which is not the checkpoint's
    assert weight_bytes(LLAMA_405B, "fp8-quark") == pytest.approx(4 * 97.4347 * 2**30, rel=0.03)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("awq", 4 + 16 / 128 + 4 / 128),
        ("nvfp4", 4.5),
        ("nf4", 4.5),
        ("nf4-dq", 4 + 8 / 64 + 32 / 64 / 256),
        ("mxfp4", 4.25),
    ],
)
def test_low_bit_matrices_carry_their_scales(name: str, bits: float) -> None:
    form = FACTS.weight_format(name)
    item = Linear(name="mlp/up_proj", inputs=4096, outputs=14336)
    size = form.tensor_bytes(item, tensor_role(item), LayerPlace(layer=3, layers=32), (1, 14336, 4096))
    assert 8 * size / (14336 * 4096) == pytest.approx(bits, rel=1e-3)


def test_block_scales_of_fp8_are_counted_by_128_by_128() -> None:
    form = FACTS.weight_format("fp8-block")
    item = Linear(name="mlp/down_proj", inputs=7168, outputs=2048)
    size = form.tensor_bytes(item, tensor_role(item), LayerPlace(), (1, 2048, 7168))
    assert size == 2048 * 7168 + 4 * 16 * 56


def test_deepseek_v4_has_eight_bits_beside_its_experts() -> None:
    """Flash, by the tensors of its checkpoint (verl pull request 7895).

    43 layers: 256 experts of 3 x 4,096 x 2,048 in 4.25 bits; queries by 1,024 to 64 x 512, one key of 512, outputs by
    8 x 1,024, and a shared expert in 8 bits; so are the queries of the indexer in 21 of them; all else is in 16. With
    the 44th layer, which predicts, that is what the hub holds: 148 GiB.
    """
    model = load_model("DeepSeek-V4-Flash")
    experts = 43 * 256 * 3 * 4096 * 2048
    attention = 4096 * 1024 + 1024 * 64 * 512 + 4096 * 512 + 2 * 4096 * 8192
    eight = 43 * (attention + 3 * 4096 * 2048) + 21 * 1024 * 64 * 128
    rest = 284_332_230_231 - experts - eight
    size = weight_bytes(model, "mxfp4")
    assert size == pytest.approx(experts * 4.25 / 8 + eight + 2 * rest, rel=1e-6)
    ends = 2 * 2 * 129_280 * 4096
    assert (size - ends) * 44 / 43 + ends == pytest.approx(148 * 2**30, rel=0.01)
    assert weight_bytes(model, "nvfp4") != size
    assert weight_bytes(model, "bf16") == 2 * 284_332_230_231
    assert model.checkpoint_format == "mxfp4"


@pytest.mark.parametrize("name", ["fp8", "int8", "awq", "gptq", "nf4", "nvfp4"])
def test_embeddings_and_head_stay_in_16_bits(name: str) -> None:
    groups = weight_groups(LLAMA_8B, name)
    assert groups["decoder/embed_tokens"] == groups["decoder/lm_head"] == 2 * 4096 * 128256
    assert groups["decoder/block/mlp/up_proj"] < 1.1 * 32 * 4096 * 14336


def by_item(model: Any, name: str) -> dict[str, float]:
    return {path.split("/", 2)[-1]: size for path, size in weight_groups(model, name).items()}


def test_mxfp4_quantises_experts_only() -> None:
    groups = by_item(MIXTRAL, "mxfp4")
    assert groups["attention/q_proj"] == 2 * 32 * 4096 * 4096
    assert groups["experts/down_proj"] == pytest.approx(32 * 8 * 4096 * 14336 * 4.25 / 8)


@pytest.mark.parametrize(
    ("model", "name", "published_gb", "elsewhere"),
    [  # cards of ISTA-DASLab's and wafer-ai's Kimi-K2.5 and K2.6, of nvidia/DeepSeek-R1-FP4 and a Qwen3.5-397B-NVFP4
        ("Kimi-K2.5", "int4-experts", 595, "awq"), ("Kimi-K2.5", "nvfp4-experts", 595, "nvfp4"),
        ("Kimi-K2.5", "nvfp4-mlp", 590, "nvfp4"), ("DeepSeek-R1", "nvfp4-mlp", 396.8, "nvfp4"),
        ("Qwen3.5-397B-A17B", "nvfp4-mlp", 234, "nvfp4"),
    ],
)  # fmt: skip
def test_mixtures_published_in_4_bits_leave_attention_in_16(
    model: str, name: str, published_gb: float, elsewhere: str
) -> None:
    mixture = load_model(model)
    own, other = (weight_bytes(mixture, each) / 1e9 for each in (name, elsewhere))
    assert own == pytest.approx(published_gb, rel=0.01)
    assert abs(other - published_gb) > 3 * abs(own - published_gb)


def test_the_second_release_of_deepseek_in_4_bits_has_the_output_projection_in_4_bits_too() -> None:
    """413,340,567,567 bytes of files of nvidia/DeepSeek-R1-0528-NVFP4-v2 (edwardsp/blobcache), with the layer that
    predicts a second token in 16 bits: attention, 257 experts of 3 x 7,168 x 2,048, a join, an embedding and a head.
    """
    deepseek = load_model("DeepSeek-R1")
    attention = 7168 * (1536 + 576) + 1536 * 24576 + 512 * 32768 + 16384 * 7168
    more = 2 * (attention + 257 * 3 * 7168 * 2048 + 2 * 7168**2 + 2 * 129280 * 7168)
    assert weight_bytes(deepseek, "nvfp4-mlp-o") + more == pytest.approx(413_340_567_567, rel=0.002)
    plain, output = (by_item(deepseek, name) for name in ("nvfp4-mlp", "nvfp4-mlp-o"))
    assert {path for path in plain if plain[path] != output[path]} == {"attention/o_proj"}


def test_a_shared_expert_is_quantised_with_the_mlp_but_not_with_the_experts() -> None:
    kimi = load_model("Kimi-K2.5")
    mlp, experts = (by_item(kimi, f"nvfp4-{which}") for which in ("mlp", "experts"))
    differ = {path for path in mlp if mlp[path] != experts[path]}
    assert any("shared" in path for path in differ)
    assert not any(path.startswith(("attention", "experts")) for path in differ)
    assert kimi.checkpoint_format == "int4-experts"


def test_eight_experts_get_wider_attention_in_gguf() -> None:
    groups = by_item(MIXTRAL, "Q4_K_M")
    assert groups["attention/v_proj"] == 32 * 4096 * 1024 * 34 / 32  # Q8_0
    assert groups["attention/o_proj"] == 32 * 4096 * 4096 * 176 / 256  # Q5_K
    assert groups["router"] == 32 * 4096 * 8 * 4  # F32


@pytest.mark.parametrize("name", FACTS.weight_format_names)
def test_every_format_holds_every_model_in_less_than_fp32(name: str) -> None:
    form = FACTS.weight_format(name)
    assert form.source
    for model in (LLAMA_8B, MIXTRAL):
        assert 0 < weight_bytes(model, name) <= 4 * parameters(model)


def test_every_type_named_by_a_rule_is_known() -> None:
    mixtures = [form for form in FACTS.weight_formats.values() if isinstance(form, formats.GgufFormat)]
    types = mixtures[0].blocks
    assert {block.fallback for block in types.values() if block.fallback} <= types.keys()
    for row in mixtures:
        assert {row.base, row.output, row.embedding} <= types.keys()
        for rules in row.rules.values():
            assert {kind for _, kind in rules} <= types.keys()
            for condition, _ in rules:
                for term in condition.split(" and "):
                    formats._holds(term, LayerPlace(), imatrix=True)


def test_spelling_is_forgiving_and_unknown_names_are_not() -> None:
    assert FACTS.weight_format("GGUF q4_k_m").name == FACTS.weight_format("Q4_K_M").name == "Q4_K_M"
    assert FACTS.weight_format("AWQ-INT4").name == "awq"
    with pytest.raises(UnknownNameError, match="Q4_K_M"):
        FACTS.weight_format("Q4_K_MM")
    assert FACTS.cache_format("fp8_e4m3").elem_bytes == 1.0
    with pytest.raises(SpecError, match="allowed"):
        FACTS.cache_format("fp7")


def test_roles_are_told_by_path() -> None:
    assert tensor_role(Linear(name="shared/gate", inputs=8, outputs=1)) == "router"
    assert tensor_role(Linear(name="latent/down_proj", inputs=8, outputs=4)) == "linear_other"
    assert tensor_role(Experts(name="experts/gate_up_proj", experts=2, top_k=1, inputs=8, outputs=8)) == "gate"


def test_tables_and_gates_by_layer_are_quantised_as_llama_cpp_does() -> None:
    form = FACTS.weight_format("Q4_K_M")
    table = Embedding("embed_tokens_per_layer", 262144, 8960)
    blocks = form.tensor_bytes(table, tensor_role(table), LayerPlace(), (1, 262144, 8960))
    assert blocks == 262144 * 8960 * 144 / 256  # Q4_K: 144 bytes of 256 weights, not four bytes each
    gate = Linear("per_layer/gate", 2048, 256)
    assert form.tensor_bytes(gate, tensor_role(gate), LayerPlace(), (1, 256, 2048)) == 256 * 2048 * 144 / 256
    left = Linear("laurel/left", 2048, 64)
    assert form.tensor_bytes(left, tensor_role(left), LayerPlace(), (1, 64, 2048)) == 2 * 64 * 2048


def test_experts_published_in_mxfp4_stay_so_under_every_mixture() -> None:
    model = load_model("gpt-oss-20b")
    experts = [24 * 32 * 2880 * 5760, 24 * 32 * 2880 * 2880]  # layers x experts x matrix
    for name in ("Q4_K_M", "Q8_0", "Q2_K"):
        groups = weight_groups(model, name)
        sizes = [size for path, size in groups.items() if path.endswith(("experts/gate_up_proj", "experts/down_proj"))]
        biases = [24 * 32 * 5760 * 4, 24 * 32 * 2880 * 4]
        assert sorted(sizes) == pytest.approx(sorted(n * 17 / 32 + b for n, b in zip(experts, biases, strict=True)))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Q4_K_XL", "UD-Q4_K_XL"), ("UD-Q4_K_XL", "UD-Q4_K_XL"), ("UD-Q5_K_XL", "UD-Q5_K_XL"),
        ("UD-IQ2_XXS", "UD-IQ2_XXS"),
        ("Q3_K_XL", "Q3_K_XL"), ("UD-Q3_K_XL", "UD-Q3_K_XL"), ("Q4_K", "Q4_K_M"), ("q4_k_m", "Q4_K_M"), ("q8", "Q8_0"),
        ("W4A16", "awq"), ("w8a8-int8", "int8"), ("w8a8-fp8", "fp8"), ("w8a16", "int8-weight-only"), ("w4a8", "w4a8"),
        ("awq_marlin", "awq"), ("gptq_marlin", "gptq"), ("int4-autoround", "gptq"), ("fp8_e4m3", "fp8"),
        ("fp8_per_tensor", "fp8-tensor"), ("fp8-blockwise", "fp8-block"), ("modelopt_fp4", "nvfp4"),
        ("nvfp4a16", "nvfp4a16"), ("bnb-4bit", "nf4"), ("load_in_8bit", "llm-int8"), ("hqq", "hqq"),
        ("hqq-4bit", "hqq"),
        ("mlx-4bit", "mlx-4bit"), ("q4f16_1", "q4f16_1"), ("exl2", "exl2-4.0"), ("exl3", "exl3-4.0"),
    ],
)  # fmt: skip
def test_formats_are_known_as_people_write_them(given: str, name: str) -> None:
    assert FACTS.weight_format(given).name == name


@pytest.mark.parametrize(
    ("given", "name", "bits"),
    [("exl2-4.65", "exl2-4.65", 4.65), ("4.25bpw", "exl2-4.25", 4.25), ("exl3-2.25", "exl3-2.25", 2.25),
     ("3.5bpw-exl3", "exl3-3.5", 3.5), ("6bpw", "exl2-6", 6.0)],
)  # fmt: skip
def test_exllama_formats_have_the_bits_of_their_names(given: str, name: str, bits: float) -> None:
    form = FACTS.weight_format(given)
    assert form.name == name
    ends = 2 * 128_256 * 4096 * 2.0  # embedding and head stay in 16 bits
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)
    assert weight_bytes(LLAMA_8B, name) == pytest.approx(linear * bits / 8 + ends, rel=1e-3)


@pytest.mark.parametrize("given", ["4.25", "exl4-4.0", "exl2-9", "0.5bpw", "4.25bits"])
def test_other_rates_are_no_formats(given: str) -> None:
    with pytest.raises(UnknownNameError):
        FACTS.weight_format(given)


def test_mlx_and_mlc_quantise_embedding_and_head_too() -> None:
    weights = 2 * 128_256 * 4096 + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)
    norms = (2 * 32 + 1) * 4096
    for name, bits in (("mlx-4bit", 4 + 2 * 16 / 64), ("mlx-8bit", 8 + 2 * 16 / 64), ("q4f16_1", 4 + 16 / 32)):
        assert weight_bytes(LLAMA_8B, name) == pytest.approx(weights * bits / 8 + norms * 2.0)


def test_hqq_has_a_scale_and_a_zero_for_64_weights() -> None:
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)
    rest = 2 * 128_256 * 4096 * 2.0 + (2 * 32 + 1) * 4096 * 2.0
    assert weight_bytes(LLAMA_8B, "hqq") == pytest.approx(linear * (4 + 2 * 16 / 64) / 8 + rest)


# Unsloth Dynamic 2.0 documentation: Gemma 3 27B in GiB, files of the plain mixture and of the dynamic one
GEMMA_27B = [
    ("IQ1_S", 5.83, "UD-IQ1_S", 6.06), ("IQ1_M", 6.33, "UD-IQ1_M", 6.51), ("IQ2_XXS", 7.16, "UD-IQ2_XXS", 7.31),
    ("IQ2_M", 8.84, "UD-IQ2_M", 8.96), ("Q2_K", 9.78, "UD-Q2_K_XL", 9.95), ("Q3_K_M", 12.51, "UD-Q3_K_XL", 12.76),
    ("Q4_K_M", 15.41, "UD-Q4_K_XL", 15.64),
]  # fmt: skip


@pytest.mark.parametrize(("plain", "plain_gib", "dynamic", "gib"), GEMMA_27B, ids=str)
def test_dynamic_mixtures_are_the_nearest_plain_ones_within_their_error(
    plain: str, plain_gib: float, dynamic: str, gib: float
) -> None:
    gemma = load_model("Gemma-3-27B")
    form = FACTS.weight_format(dynamic)
    assert weight_bytes(gemma, plain) / 2**30 == pytest.approx(plain_gib, abs=0.015)
    assert weight_bytes(gemma, dynamic) == weight_bytes(gemma, plain)
    assert abs(gib / plain_gib - 1) < form.size_error
    assert plain in form.assumption


def test_formats_with_a_published_rule_assume_nothing() -> None:
    doubtful = {form.name for form in FACTS.weight_formats.values() if form.size_error or form.assumption}
    assert doubtful
    assert all(name.startswith("UD-") for name in doubtful)


@pytest.mark.parametrize(("spelled", "name"), [
    ("MXFP4 experts + BF16", "mxfp4"), ("FP8 (+BF16)", "fp8"), ("FP8 + BF16", "fp8"),
    ("NVFP4 experts + BF16", "nvfp4-experts"), ("AWQ-INT4 + FP16", "awq"), ("fp8-block + 16-bit rest", "fp8-block"),
])  # fmt: skip
def test_formats_that_spell_out_what_stays_in_16_bits(spelled: str, name: str) -> None:
    assert FACTS.weight_format(spelled) is FACTS.weight_format(name)


@pytest.mark.parametrize("name", ["FP8 experts + BF16", "BF16 + BF16", "FP8 + FP32", "Q4_K_M + BF16"])
def test_a_mixture_that_no_format_has_is_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown weight format"):
        FACTS.weight_format(name)


@pytest.mark.parametrize(("name", "says"), [
    ("any", "unknown weight format 'any'. A plan compares the formats of `any`: give one by its name here"),
    ("zzz", "unknown weight format 'zzz'. Formats are those of checkpoints (bf16, fp8, awq, gptq, nvfp4 ...) and of"),
])  # fmt: skip
def test_a_format_that_resembles_none_is_refused_with_what_there_is(name: str, says: str) -> None:
    with pytest.raises(UnknownNameError) as refused:
        FACTS.weight_format(name)
    assert str(refused.value).startswith(says)
