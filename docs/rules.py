"""Compare common statements (rules of thumb, specifications, prices) with flopwise's own facts and models.

`python docs/generate.py` writes the page docs/rules-of-thumb.md from here; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import flopwise
from flopwise import units
from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import retirement_note
from flopwise.fleet.prices import effective
from flopwise.ops.cache import kv_bytes_per_token
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import active_parameters, parameters
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Layout, Recipe
from flopwise.training.rules import optimal_tokens, predicted_loss

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.offers import Offer

PAGE = Path(__file__).parent / "rules-of-thumb.md"
T4_MEMORY_HZ, T4_BUS_BITS = 5001e6, 256
"""NVIDIA T4 product brief, PB-09256-001, table 2: two transfers a cycle."""
NEAR = 0.02
"""Largest relative difference from our figure at which a figure is right."""
HEAD = """# Rules of thumb and published figures: right, outdated or wrong?

Statements of calculators, plans and posts, compared with what flopwise's facts and models give. Every figure in a
column "computed" comes from the code of this version (`python docs/generate.py` writes the page): sizes and counts
are exact, times and memory of whole jobs are estimates, prices are list prices on the date given.
"""


class Said(NamedTuple):
    """A published figure about hardware or a price."""

    what: str
    value: float
    ours: float
    unit: str
    verdict: str
    why: str


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Specifications and prices\n", *_table(_figures())]
    parts += ["", "## Cores\n", *_cores()]
    parts += ["", "## A month's bill\n", _BILL, *_bills()]
    parts += ["", "## Claims\n", _CLAIMS, *_claims()]
    parts += ["", "## Training speeds\n", _SPEEDS, *_training_speeds()]
    parts += ["", "## Ranges\n", _RANGES, *_range_rows()]
    parts += ["", "## Rules\n"]
    for title, formula, rows, verdict in _rules():
        parts += [f"### {title}\n", f"{formula}\n", *rows, "", f"{verdict}\n"]
    return "\n".join(parts)


def _verdict(value: float, ours: float, once: bool) -> str:
    """`once`: it was right at some time."""
    if abs(value / ours - 1) <= NEAR:
        return "right"
    return "outdated" if once else "wrong"


def _table(figures: Iterator[Said]) -> Iterator[str]:
    yield "| said | computed | off by | verdict | why |"
    yield "|---|---|---|---|---|"
    for f in figures:
        digits = 0 if f.unit == "GB/s" else 3
        said, ours = (f"{v:,.{digits}f} GB/s" if digits == 0 else f"${v:,.3f}/h" for v in (f.value, f.ours))
        yield f"| {f.what}: {said} | {ours} | {100 * (f.value / f.ours - 1):+.0f} % | **{f.verdict}** | {f.why} |"


def _figures() -> Iterator[Said]:
    clock = 2 * T4_MEMORY_HZ * T4_BUS_BITS / 8 / 1e9
    for what, name, said, told in (
        (
            "T4, memory bandwidth",
            "T4",
            300.0,
            f"a rounded figure; clock and bus width give {clock:.0f} GB/s, and ",
        ),
        ("A100-80 SXM, memory bandwidth", "A100-SXM-80", 1935.0, ""),
        ("A100-80 PCIe, memory bandwidth", "A100-PCIe-80", 1935.0, ""),
        ("V100, memory bandwidth", "V100-SXM2-16", 900.0, ""),
        ("A100-40, memory bandwidth", "A100-SXM-40", 1555.0, ""),
        ("H100 SXM, memory bandwidth", "H100-SXM-80", 3350.0, ""),
    ):
        chips = {a.name: a.hbm_bytes_per_s / 1e9 for a in load_facts().accelerators.values()}
        ours = chips[name]
        owners = sorted(n for n, rate in chips.items() if abs(rate / said - 1) < 1e-3 and n in ("L4", "A100-PCIe-80"))
        why = "" if abs(ours / said - 1) <= 1e-3 else f"{told}{said:,.0f} is the {' or '.join(owners)}"
        verdict = "right" if not why else "wrong"
        yield Said(what, said, ours, "GB/s", verdict, why or "the rate of the datasheet")
    for provider, instance, region, said, once, why in (
        ("aws", "p4d.24xlarge", "us-east-1", 32.77, True, "the list price until it was cut in 2025"),
        ("gcp", "n1-standard-4+1xT4", "us-central1", 0.395, False, "the machine costs $0.19, and the T4 $0.35"),
        ("gcp", "a2-highgpu-8g", "us-central1", 24.48, False, "that is the price of {owner}, with eight V100s"),
        (
            "gcp",
            "n1-standard-8+1xV100-SXM2-16",
            "us-central1",
            1.450,
            False,
            "the machine costs $0.38, and the V100 $2.48",
        ),
        ("gcp", "a2-highgpu-1g", "us-central1", 3.673, True, ""),
        ("azure", "Standard_NC6s_v3", "eastus", 3.168, False, "no Azure region has that price"),
        ("azure", "Standard_NC4as_T4_v3", "eastus", 0.526, True, ""),
        ("azure", "Standard_NC24ads_A100_v4", "eastus", 3.672, True, ""),
        ("aws", "g4dn.2xlarge", "us-east-1", 0.752, True, ""),
        ("aws", "p3.8xlarge", "us-east-1", 12.24, True, ""),
        ("aws", "g4dn.xlarge", "us-east-1", 0.526, True, ""),
        ("aws", "p3.2xlarge", "us-east-1", 3.06, True, ""),
    ):
        offer = _offer(provider, instance, region)
        ours = offer.on_demand_usd_per_hour or 0.0
        verdict = _verdict(said, ours, once)
        told = why.replace("{owner}", _owner(said)) if verdict != "right" else "the list price"
        where = ", ".join(
            filter(None, (f"our price is of {offer.price_date}", region, retirement_note(offer.retires_on)))
        )
        yield Said(instance, said, ours, "USD/h", verdict, f"{told}; {where}")


def _offer(provider: str, instance: str, region: str) -> Offer:
    return next(
        o for o in load_facts().offers if (o.provider, o.instance, o.region) == (provider, instance, region)
    )  # fmt: skip


def _owner(usd_per_hour: float) -> str:
    """The offer with exactly that price."""
    found = [o for o in load_facts().offers if abs((o.on_demand_usd_per_hour or 0) - usd_per_hour) < 5e-3]
    return "nothing on offer" if not found else f"{found[0].provider} {found[0].instance}"


def _cores() -> Iterator[str]:
    """Stated numbers of cores, and multiprocessors times the cores of each."""
    yield "| GPU | said: CUDA cores, tensor cores | computed | verdict |"
    yield "|---|---|---|---|"
    for name, cores, tensor in (
        ("T4", 2560, 320), ("V100-SXM2-16", 5120, 640), ("A100-SXM-40", 6912, 432), ("H100-SXM-80", 16_896, 528),
        ("H100-PCIe-80", 16_896, 528),
    ):  # fmt: skip
        device = load_facts().accelerator(name)
        ours = (device.num_cores, device.num_tensor_cores)
        verdict = "right" if ours == (cores, tensor) else "wrong"
        yield f"| {name} | {cores:,}, {tensor:,} | {ours[0]:,}, {ours[1]:,} | **{verdict}** |"


_CLAIMS = """Statements of plans and courses, each recomputed. "Off by" is the stated figure relative to the
computed one; a claim within 5 % is right.
"""


class Claim(NamedTuple):
    """A statement with its figure, ours, and why they differ; both have the unit `unit`."""

    what: str
    said: float
    ours: float
    unit: str
    why: str
    once: bool = False  # it was right at some time

    @property
    def verdict(self) -> str:
        """`right`, `outdated` or `wrong`."""
        if abs(self.said / self.ours - 1) <= WITHIN:
            return "right"
        return "outdated" if self.once else "wrong"


WITHIN = 0.05
"""Largest relative difference from the computed figure at which a claim is right."""


def _claims() -> Iterator[str]:
    yield "| said | computed | off by | verdict | why |"
    yield "|---|---|---|---|---|"
    for claim in (*_memory_claims(), *_speed_claims(), *_scaling_claims(), *_storage_claims(), *_money_claims()):
        off = claim.said / claim.ours
        times = (
            f"{100 * (off - 1):+.0f} %" if 0.2 < off < 5 else f"{off:.2g} x" if off > 0.01 else f"1/{1 / off:,.0f} x"
        )
        said, ours = (f"{_figure(value)} {claim.unit}".strip() for value in (claim.said, claim.ours))
        yield f"| {claim.what}: {said} | {ours} | {times} | **{claim.verdict}** | {claim.why} |"


def _figure(value: float) -> str:
    """Four significant digits, without an exponent."""
    return f"{float(f'{value:.4g}'):,.0f}" if value >= 1e4 else f"{value:,.4g}"


def _memory_claims() -> Iterator[Claim]:
    serving = flopwise.memory("7B", task="serve", context=2048).per_gpu_bytes / 1e9
    training = flopwise.memory("7B", task="train", seq=2048).per_gpu_bytes / 1e9
    yield Claim("a 7B model serves in", 14.0, serving, "GB", "counts only weights, no cache, graphs or driver")
    yield Claim("a 7B model trains in", 80.0, training, "GB", "states of 18 bytes a parameter plus activations")
    weights = {
        name: dict(flopwise.memory("7B", task="serve", context=1, weights=name).items)["weights"]
        for name in ("fp32", "fp16", "int8")
    }
    yield Claim(
        "INT8 takes less memory than FP16 by",
        4.0,
        weights["fp16"] / weights["int8"],
        "times",
        "it is 4 times less than FP32",
    )
    yield Claim(
        "FP32 takes more memory than FP16 by", 2.0, weights["fp32"] / weights["fp16"], "times", "twice the bytes"
    )
    base = dict(flopwise.memory("7B", task="train", lora=16, seq=2048).items)["weights"] / parameters(_model("7B"))
    yield Claim(
        "fine-tuning needs FP32, so each weight of a 7B model takes", 4.0, base, "bytes",
        "with adapters the base stays in 16 or 4 to 8 bits; only full fine-tuning keeps 32-bit states",
    )  # fmt: skip
    yield Claim("70B in FP16 need", 140.0, 2 * parameters(_model("70B")) / 1e9, "GB", "counts only the weights")
    large = flopwise.memory("20B", task="serve", context=2048).per_gpu_bytes / 1e9
    yield Claim("a 20B model in 16 bits serves in", 40.0, large, "GB", "counts only the weights")
    fewest = next(n for n in (1, 2, 4, 8) if flopwise.memory("70B", task="serve", gpu="h100", tp=n, context=2048).fits)
    yield Claim(
        "70B in FP16 take parameters x bytes / memory, of GPUs with 80 GB", 2.0, float(fewest), "GPUs",
        "only for short contexts: the weights leave a fifth of the memory for the cache",
    )  # fmt: skip
    yield Claim("states of 1T parameters at 16 bytes", 16.0, 16e12 / 2**40, "TiB", "it is 16 TB, in decimal units")
    held = {row.gpu: row.parameters for row in flopwise.largest_models("a100-80gb", "b200")}
    largest = held["A100-SXM-80"]["serve FP16"] or 0.0
    yield Claim(
        "one 80 GB GPU ends at", 30.0, largest / 1e9, "B parameters", "served in 16 bits; three times that in INT4"
    )
    small = flopwise.memory("1.2B", task="train", gpu="a100-40gb", seq=1024).per_gpu_bytes / 1.2e9
    yield Claim(
        "1.2B at most train on 40 GB: a parameter takes",
        32.0,
        small,
        "bytes",
        "states of 18 bytes plus activations",
    )
    fp32 = flopwise.memory("7B", task="train", precision="fp32", micro_batch=2, seq=2048).per_gpu_bytes / 1e9
    yield Claim(
        "a 7B model in FP32 trains on 2 x 2,048 tokens in", 319.5, fp32, "GB",
        "from a calculator that assumes activations of 4 times the weights",
    )  # fmt: skip
    batch = flopwise.memory("7B", task="serve", concurrency=4, context=2048).per_gpu_bytes / 1e9
    yield Claim(
        "a 7B model in FP16 serves 4 x 2,048 tokens in",
        228.2,
        batch,
        "GB",
        "it counts activations that are not kept",
    )
    medium = flopwise.memory("gpt-j-6b", task="train", seq=2048).per_gpu_bytes / 1e9
    yield Claim("GPT-J trains on one or two V100, so in", 32.0, medium, "GB", "states alone take 18 bytes a parameter")
    whole = 8 * flopwise.train("Llama-65B", gpu="a100-80gb", gpus=8, seq=2048).memory.per_gpu_bytes / 1e9
    yield Claim(
        "Llama-65B trains on four to eight A100-80, so in",
        640.0,
        whole,
        "GB",
        "total of all eight, best sharding",
    )
    cache = max(a.l2_bytes or 0.0 for a in load_facts().accelerators.values() if a.kind == "gpu") / 2**20
    yield Claim("L2 caches reach", 96.0, cache, "MiB", "the largest L2 cache of all GPUs", once=True)
    most = max(a.hbm_bytes_per_s for a in load_facts().accelerators.values() if a.kind == "gpu") / 1e12
    yield Claim("GPU memory reaches", 2.0, most, "TB/s", "the figure dates from the A100", once=True)
    model = _model("Llama-2-7B")
    said, depth = 8 * math.log10(parameters(model)), float(model.stacks[0].num_layers)
    yield Claim("layers of a 7B model by 8 log10 N", said, depth, "", "depth grows as a small power of N")


def _speed_claims() -> Iterator[Claim]:
    floor = flopwise.roofline("Llama-13B", gpu="v100", batch=1, seq=1).lower_bound_s * 1e3
    yield Claim(
        "13B in FP16 at 900 GB/s, a token takes at least", 15.0, floor, "ms", "26 GB at 900 GB/s; 15 ms is half"
    )
    at_one, at_many = (
        float(flopwise.serve(
            "Llama-7B", gpu="a100-80gb", concurrency=n, input_tokens=128, output_tokens=128,
        ).estimate.mfu_frac) for n in (1, 32)
    )  # fmt: skip
    yield Claim(
        "one request at a time uses a GPU to", 10.0, 100 * at_one, "%", "Llama-7B on an A100, limited by bandwidth"
    )
    yield Claim(
        "32 at a time use it to",
        80.0,
        100 * at_many,
        "%",
        "the same; more needs hundreds of requests",
    )
    rates = {
        name: flopwise.serve(
            "Llama-7B", gpu="a100-80gb", concurrency=32, input_tokens=128, output_tokens=128, weights=name
        ).estimate.output_tokens_per_s.value
        for name in ("fp16", "int8")
    }
    yield Claim(
        "INT8 raises throughput as it saves memory, by", 4.0, rates["int8"] / rates["fp16"], "times",
        "relative to FP16 with 32 concurrent requests: the weights halve, the cache does not",
    )  # fmt: skip
    kernels = flopwise.explain("gpt2-xl", gpu="a100-80gb").operations
    forward, whole = (sum(k.layers * k.flops for k in kernels if k.forward or every) for every in (False, True))
    yield Claim(
        "forward, backward and optimizer take of the operations of a forward pass", 3.0, whole / forward, "times",
        "the backward pass takes twice the forward pass; the optimizer moves bytes and computes very little",
    )  # fmt: skip
    token = 3 * causal_forward_flops(_model("7B"), 1, 2048) / 2048
    yield Claim(
        "10,000 tokens of training a 7B model take", 4.2e14 / 1e12, 1e4 * float(token) / 1e12, "TFLOP",
        "6 x parameters x tokens, without attention",
    )  # fmt: skip
    moved = flopwise.roofline(flops=1.0, bytes=14e9, gpu="v100").lower_bound_s * 1e3
    yield Claim("14 GB at 900 GB/s take", 15.6, moved, "ms", "bytes over bandwidth")
    small = flopwise.train("gpt2", gpu="t4", seq=1024)
    yield Claim(
        "T4 trains GPT-2 at", 2500.0, small.estimate.tokens_per_s, "tokens/s",
        f"estimated with a current kernel, {small.estimate.low:,.0f} to {small.estimate.high:,.0f}",
    )  # fmt: skip
    run = flopwise.train("gpt2", gpu="t4", seq=1024, tokens="100M").estimate.run
    assert run is not None
    yield Claim(
        "100M tokens of GPT-2, at those 2,500 tokens/s, take", 1e8 / 2500 / 3600, run.seconds / 3600, "hours",
        "the division is right, the rate is not; failures and checkpoints are in the computed time",
    )  # fmt: skip
    tensor, device = max(
        (a.peak["fp16"] / a.peak["fp32"], a.name)
        for a in load_facts().accelerators.values()
        if a.vendor == "NVIDIA" and a.num_tensor_cores and {"fp16", "fp32"} <= a.peak.keys()
    )
    yield Claim("tensor cores speed products up by", 8.0, tensor, "times", f"FP16 over FP32 on a {device}", once=True)
    one_s = flopwise.roofline(
        gpu="custom:fp16=70T,bandwidth=900GB/s,memory=24GB", flops=1.4e13, bytes=14e9, dtype="fp16", efficiency=0.6
    )
    yield Claim(
        "1.4e13 FLOP at 60 % of 70 TFLOP/s take",
        333.0,
        1e3 * (one_s.compute_s or 0.0),
        "ms",
        "operations over the rate",
    )
    pair = flopwise.serve("Llama-7B", gpu="t4", gpus=2, weights="awq", rate=1, input_tokens=128, output_tokens=64)
    assert pair.under_load is not None
    most = pair.under_load.requests_per_s / pair.under_load.utilisation_frac
    yield Claim(
        "one or two T4 serve Llama-7B at",
        100.0,
        most,
        "requests/s",
        "two in 4 bits, 128 input, 64 output tokens",
    )
    large = flopwise.train("Llama-65B", gpu="a100-80gb", gpus=8, seq=2048)
    fits = "" if large.fits else "; it does not fit: it needs " + f"{large.memory.per_gpu_bytes / 2**30:,.0f} GiB a GPU"
    yield Claim(
        "8 x A100-80 train Llama-65B at",
        400.0,
        large.estimate.tokens_per_s,
        "tokens/s",
        f"if memory sufficed{fits}",
    )
    alone = flopwise.serve("gpt2", gpu="t4", concurrency=1, input_tokens=128, output_tokens=128).estimate
    yield Claim(
        "T4 answers GPT-2 at batch 1 in",
        120.0,
        1e3 * alone.e2e_s,
        "ms",
        "128 input and 128 output tokens; shorter requests are faster",
    )
    yield Claim(
        "and, at 120 ms each and batch 1, takes", 150.0, 1 / 0.120, "requests/s",
        "the two figures contradict each other: one at a time in 120 ms makes 8.3 a second",
    )  # fmt: skip


def _scaling_claims() -> Iterator[Claim]:
    run = flopwise.train("gpt2", gpu="t4", seq=1024, global_batch=16, tokens="100M").estimate.run
    assert run is not None
    yield Claim(
        "data-parallel ranks exchange gradients in each epoch", 1.0, run.steps, "times",
        "after each step; the example is GPT-2 on 100M tokens with 16 x 1,024 tokens a step",
    )  # fmt: skip
    layout = flopwise.train("Llama-3.1-70B", gpu="h100", gpus=1024).estimate.job.layout
    yield Claim(
        "tensor parallelism stays within a node: of a group it spans", 1.0, float(-(-int(layout.tp) // 8)), "nodes",
        f"the fastest layout of Llama-3.1-70B on 1,024 H100: tp {layout.tp}, pp {layout.pp}, dp {layout.dp}",
    )  # fmt: skip
    yield Claim(
        "data, tensor and pipeline ranks combine to all GPUs, 1,024 of", float(layout.dp * layout.tp * layout.pp),
        1024.0 / int(layout.cp), "GPUs", "times context-parallel ranks; expert parallelism and ZeRO reuse them",
    )  # fmt: skip
    few, many = (
        flopwise.train("GPT-2 XL", gpu="a100-80gb", gpus=n, dp=n, micro_batch=8, seq=1024).estimate.tokens_per_s_per_gpu
        for n in (1, 8)
    )
    yield Claim(
        "data-parallel training on 8 GPUs loses", 10.0, 100 * (1 - many / few), "%",
        "GPT-2 XL on A100s of one node: most messages overlap with the backward pass; the loss is larger between nodes",
    )  # fmt: skip
    piped = flopwise.train(
        "Llama-3.1-8B", gpu="a100-80gb", gpus=4, pp=4, micro_batch=1, global_batch=8, seq=2048
    ).estimate.breakdown
    parts = dict(piped)
    works = parts["forward"] + parts["backward"]
    yield Claim(
        "four pipeline stages work at 8 micro-batches, b / (b + n - 1), for", 100 * 8 / 11,
        100 * works / (works + parts["pipeline_bubble"] + parts["stage_imbalance"]), "%",
        "also, the stage with the head takes longer than the others",
    )  # fmt: skip


def _storage_claims() -> Iterator[Claim]:
    node = flopwise.io("resnet50", gpu="v100", achieved_flops_per_s="130TFLOP/s").read_bytes_per_s_per_node / 1e9
    yield Claim("ResNet-50 reads on 8 V100", 3.9, node, "GB/s", "8 x the 573 MB/s that the same source states for one")
    each = flopwise.io("cosmoflow", gpu="v100", achieved_flops_per_s=1e15).bytes_per_flop * 1e15 / 1e9
    yield Claim("CosmoFlow reads for each PFLOP/s", 65.0, each, "GB/s", "mixes MiB and 1024^3")
    v100 = flopwise.io("cosmoflow", gpu="v100").achieved_flops_per_s / 1e12
    yield Claim("a V100 achieves in CosmoFlow 35 to 50, so", 42.5, v100, "TFLOP/s", "layer by layer, in fp16")
    peak, layers = (
        flopwise.io("resnet50", gpu="a100", gpus=1, efficiency=share).read_bytes_per_s_per_gpu / 1e6
        for share in (1.0, None)
    )
    yield Claim(
        "ResNet-50 reads on an A100 at its datasheet's rate", peak, layers, "MB/s",
        "an upper bound, four times what its layers achieve",
    )  # fmt: skip
    asked = flopwise.io("cosmoflow", gpu="v100", achieved_flops_per_s=35e12).read_bytes_per_s_per_gpu / 1e9
    yield Claim("and would then read", 2.275, asked, "GB/s", "65 GB/s a PFLOP/s again")
    single = flopwise.io("resnet50", gpu="v100", achieved_flops_per_s="130TFLOP/s").read_bytes_per_s_per_gpu / 1e6
    yield Claim("ResNet-50 reads on a V100 at 130 TFLOP/s", 573.0, single, "MB/s", "bytes of a sample over its FLOP")
    six = flopwise.io("tiramisu", gpu="v100", gpus=6144, gpus_per_node=6)
    each_node, total = six.read_bytes_per_s_per_node / 1e9, six.read_bytes_per_s_total / 1e12
    yield Claim("Tiramisu reads on a node of six V100", 1.14, each_node, "GB/s", "six times that of one")
    yield Claim("and on 1,024 such nodes", 1.16, total, "TB/s", "1,024 times that of one")
    rate = flopwise.io("tiramisu", gpu="v100", achieved_flops_per_s=20.93e12).read_bytes_per_s_per_gpu / 1e6
    yield Claim(
        "Tiramisu reads at 20.93 TFLOP/s", 189.0, rate, "MB/s", "at 4.188 TFLOP a sample; the figures are from two runs"
    )


def _money_claims() -> Iterator[Claim]:
    usd = {
        name: flopwise.roofline(
            flops=1.4e13, bytes=1e9, dtype="fp16", efficiency=1.0,
            gpu=f"custom:fp16={rate}T,bandwidth=3TB/s,memory=80GB,price={price}",
        ).cost_usd or 0.0
        for name, rate, price in (("consumer", 70, 1.5), ("data centre", 280, 7.5))
    }  # fmt: skip
    yield Claim(
        "4 times the work for 5 times the price pays; a unit of work costs", 0.8,
        usd["data centre"] / usd["consumer"], "times as much", "5 / 4: a unit costs a quarter more",
    )  # fmt: skip
    small = {
        gpu: (_offer("aws", instance, "us-east-1").on_demand_usd_per_hour or 0.0)
        / count
        / flopwise.train("gpt2", gpu=gpu, seq=1024, global_batch=8).estimate.tokens_per_s
        for gpu, instance, count in (("t4", "g4dn.xlarge", 1), ("a100-40gb", "p4d.24xlarge", 8))
    }
    yield Claim(
        "tiers by size of model: a small one trains cheapest on the smallest GPU; GPT-2 on a T4 costs at most", 1.0,
        small["t4"] / small["a100-40gb"], "times an A100", "a fifth of the price for about a fifth of the work",
    )  # fmt: skip
    chips = {a.name for a in load_facts().accelerators.values() if a.kind == "gpu"}
    terms = sorted(
        100 * (1 - o.reserved_1y_usd_per_hour / o.on_demand_usd_per_hour)
        for o in load_facts().offers
        if o.provider == "aws" and o.reserved_1y_usd_per_hour and o.on_demand_usd_per_hour
    )
    yield Claim(
        "a year's commitment at aws saves 40 to 60 %, so at least", 40.0, terms[-1], "%",
        f"the highest of {len(terms)} offers; their median is {terms[len(terms) // 2]:.0f} %", once=True,
    )  # fmt: skip
    known = sorted(
        100 * (1 - o.spot_usd_per_hour / o.on_demand_usd_per_hour)
        for o in load_facts().offers
        if o.provider == "azure" and o.spot_usd_per_hour and o.on_demand_usd_per_hour and o.accelerator in chips
    )
    yield Claim(
        "spot machines of azure save 60 to 90 %, so at least", 60.0, known[0], "%",
        f"the lowest of {len(known)} offers with accelerators; their median is {known[len(known) // 2]:.0f} %",
    )  # fmt: skip
    hourly = sorted(
        o.on_demand_usd_per_hour for o in load_facts().offers
        if o.on_demand_usd_per_hour and o.accelerator in chips and not o.marketplace and o.count >= 1
    )  # fmt: skip
    yield Claim(
        "a machine with GPUs costs an hour at least", 2.0, hourly[0], "USD", f"the lowest of {len(hourly)} offers"
    )
    yield Claim("and at most", 40.0, hourly[-1], "USD", f"the highest of {len(hourly)} offers", once=True)
    yield Claim(
        "switched off but for 8 h of 22 days saves 60 to 70 %, so", 65.0, 100 * (1 - 8 * 22 / 730), "%",
        "176 of 730 hours remain",
    )  # fmt: skip
    yield Claim(
        "a product of matrices of 1,024 times the elements is more work by",
        1024.0,
        1024.0**1.5,
        "times",
        "twice the width has four times the elements and eight times the operations",
    )


_RANGES = """Statements of a least or a largest figure, or of both, and of single figures of machines. "Off by" is from
the nearer end; what lies within 5 % of it is right.
"""


_SPEEDS = """Three more speeds stand in the list between the 2,500 tokens/s of GPT-2 on a T4 and the 400 of Llama-65B
on eight A100 (above). They have no verdict: the notes that this page rests on quote neither the figures nor their
models and GPUs. For usual pairs of a model and GPUs, this table judges any figure. Above the last column it is wrong
whatever the software (the model's operations at the datasheet's rate), outside the interval it is unlikely with
current software, and where the memory is too small, it takes offloading or more GPUs. Sequences have 1,024 tokens.
"""
TRAINED = (
    ("gpt2", "t4", 1), ("gpt2-medium", "v100", 1), ("gpt2-large", "v100", 1), ("gpt2-xl", "v100", 1),
    ("gpt-j-6b", "v100", 2), ("gpt-j-6b", "a100-40gb", 1), ("Llama-7B", "a100-80gb", 1), ("Llama-13B", "a100-80gb", 4),
    ("Llama-65B", "a100-80gb", 8),
)  # fmt: skip
"""Models and GPUs of small, medium and large training as published tables pair them."""


def _training_speeds() -> Iterator[str]:
    yield "| model | GPUs | estimated tokens/s | 80 % interval | fits | at most, at the datasheet's rate |"
    yield "|---|---|---|---|---|---|"
    for name, gpu, count in TRAINED:
        made = flopwise.train(name, gpu=gpu, gpus=count, seq=1024)
        chip, rate = load_facts().accelerator(gpu), made.estimate
        peak = max(chip.peak.get(kind, 0.0) for kind in ("fp16", "bf16"))
        low, high, most = count * rate.low, count * rate.high, count * peak / _flops_per_token(name, 1024)
        fits = "yes" if made.fits else f"no, {made.memory.per_gpu_bytes / 2**30:,.0f} GiB a GPU"
        cells = f"{rate.tokens_per_s:,.0f} | {low:,.0f} to {high:,.0f} | {fits} | {most:,.0f}"
        yield f"| {name} | {count} x {chip.name} | {cells} |"


class Range(NamedTuple):
    """A statement of a range with our figure and why it lies elsewhere, in `unit`; infinite where there is no end."""

    what: str
    least: float
    most: float
    ours: float
    unit: str
    why: str
    once: bool = False  # it was right at some time

    @property
    def off(self) -> float:
        """The nearer end relative to our figure; 1 within the range."""
        return min(max(self.ours, self.least), self.most) / self.ours

    @property
    def verdict(self) -> str:
        """`right`, `outdated` or `wrong`."""
        if abs(self.off - 1) <= WITHIN:
            return "right"
        return "outdated" if self.once else "wrong"


def _range_rows() -> Iterator[str]:
    yield "| said | computed | off by | verdict | why |"
    yield "|---|---|---|---|---|"
    for one in (*_memory_ranges(), *_speed_ranges(), *_machine_ranges()):
        ends = [_figure(end) for end in (one.least, one.most) if 0 < end < math.inf]
        said = (
            " to ".join(dict.fromkeys(ends)) if len(ends) > 1 else ("at least " if one.least else "at most ") + ends[0]
        )
        off = f"{100 * (one.off - 1):+.0f} %" if 0.2 < one.off < 5 else f"{one.off:.2g} x"
        row = f"{one.what}: {said} {one.unit}", f"{_figure(one.ours)} {one.unit}", off, f"**{one.verdict}**", one.why
        yield f"| {' | '.join(row)} |"


def _memory_ranges() -> Iterator[Range]:
    for name, said in (("fp32", 4.0), ("fp16", 2.0), ("int8", 1.0)):
        weights = dict(flopwise.memory("7B", task="serve", context=1, weights=name).items)["weights"]
        each = weights / parameters(_model("7B"))
        yield Range(f"a weight in {name.upper()} takes", said, said, each, "bytes", "with scales and what stays wider")
    half, whole = (
        dict(flopwise.memory("Llama-2-7B", task="train", micro_batch=batch, seq=2048).items)["activations"]
        for batch in (4, 8)
    )
    yield Range("twice the batch takes in activations", 2.0, 2.0, whole / half, "times", "each sequence keeps its own")
    plain = 4.0 * parameters(_model("Llama-2-7B"))
    for kind, said, batch in (("gradients", 1.0, 1), ("optimizer states", 2.0, 1), ("activations", 2.0, 4)):
        found = flopwise.memory("Llama-2-7B", task="train", precision="fp32", micro_batch=batch, seq=2048)
        yield Range(
            f"training takes in {kind}", said, said, dict(found.items)[kind] / plain, "times the weights",
            f"Llama-2-7B in FP32, {batch} x 2,048 tokens, which activations follow",
        )  # fmt: skip
    recipe = Recipe(
        seq_len=2048,
        optimizer=load_facts().optimizer("adamw"),
        stack=load_facts().stack("hf-trainer"),
        attention="eager",
    )
    for attention, why in (
        ("eager", "the scores grow with the square, the rest with the length"),
        ("flash", "no scores are kept: all grows with the length"),
    ):
        short, long = (
            float(
                MemoryTable(_model("Llama-2-7B"), replace(recipe, seq_len=seq, attention=attention))
                .sums(Layout())[0].activations[0, -1, 0]
            )
            for seq in (4096, 8192)
        )  # fmt: skip
        yield Range(f"twice the sequence takes with {attention} attention", 4.0, 4.0, long / short, "times", why)
    with_spare = flopwise.memory("7B", task="serve", concurrency=4, context=2048).per_gpu_bytes / 1e9
    yield Range(
        "the same 7B model at 4 x 2,048 tokens with 20 % for the framework takes", 273.8, 273.8, with_spare, "GB",
        "a fifth of activations that are not kept",
    )  # fmt: skip
    trained = flopwise.memory("7B", task="train", precision="fp32", micro_batch=2, seq=2048).per_gpu_bytes / 1e9
    yield Range(
        "and trained in FP32 on 2 x 2,048",
        383.4,
        383.4,
        trained,
        "GB",
        "activations of 4 times the weights, and a fifth",
    )
    served = flopwise.memory("7B", task="serve", context=2048).per_gpu_bytes / 1e9
    yield Range("models of 7 to 20 B are served in; the smallest in", 16.0, 40.0, served, "GB", "in 16 bits")
    small = flopwise.memory("gpt2", task="train", seq=1024).per_gpu_bytes / 1e9
    yield Range("small models (GPT-2) train in", 8.0, 16.0, small, "GB", "one sequence at a time; more with more")
    whole = 8 * flopwise.train("Llama-65B", gpu="a100-80gb", gpus=8, seq=2048).memory.per_gpu_bytes / 1e9
    yield Range("large models (Llama-65B) train in", 160.0, 320.0, whole, "GB", "total of eight GPUs, best sharding")


def _speed_ranges() -> Iterator[Range]:
    run = flopwise.train("gpt2", gpu="t4", seq=1024, tokens="100M").estimate.run
    assert run is not None
    yield Range(
        "GPT-2 on 100M tokens trains on a T4 for", 2.0, 8.0, run.seconds / 3600, "hours", "with a current kernel"
    )
    months = flopwise.train("Llama-3.1-70B", gpu="h100", gpus=1024, tokens="2T").estimate.run
    assert months is not None
    yield Range(
        "large models train for weeks to months; 70B on 2T tokens on 1,024 H100 for", 2.0, 26.0,
        months.seconds / 604_800, "weeks", "failures and checkpoints included",
    )  # fmt: skip
    token = flopwise.roofline("70B", gpu="h100", batch=1, seq=1)
    yield Range(
        "a token of one request of a 70B model takes more time for memory than for arithmetic", 1.0, math.inf,
        (token.memory_s or 0.0) / (token.compute_s or math.inf), "times", "all weights are read for it, on H100s",
    )  # fmt: skip
    slow = flopwise.roofline(
        gpu="custom:fp16=300T,bandwidth=2TB/s,memory=80GB", flops=4.2e14, bytes=280e9, dtype="fp16", efficiency=0.6
    )
    yield Range(
        "4.2e14 FLOP at 60 % of 300 TFLOP/s take", 2.33, 2.33, slow.compute_s or 0.0, "s", "operations over the rate"
    )
    chips = load_facts().accelerators
    single = [chips[name].peak["fp32"] for name in ("RTX 4090", "A100-SXM-80")]
    yield Range(
        "consumer GPUs are better in FP32: an RTX 4090 has",
        1.0,
        math.inf,
        single[0] / single[1],
        "times an A100",
        "of peaks",
    )
    head = next(one for one in flopwise.advise("gpt2-xl", gpu="a100-80gb").advice if one.what == "lm_head")
    yield Range(
        f"dimensions should be multiples of 8: {head.better} instead of {head.now} columns of GPT-2 XL's head save",
        1.0, math.inf, 100 * head.gain_frac, "% of a step", "rows that start unaligned are read in smaller pieces",
    )  # fmt: skip
    small = dict[str, float]()
    for software in ("cpu", "cuda"):
        best = flopwise.plan(
            "roberta-base", task="encode", rate=2, input=128, latency="p95=150ms", software=software,
            provider=["aws", "gcp", "azure"],
        ).plans[0]  # fmt: skip
        small[software], instance = best.cost_usd, best.instance
    yield Range(
        "small batches belong on a CPU: an encoder of 130M at 2 requests/s costs there", 0.0, 1.0,
        small["cpu"] / small["cuda"], "times as much as on a GPU", f"the cheapest with a GPU is {instance}",
    )  # fmt: skip
    pair = flopwise.serve("Llama-7B", gpu="t4", weights="awq", rate=1, input_tokens=128, output_tokens=64)
    assert pair.under_load is not None
    hourly = 3600 * pair.under_load.requests_per_s / pair.under_load.utilisation_frac
    yield Range(
        "a T4 takes batches of Llama-7B of", 10_000.0, math.inf, hourly, "requests an hour",
        "in 4 bits, 128 input, 64 output tokens",
    )  # fmt: skip


def _machine_ranges() -> Iterator[Range]:
    chips, offers = load_facts().accelerators, load_facts().offers
    for name, said in (
        ("T4", 16.0), ("V100-SXM2-16", 16.0), ("V100-SXM2-32", 32.0), ("A100-SXM-40", 40.0), ("A100-SXM-80", 80.0),
        ("H100-SXM-80", 80.0),
    ):  # fmt: skip
        most = said * 2**30 / 1e9
        yield Range(
            f"{name} has memory of", said, most, chips[name].hbm_bytes / 1e9, "GB", "sold as GB, and up to as many GiB"
        )
    for name, said in (("A100-SXM-80", 600.0), ("H100-SXM-80", 900.0)):
        both = 2 * (chips[name].link_bytes_per_s or 0.0) / 1e9
        yield Range(f"NVLink of {name} moves", said, said, both, "GB/s", "both directions together; a message has half")
    lanes = 2 * (chips["A100-SXM-80"].pcie_bytes_per_s or 0.0) / 1e9
    yield Range("PCIe 4.0 with 16 lanes moves", 64.0, 64.0, lanes, "GB/s", "both directions together")
    for instance, cores, memory in (
        ("g4dn.xlarge", 4, 16.0), ("g4dn.2xlarge", 8, 32.0), ("p3.2xlarge", 8, 61.0), ("p3.8xlarge", 32, 244.0),
        ("p4d.24xlarge", 96, 1152.0),
    ):  # fmt: skip
        offer = _offer("aws", instance, "us-east-1")
        yield Range(
            f"{instance} has", float(cores), float(cores), float(offer.vcpus or 0), "vCPUs", "the provider's page"
        )
        yield Range(f"{instance} has memory of", memory, memory, (offer.ram_bytes or 0.0) / 2**30, "GiB", "the same")
    devices = {a.name for a in chips.values() if a.kind == "gpu"}
    for provider, least, most in (("aws", 50.0, 90.0), ("gcp", 60.0, 91.0), ("azure", 60.0, 90.0)):
        known = sorted(
            100 * (1 - o.spot_usd_per_hour / o.on_demand_usd_per_hour)
            for o in offers
            if o.provider == provider and o.spot_usd_per_hour and o.on_demand_usd_per_hour and o.accelerator in devices
        )
        why = f"the median of {len(known)} offers with GPUs, from {known[0]:.0f} to {known[-1]:.0f} %"
        yield Range(f"spot machines of {provider} save", least, most, known[len(known) // 2], "%", why)
    for provider, purchase in (
        ("gcp", "reserved_1y"), ("azure", "reserved_1y"), ("aws", "reserved_3y"), ("gcp", "reserved_3y"),
        ("azure", "reserved_3y"),
    ):  # fmt: skip
        prices = [(o.price_usd_per_hour(purchase), o.on_demand_usd_per_hour) for o in offers if o.provider == provider]
        terms = sorted(100 * (1 - less / usd) for less, usd in prices if less and usd)
        if not terms:
            continue
        years = "a year's" if purchase == "reserved_1y" else "three years'"
        why = f"the median of {units.format_items(len(terms), 'offer')}"
        yield Range(f"{years} commitment at {provider} saves", 40.0, 60.0, terms[len(terms) // 2], "%", why)
    fast = flopwise.io("cosmoflow", gpu="v100", achieved_flops_per_s=50e12, gpus_per_node=8, gpus=8)
    slow = flopwise.io("cosmoflow", gpu="v100", achieved_flops_per_s=35e12, gpus_per_node=8, gpus=8)
    yield Range(
        "CosmoFlow at 50 TFLOP/s reads on a V100", 3.25, 3.25, fast.read_bytes_per_s_per_gpu / 1e9, "GB/s",
        "65 GB/s a PFLOP/s",
    )  # fmt: skip
    for words, said, found in (("35", 18.2, slow), ("50", 26.0, fast)):
        yield Range(
            f"and on a node of eight at {words} TFLOP/s", said, said, found.read_bytes_per_s_per_node / 1e9, "GB/s",
            "eight times that of one",
        )  # fmt: skip
    peak, layers = (
        flopwise.io("deepcam", gpu="v100", gpus=1, efficiency=share).read_bytes_per_s_per_gpu for share in (1.0, None)
    )
    yield Range(
        "the datasheet's rate bounds what a model reads: DeepCAM on a V100 would read", 1.0, math.inf, peak / layers,
        "times what it does", f"{layers / 1e6:,.0f} MB/s at what its layers achieve",
    )  # fmt: skip
    nfs = load_facts().storage("nfs-tcp").read_bytes_per_s / 1e9
    yield Range("NFS over TCP reads", 3.0, 3.0, nfs, "GB/s", "of one client, at most")


_BILL = """Instances x hours x price. The arithmetic of such plans is right, but the prices age.
"""


def _bills() -> Iterator[str]:
    yield "| plan | stated price | a month | at our price | a month now |"
    yield "|---|---|---|---|---|"
    for count, instance, each, hours, told in (
        (2, "g4dn.xlarge", 0.526, 8 * 22, "8 h x 22 days"),
        (1, "p3.2xlarge", 3.06, 4 * 22, "4 h x 22 days"),
        (3, "g4dn.2xlarge", 0.752, 720, "720 h"),
        (1, "p4d.24xlarge", 32.77, 4 * 24, "24 h x 4"),
    ):
        offer = _offer("aws", instance, "us-east-1")
        now = offer.on_demand_usd_per_hour or 0.0
        then_usd, now_usd = (
            count * price.usd_per_month
            for o in (replace(offer, on_demand_usd_per_hour=each), offer)
            if (price := effective(o, "on_demand", hours, load_facts())) is not None
        )
        yield f"| {count} x {instance}, {told} | ${each:.3f}/h | ${then_usd:,.0f} | ${now:.3f}/h | ${now_usd:,.0f} |"


Rule = tuple[str, str, list[str], str]


def _rules() -> Iterator[Rule]:
    yield _training_flops()
    yield _flops_a_token()
    yield _state_bytes()
    yield _multiplier()
    yield _activations()
    yield _serving_bytes()
    yield _cache()
    yield _utilisation()
    yield _waiting()
    yield _tokens()


@cache
def _model(name: str) -> Model:
    return load_facts().model(name)


def _training_flops() -> Rule:
    rows = ["| model | sequence | 6 N, GFLOP a token | computed, GFLOP a token | off by |", "|---|---|---|---|---|"]
    for name, seq in (("gpt2", 1024), ("Llama-2-7B", 4096), ("Llama-3.1-8B", 8192), ("Llama-3.1-8B", 131_072)):
        rule, real = 6.0 * active_parameters(_model(name)), _flops_per_token(name, seq)
        rows.append(f"| {name} | {seq:,} | {rule / 1e9:.3g} | {real / 1e9:.3g} | {100 * (rule / real - 1):+.0f} % |")
    name = "Mixtral-8x7B"
    rule, real = 6.0 * parameters(_model(name)), _flops_per_token(name, 4096)
    off = f"{100 * (rule / real - 1):+.0f} %"
    rows.append(f"| {name}, all its parameters for N | 4,096 | {rule / 1e9:.3g} | {real / 1e9:.3g} | {off} |")
    return (
        "6 N D",
        "FLOP of training = 6 x parameters x tokens (Kaplan et al. 2020).",
        rows,
        (
            "**Right** at usual lengths. It omits attention, which grows with the sequence, and counts embeddings, "
            "which cause no products; for a mixture of experts N is the number of active parameters, not of all. "
            "Recompute adds up to a third, which the rule omits."
        ),
    )


def _flops_per_token(name: str, seq: int) -> float:
    """Forward and backward, attention causal."""
    return 3.0 * float(causal_forward_flops(_model(name), 1, seq)) / seq


def _flops_a_token() -> Rule:
    real = _flops_per_token("Llama-2-7B", 4096)
    ours = f"| computed, Llama-2-7B at 4,096 | {real / 1e9:.3g} GFLOP |"
    rows = ["| | operations a token |", "|---|---|", "| said | 10^21 FLOP |", ours]
    return (
        '"10^21 FLOP per training token of a 7B model"',
        "6 N = 6 x 7 billion = 42 GFLOP.",
        rows,
        (
            f"**Wrong** by a factor of {1e21 / real / 1e9:,.0f} billion: 10^21 FLOP train such a model on "
            f"{1e21 / real / 1e9:,.0f} billion tokens. The error is that a total was taken for a rate."
        ),
    )


def _state_bytes() -> Rule:
    rows = ["| Llama-2-7B, one GPU, AdamW | bytes a parameter, states | with all else |", "|---|---|---|"]
    count = parameters(_model("Llama-2-7B"))
    states = {"weights", "optimizer states", "gradients", "16-bit copies of weights", "master weights"}
    for label, said in (
        ("bf16 by autocast (fsdp-compile)", {}),
        ("bf16, fp32 master weights (megatron-te)", {"stack": "megatron-te"}),
        ("8-bit Adam", {"optimizer": "adamw-8bit"}),
        ("LoRA rank 16", {"lora": 16}),
    ):
        found = flopwise.memory("Llama-2-7B", task="train", seq=4096, **said)
        held = sum(size for name, size in found.items if name in states)
        rows.append(f"| {label} | {held / count:.1f} | {found.per_gpu_bytes / count:.0f} |")
    return (
        "16 bytes per parameter",
        "2 weights + 2 gradients + 12 (fp32 weights, momentum, variance) (Rajbhandari et al. 2019).",
        rows,
        (
            "**Right for the states** of that one recipe; software that keeps weights in fp32 or accumulates "
            "gradients in fp32 has up to 18. Activations, workspace, the allocator and the driver are additional, and "
            "ZeRO divides the states over the ranks."
        ),
    )


def _multiplier() -> Rule:
    weights = 2.0 * parameters(_model("Llama-2-7B"))
    rows = ["| Llama-2-7B, sequences of 4,096 | memory over 2-byte weights |", "|---|---|"]
    for label, said in (
        ("full, micro-batch 1", {}),
        ("full, micro-batch 4", {"micro_batch": 4}),
        ("full, micro-batch 4, full recompute", {"micro_batch": 4, "recompute": "full"}),
        ("LoRA rank 16, micro-batch 1", {"lora": 16}),
        ("QLoRA rank 16, micro-batch 1", {"lora": 16, "qlora": True}),
    ):
        found = flopwise.memory("Llama-2-7B", task="train", seq=4096, **said)
        rows.append(f"| {label} | {found.per_gpu_bytes / weights:.1f} |")
    return (
        '"Training takes 6 times the memory of the weights"',
        "GPUs = parameters x bytes / memory of a GPU x 6.",
        rows,
        (
            "**Wrong** as a constant: the states alone are eight to nine times the 2-byte weights in full training "
            "with Adam, adapters take less than six, and activations follow batch and length, not the weights."
        ),
    )


def _activations() -> Rule:
    name, facts = "Llama-2-7B", load_facts()
    weights = 2.0 * parameters(_model(name))
    rows = [f"| {name} | activations over 2-byte weights |", "|---|---|"]
    for label, batch, seq, mode, stack in (
        ("1 x 512 tokens", 1, 512, 0, "megatron-te"),
        ("1 x 4,096 tokens", 1, 4096, 0, "megatron-te"),
        ("8 x 4,096 tokens", 8, 4096, 0, "megatron-te"),
        ("8 x 4,096 tokens, full recompute", 8, 4096, 2, "megatron-te"),
        ("1 x 4,096 tokens, eager attention", 1, 4096, 0, "hf-trainer"),
    ):
        attention = "eager" if stack == "hf-trainer" else "flash"
        recipe = Recipe(seq_len=seq, optimizer=facts.optimizer("adamw"), stack=facts.stack(stack), attention=attention)
        sums, _ = MemoryTable(_model(name), recipe).sums(Layout())
        rows.append(f"| {label} | {batch * sums.activations[mode, -1, 0] / weights:.2f} |")
    return (
        '"Activations are 4 times the model"',
        "Activations = 4 x bytes of the weights.",
        rows,
        (
            "**Wrong**: they grow with the tokens of a micro-batch (with its square if attention is eager), "
            "shrink with recompute, and do not depend on the bytes of the weights. Any factor occurs at some batch."
        ),
    )


def _serving_bytes() -> Rule:
    rows = ["| Llama-3.1-8B, bf16, vLLM | 2 bytes + 20 % | computed | off by |", "|---|---|---|---|"]
    rule = 2.4 * parameters(_model("Llama-3.1-8B"))
    for sequences, context in ((1, 2048), (8, 2048), (32, 8192), (4, 131_072)):
        held = flopwise.memory("Llama-3.1-8B", task="serve", context=context, concurrency=sequences).per_gpu_bytes
        off = f"{100 * (rule / held - 1):+.0f} %"
        rows.append(f"| {sequences} x {context:,} tokens | {rule / 1e9:.1f} GB | {held / 1e9:.1f} GB | {off} |")
    return (
        "Serving: 2 bytes a parameter and 20 %",
        "Memory = 1.2 x 2 x parameters.",
        rows,
        (
            "**Right for few, short sequences**; the cache grows with sequences x tokens and soon exceeds the "
            "weights. Quantised weights have 0.5 to 1 byte and scales."
        ),
    )


def _cache() -> Rule:
    rows = ["| model | 2 x layers x width x 2 bytes | computed a token | rule over computed |", "|---|---|---|---|"]
    for name in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3"):
        model = _model(name)
        stack = model.stacks[0]
        rule, real = 4.0 * stack.num_layers * stack.width, float(kv_bytes_per_token(model, 2.0))
        rows.append(f"| {name} | {rule / 1024:,.0f} KiB | {real / 1024:,.0f} KiB | {rule / real:.0f} x |")
    return (
        "KV cache = 2 x layers x hidden size x bytes, a token",
        "The right formula is 2 x layers x key-value heads x head size x bytes.",
        rows,
        (
            "**Outdated**: true of multi-head attention only. Grouped queries divide it by query heads over key-value "
            "heads, latent attention (MLA) keeps one small vector, and windows bound it."
        ),
    )


def _utilisation() -> Rule:
    rows = ["| model | machines | MFU, to the nearest 5 % |", "|---|---|---|"]
    for name, gpu, gpus, seq in (
        ("gpt2", "h100", 8, 1024),
        ("Llama-3.1-8B", "h100", 64, 8192),
        ("Llama-3.1-8B", "a100-80gb", 64, 8192),
        ("Llama-3.1-405B", "h100", 16_384, 8192),
        ("Mixtral-8x7B", "h100", 128, 4096),
    ):
        found = flopwise.train(name, gpu=gpu, gpus=gpus, seq=seq).estimate.mfu_frac
        rows.append(f"| {name}, {seq:,} tokens | {gpus:,} x {gpu} | {5 * round(20 * float(found))} % |")
    return (
        "MFU of 40 to 50 %",
        "Time = 6 N D / (GPUs x peak x 0.4 to 0.5).",
        rows,
        (
            "**Right for large dense models** in bf16 on well-connected machines with a tuned stack. Small models, "
            "mixtures of experts, slow links, small batches per GPU and fp8 (relative to its own, doubled peak) are "
            "below; A100s, whose peak is lower relative to their bandwidth, are above."
        ),
    )


def _waiting() -> Rule:
    rows = ["| Llama-3.1-8B, H100 | all ranks wait for the slowest |", "|---|---|"]
    for gpus in (8, 256, 1024, 16_384):
        run = flopwise.train("Llama-3.1-8B", gpu="h100", gpus=gpus, seq=4096, tokens="1T").estimate.run
        assert run is not None
        parts = dict(run.breakdown)
        rows.append(f"| {gpus:,} | {100 * parts['stragglers'] / (parts['steps'] + parts['stragglers']):.1f} % |")
    return (
        "Asynchronous data parallelism avoids waiting for the slowest",
        "Each rank applies its gradients when it has them (Hogwild, parameter servers).",
        rows,
        (
            "**Outdated** on identical machines: waiting costs a few percent of a step, whereas stale gradients cost "
            "steps. It is useful again with slow links or different machines, with many local steps between exchanges."
        ),
    )


def _tokens() -> Rule:
    rows = ["| 8.03 B parameters trained on | tokens a parameter | expected loss, nats a token |", "|---|---|---|"]
    count = float(parameters(_model("Llama-3.1-8B")))
    for tokens in (float(optimal_tokens(count)), 1e12, 15e12):
        loss = float(predicted_loss(count, tokens))
        rows.append(f"| {tokens / 1e9:,.0f} billion | {tokens / count:,.0f} | {loss:.2f} |")
    return (
        "20 tokens a parameter",
        "Compute-optimal tokens = 20 N (Hoffmann et al. 2022, table 3).",
        rows,
        (
            "**Right for its purpose**, the least training compute for a loss; **outdated as advice**: the cost of "
            "serving a model grows with its size, so published models are smaller and see a hundred times the tokens."
        ),
    )
