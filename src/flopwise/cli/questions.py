"""Options of the questions about models on machines: `memory`, `train`, `serve`, `roofline`, and `explain` of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.render import Screen, bars, heading, pairs, table
from flopwise.facts import defaults

if TYPE_CHECKING:
    from flopwise.api.machines import Machines
    from flopwise.api.memory import Deployment, MemoryAnswer
    from flopwise.api.recipes import Method
    from flopwise.api.runs import Surroundings
    from flopwise.api.serve import ServeAnswer
    from flopwise.api.train import TrainAnswer
    from flopwise.cost.quick import QuickFormula
    from flopwise.provenance import Figure

Function = TypeVar("Function", bound=Callable[..., None])
Option = Callable[[Any], Any]


def grouped(*found: Option, section: str = "") -> Callable[[Function], Function]:
    """All of these options, in the order in which the help lists them, under the heading `section` if there is one."""

    def decorate(function: Function) -> Function:
        for option in reversed(found):
            function = option(function)
            made: list[click.Option] = function.__click_params__  # type: ignore[attr-defined]  # click keeps them there
            options.put_under(made[-1], section)
        return function

    return decorate


def _degree(name: str, said: str) -> Option:
    return click.option(f"--{name}", type=options.DEGREE, help=said)


model_options = grouped(
    options.family_option, options.offline_option, options.facts_option, section="Where models and facts come from"
)

layout_options = grouped(
    _degree("dp", "Data-parallel replicas."),
    _degree("tp", "Tensor-parallel degree."),
    _degree("pp", "Pipeline stages."),
    _degree("cp", "Context-parallel degree."),
    _degree("ep", "Expert-parallel degree (within dp x cp)."),
    click.option("--zero", type=options.Whole(low=0, high=3), help="ZeRO stage: 0 to 3."),
    click.option("--fsdp", is_flag=True, help="Shard everything over the replicas, as ZeRO 3."),
    click.option(
        "--shard",
        "--hsdp",
        "shard",
        type=options.DEGREE,
        help="HSDP: ranks that ZeRO (3 unless said) shards over, replicated beyond.",
    ),
    click.option("--recompute", type=options.Choice(["none", "selective", "full"]), help="Activations computed again."),
    click.option(
        "--recompute-every", type=options.DEGREE, metavar="N", help="Full recompute of every N-th block only."
    ),
    click.option(
        "--recompute-first",
        type=options.DEGREE,
        metavar="N",
        help="Full recompute of the first N blocks of each (virtual) stage only.",
    ),
    click.option("--interleave", type=options.DEGREE, help="Virtual stages of each pipeline rank."),
    click.option(
        "--schedule",
        type=options.Name("name"),
        help="Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.",
    ),
    click.option(
        "--stage-layers", type=options.Wholes(), help="Layers of each pipeline stage or virtual stage: 7,8,8,7."
    ),
    click.option(
        "--sequence-parallel/--no-sequence-parallel", default=True, help="Cut norms and residuals inside a tp group."
    ),
    click.option(
        "--offload",
        type=options.Choice(["optimizer", "parameters", "activations"]),
        multiple=True,
        help="Keep these in host memory; may be given several times.",
    ),
    section="Layout",
)

adapter_options = (
    click.option(
        "--lora", type=options.Whole(high=65536), metavar="RANK", help="Train adapters of this rank on a frozen base."
    ),
    click.option("--qlora", is_flag=True, help="Adapters on a 4-bit base, of rank 16 unless --lora says another."),
    click.option(
        "--lora-targets", type=options.Name("targets"),
        help="all-linear (default), attention, qv, or a list such as q,k,v,o.",
    ),
)  # fmt: skip

recipe_options = grouped(
    click.option(
        "--precision",
        type=options.Choice(["bf16", "fp16", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4", "fp32"]),
        default="bf16",
        show_default=True,
        help="Of the matrix products in training.",
    ),
    click.option(
        "--optimizer", type=options.Name("optimizer"), default=defaults.OPTIMIZER, show_default=True,
        help="adamw, adamw-8bit, adafactor, sgd, lion, muon ...",
    ),
    click.option(
        "--stack", type=options.Name("stack"),
        help="Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...",
    ),
    click.option(
        "--attention", type=options.Choice(["flash", "sdpa", "eager"]), default="flash", show_default=True,
        help="Attention implementation.",
    ),
    click.option("--grad-dtype", type=options.Choice(["fp32", "bf16", "fp16"]), help="Of the accumulated gradients."),
    click.option(
        "--master-weights/--no-master-weights", default=None,
        help="A separate fp32 copy of the weights (default: the stack's).",
    ),
    *adapter_options,
    click.option(
        "--freeze", type=options.Name("parts"),
        help="Not trained: embedding, head, towers, first:N layers, all-but-last:N layers; separated by commas.",
    ),
    click.option(
        "--expert-skew", type=options.Quantity("x", units.parse_count), default=1.0,
        help="Tokens of the most popular expert over the mean of all (1 + MaxVio); default: 1, balanced.",
    ),
    click.option(
        "--capacity-factor", type=options.Quantity("x", units.parse_count),
        help="Experts compute this many times the mean load and drop what is more (default: nothing is dropped).",
    ),
    click.option(
        "--packing", type=options.Choice(["padded", "packed"]),
        help="Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).",
    ),
    click.option("--mean-length", type=options.COUNT, help="Mean tokens of a document, with --packing; lognormal."),
    click.option(
        "--length-spread", type=options.Quantity("x", units.parse_count, zero=True), default=1.0,
        help="Standard deviation of the lengths over their mean; default: 1.",
    ),
    click.option(
        "--lengths", type=click.Path(), help="Lengths of documents instead: a file, `tokens` or `tokens,count` a line."
    ),
    section="Recipe",
)  # fmt: skip

run_options = grouped(
    click.option("--samples", type=options.COUNT, help="Sequences of the whole run, instead of tokens."),
    click.option("--epochs", type=options.COUNT, help="How often tokens or samples are gone through."),
    click.option("--mtbf", type=options.SECONDS, help="Time between failures of one GPU with its share of the node."),
    click.option("--node-mtbf", type=options.SECONDS, help="Time between failures of one node."),
    click.option(
        "--failures", type=options.Name("record"),
        help="Failures as in a published run: llama-3 (default), rsc-1, rsc-2, opt-175b, bloom.",
    ),
    click.option("--restart", type=options.SECONDS, help="From a failure to full speed: 10min."),
    click.option("--checkpoint-every", type=options.SECONDS, help="Time between checkpoints (default: the best)."),
    click.option(
        "--checkpoint-bandwidth", type=options.BANDWIDTH, help="With which the whole cluster writes: 200GB/s."
    ),
    click.option("--checkpoint-storage", type=options.Name("kind"), help="What each node writes to: lustre, nvme ..."),
    click.option("--async-checkpoints", is_flag=True, help="Training waits for the copy to host memory only."),
    click.option("--repair", type=options.SECONDS, help="A failed node is away so long (default: replaced at once)."),
    click.option("--spares", type=options.Whole(high=10_000), help="Nodes that stand by, with --repair."),
    click.option("--interruptions", type=options.RATE, help="How often one spot instance is taken back: 0.1/day."),
    click.option("--jitter", type=options.FRACTION, help="Of step times between GPUs: all wait for the slowest."),
    click.option("--validate-every", type=options.WHOLE, help="Steps between validations."),
    click.option("--validate-batches", type=options.WHOLE, help="Global batches of one validation (default: 1)."),
    click.option("--loader-rate", type=options.RATE, help="Sequences that the data loader delivers to one GPU: 20/s."),
    section="The whole run",
)  # fmt: skip

price_options = grouped(
    click.option("--provider", type=options.Name("provider"), help="Take price and network of this provider's offer."),
    click.option("--instance", type=options.Name("instance"), help="Take price and network of this instance type."),
    click.option("--region", type=options.Name("region"), help="Take price and network of an offer in this region."),
    options.purchase_option,
    click.option("--price", type=options.USD, help="US dollars for one accelerator and hour, instead of an offer's."),
    click.option("--gpus-per-node", type=options.DEGREE, help="Accelerators of a node."),
    click.option(
        "--network", type=options.BANDWIDTH, help="Network of one accelerator between nodes: 400Gbps, 50GB/s."
    ),
    section="Machines and prices",
)

serving_options = grouped(
    click.option(
        "--weights", type=options.Name("format"),
        help="bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).",
    ),
    click.option("--kv-dtype", type=options.Name("dtype"), help="Of the key-value cache: bf16 (default), fp8 ..."),
    click.option(
        "--engine", type=options.Name("engine"), default=defaults.ENGINE, show_default=True,
        help="vllm, sglang, tensorrt-llm, llama.cpp, hf ...",
    ),
    click.option(
        "--memory-fraction", type=options.FRACTION, help="Of the memory the engine may use (default: its own)."
    ),
    section="Formats and engine",
)  # fmt: skip


def method(given: dict[str, Any]) -> Method:
    """The training method in the parameters of a command."""
    from flopwise.api.recipes import Method

    names = (
        "precision", "optimizer", "stack", "attention", "grad_dtype", "master_weights", "lora", "qlora",
        "lora_targets", "recompute", "recompute_every", "recompute_first", "micro_batch", "dp", "tp", "pp", "cp",
        "ep", "zero", "fsdp", "shard", "interleave", "schedule", "sequence_parallel", "expert_skew",
        "capacity_factor", "freeze", "packing", "mean_length", "length_spread", "lengths",
    )  # fmt: skip
    return Method(
        **{name: given[name] for name in names},
        offload=tuple(given["offload"]),
        stage_layers=given["stage_layers"] or (),
    )


def surroundings(given: dict[str, Any]) -> Surroundings:
    """What a run meets, in the parameters of a command."""
    from dataclasses import fields

    from flopwise.api.runs import Surroundings

    return Surroundings(**{f.name: given[f.name] for f in fields(Surroundings)})


def machines(given: dict[str, Any]) -> Machines:
    """The machines in the parameters of a command."""
    from flopwise.api.machines import Machines

    return Machines(
        gpu=given["gpu"],
        provider=given["provider"],
        instance=given["instance"],
        region=given["region"],
        purchase=given["purchase"],
        usd_per_gpu_hour=given["price"],
        gpus_per_node=given["gpus_per_node"],
        network_bytes_per_s_per_gpu=given["network"],
        power_limit_w=given.get("power_limit"),
        facts=given["facts"],
    )


def deployment(given: dict[str, Any]) -> Deployment:
    """The way of serving in the parameters of a command."""
    from flopwise.api.memory import Deployment

    return Deployment(
        weights=given["weights"],
        kv_dtype=given["kv_dtype"],
        concurrency=given.get("concurrency"),
        context=given.get("context"),
        tp=given["tp"] or 1,
        pp=given["pp"] or 1,
        ep=given["ep"] or 1,
        dp=given["dp"] or 1,
        engine=given["engine"],
        memory_frac=given["memory_fraction"],
    )


def model_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """How the model is read."""
    return {"facts": given["facts"], "assume_family": given["assume_family"], "offline": given["offline"]}


def told(
    answer: TrainAnswer | ServeAnswer | MemoryAnswer,
    document: Callable[..., dict[str, Any]],
    lines: Callable[[Any, Screen], Iterator[str]],
    *,
    explained: bool,
) -> None:
    """Write the answer as JSON or as lines, with the tree of its figures where that was asked for."""

    def text(paper: Screen) -> Iterator[str]:
        from flopwise.api.explain import figure_of

        yield from lines(answer, paper)
        if explained:
            yield tree((figure_of(answer),), paper)

    options.answer(lambda: document(answer, explained=explained), text)


def provenance(answer: TrainAnswer | ServeAnswer | MemoryAnswer) -> list[dict[str, Any]]:
    """The tree of an answer's figures as JSON."""
    from flopwise.api.explain import figure_of
    from flopwise.provenance import to_json

    return [to_json(figure_of(answer))]


def quick_table(rules: Sequence[QuickFormula], paper: Screen) -> str:
    """The rules of thumb beside the estimate."""
    from flopwise.provenance import Figure, format_value

    def shown(value: float | None, unit: str) -> str | None:
        return None if value is None else format_value(Figure("x", value, unit, kind="given"))

    rows = [
        (r.name, r.formula, shown(r.value, r.unit), shown(r.estimate, r.unit), signed_percent(r.error_frac))
        for r in rules
    ]
    return table(["rule of thumb", "formula", ">says", ">estimate", ">off by"], rows, paper) if rows else ""


def signed_percent(fraction: float | None) -> str | None:
    """`+12 %`; factors above ten as such."""
    if fraction is None:
        return None
    return f"{fraction + 1:.0f} x" if fraction > 9 else f"{100 * fraction:+.0f} %"


def assumption_list(assumptions: Iterable[str]) -> str:
    """What was assumed, one a line; values that stand in for others, in one line together."""
    from flopwise.cost.rates import fold_assumptions

    lines = [f"  - {sentence}" for sentence in fold_assumptions(dict.fromkeys(assumptions))]
    return "\n".join(["Assumptions", *lines]) if lines else ""


def shares(rows: Sequence[tuple[str, float]], text: Callable[[float], str], paper: Screen) -> str:
    """Bars of the parts of a whole; parts that are nothing are left out."""
    whole = sum(size for _, size in rows) or 1.0
    shown = [
        (name.replace("_", " "), size, f"{text(size)}  {100 * size / whole:5.1f} %") for name, size in rows if size > 0
    ]
    return bars(shown, paper)


def tree(figures: Iterable[Figure], paper: Screen, *, depth: int | None = None) -> str:
    """Where figures come from."""
    from flopwise.provenance import render_tree

    drawn = [render_tree(figure, width=paper.width, depth=depth, ascii_only=not paper.unicode) for figure in figures]
    return "\n\n".join([heading("Where the figures come from", paper), *drawn])


def settings(rows: Iterable[tuple[str, str]], paper: Screen) -> str:
    """What was asked, and what was chosen where it was not."""
    return pairs(rows, paper)


def price(value: float | None) -> str | None:
    """US dollars, or nothing where they are not known; small amounts to three digits."""
    if value is None:
        return None
    return f"${value:.3g}" if 0 < value < 0.01 else units.format_usd(value)


def per_million(usd_per_hour: float | None, each_per_s: float) -> float | None:
    """US dollars for a million of what comes at `each_per_s`."""
    return None if usd_per_hour is None or not each_per_s else usd_per_hour / (each_per_s * units.HOUR_S) * 1e6


def energy(joules: float | None) -> str | None:
    """Energy in watt-hours, small amounts in joules."""
    if joules is None:
        return None
    return f"{joules:,.3g} J" if joules < units.HOUR_S else units.format_joules(joules)
