"""Columns of measurement files: ours, and where each is found in files with the columns of published tables.

`benchmarks/truth/README.md` says what ours mean. Published tables state some settings in words only (remarks, ids, the
`parallelism` of a run, `zero_stage_or_fsdp`); here they become cells, so that nothing else reads words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from flopwise.backtests.names import BRACKETS, QUANT_SUFFIX
from flopwise.backtests.prediction import Row, number


class Scaled(NamedTuple):
    """A number in another unit: the published column, and how many of ours (`times`, or one in `per`) its unit is."""

    column: str
    times: float = 1.0
    per: float = 1.0


Origin = str | Scaled | Callable[[Row], str]
"""Where a cell of ours is from: a published column, one in another unit, or what is read from several cells."""

LINK_BYTES_PER_S = {"EDR": 12.5e9, "HDR": 25e9, "NDR": 50e9, "Omni-Path": 12.5e9}
"""One direction of one link of a node's network."""
ZERO_STAGES = {"shard_grad_op": "2", "zero1": "1", "zero2": "2", "zero3": "3", "fsdp": "3", "ddp": "0", "none": "0"}
RECOMPUTE = {"none": "none", "false": "none", "selective": "selective", "full": "full", "true": "full"}
SOFTWARE: tuple[tuple[str, str], ...] = (
    ("plain-pytorch", "fsdp-eager"),
    ("torchtune", "torchtune-eager"),
    ("torchtitan", "fsdp-eager"),
    ("torchao", "fsdp-eager"),
    ("litgpt", "litgpt"),
    ("lit-gpt", "litgpt"),
    ("unsloth", "unsloth"),
    ("nanotron", "nanotron"),
    ("fast-llm", "fast-llm"),
    ("llm-foundry", "fsdp-fused"),
    ("bigscience", "megatron-deepspeed"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("megatron", "megatron-te"),
    ("nemo", "megatron-te"),
    ("deepspeed", "deepspeed-zero3"),
    ("maxtext", "xla"),
    ("peft", "hf-trainer"),
    ("trl", "hf-trainer"),
    ("transformers", "hf-trainer"),
)
"""Words by which a row's source names its training software, most telling first, and the row of data/stacks.csv."""
DATA_SETS = ("squad",)
PROJECTIONS = re.compile(r"\b(?:q|k|v|o|up|down|gate)(?:(?:,| and | )(?:q|k|v|o|up|down|gate)\b)+", re.IGNORECASE)
"""Adapted projections, one by one: "q,v", "q k v up down gate", "Q and V"."""
READINGS = (
    ("capacity limit", "capacity"),
    ("not stated", "not stated"),
    ("reserved", "reserved"),
    ("nvidia-smi", "device"),
    ("active", "active"),
    ("allocated", "allocated"),
)
"""What a peak of memory counts, by the words of published tables."""
FORMATS = {
    "fp16/bf16": "bf16", "fp4": "nvfp4", "int4": "awq", "awq-int4": "awq", "4bit": "Q4_0", "8bit": "Q8_0",
    "auto": "bf16",
}  # fmt: skip
"""Other spellings of weight formats."""
DTYPES = {
    "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "sq": "int8", "fp8_e4m3": "fp8",
    "int8": "int8_wo", "int4": "int4_wo",
}  # fmt: skip
"""Other spellings of the types of kernels' operands, by the names of `flopwise.cost.rates.PRECISIONS`."""
REQUESTS = re.compile(r"(?<![\d-])(\d[\d,]*) (?:[A-Z]\w+ )?(?:requests?|prompts?)\b")
"""How many requests a run sent: "500 requests", "200 ShareGPT prompts"."""
NOMINAL = re.compile(r"lengths uniformly in (\d+)-(\d+) ?% of nominal")
DATE = re.compile(r"\b20[2-9]\d-\d\d-\d\d\b")


def our_columns(kind: str, row: Row) -> Row:
    """The row in our columns; as it is where none of its columns is one of published tables alone."""
    if kind not in _PUBLISHED or not _PUBLISHED[kind] & row.keys():
        return row
    return {name: _cell(row, origin) for name, origin in COLUMNS[kind].items()}


def _cell(row: Row, origin: Origin) -> str:
    if isinstance(origin, str):
        return (row.get(origin) or "").strip()
    if isinstance(origin, Scaled):
        value = number(row, origin.column)
        return "" if value is None else plain_number(value * origin.times / origin.per)
    return origin(row)


def plain_number(value: float) -> str:
    """The number in 15 digits: what a change of units leaves in the sixteenth goes."""
    rounded = float(f"{value:.15g}")
    return f"{rounded:.0f}" if rounded.is_integer() and rounded < 1e15 else repr(rounded)


def _lower(row: Row, *columns: str) -> str:
    return " ".join((row.get(column) or "").strip() for column in columns).lower()


def _yes(holds: object) -> str:
    return "yes" if holds else ""


def _yes_or_no(column: str) -> Callable[[Row], str]:
    return lambda row: {"true": "yes", "false": "no"}.get(text := _lower(row, column), text)


def _lora_rank(row: Row) -> str:
    stated = re.search(r"rank[ =]*(\d+)", _lower(row, "notes"))
    return stated[1] if stated else ""


def _lora_targets(row: Row) -> str:
    notes = _lower(row, "notes")
    if "all layers" in notes or "all linear" in notes:
        return "all-linear"
    listed = PROJECTIONS.search(notes)
    return " ".join(re.findall(r"up|down|gate|[qkvo]", listed[0].replace(" and ", " "))) if listed else ""


def _chosen_layers(row: Row) -> bool:
    return bool(re.search("every 2nd|per-layer ac", _lower(row, "notes")))


# rows of training throughput


def _training_precision(row: Row) -> str:
    stated = _lower(row, "precision")
    return "fp8_rowwise" if stated == "fp8" and "rowwise" in _lower(row, "notes").split(";")[0] else stated


def _training_zero(row: Row) -> str:
    stated = _lower(row, "zero_stage_or_fsdp")
    return next((stage for word, stage in ZERO_STAGES.items() if word in stated), "")


def _training_recompute(row: Row) -> str:
    stated = _lower(row, "activation_recompute")
    return "alternate" if stated == "selective" and _chosen_layers(row) else RECOMPUTE.get(stated, stated)


def _training_compiled(row: Row) -> str:
    """Compiled by the remarks on single runs of a table; flags of torchtune's are cumulative, the second compiles."""
    notes = _lower(row, "notes")
    return _yes("+compile" in notes or ("cumulative flags" in notes and not notes.startswith("+packed")))


def _node_network(row: Row) -> str:
    links = re.search(r"\b(\d+)x? (HDR|EDR|NDR|Omni-Path)\b", row.get("notes") or "")
    return plain_number(int(links[1]) * LINK_BYTES_PER_S[links[2]]) if links else ""


def _packed_data(row: Row) -> str:
    """The data set whose documents are packed, and attention stays within each."""
    notes = _lower(row, "notes")
    return next((name for name in DATA_SETS if name in notes), "") if "packed" in notes else ""


def _tokens_per_s_per_gpu(row: Row) -> str:
    """As printed, or by the source's own arithmetic."""
    metric, value = row.get("measured_metric", ""), number(row, "measured_value")
    if metric == "tokens_per_sec_per_gpu" and value:
        return plain_number(value)
    for column in ("reported_tokens_per_sec_per_gpu", "derived_tokens_per_sec_per_gpu"):
        if printed := number(row, column):
            return plain_number(printed)
    gpus, batch, seq = (number(row, column) for column in ("n_gpus", "global_batch_seqs", "seq_len"))
    if metric == "step_time_s" and value and gpus and batch and seq:
        return plain_number(batch * seq / value / gpus)
    return ""


# rows of memory


def _prototype(letter: str) -> Callable[[Row], str]:
    """A figure of the shape that ids of BLOOM's prototypes carry, as in `-h14336-l70-a112`."""

    def figure(row: Row) -> str:
        if "bloom" not in _lower(row, "model"):
            return ""
        shape = re.search(r"-h(?P<h>\d+)-l(?P<l>\d+)-a(?P<a>\d+)", row.get("id") or "")
        return shape[letter] if shape else ""

    return figure


def _degree(name: str) -> Callable[[Row], str]:
    def degree(row: Row) -> str:
        stated = re.search(rf"\b{name}(\d+)", _lower(row, "parallelism"))
        return stated[1] if stated else ""

    return degree


def _memory_zero(row: Row) -> str:
    stated = _lower(row, "parallelism")
    stage = re.search(r"zero-?(\d)", stated)
    return stage[1] if stage else "3" if "fsdp" in stated else ""


def _memory_sequence_parallel(row: Row) -> str:
    return _yes("fsdp" in _lower(row, "parallelism") and _degree("tp")(row) not in {"", "1"})


def _memory_software(row: Row) -> str:
    words = _lower(row, "parallelism", "source_key", "source", "memory_kind")
    return (row.get("stack") or "").strip() or next((stack for word, stack in SOFTWARE if word in words), "")


def _memory_compiled(row: Row) -> str:
    stated, notes = _lower(row, "torch_compile"), _lower(row, "notes")
    if stated in {"true", "yes", "1"} or row.get("stack"):
        return _yes(not row.get("stack"))
    return _yes(
        stated not in {"false", "no", "0"} and "compile" in notes.replace("nocompile", "") and "eager" not in notes
    )


def _memory_precision(row: Row) -> str:
    stated = _lower(row, "param_dtype")
    if stated in {"fp32", "float32", "32-true"}:
        return "fp32"
    return next((p for p in ("mxfp8", "fp8", "fp16") if p in stated), "bf16" if stated else "")


def _pure(row: Row) -> str:
    return "bf16" if "pure bf16" in _lower(row, "optimizer", "notes") else ""


def _weights_dtype(row: Row) -> str:
    return "fp32" if "fp32 weights" in _lower(row, "param_dtype") else _pure(row)


def _optimizer(row: Row) -> str:
    """The row of data/optimizers.csv that a printed name means: AdamW unless another is named."""
    printed = _lower(row, "optimizer")
    other = next((o for o in ("adafactor", "sgd", "lion", "muon", "adagrad") if o in printed), None)
    if other == "sgd" and "momentum" in printed:
        return "sgd-momentum"
    eight = "8bit" in printed or "8-bit" in printed
    return other or f"{'paged-' if 'paged' in printed else ''}adamw{'-8bit' if eight else ''}"


def _optimizer_in_backward(row: Row) -> str:
    printed = _lower(row, "optimizer")
    return _yes(any(word in printed for word in ("in_bwd", "in backward", "low-memory")))


def _memory_recompute(row: Row) -> str:
    stated = _lower(row, "activation_checkpointing")
    if stated.startswith("selective"):
        return "alternate" if _chosen_layers(row) else "selective"
    return "none" if stated.startswith(("none", "false")) else "full" if stated else ""


def _loss_chunks(row: Row) -> str:
    words = _lower(row, "optimizer", "notes")
    return "8" if "chunked" in words else "1" if "cumulative" in words else ""


def _offload(row: Row) -> str:
    """What lies in the host's memory: an optimizer that pages does not, until memory runs out."""
    stated = _lower(row, "offload")
    states = ("optimizer",) if "paged" not in stated and ("optimizer" in stated or "params" in stated) else ()
    parameters = ("parameters",) if "params" in stated else ()
    return " ".join((*states, *parameters, *(("activations",) if "activations" in stated else ())))


def _attention(row: Row) -> str:
    stated = _lower(row, "flash_attention")
    return "eager" if stated.startswith("false") else "flash" if stated.startswith("true") else ""


def _global_batch(row: Row) -> str:
    stated = re.search(r"gbs(\d+)", f"{row.get('id', '')} {row.get('notes', '')}")
    return (row.get("global_batch") or "").strip() or (stated[1] if stated else "")


def _peak_bytes(row: Row) -> str:
    """The printed peak in bytes; with its unit where that is not known, so that it is no number."""
    printed, unit = number(row, "peak_memory_gb_per_gpu"), (row.get("memory_unit") or "").strip()
    scale = {"gib": 2.0**30, "gb": 1e9}.get(unit.lower())
    if printed is None:
        return ""
    return plain_number(printed * scale) if scale else f"{printed:g} {unit} (allowed: GB, GiB)"


def _reading(row: Row) -> str:
    stated = _lower(row, "memory_kind")
    return next((name for words, name in READINGS if words in stated), stated and "peak")


# rows of training budgets


def _report_month(row: Row) -> str:
    """Year and month of the report on arXiv that the row names."""
    month = re.search(r"arXiv:\s*(\d\d)(\d\d)\.\d", f"{row.get('source', '')} {row.get('notes', '')}")
    return f"20{month[1]}-{month[2]}" if month else ""


def _written_degree(name: str) -> Callable[[Row], str]:
    def degree(row: Row) -> str:
        stated = re.search(rf"\b{name} ?(\d+)", _lower(row, "source", "notes"))
        return stated[1] if stated else ""

    return degree


# rows of serving


def _model(row: Row) -> str:
    """As printed; of a file the name alone."""
    printed = (row.get("model") or "").strip()
    return printed.rsplit("/", 1)[-1] if printed.lower().endswith(".gguf") else printed


def _weight_format(row: Row) -> str:
    """As stated, else as the model's name ends."""
    stated = (row.get("precision_weights") or "").strip()
    if not stated:
        name = re.sub(r"\.gguf$", "", (row.get("model") or "").strip(), flags=re.IGNORECASE)
        suffix = QUANT_SUFFIX.search(name)
        stated = suffix[1] if suffix else ""
    remark = BRACKETS.search(stated)
    if remark and "fp8_block" in remark[1]:
        return "fp8-block"
    plain = BRACKETS.sub("", stated).strip()
    return FORMATS.get(plain.lower(), plain)


def _cache_dtype(row: Row) -> str:
    stated = _lower(row, "precision_kv")
    return "" if stated == "auto" else stated


def _requests(row: Row) -> str:
    """Requests of the whole run; a range as printed."""
    stated = REQUESTS.search(row.get("notes") or "")
    return (row.get("num_requests") or "").strip() or (stated[1].replace(",", "") if stated else "")


def _lengths(row: Row) -> str:
    stated, drawn = (row.get("length_spread") or "").strip(), NOMINAL.search(row.get("notes") or "")
    if stated.startswith("not stated"):
        return ""
    return stated or (f"uniform {int(drawn[1]) / 100}-{int(drawn[2]) / 100}" if drawn else "")


def _date(row: Row) -> str:
    stated = DATE.search(row.get("notes") or "")
    return stated[0] if stated else ""


def _first_ms(*columns: str) -> Callable[[Row], str]:
    """Seconds, from the first of these columns (ms) that has a number."""

    def seconds(row: Row) -> str:
        value = next((v for column in columns if (v := number(row, column)) is not None), None)
        return "" if value is None else plain_number(value / 1e3)

    return seconds


def _output_tokens_per_s(row: Row) -> str:
    """Of all GPUs; of a printed total of input and output tokens the output's share."""
    inputs, outputs = number(row, "input_len"), number(row, "output_len")
    rate, per_gpu, both, requests = (
        number(row, column)
        for column in (
            "output_tokens_per_s_total",
            "output_tokens_per_s_per_gpu",
            "total_tokens_per_s",
            "requests_per_s",
        )
    )
    if rate is None and per_gpu is not None:
        rate = per_gpu * (number(row, "n_gpus") or 1.0)
    if rate is None and requests is not None and outputs:
        rate = requests * outputs
    if rate is None and both is not None and inputs and outputs:
        rate = both * outputs / (inputs + outputs)
    return "" if rate is None else plain_number(rate)


# rows of kernels


def _dtype(column: str) -> Callable[[Row], str]:
    return lambda row: DTYPES.get(text := _lower(row, column), text)


def _noted(key: str) -> Callable[[Row], str]:
    """A value in the remarks on a collective: "devices_per_node=2; rank 0 median; topology a100_dgx"."""

    def value(row: Row) -> str:
        stated = re.search(rf"(?:^|;)\s*{key}[ =]([^;]*)", row.get("note") or "")
        return stated[1].strip() if stated else ""

    return value


def _same(*names: str) -> dict[str, Origin]:
    return {name: name for name in names}


COLUMNS: dict[str, dict[str, Origin]] = {
    "weights": {**_same("id", "model", "format"), "form": "kind", "stored_bytes": "bytes", "source": "source"},
    "memory": {
        "id": "id", "study": "source_key", **_same("year", "model"),
        "hidden": _prototype("h"), "num_layers": _prototype("l"), "num_heads": _prototype("a"),
        "params": Scaled("params_b", 1e9), "method": "method", "trainable_params": Scaled("trainable_params_m", 1e6),
        "lora_rank": _lora_rank, "lora_targets": _lora_targets, "base": "base_weight_quant",
        "gpu": "gpu", "gpus": "n_gpus", **{name: _degree(name) for name in ("tp", "pp", "cp")}, "zero": _memory_zero,
        "sequence_parallel": _memory_sequence_parallel, "offload": _offload,
        "software": _memory_software, "compiled": _memory_compiled,
        "precision": _memory_precision, "weights_dtype": _weights_dtype, "grad_dtype": _pure, "states_dtype": _pure,
        "adapter_dtype": lambda row: "fp32" if "adapters fp32" in _lower(row, "param_dtype") else "",
        "optimizer": _optimizer, "optimizer_in_backward": _optimizer_in_backward, "loss_chunks": _loss_chunks,
        **_same("micro_batch"), "global_batch": _global_batch, **_same("seq_len"),
        "recompute": _memory_recompute, "attention": _attention,
        "reading": _reading, "peak_bytes": _peak_bytes, **_same("quality", "source"),
    },
    "kernels": {
        **_same("id", "gpu"), "library": "framework", "library_version": "version", **_same("op"), "kernel": "impl",
        "dtype": _dtype("dtype"), "kv_dtype": _dtype("kv_dtype"), **_same("m", "n", "k", "batch"),
        "query_len": "seq_q", "context_len": "seq_kv", "num_heads": "n_heads", "num_kv_heads": "n_kv_heads",
        **_same("head_dim", "tokens", "hidden", "inter", "experts"), "top_k": "topk", **_same("ep", "tp"),
        "moved_bytes": "min_bytes", "message_bytes": "bytes", "gpus": "n_gpus", "topology": _noted("topology"),
        "gpus_per_node": _noted("devices_per_node"),
        "warm": lambda row: _yes(_lower(row, "cache_regime") == "l2_possible"),
        "roofline_s": Scaled("roofline_us", per=1e6), "seconds": Scaled("measured_time_us", per=1e6), **_same("source"),
    },
    "training": {
        "id": "id", "study": "source_key", **_same("year", "model"),
        "params": Scaled("params_total_b", 1e9), "active_params": Scaled("params_active_b", 1e9),
        "num_layers": "n_layers", "hidden": "d_model", "num_heads": "n_heads", "num_kv_heads": "n_kv_heads",
        "inter": "d_ff", "gated": _yes_or_no("gated_mlp"), **_same("vocab", "seq_len", "task"),
        "lora_rank": _lora_rank, "lora_targets": _lora_targets,
        "packed_data": _packed_data,
        "gpu": "gpu", "gpus": "n_gpus", "node_bytes_per_s": _node_network, **_same("tp", "pp", "cp", "ep"),
        "zero": _training_zero, **_same("micro_batch"), "global_batch": "global_batch_seqs",
        "interleave": "interleave_vpp", "recompute": _training_recompute,
        "sequence_parallel": _yes_or_no("sequence_parallel"), "attention": _attention, "precision": _training_precision,
        "software": "stack", "compiled": _training_compiled,
        "async_tp": lambda row: _yes(re.search(r"async ?tp", _lower(row, "notes"))),
        "tokens_per_s_per_gpu": _tokens_per_s_per_gpu, **_same("quality", "source"),
    },
    "gpu-hours": {
        **_same("id", "model"), "active_params": Scaled("active_params_b", 1e9), "tokens": Scaled("tokens_b", 1e9),
        "gpu": "gpu", "gpus": "n_gpus", **_same("precision"),
        **{name: _written_degree(name) for name in ("tp", "pp", "dp")},
        "date": _report_month, **_same("gpu_hours", "quality", "source"),
    },
    "io": {
        **_same("id", "workload"), "gpu": "accelerator", "record_bytes": "record_bytes", "batch": "batch_size",
        **_same("seq_len", "precision"), "read_bytes_per_s": Scaled("read_MB_per_s_per_accel", 1e6), **_same("source"),
    },
    "serving": {
        "id": "id", "study": "source", "date": _date, "model": _model, "gpu": "gpu", "gpus": "n_gpus",
        **_same("tp", "pp", "ep", "dp"),
        "attention_dp": lambda row: _yes("attention-dp enabled" in _lower(row, "notes")),
        "prefill_replicas": "prefill_workers", "decode_replicas": "decode_workers", "replica_tp": "worker_tp",
        "weights": _weight_format, "kv_dtype": _cache_dtype, **_same("engine", "engine_version"),
        "eager": "enforce_eager", "max_batch": "max_num_seqs", "step_tokens": "max_num_batched_tokens",
        "memory_frac": "gpu_memory_utilization", "prefix_cache": "prefix_caching",
        **_same("speculation", "stream_interval", "power_limit_w", "mode"),
        "input_tokens": "input_len", "output_tokens": "output_len", "lengths": _lengths,
        **_same("concurrency", "batch"), "arrivals": "arrivals", "arrivals_per_s": "request_rate",
        "requests": _requests, "output_tokens_per_s": _output_tokens_per_s,
        "ttft_s": _first_ms("ttft_ms_mean", "ttft_ms_p50"),
        "tpot_s": _first_ms("tpot_ms_mean", "tpot_ms_p50", "itl_ms_mean"),
        "quality": "quality", "source": lambda row: row.get("source_ref") or row.get("source") or "",
    },
}  # fmt: skip
"""By kind, all our columns in their order, each with its origin in a file with the columns of published tables."""
_PUBLISHED: dict[str, frozenset[str]] = {
    kind: frozenset(o if isinstance(o, str) else o.column for o in origins.values() if isinstance(o, str | Scaled))
    - origins.keys()
    for kind, origins in COLUMNS.items()
}
"""Columns by which a file of published tables is known: none of ours is called so."""
