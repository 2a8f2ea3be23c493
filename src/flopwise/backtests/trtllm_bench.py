"""How `trtllm-bench throughput` runs: the requests of NVIDIA's published tables, and the limits it starts engines with.

Its tables (TensorRT-LLM, docs/source/performance/perf-overview.md) say neither in their rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from flopwise.facts.architecture import Attend, Model
from flopwise.facts.formats import CacheFormat, WeightFormat
from flopwise.ops.tensors import parameters
from flopwise.serving.estimate import job_memory
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout, prefill_workspace_bytes

REQUESTS = {
    (128, 128): 30_000, (128, 2048): 3_000, (128, 4096): 1_500, (500, 2000): 3_000, (1000, 1000): 3_000,
    (1000, 2000): 1_500, (1024, 1024): 3_000, (1024, 8192): 1_500, (1024, 32768): 1_000, (2048, 128): 3_000,
    (2048, 2048): 1_500, (5000, 500): 1_500, (8192, 1024): 1_500, (20000, 2000): 1_000, (32768, 1024): 1_000,
}  # fmt: skip
"""Requests of a run by the tokens of a prompt and of an answer (perf-overview.md, Preparing a Dataset)."""
ENGINE = "tensorrt-llm"
TUNED = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "nvfp4": 0.5}
"""Formats whose limits are computed, by the beginning of their names, and the bytes an element is taken to have."""
UNTUNED = (2_048, 8_192)
"""Limits of other formats: the defaults of the library."""
CACHE_FRAC = 0.95
"""Share of the free memory for the cache in most of the published runs (perf-overview.md, Running the Benchmark)."""
LESS, LEAST_FRAC = 0.05, 0.5
"""By how much a run that is out of memory lowers it (from 0.95 to "0.90 or lower"), and where nobody would go on."""
GRAPH_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""Numbers of sequences that graphs are captured for (perf-overview.md, llm_options.yml); compiled engines know none."""
MOST_BATCH, MOST_TOKENS, LEAST_TOKENS = 4_096, 32_768, 2_048


class BenchLimits(NamedTuple):
    """Maximum sequences at once on an attention replica, and prompt tokens of a step in addition to them."""

    batch: int
    prompt_tokens: int
    graphs: tuple[int, ...]  # numbers of sequences that graphs are captured for: the largest is all that may run

    @classmethod
    def of(
        cls, model: Model, layout: ServingLayout, weights: WeightFormat, kv_dtype: CacheFormat, hbm_bytes: float,
        lengths: tuple[int, int], requests: int,
    ) -> BenchLimits:  # fmt: skip
        """The limits that an engine is started with for `requests` of one length.

        Memory that weights leave is divided by the caches of whole requests; so many sequences run at most, and as many
        tokens as fall due a step when they do, prompts that are not cut included.

        Source: TensorRT-LLM, tensorrt_llm/bench/build/tuning.py (calc_engine_setting, finetune_setting) and build.py
        (TUNED_QUANTS); bench/benchmark/utils/general.py (whole prompts without chunked prefill);
        _torch/pyexecutor/model_engine.py (_filter_cuda_graph_batch_sizes).
        Assumes: no option of the command line changes them. Elements of 4 bits count as they are stored, two in a byte;
        latent attention, which the computation does not know, takes the defaults. Each micro-batch of a pipeline has
        them.
        """
        inputs, outputs = lengths
        stages = int(layout.pp)
        attention = [item for kind in model.stacks[0].kinds for item in kind.items if isinstance(item, Attend)]
        elem_bytes = next((size for name, size in TUNED.items() if weights.name.startswith(name)), None)
        if elem_bytes is None or any(a.latent_dim for a in attention):
            batch, tokens = UNTUNED
        else:
            ranks = int(layout.tp) * int(layout.dp)
            heads = max(ranks, *(a.kv_heads for a in attention))
            size = max(a.v_dim for a in attention)
            token_bytes = 2 * model.stacks[0].num_layers * heads * size * kv_dtype.elem_bytes
            stored = parameters(model) * (0.5 if elem_bytes < 1 else 1.0) * elem_bytes
            room = max(hbm_bytes * ranks * stages - stored, 0.0) * CACHE_FRAC
            each = min(room / (token_bytes * (inputs + outputs)), MOST_BATCH) / stages
            batch = _batch(each)
            tokens = _tokens(min(each * (1 + inputs / outputs), MOST_TOKENS))
        running = min(batch, math.ceil(requests / int(layout.dp) / stages))
        graphs = (*(size for size in GRAPH_BATCHES if size < batch), batch)
        return cls(batch * stages, max(max(tokens, inputs + batch) - running, inputs), graphs)


def cache_frac(job: ServeJob) -> float:
    """Share of the free memory for the cache beside which the graph of all sequences that may run can be captured.

    Graphs are captured when the cache stands, in what it leaves: the largest keeps the tensors of a layer and logits.
    What the engine takes for graphs in any case (`graph_bytes`) is not free.

    Source: perf-overview.md, Running the Benchmark (0.95, or less where that is out of memory); TensorRT-LLM,
    _torch/pyexecutor/py_executor_creator.py (the cache is allocated, then the executor that captures is made).
    Assumes: nobody lowers it further than it takes; the tensors of a layer as `prefill_workspace_bytes` counts them.
    """
    ranks, largest = int(job.layout.dp), float(job.graph_batches[-1])
    free = float(job_memory(job).kv_budget_bytes) / CACHE_FRAC
    graph = float(prefill_workspace_bytes(job.model, largest, int(largest), job.layout, ranks)) - job.engine.graph_bytes
    steps = range(round((CACHE_FRAC - LEAST_FRAC) / LESS) + 1)
    fracs = [round(CACHE_FRAC - LESS * step, 2) for step in steps]
    return next((frac for frac in fracs if free * (1.0 - frac) >= graph), fracs[-1])


def _batch(sequences: float) -> int:
    step, least = (32, 64) if sequences < 256 else (128, 0) if sequences < 1024 else (256, 0)
    return max(least, step * math.ceil(sequences / step))


def _tokens(tokens: float) -> int:
    if tokens < 4096:
        return max(LEAST_TOKENS, 256 * math.ceil(tokens / 256))
    step = 512 if tokens < 8192 else 1024
    return step * math.ceil(tokens / step)
