"""What the words of training rows mean: which software of which year, which layout, which era."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flopwise.backtests.columns import our_columns
from flopwise.backtests.gpu_hours import before_flash_attention, campaign_frac, predict_row, row_degrees
from flopwise.backtests.kinds import kind_of
from flopwise.backtests.run import printed_rows
from flopwise.backtests.training import predict_row as predict_training
from flopwise.backtests.training import row_job, row_layout, row_model, row_stack, usual_micro_batch
from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.architecture import Attend
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import parameters
from flopwise.training.memory import memory_band, step_memory
from named import FACTS

MEASURED = Path(__file__).parents[2] / "benchmarks" / "truth" / "training.csv"


@pytest.mark.parametrize(
    ("software", "year", "month", "found"),
    [
        ("megatron-te", "2025", "12", "megatron-te"),
        ("megatron-te", "2026", "4", "megatron-te"),
        ("megatron-te", "2026", "6", "megatron-2026"),
        ("megatron-te", "2026", "", "megatron-te"),
        ("megatron-te", "", "", "megatron-te"),
        ("nemo", "2026", "4", "nemo"),
        ("nemo", "2026", "6", "nemo-2026"),
        ("megatron-2021", "2026", "6", "megatron-2021"),
        ("fsdp-eager", "2023", "", "fsdp-2023"),
        ("fsdp-eager", "2024", "", "fsdp-eager"),
        ("fsdp-eager", "", "", "fsdp-eager"),
        ("fsdp-fused", "2023", "", "fsdp-fused"),
        ("fsdp-compile", "2025", "", "fsdp-compile"),
        ("fsdp-compile", "2025", "3", "fsdp-compile"),
        ("fsdp-compile", "2025", "8", "fsdp-compile-2025"),
        ("fsdp-compile", "2026", "10", "fsdp-compile-2026"),
        ("fsdp-eager", "2026", "", "fsdp-eager-2026"),
        ("hf-trainer", "2026", "3", "hf-trainer-2026"),
        ("hf-trainer", "2025", "12", "hf-trainer"),
    ],
)
def test_the_month_tells_the_generation_of_kernels(software: str, year: str, month: str, found: str) -> None:
    assert row_stack({"software": software, "year": year, "month": month}) == found


def test_the_month_of_a_published_row_is_that_of_its_container() -> None:
    source = "docs/performance-summary-archive.md, 26.04.01 container"
    row = our_columns("training", {"stack": "megatron-te", "year": "2026", "source": source, "source_key": "x"})
    assert (row["year"], row["month"], row_stack(row)) == ("2026", "4", "nemo")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("NVIDIA/NeMo docs/source/performance/performance_summary.md (24.07 container)", "nemo"),
        ("NVIDIA/dgxc-benchmarking llama3.1/README_70b.md (24.09 container)", "nemo"),
        ("log of NeMo scripts.performance.llm.pretrain_llama3_8b -g b200 on one node", "nemo"),
        ("sweep on two p6-b300 (NeMo 26.02, Megatron-Bridge)", "megatron-te"),
        ("Megatron-LM core_v0.16.1, ablation of a single node", "megatron-te"),
        ("throughput sweep; performance campaign on GH200", "megatron-te"),
    ],
)
def test_sources_say_whether_nvidias_recipes_ran(source: str, found: str) -> None:
    assert row_stack({"software": "megatron-te", "year": "2025", "source": source}) == found


def test_messages_to_experts_are_those_of_the_stack_unless_a_row_says_so() -> None:
    """No publisher has an exchange of its own."""
    row = {
        "model": "Qwen3-30B-A3B", "gpu": "H100-SXM-80GB", "gpus": "16", "ep": "16", "global_batch": "64",
        "micro_batch": "1", "seq_len": "4096", "publisher": "nvidia",
    }  # fmt: skip
    asked = [("megatron-te", ""), ("nemo", ""), ("megatron-te", "node"), ("nemo", "all-to-all")]
    found = [row_job({**row, "software": name, "dispatch": way}, FACTS).recipe.stack for name, way in asked]
    assert [stack.dispatch for stack in found] == ["expert", "node", "node", "expert"]
    with pytest.raises(SpecError, match="dispatch is 'star'; allowed: node, device, all-to-all"):
        row_job({**row, "dispatch": "star"}, FACTS)


@pytest.mark.parametrize(
    ("software", "notes", "found"),
    [
        ("fsdp-eager", "FSDP eager", "fsdp-eager"),
        ("fsdp-eager", "float8+compile; batch size not stated", "fsdp-compile"),
        ("torchtune-eager", "+packed; cumulative flags", "torchtune-eager"),
        ("torchtune-eager", "+chunked CE; cumulative flags", "torchtune-compile"),
        ("fsdp-compile", "rowwise async TP; torch.compile", "fsdp-compile-async-tp"),
        ("fsdp-compile", "2D+AsyncTP + compile", "fsdp-compile-async-tp"),
        ("fsdp-compile", "vanilla TP", "fsdp-compile"),
    ],
)
def test_remarks_on_single_runs_say_what_compiles_and_overlaps(software: str, notes: str, found: str) -> None:
    assert row_stack(our_columns("training", {"stack": software, "notes": notes})) == found


def test_runs_before_flash_attention_are_known_by_their_report_or_their_precision() -> None:
    def early(**cells: str) -> bool:
        return before_flash_attention(our_columns("gpu-hours", {"n_gpus": "1", **cells}))

    assert early(source="Luccioni et al. 2022 (arXiv:2211.02001)", precision="bf16")
    assert not early(source="LLaMA paper (arXiv:2302.13971)", precision="bf16")
    assert not early(source="Pythia paper (arXiv:2304.01373)", precision="fp16")
    assert early(source="a logbook", precision="fp16")
    assert not early(source="a model card", precision="bf16")


def test_degrees_are_read_as_printed() -> None:
    def degrees(**cells: str) -> tuple[tuple[str, int], ...]:
        return row_degrees(our_columns("gpu-hours", {"n_gpus": "1", **cells}))

    assert degrees(source="384 A100 (TP8 PP4 DP12 + ZeRO)") == (("tp", 8), ("pp", 4), ("dp", 12))
    assert degrees(notes="PP2 DP192") == (("pp", 2), ("dp", 192))
    assert degrees(notes="rounded 1.3M; https://x/http2") == ()


def test_a_run_is_read_from_the_columns_of_published_tables() -> None:
    printed = {
        "model": "MPT-7b", "gpu": "A100-SXM-80GB", "n_gpus": "64", "tp": "4", "pp": "2", "interleave_vpp": "2",
        "zero_stage_or_fsdp": "zero1", "micro_batch": "2", "global_batch_seqs": "256", "seq_len": "2048",
        "activation_recompute": "selective", "flash_attention": "false", "precision": "bf16", "stack": "megatron-2021",
        "n_layers": "32", "d_model": "4096", "n_heads": "32", "d_ff": "16384", "vocab": "50368", "gated_mlp": "false",
        "task": "pretrain", "measured_metric": "step_time_s", "measured_value": "4.0",
        "notes": "8x HDR IB; every 2nd layer",
    }  # fmt: skip
    row = our_columns("training", printed)
    assert float(row["tokens_per_s_per_gpu"]) == 256 * 2048 / 4.0 / 64
    job = row_job(row, FACTS)
    layout, recipe = job.layout, job.recipe
    assert (layout.dp, layout.tp, layout.pp, layout.zero, layout.interleave) == (8, 4, 2, 1, 2)
    assert (layout.micro_batch, layout.recompute, recipe.selective) == (2, 1, "alternate")
    assert (recipe.global_batch, recipe.stack.name, recipe.attention) == (256, "megatron-2021", "eager")
    assert row["node_bytes_per_s"] == "200000000000"  # eight links of 200 Gbit/s, one for each GPU of the node
    assert job.cluster.fabric.levels[-1].bytes_per_s == 25e9
    printed["notes"] = "the whole MoE block recomputed"
    recipe = row_job(our_columns("training", printed), FACTS).recipe
    assert (recipe.selective, recipe.modules) == (None, ("layernorm", "moe"))


@pytest.mark.parametrize(
    ("printed", "stage"),
    [
        ("fsdp", 3), ("fsdp_full_shard(zero3)", 3), ("fsdp_shard_grad_op", 2), ("zero2", 2), ("none", 0), ("ddp", 0),
        ("", 1),  # Megatron's distributed optimizer and its like
    ],
)  # fmt: skip
def test_sharding_is_a_stage_of_zero(printed: str, stage: int) -> None:
    row = our_columns("training", {"n_gpus": "8", "stack": "fsdp-compile", "zero_stage_or_fsdp": printed})
    assert row_layout(row).zero == stage


def _hours(**cells: Any) -> float:
    row = {"id": "x", "model": "Falcon-7B", "gpu": "A100-SXM-80GB", "n_gpus": "64", "tokens_b": "100"}
    prediction = predict_row(our_columns("gpu-hours", row | {"precision": "bf16"} | cells), FACTS)
    assert prediction.predicted is not None, prediction.skipped
    return prediction.predicted


def test_campaigns_take_more_than_their_steps_and_old_ones_more_than_new_ones() -> None:
    assert 0 < campaign_frac(FACTS.calibration) < 1
    assert _hours(source="arXiv:2205.00001") > 1.2 * _hours(source="arXiv:2305.00001")
    assert _hours(tokens_b="200") == pytest.approx(2 * _hours())


@pytest.mark.parametrize(("model", "tokens", "precision", "gpus", "hours"), [
    ("DeepSeek-V3", 14.8e12, "fp8", "2048", 2_664_000), ("DeepSeek-V2", 8.1e12, "bf16", "", 1_399_680),
    ("DeepSeek-67B", 2e12, "bf16", "", 601_200),
])  # fmt: skip
def test_budgets_are_of_the_stack_and_the_batch_that_a_report_describes(
    model: str, tokens: float, precision: str, gpus: str, hours: float
) -> None:
    """Pre-training alone, by the reports of DeepSeek-V3 (table 1) and DeepSeek-V2 (section 3.2.3), within 12 %."""
    row = {"model": model, "tokens": str(tokens), "precision": precision, "gpus": gpus, "gpu": "H800", "covers": "main"}
    found = predict_row(row, FACTS)
    assert found.predicted == pytest.approx(hours, rel=0.12), found.skipped


def test_hours_of_a_main_run_a_project_and_a_distilled_family() -> None:
    """Steps are 95, 67 and 30 % of what the three cover."""
    project = _hours()
    assert _hours(source="README (pre-training only)") / project == pytest.approx(
        campaign_frac(FACTS.calibration) / 0.95
    )
    assert _hours(notes="pruned and distilled from 70B") / project == pytest.approx(
        campaign_frac(FACTS.calibration) / 0.3
    )


def test_a_model_that_nobody_knows_has_the_size_that_its_row_prints() -> None:
    named = {"model": "Nobody-Knows-It", "params_b": "7"}
    sized = _hours(**named, active_params_b="7")
    assert 0.9 < sized / _hours(model="Llama-2-7B") < 1.1
    assert _hours(**(named | {"params_b": "14"})) > 1.5 * sized
    row = {"id": "x", "gpu": "A100-SXM-80GB", "n_gpus": "64", "tokens_b": "100", "model": "Nobody-Knows-It"}
    for cells in ({}, {"params_b": "40", "active_params_b": "7"}):  # no size, or a mixture's
        assert predict_row(our_columns("gpu-hours", row | cells), FACTS).predicted is None


def test_a_stated_layout_is_never_faster_than_the_fastest() -> None:
    assert _hours(notes="PP8 DP8") > _hours()
    assert _hours(notes="TP7") == _hours()  # no such layout: the words meant something else


def test_checkpoints_inside_units_and_types_of_adapters_are_read() -> None:
    """Without reentrant checkpoints nothing is held; what is trained of a row with adapters is in its weights' type."""
    row = {
        "model": "Llama-2-7B", "task": "qlora", "software": "hf-trainer-2023", "gpu": "RTX 3090", "gpus": "2",
        "zero": "3", "micro_batch": "1", "recompute": "full", "seq_len": "2048", "global_batch": "2",
    }  # fmt: skip
    held, plain = (row_job({**row, "recompute": how}, FACTS).recipe for how in ("full", "plain"))
    assert (held.stack.holds_inputs, plain.stack.holds_inputs) == (True, False)
    adapters = [row_job({**row, "weights_dtype": kind}, FACTS).recipe.lora for kind in ("", "bf16", "fp32")]
    assert [lora.adapter_dtype for lora in adapters if lora is not None] == ["fp32", "bf16", "fp32"]


@pytest.mark.parametrize(("task", "software", "recompute"), [("qlora", "hf-trainer", 2), ("lora", "hf-trainer", 0)])
def test_a_quantised_base_is_prepared_with_checkpoints(task: str, software: str, recompute: int) -> None:
    """PEFT, prepare_model_for_kbit_training: use_gradient_checkpointing=True."""
    row = {
        "model": "Qwen2.5-7B", "task": task, "software": software, "gpu": "GB10", "gpus": "1", "micro_batch": "1",
        "seq_len": "512",
    }  # fmt: skip
    assert int(row_job(row, FACTS).layout.recompute) == recompute
    assert int(row_job({**row, "recompute": "none"}, FACTS).layout.recompute) == 0


@pytest.mark.parametrize(
    ("task", "software", "masks"),
    [
        ("pretrain", "fsdp-compile", 0), ("pretrain", "xla", 0), ("full_ft", "fsdp-compile", 2),
        ("pretrain", "megatron-te", 2), ("pretrain", "deepspeed-zero3", 2), ("pretrain", "hf-trainer", 2),
    ],
)  # fmt: skip
def test_a_gpt_is_pre_trained_without_dropout_where_its_software_has_none(task: str, software: str, masks: int) -> None:
    """GPT-2 by its shape: a layer drops what attention and MLP add to the stream, or nothing does."""
    row = {
        "model": "GPT", "num_layers": "12", "hidden": "768", "num_heads": "12", "inter": "3072", "gated": "no",
        "vocab": "50304", "seq_len": "1024", "task": task, "software": software,
    }  # fmt: skip
    items = row_model(row, FACTS).stacks[0].kinds[0].items
    assert sum(item.name.endswith("/dropout") for item in items) == masks
    assert any(isinstance(item, Attend) and item.dropout for item in items) == bool(masks)


def test_hybrid_sharding_and_lengths_of_packed_documents_are_read() -> None:
    row = {
        "model": "Llama-2-7B", "gpu": "A100-SXM-80GB", "gpus": "32", "zero": "3", "shard": "8", "task": "full_ft",
        "seq_len": "4096", "packed_data": "1600", "software": "fsdp-eager",
    }  # fmt: skip
    job = row_job(row, FACTS)
    assert job.layout.shard == 8
    assert job.recipe.documents is not None
    assert job.recipe.documents.mean == pytest.approx(1600, rel=0.01)
    assert row_job({**row, "packed_data": ""}, FACTS).recipe.documents is None


def test_what_a_row_leaves_open_is_what_fits() -> None:
    """Llama-3.1-8B in fp32 states over eight A100s: 8.03e9 x 16 / 8 = 16 GB each, beside activations of 12,288 tokens.

    Blocks keep 34 bytes a token and channel in 16 bits without scores (Korthikanti et al. 2022, arXiv 2205.05198): at
    least 34 x 8,192 x 4,096 x 32 = 36.5 GB of one sequence of 8,192 tokens, so that two do not fit beside the states
    on 40 GB and need recompute, and one fits on 80 GB.
    """
    cells = {"model": "Llama-3.1-8B", "gpus": "8", "software": "fsdp-eager", "zero": "3", "seq_len": "8192"}
    large, small = (row_job({**cells, "gpu": gpu}, FACTS).layout for gpu in ("A100-SXM-80GB", "A100-SXM-40GB"))
    assert int(small.recompute) > 0
    assert (int(large.recompute), int(large.recompute_every)) <= (int(small.recompute), int(small.recompute_every))
    stated = row_job({**cells, "gpu": "A100-SXM-40GB", "recompute": "none", "micro_batch": "1"}, FACTS).layout
    assert (int(stated.recompute), int(stated.micro_batch)) == (0, 1)


def test_mixtures_on_megatron_compute_modules_again_before_whole_layers() -> None:
    """NVIDIA's recipe of DeepSeek-V3 on B300, 2026, in every format: the up-projections of latent attention, no layer.

    Qwen3 has no such projections; on few devices its norms and activations run again instead. Others run whole layers.
    """
    row = {
        "model": "DeepSeek-V3", "gpu": "B300", "gpus": "256", "pp": "8", "ep": "8",
        "micro_batch": "2", "global_batch": "4096", "seq_len": "4096", "precision": "bf16", "software": "nemo",
        "year": "2026", "month": "4",
    }  # fmt: skip
    job = row_job(row, FACTS)
    assert (int(job.layout.recompute), job.recipe.modules) == (1, ("mla_up_proj",))
    few = {
        "model": "Qwen3-30B-A3B", "gpu": "H100-SXM-80GB", "gpus": "16", "ep": "16", "micro_batch": "2",
        "global_batch": "512", "seq_len": "4096",
    }  # fmt: skip
    norms, layers = (row_job({**few, "software": name}, FACTS) for name in ("nemo", "fsdp-compile"))
    assert "mla_up_proj" not in norms.recipe.modules
    assert norms.recipe.modules == ("layernorm", "activation")
    assert int(norms.layout.recompute) == 1
    assert layers.recipe.modules == ()


@pytest.mark.parametrize(
    ("seq_len", "stages", "sequences", "size"),
    [
        (1024, 1, None, 16),  # 12 sequences: 16 is 1.33 times as many, 8 a 1.5th
        (2048, 1, 480, 8), (4096, 1, 16, 4), (8192, 1, 16, 2), (32_768, 1, 4, 1),
        (2048, 4, 64, 4), (4096, 8, 64, 2), (8192, 8, 64, 1),
        (2048, 1, 6, 2), (2048, 1, 5, 1),
        (2048, 64, 512, 2), (2048, 64, 256, 1), (2048, 35, 60, 1),  # 4 x 64 of 2; 4 x 64 of 1; fewer there are not
    ],
)  # fmt: skip
def test_an_unstated_micro_batch_has_the_usual_tokens(
    seq_len: int, stages: int, sequences: int | None, size: int
) -> None:
    """The power of two next to 12,288 tokens, 6,144 in a pipeline of at least four a stage, that makes up a replica."""
    assert usual_micro_batch(seq_len, stages, sequences) == size


def test_a_device_alone_needs_no_link() -> None:
    """No link of an Apple M4 is known: one of them is timed, two are refused."""
    row = {"model": "GPT-2", "gpu": "Apple M4", "seq_len": "512", "precision": "fp32", "micro_batch": "8"}
    assert row_job(row | {"gpus": "1"}, FACTS).cluster.gpus_per_node == 1
    with pytest.raises(FlopwiseError, match="no link"):
        row_job(row | {"gpus": "2"}, FACTS)


def shaped(**cells: object) -> tuple[int, int, int, int]:
    """Layers, heads, heads of keys and values and their dimension of the model of a row with these cells."""
    stack = row_model({name: str(cell) for name, cell in cells.items()}, FACTS).stacks[0]
    first = next(i for kind in stack.kinds for i in kind.items if isinstance(i, Attend))
    return stack.num_layers, first.heads, first.kv_heads, first.qk_dim


def test_a_shape_without_dimensions_of_heads_has_those_that_its_parameters_prove() -> None:
    """MaxText's 52B: 32 x (4 x 12,288 x 32 d + 2 x 12,288 x 49,152) + 2 x 32,768 x 12,288: 51.94e9 with d = 256."""
    shape = {"num_layers": 32, "hidden": 12288, "num_heads": 32, "num_kv_heads": 32, "vocab": 32768}
    row = {**shape, "inter": 49152, "gated": "no", "seq_len": 1024, "model": "none of the catalog"}
    assert shaped(**row) == (32, 32, 32, 384)  # nobody says how large it is
    assert shaped(**row, params=51942260736) == (32, 32, 32, 256)
    assert shaped(**row, params=51942260736, head_dim=384) == (32, 32, 32, 384)  # stated


def test_a_shape_of_a_named_model_has_its_heads() -> None:
    """Qwen3-4B has heads of 128 beside a width of 32 x 80, and ties its embeddings: 4.02e9 parameters."""
    row = {"num_layers": 36, "hidden": 2560, "num_heads": 32, "inter": 9728, "vocab": 151936, "gated": "yes"}
    named = {**row, "seq_len": 8192, "model": "Qwen3-4B", "params": 4022000000}
    assert shaped(**named) == (36, 32, 8, 128)
    model = row_model({name: str(cell) for name, cell in named.items()}, FACTS)
    assert parameters(model) == pytest.approx(4.022e9, rel=0.001)
    assert shaped(**{**named, "num_layers": 12, "params": ""}) == (12, 32, 32, 80)  # another model


def test_models_without_a_gate_may_group_their_heads() -> None:
    """Nemotron-4-340B: 96 x (2 x 18,432 x (18,432 + 8 x 192) + 2 x 18,432 x 73,728) + 2 x 256,000 x 18,432."""
    row = {"num_layers": 96, "hidden": 18432, "num_heads": 96, "num_kv_heads": 8, "inter": 73728, "vocab": 256000}
    model = row_model(
        {name: str(cell) for name, cell in {**row, "gated": "no", "seq_len": 4096, "model": "none"}.items()}, FACTS
    )
    assert parameters(model) == pytest.approx(341.0e9, rel=0.001)


def test_a_mixture_may_be_run_with_fewer_layers() -> None:
    row = {"model": "Mixtral-8x7B", "params": 46700000000, "active_params": 12900000000}
    assert shaped(**row)[0] == 32
    assert shaped(**row, num_layers=16)[0] == 16
    assert shaped(**row, num_layers=64)[0] == 32


def test_no_complete_run_that_was_published_is_refused() -> None:
    """They ran: each has a chance of more than 10 % to fit, whatever was left out of its band."""
    complete, doubtful = 0, list[str]()
    for row in printed_rows(kind_of("training"), MEASURED):
        if not (row.get("micro_batch") and row.get("recompute")):
            continue
        try:
            job = row_job(row, FACTS)
        except FlopwiseError:
            continue
        complete, chip = complete + 1, job.cluster.accelerator
        needs = float(step_memory(job.model, job.recipe, job.layout, device_kind=chip.kind).total_bytes)
        if memory_band(job.recipe, chip.calibration, chip).probability_at_most(needs, chip.hbm_bytes) <= 0.1:
            doubtful.append(row["id"])
    assert complete >= 780
    assert doubtful == []


def test_a_model_that_nobody_knows_is_of_the_size_that_its_row_prints() -> None:
    """As fast as a Llama of that size, and less sure by what its vocabulary may be; a printed shape is its own."""
    row = {
        "model": "Nobody-knows", "params": "8.03e9", "gpu": "H100-SXM-80GB", "gpus": "8", "global_batch": "64",
        "zero": "3", "micro_batch": "1", "seq_len": "4096", "task": "pretrain", "software": "fsdp-compile",
        "recompute": "full", "tokens_per_s_per_gpu": "8000", "interleave": "1",
    }  # fmt: skip
    named, sized = (predict_training({**row, "model": name}, FACTS) for name in ("Llama-3.1-8B", "Nobody-knows"))
    assert sized.predicted == pytest.approx(named.predicted, rel=0.2)
    assert (sized.low or 0.0) < (named.predicted or 0.0) < (sized.high or 0.0)
    assert named.band is not None
    assert sized.band is not None
    assert (named.band.exact_name, sized.band.exact_name) == ("training.dense.complete", "training.dense.incomplete")
    assert sized.band.reach[0] < 0.98 < named.band.reach[0]
    deep = row_model({**row, "num_layers": "16"}, FACTS)
    assert deep == row_model(row, FACTS), "a size is that of all layers, however many are printed"
    shape = {"num_layers": "32", "hidden": "4096", "num_heads": "32", "num_kv_heads": "8", "inter": "14336"}
    printed = predict_training({**row, **shape, "vocab": "128256"}, FACTS)
    assert printed.predicted == pytest.approx(named.predicted, rel=0.01)
    assert printed.band == named.band
    assert predict_training({**row, "params": ""}, FACTS).predicted is None
    assert predict_training({**row, "active_params": "1e9"}, FACTS).predicted is None


def test_experts_of_superchips_in_other_nodes_are_reached_over_the_network() -> None:
    """Isambard-AI, 32 nodes of four GH200, 25 GB/s each: 2.0 s a step of Nemotron-3-Nano (run D1 of its table of 2026).

    By hand: 64 sequences of 8,192 tokens in 2.0 s on 128 devices are 2,048 tokens a second and device; with all eight
    ranks of the experts on NVLink and twice the network it would be five times as many.
    """
    row = {
        "model": "Nemotron-3-Nano-30B-A3B", "gpu": "GH200-96", "gpus": "128", "tp": "2", "ep": "8", "zero": "1",
        "micro_batch": "1", "global_batch": "64", "seq_len": "8192", "task": "sft", "precision": "bf16", "year": "2026",
        "recompute": "selective", "recompute_modules": "core_attn", "software": "megatron-te",
        "node_bytes_per_s": "200e9", "tokens_per_s_per_gpu": "2048",
    }  # fmt: skip
    assert predict_training(row, FACTS).error == pytest.approx(0.0, abs=0.25)


def test_an_image_has_the_tokens_of_its_model_and_a_row_that_says_otherwise_is_refused() -> None:
    """24 x 24 patches of 16 pixels and the class token: 577 tokens, which take 55.5 GMAC (timm, results table)."""
    cells = {"model": "ViT-B/16", "gpu": "A100-SXM-80GB", "gpus": "8", "precision": "fp16", "micro_batch": "64"}
    with pytest.raises(SpecError, match="as 197 tokens, but seq_len is 577"):
        row_job({**cells, "seq_len": "577"}, FACTS)
    assert row_job(cells, FACTS).recipe.seq_len == 197
    larger = row_job({**cells, "model": "ViT-B/16 (384)", "seq_len": "577"}, FACTS)
    assert larger.recipe.seq_len == 577
    assert causal_forward_flops(larger.model, 1, 577) == pytest.approx(2 * 55.5e9, rel=0.001)


def test_a_row_of_a_model_whose_layers_nobody_published_is_skipped_with_that_reason() -> None:
    row = {"id": "x", "model": "Kimi-K3", "gpu": "GB300", "gpus": "8", "seq_len": "4096", "tokens_per_s_per_gpu": "9"}
    prediction = predict_training(row, FACTS)
    assert prediction.predicted is None
    assert prediction.skipped is not None
    assert "Kimi-K3 has no token layers" in prediction.skipped
