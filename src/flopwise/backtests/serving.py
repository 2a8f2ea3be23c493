"""Rows of published serving results, predicted: tokens per second of all GPUs, times to the first token and a token."""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flopwise.backtests import trtllm_bench
from flopwise.backtests.prediction import BRACKETS, Prediction, Row, flag, named_model, number, stated_model, whole
from flopwise.cost.cluster import Cluster, cluster
from flopwise.cost.spec import INTRA_NODE, with_power_limit
from flopwise.errors import FlopwiseError, SpecError, UnknownNameError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts, Resolution, one_of
from flopwise.facts.formats import MXFP4, CacheFormat, WeightFormat
from flopwise.facts.software import Engine
from flopwise.serving.estimate import answers_are_short, estimate, least_offload, outgrows_cache
from flopwise.serving.job import Ranged, ServeEstimate, ServeJob, Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.finite import closed_loop_run, finite_run
from flopwise.serving.sim.result import SimulatedRun
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import TechniqueRequest
from flopwise.serving.techniques import resolve_techniques, tokens_per_step
from flopwise.values import replace

Release = tuple[int, ...]
READINGS = {"ttft_s": "ttft_reading", "tpot_s": "tpot_reading"}
"""The column that says what a time is where it is not the mean over requests."""
MEDIAN_INTERVAL, MEDIAN = "median interval", "median"
"""What `tpot_reading` says, and `ttft_reading` the second of them."""

UNITS = {"output_tokens_per_s": "tokens/s", "tpot_s": "s", "ttft_s": "s"}
WHOLE = "latency_s"
"""Of whole requests: no constant is fitted to it, and its interval is composed of those of its parts."""
PROMPT_ONLY = ("prefill_throughput", "prefill_latency")
OFFLINE = ("offline_max_throughput", "mlperf_offline")
USERS = "serving_concurrency"
ONLINE = (USERS, "serving_qps")
STREAM = "single_stream_decode"
MODES = (*OFFLINE, "fixed_batch", USERS, "serving_qps", STREAM, *PROMPT_ONLY)

DEFAULT_INPUT, DEFAULT_OUTPUT, QUESTION = 512, 256, 32
"""Tokens where a row does not say: a chat turn; for a stream alone, a question of a sentence or two."""
OLLAMA, OLLAMA_FORMAT = "ollama", "Q4_K_M"
DAY = "YYYY-MM-DD"
SIZE = re.compile(r"(?<![a-z])\d+(?:\.\d+)?[bm](?![a-z])", re.IGNORECASE)
"""Parameters in a model's name."""
BY_LAYERS = ("llama.cpp", "hf")
"""Engines that give whole layers to each of several devices unless they are told otherwise: llama.cpp's split mode,
transformers' device_map (accelerate, big model inference)."""
UNIFORM = r"uniform ([\d.]+)-([\d.]+)"
"""Lengths between two shares of the nominal ones."""
ROUNDS_IN_STEP = 4
"""Requests of each user that are simulated where users stay in step and nobody says how many there were."""
ANSWER_SPREAD = 0.77
"""Standard deviation over mean of the tokens of answers that end by themselves: Azure's public trace of conversations
(AzurePublicDataset, LLM inference trace 2023)."""
EIGHT_BIT_CACHE = ("fp8", "nvfp4")
FOLLOW_MODELOPT = frozenset({"vllm", "vllm-2026"})
"""The generations of vLLM that keep their cache as ModelOpt's checkpoints ask for."""
DIES = {"MI250": "MI250-GCD", "Intel Max 1550": "Intel Max 1550 tile"}
"""Cards that drivers show as two devices, and the row of one: engines and benchmarks count these as GPUs."""
GENERATIONS: dict[str, tuple[tuple[str, Release, int], ...]] = {
    "vllm": (
        ("vllm-2023", (0, 3), 2024),
        ("vllm-2024", (0, 6), 2024),
        ("vllm-v0", (0, 8), 2025),
        ("vllm-2025", (0, 14), 2026),
        ("vllm-2026", (0, 21), 2026),
    ),
    "tensorrt-llm": (("tensorrt-llm-2023", (0, 7), 2024), ("tensorrt-llm-v0", (1, 0), 2025)),
    "sglang": (
        ("sglang-2024", (0, 4, 6), 2025),
        ("sglang-2025", (0, 5, 10), 2026),
        ("sglang-2026", (0, 5, 20), 2026),
    ),
    "llama.cpp": (("llama.cpp-2024", (0, 0), 2025), ("llama.cpp-2025", (0, 24), 2026)),
}
"""Older generations of an engine, oldest first: row, first release after it (of ollama for llama.cpp), and its year."""
BUILDS = {"llama.cpp-2024": 4400, "llama.cpp-2025": 8300}
"""First build after a generation, where releases are counted: of January 2025, of March 2026."""
ENDS = frozenset({"llama.cpp-2025", "sglang-2024", "sglang-2026", "vllm-2026"})
"""Generations that ended in the middle of a year, as data/generations.csv has it: the day of a row tells them."""
UNTAGGED = r"0\.1\.dev"
"""What setuptools-scm calls a build from a source tree without tags, whatever its release."""
PORTS = frozenset({"sglang-jax", "sgl-jax", "tensorrt edge-llm"})
"""Ports of an engine to other devices, which count releases of their own."""
SPLIT_BY_LAYERS = "2024-01-12"
"""Day from which llama.cpp leaves whole layers to a device by default."""
LEAST_YEAR = 2024
"""Year to which a row without a version tells its engine's generation: several ended in that year."""
MODEL_YEARS = {
    "qwen3_5": 2026, "gemma4": 2026, "step3p": 2026, "glm_moe_dsa": 2026, "deepseek_v4": 2026,
    "qwen3": 2025, "gemma3": 2025, "llama4": 2025, "gpt_oss": 2025, "glm4": 2025, "minimax": 2025, "nemotron_h": 2025,
    "smollm3": 2025, "deepseek_v3": 2025, "lfm2": 2025, "ernie4_5": 2025, "qwen2": 2024, "gemma2": 2024,
}  # fmt: skip
"""Years before which no model of a family (by the beginning of its type) could be run, where that tells generations."""


def measured_quantities(row: Row) -> dict[str, float]:
    """The quantities that the row measured; without output tokens where prompts are only read."""
    units = ("ttft_s",) if row.get("mode") in PROMPT_ONLY else UNITS
    return {name: value for name in units if (value := number(row, name)) is not None}


def mode_quantities(row: Row) -> tuple[str, ...]:
    """The quantities predicted of a row without measurements, by its mode."""
    mode = row.get("mode", "")
    if mode in PROMPT_ONLY:
        return ("ttft_s",)
    return ("output_tokens_per_s",) if mode in (*OFFLINE, STREAM) else tuple(UNITS)


def row_device(row: Row, facts: Facts) -> Resolution:
    """The device that the row counts: one die of a card that software sees as two.

    Raises: UnknownNameError: no such accelerator.
    """
    device = facts.resolve(row.get("gpu", ""))
    die = DIES.get(device.accelerator.name)
    return device if die is None else replace(device, accelerator=facts.accelerator(die))


def row_engine(row: Row, facts: Facts, *, device_year: int | None = None, model_type: str = "") -> Engine:
    """The engine, as in `TensorRT-LLM (Triton backend)` or `NIM (TRT-LLM)`, in the generation that was run.

    The version decides (not that of a port or of a product around the engine, nor that of an untagged build). Without
    one the year of the row's date does, else that of the device or of the model's family, whichever is later: what is
    measured on old devices with old models was mostly measured at their time.

    Raises: UnknownNameError: no such engine.
    """
    text = row.get("engine", "")
    remark = BRACKETS.search(text)
    named = _known_engine(text, facts) or _known_engine(BRACKETS.sub("", text), facts)
    newest = named or (_known_engine(remark[1], facts) if remark else None) or facts.engine(text)
    older = GENERATIONS.get(newest.name, ())
    if named and (build := re.search(r"\bb(\d{4,5})\b", row.get("engine_version", ""))):
        return next((facts.engine(name) for name, _, _ in older if int(build[1]) < BUILDS.get(name, 0)), newest)
    counted = row.get("engine_version", "") if named and text.strip().lower() not in PORTS else ""
    if version := re.match(rf"(?!{UNTAGGED})v?(\d+)\.(\d+)(?:\.(\d+))?", counted):
        release = tuple(int(part or 0) for part in version.groups())
        return next((facts.engine(name) for name, first, _ in older if release < first), newest)
    dated = re.match(r"20\d\d\b", row.get("date", ""))
    family = next((year for start, year in MODEL_YEARS.items() if model_type.startswith(start)), 0)
    year = int(dated[0]) if dated else max(device_year or 0, family)
    day = row.get("date", "")
    for name, _, since in older:
        ended = name in ENDS and len(day) == len(DAY) and day < facts.generations[name].until
        if ended or (0 < year < since and since > LEAST_YEAR):
            return facts.engine(name)
    return newest


def _known_engine(name: str, facts: Facts) -> Engine | None:
    try:
        return facts.engine(name)
    except UnknownNameError:
        return None


def row_lengths(row: Row) -> tuple[int, int]:
    """Mean tokens of a prompt and of an answer; the middle of a range of the nominal lengths."""
    short = row.get("mode") == STREAM
    inputs = whole(row, "input_tokens", QUESTION if short else DEFAULT_INPUT)
    outputs = whole(row, "output_tokens", DEFAULT_OUTPUT)
    drawn = re.fullmatch(UNIFORM, row.get("lengths", ""))
    if not drawn:
        return inputs, outputs
    share = (float(drawn[1]) + float(drawn[2])) / 2
    return max(1, round(share * inputs)), max(1, round(share * outputs))


def row_format(row: Row, software: Engine, facts: Facts) -> WeightFormat:
    """The weight format: as stated, else what the engine loads by default.

    Files of llama.cpp in mxfp4 have 8 bits where the checkpoint, and ollama's file, have 16.

    Source: `mxfp4_file` of data/engines.json. Assumes: nothing else in between.

    Raises: UnknownNameError: no such format.
    """
    local = software.name.startswith("llama.cpp")
    stated = row.get("weights") or (OLLAMA_FORMAT if local else "bf16")
    if software.mxfp4_file and stated.lower() == MXFP4 and OLLAMA not in row.get("engine", "").lower():
        stated = software.mxfp4_file
    return facts.weight_format(stated)


def row_cache_format(
    row: Row, software: Engine, weights: WeightFormat, facts: Facts, checkpoint_format: str | None = None,
    model_type: str = "",
) -> CacheFormat:  # fmt: skip
    """The format of the cache: as stated, else what a quantised checkpoint asks for, where the engine follows it.

    Source: TensorRT-LLM, whose own checkpoints in fp8 and nvfp4 bring an fp8 cache; vLLM pull request 30785 (2025-12,
    in 0.14): `kv_cache_quant_algo` of ModelOpt's checkpoints, FP8 in those in nvfp4, is what `auto` means.
    optimum-habana, examples/text-generation/quantization_config/maxabs_quant.json: nothing but lm_head is left out of
    fp8, and the modules that Intel Neural Compressor then quantises count the cache (vLLM,
    docs/features/quantization/inc.md).
    `Engine.fp8_cache_families` for models that an engine caches in 8 bits by itself.
    Assumes: nvfp4 weights are ModelOpt's, unless the model is published in 4 bits itself (`checkpoint_format`).
    """
    if stated := row.get("kv_dtype", ""):
        return facts.cache_format({"fp16": "bf16"}.get(stated, stated))
    follows = weights.name.startswith("nvfp4") and software.name in FOLLOW_MODELOPT and checkpoint_format != "mxfp4"
    eight = software.name.startswith("tensorrt-llm") and weights.name.startswith(EIGHT_BIT_CACHE)
    latent = model_type in software.fp8_cache_families
    whole_recipe = weights.name.startswith("fp8") and row.get("engine", "").startswith("optimum-habana")
    return facts.cache_format("fp8" if eight or follows or latent or whole_recipe else "bf16")


def row_layout(row: Row, model: Model, software: Engine) -> tuple[ServingLayout, int]:
    """The layout of one replica, and how many replicas there are.

    What is left open is tensor-parallel, or split by layers where the engine does that. Attention replicas of a mixture
    share its experts: as many expert-parallel ranks as replicas, unless `ep` says otherwise. A dense model's replicas
    are apart.

    Source: TensorRT-LLM, docs/source/performance/perf-overview.md (attention replicas and --ep for mixtures) and the
    blog on DeepSeek-R1's best practice (as many expert-parallel ranks as devices with them).

    Raises: SpecError: a cell is not a number.
    """
    gpus = whole(row, "gpus", 1)
    ranks = "tp" if number(row, "tp") is not None else "replica_tp"
    tp, pp, dp = whole(row, ranks, 0), whole(row, "pp", 1), whole(row, "dp", 1)
    if not tp:
        by_layers = software.name.startswith(BY_LAYERS) and not splits_products(row, software)
        tp, pp = (1, max(pp, gpus)) if by_layers else (max(1, gpus // (pp * dp)), pp)
    ep = whole(row, "ep", 1) if model.has_experts else 1
    if model.has_experts and dp == 1 and flag(row, "attention_dp", default=False):
        tp, dp, ep = 1, tp, whole(row, "ep", tp)
    shared = dp if model.has_experts and dp > 1 else 1
    layout = ServingLayout(tp=tp, pp=pp, ep=min(ep, tp * shared), dp=shared)
    return layout, max(1, gpus // (tp * pp * shared))


def check_one_size(row: Row, model: Model, facts: Facts) -> None:
    """Refuse a model of several sizes whose row says none: a default is that of Ollama's tags alone.

    Source: Ollama, library (the tag `latest`). Assumes: the catalog has a family's other sizes, too.

    Raises: SpecError: the size is not stated.
    """
    size, stated = SIZE.search(model.name), row.get("model", "")
    if size is None or SIZE.search(stated) or OLLAMA in row.get("engine", "").lower():
        return
    family = model.name[: size.start()]
    sizes = [name for name in facts.models.names if name.startswith(family) and SIZE.match(name[len(family) :])]
    if len(sizes) > 1:
        raise SpecError(f"{stated[:60]!r} has no size: {family.rstrip('-')} is published in {len(sizes)} sizes")


def splits_products(row: Row, software: Engine) -> bool:
    """True of a run of llama.cpp before it split models by layers.

    Source: llama.cpp pull request 4766, merged on 2024-01-12: split_mode layer is the default, rows it was before.
    Assumes: a row without a month is younger.
    """
    day = row.get("date", "")
    before = day[:4] == "2023" or (len(day) == len(DAY) and day < SPLIT_BY_LAYERS)
    return before and software.name.startswith("llama.cpp")


@lru_cache(maxsize=256)
def _cluster(gpu: Resolution, power_limit_w: float | None, intra_node: str, *, alone: bool) -> Cluster:
    """Machines of that device, under a limit of its power if there is one; one that works alone needs no link.

    `intra_node`: how its devices are connected, as `flopwise serve` takes it; empty as such machines usually are.

    Raises: UnknownNameError: no such connection. SpecError: the device has no such link.
    """
    chip = gpu.accelerator if power_limit_w is None else with_power_limit(gpu.accelerator, power_limit_w)[0]
    if alone:
        return cluster(chip, gpus_per_node=1, ambiguous=gpu.note)
    return cluster(chip, intra_node=one_of("intra_node", intra_node or None, INTRA_NODE), ambiguous=gpu.note)


@lru_cache(maxsize=256)
def _with_context(model: Model, tokens: int) -> Model:
    """The model with a context of at least `tokens`: what was measured was possible."""
    if model.max_position is None or model.max_position >= tokens:
        return model
    return replace(model, max_position=tokens)


def row_job(row: Row, facts: Facts) -> tuple[ServeJob, int]:
    """The job of one replica of a row, and how many replicas there are.

    Raises: FlopwiseError: a name is not known, or a cell is missing.
    """
    mode = row.get("mode", "")
    if mode not in MODES:
        raise SpecError(f"mode {mode[:60]!r} is unknown; known: {', '.join(MODES)}")
    gpu = row_device(row, facts)
    model = stated_model(row, facts)
    check_one_size(row, model, facts)
    software = row_engine(row, facts, device_year=gpu.accelerator.year, model_type=model.model_type)
    layout, replicas = row_layout(row, model, software)
    pool, replicas = _row_prefill_gpus(row, layout, replicas)
    weights = row_format(row, software, facts)
    if weights.name == "bf16" and "bf16" not in gpu.accelerator.peak and "fp16" in gpu.accelerator.peak:
        weights = facts.weight_format("fp16")
    if mode in OFFLINE and number(row, "input_tokens") is None:
        raise SpecError("input_tokens is missing")
    requests = _run_requests(row, mode)
    inputs, outputs = row_lengths(row)
    kv_dtype = row_cache_format(row, software, weights, facts, model.checkpoint_format, model.model_type)
    burst = burst_requests(row, software)
    limits = None
    if burst and software.name.startswith(trtllm_bench.ENGINE):
        limits = trtllm_bench.BenchLimits.of(
            model, layout, weights, kv_dtype, gpu.accelerator.hbm_bytes or 0.0, (inputs, outputs), burst
        )
    at_once = _in_flight(row, mode, requests)
    rate = None
    if mode == "serving_qps" and row.get("arrivals_per_s", "").strip().lower() not in {"", "inf"}:
        rate = number(row, "arrivals_per_s")
    outputs = 1 if mode in PROMPT_ONLY else outputs
    step_tokens = _row_interval(row, "step_tokens")
    llama_bench = mode == "fixed_batch" and software.name.startswith("llama.cpp") and not row.get("concurrency")
    job = ServeJob(
        model=_with_context(model, inputs + outputs),
        cluster=_cluster(
            gpu, number(row, "power_limit_w"), row.get("intra_node", ""), alone=int(layout.num_gpus) + pool == 1
        ),
        layout=layout,
        weights=weights,
        kv_dtype=kv_dtype,
        engine=software,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=None if at_once is None else 1 if llama_bench else max(1, -(-at_once // replicas)),
        requests=requests,
        max_batch=_row_max_batch(row, software, layout) or (limits.batch if limits else None),
        memory_frac=trtllm_bench.CACHE_FRAC if limits else number(row, "memory_frac"),
        graph_batches=limits.graphs if limits and not software.prompt_graphs else (),
        recv_interval=_row_interval(row, "recv_interval"),
        batch_wait=_row_interval(row, "batch_wait"),
        stream_interval=_row_interval(row, "stream_interval"),
        eager=flag(row, "eager", default=False),
        prefill_delayer=flag(row, "prefill_delayer", default=False),
        arrivals_per_s=None if rate is None else rate / replicas,
        static=mode in ("fixed_batch", *PROMPT_ONLY),
        called=mode in OFFLINE,
        prefill_tokens=at_once if llama_bench else limits.prompt_tokens if limits else step_tokens,
    )
    job = replace(job, techniques=replace(_row_techniques(row, job, facts), prefill_gpus=pool))
    if job.graph_batches:
        job = replace(job, memory_frac=trtllm_bench.cache_frac(job))
    return _as_it_fits(job, facts), replicas


def _as_it_fits(job: ServeJob, facts: Facts) -> ServeJob:
    """The job with as many layers on its device as fit, of an engine that computes the others on the host.

    What was measured was possible: who runs more than a card holds leaves the rest to the processor beside it (of a
    card that is two devices, to the other one).
    """
    if job.engine.offload != "host" or job.cluster.accelerator.name in DIES.values():
        return job
    return replace(job, techniques=replace(job.techniques, offload=least_offload(job, facts)))


def _row_techniques(row: Row, job: ServeJob, facts: Facts) -> Techniques:
    """The drafts, images, grammars and cached prompts that the row states, as `flopwise serve` takes them.

    Raises: SpecError: drafts of which nobody says how much was accepted, or as `resolve_techniques`.
    """
    drafts = row.get("speculation", "")
    length, tokens = number(row, "accept_length"), whole(row, "draft_tokens", 1)
    if drafts in {"", "off"}:
        drafts = ""
    elif length is None:
        raise SpecError(f"speculation {drafts[:60]!r}: not predicted, as no column says how much of it was accepted")
    request = TechniqueRequest(
        draft=drafts or None,
        draft_tokens=tokens if drafts else None,
        acceptance=acceptance_of(length, tokens) if drafts and length else None,
        prefix_hit=number(row, "prefix_hit"),
        images=whole(row, "images", 1) if row.get("images") else None,
        image_tokens=whole(row, "image_tokens", 1) if row.get("image_tokens") else None,
        structured=number(row, "structured"),
    )
    return resolve_techniques(request, job, facts, lambda name: named_model(name, facts))


def acceptance_of(accept_length: float, draft_tokens: int) -> float:
    """The probability with which each of a draft's tokens is accepted, of the mean tokens that a verification gives.

    Source: `tokens_per_step`, whose inverse it is; vLLM and SGLang print its result as mean acceptance length.
    Assumes: as there; a length beyond the draft's tokens and one more means that all were accepted.
    """
    low, high = 0.0, 1.0
    for _ in range(50):  # halves the interval until a double holds no more of it
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, draft_tokens) < accept_length else (low, middle)
    return (low + high) / 2


def _row_prefill_gpus(row: Row, layout: ServingLayout, replicas: int) -> tuple[int, int]:
    """(devices that only work on prompts, beside each replica that decodes; how many replicas decode).

    Raises: SpecError: fewer replicas for prompts than replicas that decode, which no job of one replica says.
    """
    before, decoding = whole(row, "prefill_replicas", 0), whole(row, "decode_replicas", 1)
    if not before:
        return 0, replicas
    each, rest = divmod(before, decoding)
    if rest:
        raise SpecError(f"{before} prompt replicas and {decoding} decode replicas: not predicted, as shares of one")
    return each * int(layout.num_gpus), decoding


def _row_max_batch(row: Row, software: Engine, layout: ServingLayout) -> int | None:
    """Sequences that one attention replica runs at once, as the row states them; SGLang divides its own among them."""
    stated = number(row, "max_batch")
    if stated is None:
        return None
    return max(1, int(stated) // (int(layout.dp) if software.divides_budget else 1))


def _row_interval(row: Row, column: str) -> int | None:
    """Steps or tokens that a column of the engine's settings counts; None where the row does not say."""
    return whole(row, column, 1) if row.get(column) else None


def _run_requests(row: Row, mode: str) -> int | None:
    """Requests of a run with an end; None where it goes on until the state is steady, or nobody says.

    Users whose requests are all alike stay in step as they began: their figures are those of a few rounds. An offline
    run whose lengths are drawn ends with its longest answers.
    """
    if mode in OFFLINE:
        alike = row.get("lengths") in {None, "", "fixed"}
        return None if alike or number(row, "requests") is None else max(1, whole(row, "requests", 1))
    if mode not in ONLINE:
        return None
    stated, users = number(row, "requests"), number(row, "concurrency")
    if stated is None and users and row.get("lengths") == "fixed" and row.get("arrivals") == "closed":
        stated = ROUNDS_IN_STEP * users
    return None if stated is None else max(1, int(stated))


def burst_requests(row: Row, software: Engine) -> int | None:
    """The number of requests at the start of an offline run; None where it is not stated.

    A range is what one table's runs had; those of TensorRT-LLM's benchmark go by their lengths.
    """
    if row.get("mode") not in OFFLINE:
        return None
    stated = number(row, "requests")
    if stated is not None:
        return max(1, int(stated))
    return trtllm_bench.REQUESTS.get(row_lengths(row)) if software.name.startswith(trtllm_bench.ENGINE) else None


def _run_traffic(row: Row, job: ServeJob, replicas: int) -> Traffic:
    """The requests of a run with an end, on all replicas."""
    rate = None if job.arrivals_per_s is None else job.arrivals_per_s * replicas
    inputs, outputs = _lengths_text(row, job)
    users = None if rate is not None else min((job.concurrency or 1) * replicas, job.requests or 1)
    return Traffic(
        requests=job.requests, rate=rate, users=users, input_tokens=inputs, output_tokens=outputs
    )  # fmt: skip


def _lengths_text(row: Row, job: ServeJob) -> tuple[str, str]:
    """Lengths of prompts and answers as the row states them: a distribution, or all alike where it states none.

    Source: vLLM, `vllm bench serve`: --random-range-ratio is 0 by default. Assumes: who states requests, and no lengths
    that vary, left it so.
    """
    lengths, inputs, outputs = row.get("lengths", ""), job.input_tokens, job.output_tokens
    equal = f"{inputs}:{inputs}"
    if drawn := re.fullmatch(UNIFORM, lengths):
        low, high = float(drawn[1]), float(drawn[2])
        middle = (low + high) / 2
        texts = (f"{max(1, round(low / middle * n))}:{max(1, round(high / middle * n))}" for n in (inputs, outputs))
        return next(texts), next(texts)
    if capped := re.fullmatch(r"answers end at EOS, at most (\d+)", lengths):
        cap = int(capped[1])
        return equal, f"{max(1, 2 * outputs - cap)}:{max(outputs, cap)}"
    if lengths == "sharegpt":
        return f"sharegpt-prompts:{inputs}", f"sharegpt-answers:{outputs}"
    ends = lengths == "answers end at EOS"
    return equal, f"lognormal:{outputs}:cv={ANSWER_SPREAD}" if ends else f"{outputs}:{outputs}"


def _in_flight(row: Row, mode: str, requests: float | None) -> int | None:
    """Requests at once; None where the rate or the memory decides. No more than `requests`: all where none waits."""
    if mode in OFFLINE:
        return None if number(row, "requests") is None else max(1, whole(row, "requests", 1))
    if mode == "serving_qps":
        at_once = row.get("arrivals_per_s", "").strip().lower() == "inf"
        return int(requests) if at_once and requests else None
    named = ("batch", "concurrency") if mode == "fixed_batch" else ("concurrency", "batch")
    stated = next((size for size in (number(row, name) for name in named) if size), None)
    if stated is None and mode in ("fixed_batch", USERS):
        raise SpecError("neither batch nor concurrency is stated")
    return min(int(stated or 1), int(requests or stated or 1))


def _simulates_users(job: ServeJob, mode: str) -> bool:
    """True if users in a closed loop are simulated, as `flopwise serve` does."""
    if mode == USERS:
        return job.decodes and job.model.kind != "encoder-decoder"
    return outgrows_cache(job) or (job.arrivals_per_s is None and answers_are_short(job))


def _quantity(result: ServeEstimate, quantity: str, mode: str, replicas: int) -> Ranged:
    """One quantity of an estimate; one stream's speed is that of its tokens, the prompt apart."""
    if quantity == "ttft_s":
        return result.ttft_s
    if result.tpot_s is None:
        raise SpecError(f"{result.job.model.name} does not generate tokens")
    tpot = result.tpot_s
    if quantity == "tpot_s":
        return tpot
    if mode == STREAM:
        return replace(tpot, value=1 / tpot.value, low=1 / tpot.high, high=1 / tpot.low)
    rate = result.output_tokens_per_s
    assert rate is not None
    return replace(rate, value=rate.value * replicas, low=rate.low * replicas, high=rate.high * replicas)


def median_interval(tpot: Ranged, run: SimulatedRun | None) -> Ranged:
    """The median of the times between two tokens, for the mean over requests of their times a token.

    Most steps only decode, so that the median says nothing of prompts that are read meanwhile.

    Source: vLLM, `vllm bench serve` (median ITL: of all intervals); LMDeploy, docs/en/benchmark/profile_generation.md
    (percentiles of each token's latency). Assumes: the interval of the errors is that of means.

    Raises: SpecError: no run is simulated, so that no single interval is known.
    """
    if run is None:
        raise SpecError(f"a {MEDIAN_INTERVAL} is predicted of simulated runs alone: state requests, or fixed lengths")
    return _share_of(tpot, run.itl_s(50.0) / float(np.nanmean(run.tpot_s)))


def median_of_requests(figure: Ranged, seconds: NDArray[np.float64]) -> Ranged:
    """The median over a run's requests, for their mean; `seconds`: of each request.

    A few prompts that come together, or that wait for memory, make the mean of first tokens and not their median.

    Source: vLLM, `vllm bench serve` and SGLang, bench_serving, which print both. Assumes: the interval of the errors is
    that of means; the last draw of a run has the others' shape.
    """
    mean = float(np.nanmean(seconds))
    return figure if mean <= 0 else _share_of(figure, float(np.nanmedian(seconds)) / mean)


def _share_of(figure: Ranged, share: float) -> Ranged:
    bound = None if figure.bound is None else figure.bound * share
    return replace(figure, value=figure.value * share, low=figure.low * share, high=figure.high * share, bound=bound)


def predict_row(row: Row, facts: Facts) -> list[Prediction]:
    """One prediction for each quantity that the row measured, or those of its mode if it measured none."""
    measured = measured_quantities(row)
    quantities = tuple(measured) or mode_quantities(row)
    name, mode = row.get("id", ""), row.get("mode", "")
    try:
        job, replicas = row_job(row, facts)
        burst = burst_requests(row, job.engine)
        run = None
        if job.requests is not None:
            finite = finite_run(job, _run_traffic(row, job, replicas), replicas, facts)
            result, run = estimate(job, finite.means), finite.simulated
        elif _simulates_users(job, mode):
            lengths = None if mode == USERS and not row.get("lengths") else _lengths_text(row, job)
            loop = closed_loop_run(job, facts, lengths, replicas=replicas)
            result, run = loop.estimate, loop.runs[-1]
        else:
            result = estimate(job, burst=None if burst is None else math.ceil(burst / replicas))
        figures = {q: _quantity(result, q, mode, replicas) for q in quantities}
        if row.get("tpot_reading") == MEDIAN_INTERVAL and "tpot_s" in figures:
            figures["tpot_s"] = median_interval(figures["tpot_s"], run)
        if run is not None:
            each = {"ttft_s": run.ttft_s, "tpot_s": run.tpot_s}
            medians = [q for q in each if q in figures and row.get(READINGS[q]) == MEDIAN]
            figures |= {q: median_of_requests(figures[q], each[q]) for q in medians}
    except FlopwiseError as error:
        return [
            Prediction(id=name, unit=UNITS[q], measured=measured.get(q), skipped=str(error), quantity=q)
            for q in quantities
        ]
    seconds = number(row, WHOLE)
    whole = () if seconds is None else (
        Prediction(
            id=name, unit="s", quantity=WHOLE, measured=seconds, predicted=result.e2e_s, low=result.e2e_low,
            high=result.e2e_high,
        ),
    )  # fmt: skip
    return [
        Prediction(
            id=name, unit=UNITS[q], quantity=q, measured=measured.get(q), predicted=figure.value, low=figure.low,
            high=figure.high, band=figure.band,
        )
        for q, figure in figures.items()
    ] + [*whole]  # fmt: skip
