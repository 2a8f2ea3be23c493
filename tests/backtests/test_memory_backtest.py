from __future__ import annotations

from collections.abc import Mapping

import pytest

from flopwise.backtests import memory
from flopwise.backtests.columns import SOFTWARE, our_columns
from flopwise.backtests.kinds import predict_weights
from flopwise.training.layout import TARGET_SETS
from named import FACTS

PRINTED = {  # a row with the columns of published tables
    "id": "x", "source": "torchtune README", "source_key": "torchtune", "year": "2025", "model": "Llama3.2-3B",
    "params_b": "3.2", "method": "full", "trainable_params_m": "", "gpu": "A100", "n_gpus": "1", "param_dtype": "bf16",
    "base_weight_quant": "", "optimizer": "AdamW", "micro_batch": "2", "seq_len": "4096",
    "activation_checkpointing": "true", "flash_attention": "true", "torch_compile": "true",
    "parallelism": "none", "offload": "none",
    "peak_memory_gb_per_gpu": "24.9", "memory_unit": "GiB", "memory_kind": "torch peak active", "notes": "",
}  # fmt: skip
LITGPT = {
    "source": "litgpt tables", "source_key": "litgpt", "method": "lora", "trainable_params_m": "4.194304",
    "model": "Llama2-7B", "seq_len": "1304", "micro_batch": "1", "activation_checkpointing": "false",
    "torch_compile": "", "memory_unit": "GB", "memory_kind": "torch max allocated", "notes": "rank 8 on q,v",
}  # fmt: skip
PUBLISHED = [  # peaks that their sources print
    {},  # torchtune, full fine-tuning with recompute and chunked loss
    {
        "activation_checkpointing": "false", "torch_compile": "false", "peak_memory_gb_per_gpu": "60.0",
        "notes": "+packed (cumulative)",
    },
    {"optimizer": "AdamW8bit, fused in backward", "offload": "activations to CPU", "peak_memory_gb_per_gpu": "17.6"},
    {**LITGPT, "peak_memory_gb_per_gpu": "21.3"},
    {**LITGPT, "micro_batch": "2", "peak_memory_gb_per_gpu": "29.07"},
    {
        "id": "bigscience-176b-h14336-l70-a64-gbs2048", "source": "", "source_key": "bigscience",
        "model": "BLOOM-proto-176B",
        "method": "pretrain", "n_gpus": "384", "param_dtype": "bf16 + fp32 master", "seq_len": "2048",
        "activation_checkpointing": "full", "flash_attention": "false", "torch_compile": "",
        "parallelism": "dp8 tp4 pp12 cp1 zero1", "peak_memory_gb_per_gpu": "59", "memory_unit": "GB",
        "memory_kind": "nvidia-smi style",
    },
]  # fmt: skip


def _row(changes: dict[str, str] | None = None) -> Mapping[str, str]:
    return our_columns("memory", PRINTED | (changes or {}))


@pytest.mark.parametrize("changes", PUBLISHED)
def test_published_peaks_are_met(changes: dict[str, str]) -> None:
    found = memory.predict_row(_row(changes), FACTS)
    assert found.skipped is None
    assert found.error == pytest.approx(0, abs=0.15)
    assert found.low is not None
    assert found.high is not None
    assert found.predicted is not None
    assert found.low < found.predicted < found.high


def test_a_peak_is_in_bytes() -> None:
    assert memory.predict_row(_row(), FACTS).measured == 24.9 * 2**30
    assert memory.predict_row(_row({"memory_unit": "GB"}), FACTS).measured == 24.9e9
    assert memory.predict_row(_row({"peak_memory_gb_per_gpu": ""}), FACTS).measured is None


def test_measured_columns_are_no_input() -> None:
    one = memory.predict_row(_row(), FACTS)
    other = memory.predict_row(_row({"peak_memory_gb_per_gpu": "99", "speed_reported": "1"}), FACTS)
    assert one.predicted == other.predicted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"memory_unit": "buckets"}, "allowed: gb, gib"),
        ({"model": "no such model at all", "params_b": ""}, "unknown"),
        ({"memory_kind": "capacity limit (largest that fits)"}, "capacity limit"),
        ({"method": "lora", "base_weight_quant": "q99"}, "unknown weight format"),
    ],
)
def test_what_cannot_be_predicted_is_skipped_with_a_reason(changes: dict[str, str], reason: str) -> None:
    found = memory.predict_row(_row(changes), FACTS)
    assert found.predicted is None
    assert reason in (found.skipped or "").lower()


@pytest.mark.parametrize(
    ("model", "form", "published"),
    [  # checkpoints' index files and file listings
        ("Llama-3.1-8B", "BF16", 16_060_522_496),
        ("Mixtral-8x7B-v0.1", "BF16", 93_405_585_408),
        ("Llama-3.1-70B (Nemotron)", "GGUF Q4_K_S", 40_350_000_000),
        ("gpt-oss-20b", "mxfp4", 13_760_000_000),
        ("Qwen2.5-72B-Instruct", "GGUF Q4_K_M", 47_405_701_530),
    ],
)
def test_published_sizes_are_met(model: str, form: str, published: int) -> None:
    row = {"id": "w", "model": model, "format": form, "stored_bytes": str(published)}
    found = predict_weights(row, FACTS)
    assert found.error == pytest.approx(0, abs=0.002)


def test_a_size_of_an_unknown_format_is_skipped() -> None:
    found = predict_weights({"id": "w", "model": "Llama-3.1-8B", "format": "Q99"}, FACTS)
    assert "format" in (found.skipped or "")


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("AdamW bf16", "adamw"), ("PagedAdamW8bit + optimizer_in_bwd", "paged-adamw-8bit"), ("adafactor", "adafactor"),
        ("SGD with momentum", "sgd-momentum"), ("adamw-8bit", "adamw-8bit"), ("muon", "muon"), ("", "adamw"),
    ],
)  # fmt: skip
def test_printed_optimizers_are_rows_of_the_table(printed: str, meant: str) -> None:
    assert _row({"optimizer": printed})["optimizer"] == meant
    assert FACTS.optimizer(meant).name == meant


def test_every_software_word_is_a_stack() -> None:
    assert set(SOFTWARE.values()) <= set(FACTS.stacks)


@pytest.mark.parametrize(
    ("notes", "rank", "targets"),
    [
        ("rank 8 on q,v", "8", "q v"), ("LoRA on Q and V only, rank 64", "64", "q v"), ("rank 32 q,v", "32", "q v"),
        ("rank=8 on q,k,v; accumulation 16", "8", "q k v"), ("rank=8, all linear layers", "8", "all-linear"),
        ("rank 64 on q k v up down gate", "64", "q k v up down gate"), ("LoRA plus a trainable head", "", ""),
    ],
)  # fmt: skip
def test_adapters_are_as_stated(notes: str, rank: str, targets: str) -> None:
    row = _row({"method": "lora", "notes": notes})
    assert (row["lora_rank"], row["lora_targets"]) == (rank, targets)
    lora = memory.row_recipe(row, memory.row_model(row, FACTS), memory.row_layout(row), FACTS).lora
    assert lora is not None
    if rank:
        assert (lora.rank, lora.targets) == (int(rank), TARGET_SETS.get(targets) or tuple(targets.split()))


@pytest.mark.parametrize(
    ("software", "year", "each"),
    [("hf-trainer", "2025", 16), ("axolotl", "2025", 16), ("hf-trainer", "2024", 8), ("unsloth", "2025", 8),
     ("torchtune-eager", "2025", 8)],
)  # fmt: skip
def test_adapters_of_peft_are_in_fp32_from_2025_on(software: str, year: str, each: int) -> None:
    """Weights and two states of AdamW: 12 bytes a trained parameter in fp32, 6 in 16 bits; gradients 4 and 2 more.

    Llama-2 7B with rank 64 on q and v of 4,096: 32 x 2 x 64 x 8,192 parameters (LoRA, arXiv 2106.09685, section 4.1).
    """
    row = {
        "model": "Llama-2-7B", "method": "lora", "base": "bf16", "lora_rank": "64", "lora_targets": "q v",
        "software": software, "year": year, "optimizer": "adamw", "micro_batch": "1", "seq_len": "512",
    }  # fmt: skip
    model = memory.row_model(row, FACTS)
    lora = memory.row_recipe(row, model, memory.row_layout(row), FACTS).lora
    assert lora is not None
    assert lora.adapter_dtype == {16: "fp32", 8: "bf16"}[each]
    stated = {"adapter_dtype": "fp32"} if each == 8 else {"adapter_dtype": "bf16"}
    usual, other = (memory.row_memory(cells, FACTS) for cells in (row, row | stated))
    parameters = 32 * 2 * 64 * 8192
    weights = float(usual.items["weights"]) - float(other.items["weights"])
    assert weights == pytest.approx(parameters * (2 if each == 16 else -2))


def test_a_layout_is_read_from_the_words_for_it() -> None:
    row = _row(
        {"n_gpus": "64", "parallelism": "dp4 tp8 pp2 cp1 fsdp2(zero3)", "offload": "CPU offload of params/optimizer"}
    )
    layout = memory.row_layout(row)
    assert (layout.dp, layout.tp, layout.pp, layout.zero, layout.sequence_parallel) == (4, 8, 2, 3, True)
    assert (layout.offload_optimizer, layout.offload_parameters, layout.offload_activations) == (True, True, False)
    assert not memory.row_layout(_row({"offload": "paged optimizer can spill to CPU"})).offload_optimizer


@pytest.mark.parametrize(
    ("kind", "reading"),
    [
        ("torch max reserved (torchtitan log)", "reserved"), ("nvidia-smi style, first stage", "device"),
        ("nvidia-smi or torch (not stated)", "not stated"), ("torch peak active", "active"), ("torch peak", "peak"),
        ("capacity limit (largest that fits)", "capacity"), ("", ""),
    ],
)  # fmt: skip
def test_what_a_peak_counts(kind: str, reading: str) -> None:
    assert _row({"memory_kind": kind})["reading"] == reading


def test_named_modules_are_computed_again() -> None:
    """Experts that a row names as computed again keep their inputs alone: a fifth less of a step of Nemotron 3 Nano."""
    row = {
        "model": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "method": "full", "software": "nemo", "gpu": "H100 SXM",
        "gpus": "16", "ep": "8", "zero": "1", "micro_batch": "1", "seq_len": "8192", "recompute": "selective",
        "recompute_modules": "moe",
    }  # fmt: skip
    recipe = memory.row_recipe(row, memory.row_model(row, FACTS), memory.row_layout(row), FACTS)
    assert recipe.modules == ("moe",)
    kept, again = (
        float(memory.row_memory(cells, FACTS).allocated_bytes) for cells in (row | {"recompute_modules": ""}, row)
    )
    assert again < 0.8 * kept


def test_optimizers_before_pytorch_2_hold_no_temporaries_of_all_parameters() -> None:
    """BERT large in fp32: 335 M parameters, four bytes each, once more from 2023 on."""
    row = {
        "model": "bert-large-uncased", "method": "full", "software": "hf-trainer", "precision": "fp32",
        "optimizer": "adamw", "micro_batch": "1", "seq_len": "512", "recompute": "full", "reading": "device",
    }  # fmt: skip
    old, new = (memory.row_memory({**row, "year": year}, FACTS).allocated_bytes for year in ("2022", "2024"))
    assert float(new) - float(old) == pytest.approx(4 * 335.1e6, rel=0.05)


@pytest.mark.parametrize(("month", "an_entry"), [("3", 12), ("4", 6), ("", 6)])
def test_torchtitan_compiles_its_loss_from_april_2025_on(month: str, an_entry: int) -> None:
    """8,192 tokens and 128,256 words: logits, fp32 copies and gradients take 12 bytes an entry, compiled 6."""
    row = {
        "model": "Llama3-8B", "method": "pretrain", "software": "fsdp-eager", "compiled": "yes", "gpus": "8",
        "zero": "3", "micro_batch": "1", "seq_len": "8192", "recompute": "full", "year": "2025", "month": month,
    }  # fmt: skip
    loss = memory.row_memory(row, FACTS).items["logits and loss"]
    assert loss == pytest.approx(8192 * 128_256 * an_entry)


def test_a_script_of_the_trainer_without_settings_may_run_its_defaults() -> None:
    """RoBERTa large in fp32: 355 M parameters of 16 bytes, and a copy of a state: an end of the interval alone."""
    row = {"model": "RoBERTa large", "method": "full", "software": "hf-trainer", "year": "2024", "seq_len": "96",
           "optimizer": "adamw", "reading": "allocated", "recompute": "full"}  # fmt: skip
    cells = memory.unstated_cells(row)
    assert [end["micro_batch"] for end in cells["micro_batch"]] == ["1", "1", "8"]
    usual, _, most = cells["precision"]
    assert usual == {"precision": "bf16"}
    plain = memory.row_memory({**memory.usual_row(row), **most}, FACTS)
    assert plain.moments["optimizer step"] == pytest.approx(20 * 355.4e6 * 1.12 + 1e9, rel=0.02)
    other = {**row, "software": "torchtune-eager"}
    assert "precision" not in memory.unstated_cells(other)
    assert "precision" not in memory.unstated_cells({**row, "method": "qlora", "base": "nf4"})


def test_a_model_that_nobody_knows_is_of_the_size_that_its_row_prints() -> None:
    """Llama 3.2 3B by its size alone: what a vocabulary adds to the logits is open, of 32,000 words to 151,936."""
    named, sized = (memory.predict_row(_row({"model": name}), FACTS) for name in ("Llama3.2-3B", "Nobody-knows"))
    assert sized.skipped is None
    for found in (named, sized):
        assert found.predicted is not None
        assert found.low is not None
        assert found.high is not None
    assert sized.predicted == pytest.approx(named.predicted, rel=0.2)
    assert (sized.low or 0.0) < (named.predicted or 0.0) < (sized.high or 0.0)
    assert (sized.high or 0.0) / (sized.low or 1.0) > (named.high or 0.0) / (named.low or 1.0)
    mixture = {"model": "Nobody-knows", "active_params_b": "1.1"}
    assert memory.predict_row(_row({"model": "Nobody-knows", "params_b": ""}), FACTS).predicted is None
    assert memory.predict_row({**_row(mixture), "active_params": "1.1e9"}, FACTS).predicted is None


def test_litgpt_of_2024_has_bitsandbytes_that_keep_their_input() -> None:
    """LitGPT took bitsandbytes 0.42.0 alone until 2025; from 0.43.2 on (pull request 1270) products keep no input.

    By hand: the inputs of seven projections of a layer of Llama-2-7B without recompute, 16-bit, of which three differ
    (what attention, the gate and the head of a block read is kept for others) and one is 11,008 wide.
    """
    row = {
        "model": "Llama2-7B", "software": "litgpt", "method": "qlora", "base": "nf4", "double_quant": "no",
        "micro_batch": "1", "seq_len": "1024", "recompute": "none", "reading": "allocated", "gpu": "A100-SXM-80GB",
        "precision": "bf16", "lora_rank": "8", "lora_targets": "qv", "lora_dropout": "0.05", "lengths": "full",
    }  # fmt: skip
    found = {year: float(memory.row_memory({**row, "year": year}, FACTS).allocated_bytes) for year in ("2024", "2025")}
    kept = (found["2024"] - found["2025"]) / (32 * 1024 * 2)
    assert 11_008 <= kept <= 11_008 + 3 * 4_096


@pytest.mark.parametrize(("model", "seq", "allocated", "reserved"), [
    ("Qwen2.5-14B", 4096, 18.73, 19.97), ("Mistral-Small-24B", 4096, 22.82, 24.15), ("Qwen2.5-32B", 2048, 25.98, 27.23),
])  # fmt: skip
def test_trl_computes_its_loss_in_pieces(model: str, seq: int, allocated: float, reserved: float) -> None:
    """backpropagate's table of an RTX 5090 (2026-10-03, TRL 1.14, rank 32), in GiB; whole logits add 3 to 7 GB."""
    row = {
        "model": model, "software": "hf-trainer-trl", "year": "2026", "method": "qlora", "base": "nf4",
        "lora_rank": "32", "lora_targets": "all-linear", "micro_batch": "1", "seq_len": str(seq), "lengths": "full",
        "recompute": "full", "precision": "bf16", "gpu": "RTX 5090", "double_quant": "yes", "lora_dropout": "0",
    }  # fmt: skip
    pieces, whole = (memory.row_memory({**row, "software": name}, FACTS) for name in ("hf-trainer-trl", "hf-trainer"))
    assert pieces.allocated_bytes == pytest.approx(allocated * 2**30, rel=0.1)
    assert pieces.reserved_bytes == pytest.approx(reserved * 2**30, rel=0.15)
    assert 2.5e9 < whole.allocated_bytes - pieces.allocated_bytes < 8e9


def test_experts_of_gpt_oss_are_plain_operations_under_liger() -> None:
    """Liger leaves them as transformers has them, seven tensors of a half's width a copy of a token.

    halo's page of stock TRL on eight B300: 262,144 tokens a GPU hold 158.9 GB and 131,072 99.9 GB, 450 kB a token. By
    hand for the tensors: gate and up, g, sigmoid(a g), their product, up + 1 and what the second product reads.
    """
    row = {
        "model": "gpt-oss-20b", "software": "hf-trainer-liger", "year": "2026", "month": "9", "method": "full",
        "gpu": "B300", "gpus": "8", "zero": "3", "precision": "bf16", "weights_dtype": "fp32", "states_dtype": "fp32",
        "optimizer": "adamw", "loss_chunks": "64", "micro_batch": "1", "global_batch": "8", "lengths": "full",
        "recompute": "full", "attention": "flash", "reading": "allocated",
    }  # fmt: skip
    rows = [{**row, "seq_len": str(seq)} for seq in (131_072, 262_144)]
    held = [float(memory.row_memory(each, FACTS).allocated_bytes) for each in rows]
    assert (held[1] - held[0]) / 131_072 == pytest.approx((158.9e9 - 99.9e9) / 131_072, rel=0.03)
    plain, fused = (
        float(memory.row_memory({**rows[0], "software": name}, FACTS).items["working set of one layer"])
        for name in ("hf-trainer-liger", "fsdp-compile")
    )
    assert plain > fused + 3.9 * 131_072 * 4 * 2880 * 2
