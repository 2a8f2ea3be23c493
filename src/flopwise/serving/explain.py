"""Where the figures of a serving estimate come from, as one tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.rates import CLOCK_HZ
from flopwise.facts.formats import CacheFormat, WeightFormat
from flopwise.facts.software import CONTEXT, GRAPHS, Engine
from flopwise.ops.cache import kv_bytes_per_token
from flopwise.origin import COUNTED, KERNEL, Device, estimate_of, interval, number, price, total
from flopwise.provenance import Figure, fact, setting, term, walk
from flopwise.serving.estimate import steady_state, step_lines
from flopwise.serving.iteration import (
    StepLoad,
    StepTime,
    TimedKernel,
    delta_layers,
    expert_layers,
    grouped_layers,
    layer_kinds,
    on_intel,
    prompt,
)
from flopwise.serving.job import HOST_RATIO, ServeEstimate, ServeJob
from flopwise.serving.steady import Steady
from flopwise.serving.techniques import prefix_tokens, runner, tokens_a_round
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.serving.answer import LatencyPercentiles, UnderLoad
    from flopwise.serving.memory import ServingLayout, ServingMemory
    from flopwise.serving.startup import ColdStart

_CONVERSION = "cache conversion"
_SAME = 1e-6
"""Relative difference up to which two ways to a figure agree."""
_GIVEN_OUT = f"{COUNTED}: machines with stores and caches / machines x tokens computed / tokens given out"
_PLAYED = f"{COUNTED}: all requests of users that begin together, played through every step of the engine"


def serve_figure(
    estimate: ServeEstimate, start: ColdStart | None = None, load: UnderLoad | None = None, replicas: int = 1,
    loop: LatencyPercentiles | None = None,
) -> Figure:  # fmt: skip
    """The tree of an estimate: latencies and throughput with intervals, memory, cost and energy.

    Further a cold start, the percentiles of a load that can be kept up with, or of the simulated users of a closed
    `loop`, whose means and rate the estimate has then, and sums over several `replicas`. The
    memory is that of the requests that it holds at once. What does not fit has that of one, a price per hour and a cold
    start alone.
    """
    job, tree = estimate.job, _ServingTree(estimate, of_loop=loop is not None)
    name = f"{job.model.name} on {estimate.num_gpus} x {job.cluster.accelerator.name}"
    memory = serving_memory_figure(job.model, job.layout, estimate.memory, job.weights, job.kv_dtype, job.engine)
    more = () if start is None else (_cold_start_figure(start),)
    if not estimate.max_concurrency:
        figures = [*tree.room(), memory, *tree.hourly(), *more]
        return estimate_of(name, [*figures, *_of_all(replicas, figures)])
    timing = tree.timing()
    figures = [*timing, *(() if load is None else _load_figures(estimate, load, timing))]
    figures += () if loop is None else _percentile_figures(estimate, loop, timing, f"{_PLAYED}; those of this share")
    figures += [*_technique_figures(job), *tree.bounds(), memory, *tree.bill(), *more]
    return estimate_of(name, [*figures, *_of_all(replicas, figures)])


def _of_all(replicas: int, figures: Iterable[Figure]) -> Iterator[Figure]:
    """The sum over several replicas."""
    count, known = setting("replicas", replicas), {below.name: below for one in figures for below in walk(one)}
    for name in ("throughput", "requests per second", "maximum concurrency", "cache capacity"):
        if replicas > 1 and name in known:
            one, formula = known[name], f"{name} x replicas"
            yield term(f"{name} of all replicas", replicas * number(one.value), one.unit, formula, one, count)


def _load_figures(estimate: ServeEstimate, load: UnderLoad, timing: Iterable[Figure]) -> Iterator[Figure]:
    """The share of what it sustains, and what requests see at each percentile, with intervals."""
    rate = setting("requests per second of the load", load.requests_per_s, "1/s")
    formula = "queue model: arrivals / what the full batch sustains"
    share = term("share of what it sustains", load.utilisation_frac, "frac", formula, rate)
    yield share
    formula = "queue model: requests that arrive at random, in closed form or simulated"
    if load.ttft_s_low:
        yield from _percentile_figures(estimate, load, timing, formula, share)


def _percentile_figures(
    estimate: ServeEstimate, seen: LatencyPercentiles, timing: Iterable[Figure], formula: str, *inputs: Figure
) -> Iterator[Figure]:
    """Latencies at each percentile, with intervals."""
    means = {figure.name: figure for figure in timing}
    for name, mean, at in (("TTFT", estimate.ttft_s, "ttft_s"), ("TPOT", estimate.further_token_s, "tpot_s")):
        if mean is None:
            continue
        for percentile, seconds in getattr(seen, at).items():
            one = term(f"{name} at {percentile}", seconds, "s", formula, means[name], *inputs)
            yield one
            yield from interval(one.name, one, mean.band, *seen.ends(at, percentile))


def serving_memory_figure(
    model: Model, layout: ServingLayout, memory: ServingMemory, form: WeightFormat, kv_dtype: CacheFormat, row: Engine
) -> Figure:
    """The memory of the fullest GPU, item by item."""
    degrees = tuple(setting(n, int(getattr(layout, n))) for n in ("tp", "pp", "ep", "dp"))
    each = term(
        "cache bytes per token, all layers",
        number(kv_bytes_per_token(model, kv_dtype.elem_bytes)),
        "B",
        f"{COUNTED}: keys and values of every layer",
        setting("KV dtype", kv_dtype.name),
        source=model.source,
        note="the part that grows with the context; windows and state-space layers keep a fixed amount",
    )
    stored = fact("weight format", form.name, "", source=form.source, note=form.meaning)
    workspace = "activations and workspace"
    how: dict[str, tuple[str, tuple[Figure, ...]]] = {
        "weights": ("each tensor in the format, split over the ranks", (stored, *degrees)),
        "KV cache": ("sequences x context in whole blocks, on the fullest rank", (each, *degrees)),
        workspace: ("the widest tensors of one chunk of prefill, and logits", (_engine(row, "workspace"),)),
        GRAPHS: ("captured CUDA graphs", (_engine(row, "graphs"),)),
        CONTEXT: ("context and communicators", (_engine(row, "context"),)),
    }
    items = []
    for name, size in memory.items.items():
        if number(size):
            text, inputs = how.get(name, (name, ()))
            items.append(term(name, number(size), "B", f"memory model: {text}", *inputs))
    return total("memory per GPU", "B", items)


SETTINGS = {
    **{name: (name,) for name in ("tp", "pp", "ep", "dp", "engine", "acceptance")},
    "ranks": ("tp", "ep", "dp"), "input tokens": ("input_tokens",), "output tokens": ("output_tokens",),
    "memory fraction": ("memory_fraction",), "KV dtype": ("kv_dtype",), "proposals": ("draft_tokens",),
    "hits": ("prefix_hit",), "shared prefix": ("shared_prefix",), "GPUs": ("gpus",),
}  # fmt: skip
"""Options by the names of their figures."""
_COLUMNS = {
    "workspace": ("workspace_bytes", "B"),
    "graphs": ("graph_bytes", "B"),
    "context": ("context_bytes", "B"),
    "time per layer": ("layer_s", "s"),
    "time per layer of experts": ("experts_s", "s"),
    "time per layer of experts on Intel": ("intel_experts_s", "s"),
    "share of it on NVIDIA": ("cuda_experts_frac", ""),
    "time per layer of experts in groups": ("grouped_experts_s", "s"),
    "time per layer of a delta rule": ("delta_s", "s"),
    "time per step": ("step_s", "s"),
    "host time per request": ("request_s", "s"),
    "memory rule": ("memory_rule", ""),
    "largest batch": ("max_batch", ""),
}
"""Field and unit of what an engine's row says, by the name of its figure."""


def _engine(row: Engine, name: str) -> Figure:
    field, unit = _COLUMNS[name]
    source = f"data/engines.json, {row.name}: {row.source}"
    return fact(name, getattr(row, field), unit, source=source, note=row.meaning)


def _tokens_figure(job: ServeJob) -> Figure | None:
    """Tokens that one step brings a sequence; None without speculation."""
    how = job.techniques.speculation
    if how is None:
        return None
    proposed = setting("acceptance", how.acceptance), setting("proposals", how.tokens, "tokens")
    formula = "(1 - acceptance^(proposals + 1)) / (1 - acceptance)"
    source = "Leviathan et al. 2023 (arXiv:2211.17192) equation 1"
    return term("tokens per step", tokens_a_round(job), "tokens", formula, *proposed, source=source)


def _technique_figures(job: ServeJob) -> list[Figure]:
    """Further figures of techniques, beside the latencies."""
    how, tokens = job.techniques, _tokens_figure(job)
    figures = [] if tokens is None else [tokens]
    if cached := prefix_tokens(job):
        shared, hits = setting("shared prefix", how.shared_tokens, "tokens"), setting("hits", how.hit_frac)
        cause = shared if how.shared_tokens else hits
        formula = f"{COUNTED}: found in the prefix cache"
        figures.append(term("prompt tokens not computed", cached, "tokens", formula, cause))
    return figures


def _cold_start_figure(start: ColdStart) -> Figure:
    """The parts of a cold start, each with its source."""
    storage, engine = start.sources
    parts = [
        fact(name, seconds, "s", source=storage if name == "weights" and start.weights_bound == "storage" else engine)
        for name, seconds in start.parts
    ]
    return total("cold start", "s", parts, note=f"weights from {start.storage}, bound by the {start.weights_bound}")


def _lines(parts: tuple[tuple[str, float], ...]) -> list[Figure]:
    """The parts of a step by what its time goes to."""
    host = f"{COUNTED}, and the fixed times of kernels"
    counted = {"host": host, _CONVERSION: f"{COUNTED}: cached elements, converted for each query head on vector units"}
    return [term(name, seconds, "s", counted.get(name, KERNEL)) for name, seconds in parts]


def _step_figure(name: str, step: StepTime, note: str) -> Figure:
    """A step by what its time goes to."""
    return total(name, "s", _lines(step_lines(step)), note=note)


class _ServingTree:
    """The figures of one estimate; what several share is built once."""

    def __init__(self, estimate: ServeEstimate, *, of_loop: bool = False) -> None:
        """Over an estimate; `of_loop`: its means and rate are those of simulated users."""
        self.estimate, self.job, self.of_loop = estimate, estimate.job, of_loop
        self.row, self.machine = self.job.engine, runner(self.job)
        source = f"data/engines.json, {self.row.name}: {self.row.source}; data/calibration/serving.json"
        self.device = Device(self.job.cluster, self.machine.own_rates, source)
        self.output = setting("output tokens", self.job.output_tokens, "tokens")
        self.prompt = prompt(self.job.model, self.job.input_tokens)
        read = self.job.input_tokens if self.job.decodes else int(self.prompt.tokens)
        self.input = setting("input tokens", read, "tokens")
        self.gpus = setting("GPUs", estimate.num_gpus)
        self.step = self._mean_step()

    def _mean_step(self) -> Figure:
        """One step of the engine, with its average share of prefill."""
        mean = sum(seconds for _, seconds in self.estimate.breakdown)
        if self.job.decodes:
            steady = steady_state(self.job, self.machine, self.estimate.memory)[0]
            share = number(steady.prefill_share)
            first, second = number(steady.decode.seconds), number(steady.mixed.seconds)
            if abs(first + share * (second - first) - mean) <= _SAME * mean:
                decode = self._decode_step(steady)
                mixed = _step_figure(
                    "step with prefill", steady.mixed, "decoding and a chunk of prefill run in the same step"
                )
                counting = f"{COUNTED}: prompt tokens due / tokens of a chunk"
                part = term("share of steps with prefill", share, "", counting, self.input, self.output)
                formula = f"{decode.name} + {part.name} x ({mixed.name} - {decode.name})"
                return term("mean step", mean, "s", formula, decode, part, mixed)
        return total("mean step", "s", _lines(self.estimate.breakdown))

    def _decode_step(self, steady: Steady) -> Figure:
        """One step that decodes only, kernel by kernel."""
        job, stack, batch = self.job, self.job.model.stacks[0], number(steady.batch)
        context = self.prompt.own + job.output_tokens / 2
        load = StepLoad(decode_batch=steady.batch, decode_context=context, encoder=self.prompt.encoder)
        parts = []
        kinds = ((kind.name, kind.items, count, True) for kind, count in layer_kinds(stack))
        for name, items, count, inside in (("ends", (*stack.before, *stack.after), 1, False), *kinds):
            kernels = [
                self.device.kernel(
                    k.work, k.dtype, number(k.timing.seconds), weight_bits=k.weight_bits, kv_bytes=self.machine.kv_bytes
                )
                for k in self.machine.kernels_of(items, load, job.layout, inside=inside)
                if number(k.timing.seconds)
            ]
            kernels += self._conversions(self.machine.kernels_of(items, load, job.layout, inside=inside))
            one = total(f"one block {name}", "s", kernels)
            times = term(f"blocks {name}", count, "", f"{COUNTED}: layers of this kind")
            seconds = count * number(one.value)
            parts.append(term(f"all {name}", seconds, "s", f"{times.name} x {one.name}", times, one))
        parts += [self._messages(number(steady.decode.communication_s), batch), self._host()]
        whole, note = number(steady.decode.seconds), f"{batch:.4g} sequences, one token each"
        if abs(sum(number(p.value) for p in parts) - whole) > _SAME * whole:
            return _step_figure("decoding step", steady.decode, note)
        return total("decoding step", "s", parts, note=note)

    def _conversions(self, kernels: Iterable[TimedKernel]) -> Iterator[Figure]:
        """The time of converting the cache where its format is read in software."""
        for kernel in kernels:
            if seconds := number(kernel.conversion_s):
                peak, each = self.device.datasheet("peak fp32", "FLOP/s"), self.device.parameter("cache_convert_flops")
                read = term("elements read", number(kernel.work.causal_flops) / 2, "", f"{COUNTED}: by each query head")
                formula = f"{read.name} x {each.name} / {peak.name}"
                yield term(f"{kernel.work.name}, {_CONVERSION}", seconds, "s", formula, read, each, peak)

    def _messages(self, seconds: float, batch: float) -> Figure:
        ranks = int(self.job.layout.num_gpus)
        if ranks == 1:
            return term("communication", seconds, "s", "0 x ranks", setting("ranks", 1))
        nbytes = batch * self.job.model.stacks[0].width * 2.0
        kind = "an all-reduce after each row-parallel product, hops between stages, all-to-alls of experts"
        return self.device.message("communication", seconds, nbytes, ranks, kind)

    def _host(self) -> Figure:
        count, routed = self.job.model.stacks[0].num_layers, expert_layers(self.job.model.stacks[0])
        layer, step = _engine(self.row, "time per layer"), _engine(self.row, "time per step")
        value = self.row.layer_s * count
        inputs = [layer, term("layers", count, "", f"{COUNTED}: of the model")]
        formula = f"{layer.name} x layers"
        if routed:
            each = []
            if self.machine.engine_experts_s or not self.row.fused_experts:
                each.append(self._experts())
            if self.row.triton_experts:
                each.append(self.device.parameter("experts_s"))
            if on_intel(self.machine.rates) and self.row.intel_experts_s:
                each.append(_engine(self.row, "time per layer of experts on Intel"))
            value += sum(number(one.value) for one in each) * routed
            if each:
                formula += f" + ({' + '.join(one.name for one in each)}) x layers with experts"
                inputs += [*each, term("layers with experts", routed, "", f"{COUNTED}: of the model")]
        if self.row.grouped_experts_s and (grouped := grouped_layers(self.job.model.stacks[0])):
            one = _engine(self.row, "time per layer of experts in groups")
            value += self.row.grouped_experts_s * grouped
            formula += f" + {one.name} x layers with experts in groups"
            inputs += [one, term("layers with experts in groups", grouped, "", f"{COUNTED}: of the model")]
        if self.row.delta_s and (recurrent := delta_layers(self.job.model.stacks[0])):
            one = _engine(self.row, "time per layer of a delta rule")
            value += self.row.delta_s * recurrent
            formula += f" + {one.name} x layers with a delta rule"
            inputs += [one, term("layers with a delta rule", recurrent, "", f"{COUNTED}: of the model")]
        slowness = float(np.ravel(self.machine.rates.value["core_slowness"])[0])
        if self.row.local and slowness != 1:
            value, formula = value * slowness, f"({formula}) x slowness of a core"
            inputs.append(term("slowness of a core", slowness, "", f"{CLOCK_HZ / 1e9:g} GHz / boost clock"))
        value, formula = value + self.row.step_s, f"{formula} + {step.name}"
        for ratio in self._slower_host():
            value, formula = value * number(ratio.value), f"({formula}) x {ratio.name}"
        return term("host", value, "s", formula, *inputs, step, *self._slower_host())

    def _slower_host(self) -> tuple[Figure, ...]:
        """The ratio of the device's host's times to those that the engine's stand for; nothing where they are alike."""
        return () if self.job.cluster.rates.value[HOST_RATIO] == 1.0 else (self.device.parameter(HOST_RATIO),)

    def _experts(self) -> Figure:
        """The engine's own time per layer of experts: on a GPU of NVIDIA what its fused kernels leave of it."""
        whole = _engine(self.row, "time per layer of experts")
        if self.machine.engine_experts_s == self.row.experts_s or not self.row.experts_s:
            return whole
        share = _engine(self.row, "share of it on NVIDIA")
        seconds = self.machine.engine_experts_s
        return term("time per layer of experts on NVIDIA", seconds, "s", f"{whole.name} x {share.name}", whole, share)

    def timing(self) -> list[Figure]:
        """TTFT, TPOT, the whole request and throughput."""
        estimate, step = self.estimate, self.step
        first, each = estimate.ttft_s, estimate.tpot_s
        request = _engine(self.row, "host time per request")
        formula = "queue model: request handling, waiting, and the chunks of the prompt"
        formula = f"{_PLAYED}; their mean" if self.of_loop else formula
        ttft = term("TTFT", first.value, "s", formula, request, *self._slower_host(), step, self.input)
        figures = [ttft, *interval("TTFT", ttft, first.band, first.low, first.high)]
        if each is None:
            return [*figures, *self._throughput(ttft, None)]
        seconds, tokens = number(step.value), _tokens_figure(self.job)
        if tokens is not None and abs(seconds / number(tokens.value) / each.value - 1) <= _SAME:
            tpot = term("TPOT", each.value, "s", f"{step.name} / {tokens.name}", step, tokens)
        else:
            same = abs(seconds - each.value) <= _SAME * each.value
            formula = step.name if same else "queue model: the mean step over the sizes that the batch takes"
            formula = f"{_PLAYED}; their mean" if self.of_loop else formula
            tpot = term("TPOT", each.value, "s", formula, step)
        formula = "TTFT + (output tokens - 1) x TPOT"
        whole = term("whole request", estimate.e2e_s, "s", formula, ttft, self.output, tpot)
        ends = interval("TPOT", tpot, each.band, each.low, each.high)
        wholes = [
            term(f"{whole.name}, {word}", value, "s", f"TTFT, {word} + (output tokens - 1) x TPOT, {word}", first_end,
                 self.output, each_end)
            for word, value, first_end, each_end in zip(
                ("low", "high"), (estimate.e2e_low, estimate.e2e_high), figures[1:], ends, strict=True
            )
        ]  # fmt: skip
        return [*figures, tpot, *ends, whole, *wholes, *self._throughput(ttft, tpot)]

    def _throughput(self, ttft: Figure, tpot: Figure | None) -> list[Figure]:
        estimate, inputs = self.estimate, (ttft,) if tpot is None else (ttft, tpot, self.output)
        source = "arrivals" if self.job.arrivals_per_s is not None else "in flight / time of a request"
        formula = f"queue model: {source}, or the throughput of the full batch"
        formula = f"{_PLAYED} / time from the first one to the last answer" if self.of_loop else formula
        rate = term("requests per second", estimate.requests_per_s, "1/s", formula, *inputs)
        self.rate, self.tokens = rate, rate
        name, unit, ranged = rate.name, rate.unit, estimate.throughput
        if estimate.output_tokens_per_s is not None:
            name, unit, ranged = "throughput", "tokens/s", estimate.output_tokens_per_s
            formula = f"{rate.name} x {self.output.name}"
            self.tokens = term(name, ranged.value, unit, formula, rate, self.output)
        each = term(f"{name} per GPU", ranged.value / estimate.num_gpus, unit, f"{name} / GPUs", self.tokens, self.gpus)
        return [self.tokens, each, *interval(name, self.tokens, ranged.band, ranged.low, ranged.high)]

    def bounds(self) -> list[Figure]:
        """A step at datasheet rates, and what the cache allows."""
        estimate = self.estimate
        peak = self.device.datasheet(f"peak {self.machine.dtype}", "FLOP/s")
        bandwidth = self.device.datasheet("hbm_bytes_per_s", "B/s")
        formula = f"{COUNTED}: the longer of FLOP at peak and bytes at full bandwidth"
        lower = term("lower bound of a step", estimate.lower_bound_s, "s", formula, peak, bandwidth)
        rate = f"{COUNTED}: FLOP of a step with its average share of prefill / ({self.step.name} x {peak.name})"
        mfu = term("MFU", estimate.mfu_frac, "frac", rate, self.step, peak)
        used = term(
            "share of datasheet rates", estimate.lower_bound_s / number(self.step.value), "frac",
            f"{lower.name} / {self.step.name}", lower, self.step,
        )  # fmt: skip
        return [lower, used, mfu, *self.room()]

    def room(self) -> list[Figure]:
        """The requests and tokens that the cache allows."""
        estimate, memory = self.estimate, "memory model: "
        budget = term(
            "cache budget per GPU",
            number(estimate.memory.kv_budget_bytes),
            "B",
            f"{memory}memory that the engine's rule leaves after weights and workspace",
            _engine(self.row, "memory rule"),
            setting("memory fraction", self.job.memory_frac or self.row.memory_frac),
            self.device.datasheet("hbm_bytes", "B"),
        )
        growing = f"{memory}sequences in the budget while answers grow, at most the largest batch"
        whole = f"{memory}sequences in the budget with prompt and answer cached, at most the largest batch"
        tokens, largest = f"{memory}tokens in the cache budget", "largest batch"
        return [
            term("maximum concurrency", estimate.max_concurrency, "", growing, budget, _engine(self.row, largest)),
            term("whole contexts", estimate.max_whole_contexts, "", whole, budget, _engine(self.row, largest)),
            term("cache capacity", estimate.kv_capacity_tokens, "tokens", tokens, budget),
        ]

    def bill(self) -> list[Figure]:
        """Cost and energy of tokens."""
        estimate = self.estimate
        figures = [one for hourly in self.hourly() for one in self._token_prices(hourly)]
        if estimate.joules_per_output_token is not None:
            figures.append(self._energy("energy per output token", estimate.joules_per_output_token))
        elif estimate.joules_per_request is not None:
            figures.append(self._energy("energy per request", estimate.joules_per_request))
        return figures

    def hourly(self) -> Iterator[Figure]:
        """The bill of an hour, where a price is known."""
        each, usd = price(self.job.cluster), self.estimate.usd_per_hour
        if each is not None and usd is not None:
            paid = self.gpus if self.job.paid_gpus is None else setting("GPUs that are paid for", self.job.paid_gpus)
            yield term("cost per hour", usd, "USD/h", f"{each.name} x {paid.name}", each, paid)

    def _token_prices(self, hourly: Figure) -> list[Figure]:
        """The bill over input and output tokens, by the time that each takes."""
        estimate, rate = self.estimate, self.rate
        formula = "queue model: steps with prefill"
        share = term("share of time on prompts", estimate.prefill_frac, "", formula, self.step)
        read = estimate.requests_per_s * number(self.input.value)
        formula = f"{rate.name} x {self.input.name}"
        inputs = term("input tokens per second", read, "tokens/s", formula, rate, self.input)
        prices = []
        for usd, name, part, tokens in (
            (estimate.usd_per_million_output_tokens, "output", f"(1 - {share.name})", self.tokens),
            (estimate.usd_per_million_input_tokens, "input", share.name, inputs),
        ):
            if usd is None:
                continue
            formula = f"{hourly.name} x {part} / ({tokens.name} x {HOUR_S:g}) x 1e6"
            frac = 1 - estimate.prefill_frac if name == "output" else estimate.prefill_frac
            times = usd / (number(hourly.value) * frac / (number(tokens.value) * HOUR_S) * 1e6)
            given = [] if abs(times - 1) < _SAME else [term("whole bill over computed tokens", times, "", _GIVEN_OUT)]
            formula += "".join(f" x {one.name}" for one in given)
            prices.append(term(f"cost per million {name} tokens", usd, "USD", formula, hourly, share, tokens, *given))
        return prices

    def _energy(self, name: str, joules: float) -> Figure:
        assert self.estimate.watts is not None
        draw, host, limit, pue = self.device.power(number(self.estimate.watts))
        formula = f"GPUs x ({draw.name} + {host.name} x {limit.name}) x {pue.name} / {self.tokens.name}"
        return term(name, joules, "J", formula, self.gpus, draw, host, limit, pue, self.tokens)
