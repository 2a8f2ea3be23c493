"""One measured kernel or collective, predicted from the columns that describe it (never from those that measure it)."""

from __future__ import annotations

from collections.abc import Callable

from flopwise.backtests.prediction import Prediction, Row, flag, prediction_of, whole
from flopwise.cost import collectives, kernels
from flopwise.cost.fabric import Fabric, fabric
from flopwise.cost.intervals import error_band
from flopwise.cost.kernels import Elements, Heads
from flopwise.cost.rates import Rates, precision, rates
from flopwise.errors import SpecError
from flopwise.facts.calibration import Calibration
from flopwise.facts.catalog import Facts
from flopwise.ops.work import touched_experts
from flopwise.values import replace

UNIT = "s"
JOINED = "trtllm"
"""In the names of experts' kernels that compute all their products at once, where the device has such."""
PREFILL = ("batch", "query_len", "context_len", "num_heads")

NODES = {  # network of a node of the cluster that a topology names, bytes/s, and what a GPU has of it at most
    # inferred, not published: one 100 Gbit/s adapter, as 41 MB in 5.3 ms between nodes show
    "a100_dgx": (12.5e9, 12.5e9),
    "h100_dgx": (400e9, 50e9),  # 8 x NDR 400 Gbit/s; NVIDIA DGX H100 data sheet
}


def _positive(row: Row, column: str) -> float:
    """A cell as a positive number. Raises SpecError: it is none."""
    text = (row.get(column) or "").strip()
    try:
        value = float(text)
    except ValueError:
        raise SpecError(f"{column} is missing" if not text else f"{column} is not a number: {text[:30]!r}") from None
    if not 0 < value < float("inf"):
        raise SpecError(f"{column} is {text[:30]!r}; it must be positive and finite")
    return value


def _positives(row: Row, *columns: str) -> tuple[float, ...]:
    return tuple(_positive(row, column) for column in columns)


def _text(row: Row, column: str) -> str:
    return (row.get(column) or "").strip().lower()


def _cold(row: Row) -> bool:
    return not flag(row, "warm", default=False)


def _software(row: Row) -> tuple[str, ...]:
    """Scopes of the measured software, nearest first: the kernel, its words, the library."""
    kernel = _text(row, "kernel")
    return (kernel, *kernel.split("_"), _text(row, "library"))


def _software_constant(table: Calibration, name: str, row: Row, otherwise: float) -> float:
    return next((table.find(name, (s,)).value for s in _software(row) if s and table.has(name, s)), otherwise)


def _wrapped_s(seconds: float, row: Row, table: Calibration, kind: str) -> float:
    """`seconds` with what the measured software adds (`wrapper_s`), at least its host time (`host_s`)."""
    slower = seconds + _software_constant(table, f"wrapper_s.{kind}", row, 0.0)
    return max(slower, _software_constant(table, f"host_s.{kind}", row, 0.0))


def _gemm_s(row: Row, r: Rates, table: Calibration) -> float:
    m, n, k = _positives(row, "m", "n", "k")
    dtype = _text(row, "dtype")
    p = precision(dtype)
    elements = Elements(dtype, quantised=flag(row, "quantised", default=False))
    for software in _software(row):
        r = replace(r, value={**r.value, **kernels.block_rates(r.value, software)})
    seconds = kernels.matmul_s(r, m, n, k, elements, cold=_cold(row)).seconds
    kind = "unpacked" if p.unpacked else "gemm" if not p.quantised else "block" if dtype == "fp8_block" else "scaled"
    return _wrapped_s(float(seconds), row, table, kind)


def _as_triton_ran(row: Row, dtype: str, ours: float, everyones: float) -> tuple[float, str]:
    """Rows and precision of SGLang's Triton experts as they are called in these files; as the row says elsewhere.

    Rows of other ranks' experts are not left out but go to the first expert with weight zero (aiconfigurator,
    collector/sglang/collect_moe.py, whose mxfp4 calls route over all ranks instead). Assumes: mxfp4 weights run as
    bf16, to which SGLang's layer unpacks them on loading where it has no 4-bit kernel; the rows do not say which.
    """
    if not {"sglang", "triton"} <= set(_software(row)):
        return ours, dtype
    return (ours, "bf16") if dtype == "w4a16_mxfp4" else (everyones, dtype)


def _moe_s(row: Row, r: Rates, table: Calibration) -> float:
    tokens, hidden, inter, experts, top_k = _positives(row, "tokens", "hidden", "inter", "experts", "top_k")
    ep, tp = _positives(row, "ep", "tp")
    dtype = _text(row, "dtype")
    ours = max(tokens * top_k / ep, 1.0)
    if _text(row, "routing") == "random":
        touched = float(touched_experts(int(experts), int(top_k), tokens, int(experts / ep)))
    else:  # balanced (aiconfigurator, collect_moe.py: balanced_logits)
        touched, r = min(experts / ep, -(-ours // 1)), replace(r, value={**r.value, kernels.EVEN: 1.0})
    rows, dtype = _as_triton_ran(row, dtype, ours, tokens * top_k)
    width = inter / tp
    nbytes = touched * 3 * width * hidden * precision(dtype).weight_bits / 8
    cold = _cold(row) or nbytes > r.l2_bytes
    if JOINED in _text(row, "kernel"):
        r = replace(r, value={**r.value, "grouped_s": r.value["grouped_s"] * r.value["joined_grouped_frac"]})
    up = kernels.grouped_matmul_s(r, rows, 2 * width, hidden, touched, Elements(dtype), cold=cold)
    down = kernels.grouped_matmul_s(r, rows, hidden, width, touched, Elements(dtype), cold=cold)
    act = kernels.pointwise_s(r, rows * 3 * width * 2.0)
    passes = _software_constant(table, "wrapper_passes.moe", row, 0.0)
    extra_s = kernels.read_s(r, passes * rows * hidden * 2.0)
    slower = _software_constant(table, "wrapper_ratio.moe", row, 1.0) - 1.0
    seconds = up.seconds + down.seconds + act.seconds + extra_s + slower * (up.compute_s + down.compute_s)
    return _wrapped_s(float(seconds), row, table, "moe")


def _causal_pairs(query: float, context: float) -> float:
    """(query, key) pairs of the last `query` tokens of `context`: each sees those before it and itself."""
    return query * (context - query + 0.5 * (query + 1))


def _prefill_s(row: Row, r: Rates, table: Calibration) -> float:
    batch, query, context, heads = _positives(row, *PREFILL)
    kv_heads, dim = _positives(row, "num_kv_heads", "head_dim")
    own = Heads(heads, kv_heads, dim, dim)
    timing = kernels.prefill_attention_s(r, own, _causal_pairs(query, context), batch, query, context, cold=_cold(row))
    passes = _software_constant(table, "wrapper_passes.attention_prefill", row, 0.0)
    extra_s = kernels.read_s(r, passes * batch * query * (heads + 2 * kv_heads) * dim * 2.0)
    return _wrapped_s(float(timing.seconds + extra_s), row, table, "attention_prefill")


def _kv_bytes(row: Row) -> float:
    kind = _text(row, "kv_dtype") or _text(row, "dtype")
    sizes = {"fp8": 1.0, "int8_wo": 1.0, "bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "nvfp4": 0.5625}
    if kind not in sizes:
        raise SpecError(f"kv_dtype {kind[:30]!r} is unknown; allowed: {', '.join(sizes)}")
    return sizes[kind]


def _decode_s(row: Row, r: Rates, table: Calibration) -> float:
    batch, context, heads, kv_heads, dim = _positives(
        row, "batch", "context_len", "num_heads", "num_kv_heads", "head_dim"
    )
    own, elements = Heads(heads, kv_heads, dim, dim), Elements(kv_bytes=_kv_bytes(row))
    timing = kernels.decode_attention_s(r, own, batch, context, elements, cold=_cold(row))
    return _wrapped_s(float(timing.seconds), row, table, "attention_decode")


LATENT, ROPE, MLA_QK, MLA_V = 512.0, 64.0, 192.0, 128.0  # DeepSeek-V2/V3 (arXiv 2405.04434, section 2.1)


def _mla_prefill_s(row: Row, r: Rates, table: Calibration) -> float:
    batch, query, context, heads = _positives(row, *PREFILL)
    # SGLang's FlashAttention backend before Blackwell runs prefill on the latent, too: its calls have heads of 576 and
    # 512 there (aiconfigurator, collector/sglang/collect_mla.py)
    on_latent = "flash_attention" in _software(row)
    own = _latent_heads(heads) if on_latent else Heads(heads, heads, MLA_QK, MLA_V, latent=True)
    timing = kernels.prefill_attention_s(r, own, _causal_pairs(query, context), batch, query, context)
    return _wrapped_s(float(timing.seconds), row, table, "mla")


def _latent_heads(heads: float) -> Heads:
    """Heads that attend to the latent."""
    return Heads(heads, 1, LATENT + ROPE, LATENT, latent=True)


def _mla_decode_s(row: Row, r: Rates, table: Calibration) -> float:
    batch, context, heads = _positives(row, "batch", "context_len", "num_heads")
    kv_bytes = _kv_bytes(row)
    passes = _software_constant(table, "wrapper_passes.mla_cast", row, 0.0) if kv_bytes < 2.0 else 0.0
    elements = Elements(kv_bytes=2.0 if passes else kv_bytes)
    timing = kernels.decode_attention_s(r, _latent_heads(heads), batch, context, elements)
    cast_s = kernels.read_s(r, passes * batch * context * (LATENT + ROPE) * (kv_bytes + 2.0))
    return _wrapped_s(float(timing.seconds + cast_s), row, table, "mla")


def _elementwise_s(row: Row, r: Rates, table: Calibration) -> float:
    """A kernel that moves bytes; `of_clone`: that another has just copied, whose time counts.

    vLLM's and SGLang's benchmark of RMSNorm clones its input within the time (benchmarks/kernels/benchmark_rmsnorm.py;
    vLLM pull request 36899 says so, too), which moves as many bytes again.
    """
    nbytes, cloned = _positive(row, "moved_bytes"), "clone" in _software(row)
    clone_s = kernels.pointwise_s(r, nbytes).seconds if cloned else 0.0
    timing = kernels.pointwise_s(r, nbytes, cold=_cold(row) and not cloned)
    return _wrapped_s(float(clone_s + timing.seconds), row, table, "elementwise")


KERNELS: dict[str, Callable[[Row, Rates, Calibration], float]] = {
    "gemm": _gemm_s,
    "moe": _moe_s,
    "attention_prefill": _prefill_s,
    "attention_decode": _decode_s,
    "mla_prefill": _mla_prefill_s,
    "mla_decode": _mla_decode_s,
    "elementwise": _elementwise_s,
}


def _collective_s(row: Row, joined: Callable[..., Fabric], table: Calibration) -> float:
    nbytes, n = _positives(row, "message_bytes", "gpus")
    if n < 2:
        raise SpecError("a collective of one GPU takes no time")
    topology, per_node = row.get("topology", ""), whole(row, "gpus_per_node", 0) or None
    stride = 1
    spans = per_node is not None and n > per_node
    if spans and topology not in NODES:
        raise SpecError("the network between the nodes is not known")
    share = min(NODES[topology][0] / per_node, NODES[topology][1]) if spans and per_node else None
    links = joined(pairs="pairwise" in topology, network=share, devices=per_node if spans else None)
    op = (row.get("op") or "").strip()
    if op == "p2p":
        return float(collectives.p2p_s(links, nbytes, stride))
    if op == "allreduce" and "nccl" not in (row.get("library") or "").lower():
        seconds = float(collectives.all_reduce_s(links, nbytes, n, stride, direct=True))
    else:
        seconds = float(collectives.COLLECTIVES[op](links, nbytes, n, stride))
    return _wrapped_s(seconds, row, table, op)


class Predictor:
    """Predicts the times of rows; rates and fabrics are resolved once per GPU."""

    def __init__(self, facts: Facts, calibration: Calibration | None = None) -> None:
        """Predict with `facts` and `calibration` (that of the facts by default)."""
        self.facts, self.calibration = facts, calibration or facts.calibration
        self._rates: dict[str, Rates] = {}
        self._fabrics: dict[tuple[object, ...], Fabric] = {}

    def predict(self, row: Row) -> Prediction:
        """Seconds for `row` with their interval; what is not known (GPU, operation, a cell) gives a reason instead."""
        return prediction_of(
            row, UNIT, "seconds",
            lambda: (self.seconds(row), error_band(f"kernels.{row['op'].strip()}", self.facts.calibration)),
        )  # fmt: skip

    def seconds(self, row: Row) -> float:
        """Seconds for `row`. Raises FlopwiseError: it cannot be predicted."""
        op = (row.get("op") or "").strip()
        if op not in KERNELS and op not in collectives.COLLECTIVES and op != "p2p":
            known = ", ".join((*KERNELS, *collectives.COLLECTIVES, "p2p"))
            raise SpecError(f"operation {op[:40]!r} is unknown; known: {known}")
        accelerator = self.facts.accelerator((row.get("gpu") or "").strip())
        if op not in KERNELS:
            return _collective_s(row, lambda **how: self._fabric(accelerator.name, **how), self.calibration)
        if accelerator.name not in self._rates:
            self._rates[accelerator.name] = rates(accelerator, self.calibration)
        return KERNELS[op](row, self._rates[accelerator.name], self.calibration)

    def _fabric(self, name: str, *, pairs: bool, network: float | None, devices: int | None) -> Fabric:
        key = (name, pairs, network, devices)
        if key not in self._fabrics:
            self._fabrics[key] = fabric(
                self.facts.accelerator(name), gpus_per_node=devices or 8, fast_domain=2 if pairs else None,
                network_bytes_per_s_per_gpu=network, calibration=self.calibration,
            )  # fmt: skip
        return self._fabrics[key]
