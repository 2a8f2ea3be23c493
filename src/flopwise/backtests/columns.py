"""Columns of measurement files: ours, and where each is found in files with the columns of published tables.

`benchmarks/truth/README.md` says what ours mean. Published tables state some settings in words only (remarks, ids, the
`parallelism` of a run, `zero_stage_or_fsdp`); here they become cells, so that nothing else reads words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flopwise.backtests.prediction import BRACKETS, QUANT_SUFFIX, Row, number


class Scaled(NamedTuple):
    """A number in another unit: the published column, and how many of ours (`times`, or one in `per`) its unit is."""

    column: str
    times: float = 1.0
    per: float = 1.0


Reading = Callable[[Row], str]
Origin = str | Scaled | Reading
"""Where a cell of ours is from: a published column, one in another unit, or what is read from several cells."""

LINK_BYTES_PER_S = {"EDR": 12.5e9, "HDR": 25e9, "NDR": 50e9, "Omni-Path": 12.5e9}
"""One direction of one link of a node's network."""
ZERO_STAGES = {"shard_grad_op": "2", "zero1": "1", "zero2": "2", "zero3": "3", "fsdp": "3", "ddp": "0", "none": "0"}
SOFTWARE = {
    "plain-pytorch": "fsdp-eager", "torchtune": "torchtune-eager", "torchtitan|torchao": "fsdp-eager",
    "litgpt|lit-gpt": "litgpt", "unsloth": "unsloth", "nanotron": "nanotron", "fast-llm": "fast-llm",
    "llm-foundry": "fsdp-fused", "bigscience|megatron-deepspeed": "megatron-deepspeed", "megatron|nemo": "megatron-te",
    "deepspeed": "deepspeed-zero3", "maxtext": "xla", "peft|trl|transformers": "hf-trainer",
}  # fmt: skip
"""Words by which a row's source names its training software, most telling first, and the row of data/stacks.csv."""
PUBLISHERS = {
    "^(mbridge|nemo|megatron-sc21)": "nvidia", "^(torch|llama1)": "meta", "^llm-foundry": "mosaicml",
    "^fsdp-qlora": "answer.ai", "^neuron": "aws", "^tpu": "google", "^xtuner": "internlm",
}  # fmt: skip
"""Publisher by the beginning of a table's key: releases of one table share what their publisher tunes for."""
OPTIMIZERS = {
    "adafactor": "adafactor", "sgd.*momentum|momentum.*sgd": "sgd-momentum", "sgd": "sgd", "lion": "lion",
    "muon": "muon", "adagrad": "adagrad", "paged.*8-?bit|8-?bit.*paged": "paged-adamw-8bit", "paged": "paged-adamw",
    "8-?bit": "adamw-8bit", "": "adamw",
}  # fmt: skip
"""The row of data/optimizers.csv that a printed name means: AdamW unless another is named."""
READINGS = {
    "capacity limit": "capacity", r"not stated| or ": "not stated", "reserved": "reserved", "nvidia-smi": "device",
    "active": "active", "allocated": "allocated", "": "peak",
}  # fmt: skip
"""What a peak of memory counts, by the words of published tables."""
LENGTHS = {
    "cap is reached|longest example": "longest", "^packed|^padded to seq": "full",
    "^unpad|^unpack|longest|truncat|cap": "cap",
}  # fmt: skip
"""What `seq_len` is: of every sequence, of the longest that came, or the most that may come."""
SELECTIVE = {"every 2nd|per-layer ac": "alternate", r"per-op\b": "operations"}
CHECKPOINTING = {"^selective": "selective", "^(none|false)": "none", "": "full"}
RECOMPUTE = {"^(none|false)$": "none", "^selective$": "selective", "^(full|true)$": "full"}
PRECISIONS = {"^(fp32|float32|32-true)$": "fp32", "mxfp8": "mxfp8", "fp8": "fp8", "fp16": "fp16", "": "bf16"}
FORMATS = {
    "fp16/bf16": "bf16", "fp4": "nvfp4", "int4": "awq", "awq-int4": "awq", "4bit": "Q4_0", "8bit": "Q8_0",
    "auto": "bf16",
}  # fmt: skip
"""Other spellings of weight formats."""
DTYPES = {
    "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "sq": "int8", "fp8_e4m3": "fp8",
    "int8": "int8_wo", "int4": "int4_wo",
}  # fmt: skip
"""Other spellings of the types of kernels' operands, by the names of `flopwise.cost.precisions.PRECISIONS`."""
YES_NO = {"true": "yes", "false": "no"}
PROJECTIONS = re.compile(r"\b(?:q|k|v|o|up|down|gate)(?:(?:,| and | )(?:q|k|v|o|up|down|gate)\b)+")
"""Adapted projections, one by one: "q,v", "q k v up down gate", "q and v"."""
REQUESTS = r"(?<![\d-])(\d[\d,]*) (?:[A-Z]\w+ )?(?:requests?|prompts?)\b"
"""How many requests a run sent: "500 requests", "200 ShareGPT prompts"."""
NOMINAL = re.compile(r"lengths uniformly in (\d+)-(\d+) ?% of nominal")
BLOOM = r"(?i)bloom\S* \S*-h(\d+)-l(\d+)-a(\d+)"
"""Model and id of BLOOM's prototypes, with their shape: `-h14336-l70-a112`."""


def our_columns(kind: str, row: Row) -> Row:
    """The row in our columns; as it is where none of its columns is one of published tables alone."""
    if kind not in _PUBLISHED or not _PUBLISHED[kind] & row.keys():
        return row
    own = {"config": row["config"]} if row.get("config") else {}
    return {name: _cell(row, origin) for name, origin in COLUMNS[kind].items()} | own


def _cell(row: Row, origin: Origin) -> str:
    if isinstance(origin, str):
        return (row.get(origin) or "").strip()
    if isinstance(origin, Scaled):
        value = number(row, origin.column)
        return "" if value is None else plain_number(value * origin.times / origin.per)
    return origin(row)


def plain_number(value: float) -> str:
    """The number in 15 digits, without the rounding error of a change of units in the sixteenth."""
    rounded = float(f"{value:.15g}")
    return f"{rounded:.0f}" if rounded.is_integer() and rounded < 1e15 else repr(rounded)


# ways to read cells


def _lower(row: Row, *columns: str) -> str:
    return " ".join(_cell(row, column) for column in columns).lower()


def _match(pattern: str, *columns: str, template: str = r"\1") -> Reading:
    """The groups of a pattern that the columns' text fits."""

    def reader(row: Row) -> str:
        match = re.search(pattern, " ".join(_cell(row, column) for column in columns))
        return match.expand(template).strip() if match else ""

    return reader


def _by_word(values: Mapping[str, str], *columns: str) -> Reading:
    """The value of the first word (a pattern) found in the columns' text in lower case."""

    def reader(row: Row) -> str:
        text = _lower(row, *columns)
        return next((value for word, value in values.items() if text.strip() and re.search(word, text)), "")

    return reader


def _where(word: str, *columns: str) -> Reading:
    """`yes` if the word (a pattern) is in the columns' text."""
    return _by_word({word: "yes"}, *columns)


def _respelt(spellings: Mapping[str, str], column: str) -> Reading:
    """The cell in lower case, or the name for which it is another spelling."""
    return lambda row: spellings.get(text := _lower(row, column), text)


def _either(*origins: Origin) -> Reading:
    """The first that is not empty."""
    return lambda row: next((cell for origin in origins if (cell := _cell(row, origin))), "")


def _lora_targets(row: Row) -> str:
    notes = _lower(row, "notes")
    if re.search(r"\ball[- ](?:layers|linear)", notes):
        return "all-linear"
    listed = PROJECTIONS.search(notes)
    return " ".join(re.findall(r"up|down|gate|[qkvo]", listed[0].replace(" and ", " "))) if listed else ""


def _recompute(column: str, values: Mapping[str, str]) -> Reading:
    """The recompute mode; `alternate` where the remarks tell of chosen layers, `operations` where of operations."""
    plain, chosen = _by_word(values, column), _by_word(SELECTIVE, "notes")
    return lambda row: (chosen(row) if (mode := plain(row)) == "selective" else "") or mode


_LORA: dict[str, Origin] = {
    "lora_rank": _either("lora_rank", _match(r"(?i)(?:\brank|\blora_r|\br)[ =:]*(\d+)", "notes")),
    "lora_targets": _either("lora_targets", _lora_targets),
}  # fmt: skip
_ATTENTION = _by_word({"^false": "eager", "^true": "flash"}, "flash_attention")
_PURE = _by_word({"pure bf16": "bf16"}, "optimizer", "notes")


def _training_precision(row: Row) -> str:
    stated = _lower(row, "precision")
    return "fp8_rowwise" if stated == "fp8" and "rowwise" in _lower(row, "notes").split(";")[0] else stated


def _node_network(row: Row) -> str:
    links = re.search(r"\b(\d+)x? (HDR|EDR|NDR|Omni-Path)\b", row.get("notes") or "")
    return plain_number(int(links[1]) * LINK_BYTES_PER_S[links[2]]) if links else ""


def _tokens_per_s_per_gpu(row: Row) -> str:
    """As printed, or by the source's own arithmetic."""
    metric, value = row.get("measured_metric", ""), number(row, "measured_value")
    if metric == "tokens_per_sec_per_gpu" and value:
        return plain_number(value)
    if printed := _either(*map(Scaled, ("reported_tokens_per_sec_per_gpu", "derived_tokens_per_sec_per_gpu")))(row):
        return printed
    gpus, batch, seq = (number(row, column) for column in ("n_gpus", "global_batch_seqs", "seq_len"))
    if metric == "step_time_s" and value and gpus and batch and seq:
        return plain_number(batch * seq / value / gpus)
    return ""


def _fully_sharded(row: Row) -> str:
    """ZeRO stage 3 if the row states FSDP and no other kind of sharding."""
    stated = _lower(row, "parallelism")
    return "3" if "fsdp" in stated and not re.search(r"\bor\b|not stated", stated) else ""


def _one_software(column: str) -> Reading:
    """The software that a column's text names; none where it names several, as pages do that compare."""

    def reader(row: Row) -> str:
        text = _lower(row, column)
        named = {stack for word, stack in SOFTWARE.items() if re.search(word, text)}
        return named.pop() if len(named) == 1 else ""

    return reader


def _memory_compiled(row: Row) -> str:
    stated, notes = _lower(row, "torch_compile"), _lower(row, "notes")
    if row.get("stack") or stated in {"false", "no", "0"}:
        return ""
    compiles = "compile" in notes.replace("nocompile", "") and "eager" not in notes
    return "yes" if compiles or stated in {"true", "yes", "1"} else ""


def _offload(row: Row) -> str:
    """The parts in the host's memory: an optimizer that pages is none, until memory runs out."""
    stated = _lower(row, "offload")
    whole = "paged" not in stated and "cpu" in stated and not re.search("optimizer|param|activation", stated)
    states = "paged" not in stated and ("optimizer" in stated or "param" in stated)
    parts = {
        "optimizer": states or whole,
        "parameters": "param" in stated or whole,
        "activations": "activation" in stated,
    }
    return " ".join(part for part, offloaded in parts.items() if offloaded)


def _peak_bytes(row: Row) -> str:
    """The printed peak in bytes; with its unit where that is not known, so that it is no number."""
    printed, unit = number(row, "peak_memory_gb_per_gpu"), (row.get("memory_unit") or "").strip()
    scale = {"gib": 2.0**30, "gb": 1e9}.get(unit.lower())
    if printed is None:
        return ""
    return plain_number(printed * scale) if scale else f"{printed:g} {unit} (allowed: GB, GiB)"


def _model(row: Row) -> str:
    """As printed; of a file the name alone."""
    printed = _cell(row, "model")
    return printed.rsplit("/", 1)[-1] if printed.lower().endswith(".gguf") else printed


def _weight_format(row: Row) -> str:
    """As stated, else as the model's name ends."""
    stated = _cell(row, "precision_weights")
    if not stated:
        suffix = QUANT_SUFFIX.search(re.sub(r"\.gguf$", "", _cell(row, "model"), flags=re.IGNORECASE))
        stated = suffix[1] if suffix else ""
    remark = BRACKETS.search(stated)
    if remark and "fp8_block" in remark[1]:
        return "fp8-block"
    plain = BRACKETS.sub("", stated).strip()
    return FORMATS.get(plain.lower(), plain)


def _requests(row: Row) -> str:
    """Requests of the whole run; a range as printed."""
    return _cell(row, "num_requests") or _match(REQUESTS, "notes")(row).replace(",", "")


def _lengths(row: Row) -> str:
    stated, drawn = _cell(row, "length_spread"), NOMINAL.search(row.get("notes") or "")
    if stated.startswith("not stated"):
        return ""
    return stated or (f"uniform {int(drawn[1]) / 100}-{int(drawn[2]) / 100}" if drawn else "")


def _output_tokens_per_s(row: Row) -> str:
    """Output tokens/s of all GPUs; the output's share where the table prints a total of input and output tokens."""
    rate, per_gpu, both, requests, inputs, outputs = (
        number(row, column)
        for column in (
            "output_tokens_per_s_total", "output_tokens_per_s_per_gpu", "total_tokens_per_s", "requests_per_s",
            "input_len", "output_len",
        )
    )  # fmt: skip
    if rate is None and per_gpu is not None:
        rate = per_gpu * (number(row, "n_gpus") or 1.0)
    if rate is None and requests is not None and outputs:
        rate = requests * outputs
    if rate is None and both is not None and inputs and outputs:
        rate = both * outputs / (inputs + outputs)
    return "" if rate is None else plain_number(rate)


def _remark(key: str) -> Reading:
    """A value in the remarks on a collective: "devices_per_node=2; rank 0 median; topology a100_dgx"."""
    return _match(rf"(?:^|;)\s*{key}[ =]([^;]*)", "note")


def _first_ms(*columns: str) -> Reading:
    """Seconds, from the first of these columns (ms) that has a number."""
    return _either(*(Scaled(column, per=1e3) for column in columns))


def _median_alone(quantity: str) -> Reading:
    """`median` where only the median over requests is printed; not where a page leaves open what it prints."""
    mean, median = f"{quantity}_ms_mean", f"{quantity}_ms_p50"

    def reader(row: Row) -> str:
        alone = _cell(row, median) and not _cell(row, mean)
        return "median" if alone and "mean-vs-median" not in _lower(row, "notes") else ""

    return reader


def _same(*names: str) -> dict[str, Origin]:
    return {name: name for name in names}


COLUMNS: dict[str, dict[str, Origin]] = {
    "weights": {**_same("id", "model", "format"), "form": "kind", "stored_bytes": "bytes", "source": "source"},
    "memory": {
        "id": "id", "study": "source_key", **_same("publisher", "year", "month", "model", "config"),
        "hidden": _match(BLOOM, "model", "id"), "num_layers": _match(BLOOM, "model", "id", template=r"\2"),
        "num_heads": _match(BLOOM, "model", "id", template=r"\3"),
        "params": Scaled("params_b", 1e9), "method": "method", "trainable_params": Scaled("trainable_params_m", 1e6),
        **_LORA, **_same("lora_dropout", "double_quant"), "base": "base_weight_quant",
        "gpu": "gpu", "gpus": "n_gpus",
        **{n: _either(n, _match(rf"(?i)\b{n}[ =]?(\d+)", "parallelism")) for n in ("tp", "pp", "cp", "ep")},
        "zero": _either("zero", _match(r"(?i)zero-?(\d)", "parallelism"), _fully_sharded),
        **_same("grad_sync"), "sequence_parallel": _respelt(YES_NO, "sequence_parallel"), "offload": _offload,
        "software": _either("stack", *(_one_software(name) for name in ("parallelism", "source_key", "source"))),
        **_same("software_version"),
        "compiled": _memory_compiled, "precision": _by_word(PRECISIONS, "param_dtype"),
        "weights_dtype": _either(_by_word({"fp32 weights": "fp32"}, "param_dtype"), _PURE), "grad_dtype": _PURE,
        "states_dtype": _PURE, "adapter_dtype": _by_word({"adapters fp32": "fp32"}, "param_dtype"),
        "optimizer": lambda row: _by_word(OPTIMIZERS, "optimizer")(row) or "adamw",
        "optimizer_in_backward": _where("in_bwd|in backward|low-memory", "optimizer"),
        "loss_chunks": _by_word({"chunked": "8", "cumulative": "1"}, "optimizer", "notes"),
        **_same("micro_batch"), "global_batch": _either("global_batch", _match(r"gbs(\d+)", "id", "notes")),
        "grad_accum": _match(r"(?i)\baccumulation (?:of )?(\d+)", "notes"), **_same("seq_len"),
        "lengths": _either("lengths", _by_word(LENGTHS, "seq_is_padded_or_packed")),
        "recompute": _recompute("activation_checkpointing", CHECKPOINTING), **_same("recompute_modules"),
        "attention": _ATTENTION, "reading": _by_word(READINGS, "memory_kind"),
        "peak_bytes": _peak_bytes, **_same("quality", "source"),
    },
    "kernels": {
        **_same("id", "gpu"), "library": "framework", "library_version": "version", **_same("op"), "kernel": "impl",
        "dtype": _respelt(DTYPES, "dtype"), "kv_dtype": _respelt(DTYPES, "kv_dtype"), **_same("m", "n", "k", "batch"),
        "query_len": "seq_q", "context_len": "seq_kv", "num_heads": "n_heads", "num_kv_heads": "n_kv_heads",
        **_same("head_dim", "tokens", "hidden", "inter", "experts"), "top_k": "topk", **_same("ep", "tp"),
        "moved_bytes": "min_bytes", "message_bytes": "bytes", "gpus": "n_gpus", "topology": _remark("topology"),
        "gpus_per_node": _remark("devices_per_node"),
        "warm": _where("^l2_possible$", "cache_regime"),
        **_same("quantised", "routing"),
        "roofline_s": Scaled("roofline_us", per=1e6), "seconds": Scaled("measured_time_us", per=1e6),
        **_same("source", "date"),
    },
    "training": {
        "id": "id", "study": "source_key",
        "publisher": _either(_by_word(PUBLISHERS, "source_key"), "source_key"), **_same("year", "model"),
        "month": _either("month", _match(r"\b\d\d\.0?(\d+)(?:\.\d+)? container", "source")),  # NVIDIA names them so
        "params": Scaled("params_total_b", 1e9), "active_params": Scaled("params_active_b", 1e9),
        "num_layers": "n_layers", "hidden": "d_model", "num_heads": "n_heads", "num_kv_heads": "n_kv_heads",
        **_same("head_dim", "power_limit_w"),
        "inter": "d_ff", "gated": _respelt(YES_NO, "gated_mlp"), **_same("vocab", "seq_len", "task"),
        **_LORA, "packed_data": _by_word({"packed.*squad|squad.*packed": "squad"}, "notes"),
        "gpu": "gpu", "gpus": "n_gpus", "node_bytes_per_s": _node_network, **_same("tp", "pp", "cp", "ep"),
        "zero": _by_word(ZERO_STAGES, "zero_stage_or_fsdp"), **_same("shard", "micro_batch"),
        "global_batch": "global_batch_seqs", "interleave": "interleave_vpp",
        "recompute": _either(_recompute("activation_recompute", RECOMPUTE), _respelt({}, "activation_recompute")),
        "recompute_modules": _by_word({"moe block recomputed": "layernorm moe"}, "notes"),
        "sequence_parallel": _respelt(YES_NO, "sequence_parallel"), "attention": _ATTENTION,
        "offload": _offload, **_same("offload_layers", "optimizer", "weights_dtype", "grad_dtype", "states_dtype"),
        **_same("loss_chunks"),
        "dispatch": _by_word({r"\bdeepep\b|hybridep": "node"}, "notes"),
        "capacity": _match(r"capacity factor (\d+(?:\.\d+)?)", "notes"), "precision": _training_precision,
        "software": "stack",
        # flags of torchtune's are cumulative, the second compiles
        "compiled": _where(r"\+compile|^(?!\+packed).*cumulative flags", "notes"),
        "async_tp": _where("async ?tp", "notes"),
        "tokens_per_s_per_gpu": _tokens_per_s_per_gpu, **_same("quality", "source"),
    },
    "gpu-hours": {
        **_same("id", "model"), "params": Scaled("params_b", 1e9), "active_params": Scaled("active_params_b", 1e9),
        "tokens": Scaled("tokens_b", 1e9), "gpu": "gpu", "gpus": "n_gpus", **_same("precision"),
        "covers": _by_word({"pre-?training only|main run": "main", "distil|prun": "family"}, "source", "notes"),
        **{name: _match(rf"(?i)\b{name} ?(\d+)", "source", "notes") for name in ("tp", "pp", "dp")},
        "date": _match(r"arXiv:\s*(\d\d)(\d\d)\.\d", "source", "notes", template=r"20\1-\2"),  # month of the report
        **_same("gpu_hours", "quality", "source"),
    },
    "io": {
        **_same("id", "workload"), "gpu": "accelerator", "record_bytes": "record_bytes", "batch": "batch_size",
        **_same("seq_len", "precision"), "read_bytes_per_s": Scaled("read_MB_per_s_per_accel", 1e6), **_same("source"),
    },
    "serving": {
        "id": "id", "study": "source", "date": _match(r"\b20[2-9]\d-\d\d-\d\d\b", "notes", template=r"\g<0>"),
        "model": _model, "gpu": "gpu", "gpus": "n_gpus",
        **_same("tp", "pp", "ep", "dp"),
        "attention_dp": _where("attention-dp enabled", "notes"),
        "prefill_replicas": "prefill_workers", "decode_replicas": "decode_workers", "replica_tp": "worker_tp",
        "weights": _weight_format, "kv_dtype": _respelt({"auto": ""}, "precision_kv"),
        **_same("engine", "engine_version"),
        "eager": "enforce_eager", "prefill_delayer": "enable_prefill_delayer",
        "max_batch": "max_num_seqs", "step_tokens": "max_num_batched_tokens",
        "memory_frac": "gpu_memory_utilization",
        "prefix_cache": "prefix_caching", "prefix_hit": "prefix_cache_hit_rate",
        "recv_interval": "scheduler_recv_interval", "batch_wait": "batch_wait_timeout_iters",
        **_same("speculation"), "draft_tokens": "num_speculative_tokens", "accept_length": "mean_acceptance_length",
        "images": "images_per_request", "image_tokens": "tokens_per_image", "structured": "structured_output_ratio",
        **_same("stream_interval", "power_limit_w", "intra_node", "mode"),
        "input_tokens": "input_len", "output_tokens": "output_len", "lengths": _lengths,
        **_same("concurrency", "batch"), "arrivals": "arrivals", "arrivals_per_s": "request_rate",
        "requests": _requests, "output_tokens_per_s": _output_tokens_per_s,
        "ttft_s": _first_ms("ttft_ms_mean", "ttft_ms_p50"),
        "ttft_reading": _median_alone("ttft"),
        "tpot_s": _first_ms("tpot_ms_mean", "tpot_ms_p50", "itl_ms_mean"),
        "tpot_reading": _either(
            _by_word({"median itl|per-token latency percentiles": "median interval"}, "notes"), _median_alone("tpot")
        ),
        "latency_s": _first_ms("e2e_latency_ms", "e2e_ms_p50"),
        "quality": "quality", "source": _either("source_ref", "source"),
    },
}  # fmt: skip
"""By kind, all our columns in their order, each with its origin in a file with the columns of published tables."""
_PUBLISHED: dict[str, frozenset[str]] = {
    kind: frozenset(o if isinstance(o, str) else o.column for o in origins.values() if isinstance(o, str | Scaled))
    - origins.keys()
    for kind, origins in COLUMNS.items()
}
"""Columns by which a file of published tables is known: none of ours is called so."""
