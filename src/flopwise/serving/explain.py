"""Where the figures of a serving estimate come from, as one tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.energy import device_watts
from flopwise.facts.formats import CacheFormat, WeightFormat
from flopwise.facts.software import CONTEXT, GRAPHS, Engine
from flopwise.ops.cache import kv_bytes_per_token
from flopwise.origin import (
    COUNTED,
    Device,
    estimate_of,
    interval,
    number,
    price,
    total,
)
from flopwise.provenance import Figure, derived, fact, given
from flopwise.serving.estimate import steady_state
from flopwise.serving.explain_techniques import technique_figures, tokens_figure
from flopwise.serving.iteration import Runner, StepLoad, StepTime, prompt
from flopwise.serving.job import ServeEstimate
from flopwise.serving.memory import generates
from flopwise.serving.steady import Steady
from flopwise.serving.techniques import runner
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.serving.memory import ServingLayout, ServingMemory

_LINES = ("compute", "memory bandwidth", "communication", "host")
_HOST = f"{COUNTED}, and the fixed times of kernels"
_SAME = 1e-6
"""Relative difference up to which two ways to a figure agree."""


def serve_figure(found: ServeEstimate, *more: Figure) -> Figure:
    """The tree of an estimate: latencies and throughput with their intervals, memory, cost and energy, and `more`."""
    tree = _Tree(found)
    name = f"{found.job.model.name} on {found.num_gpus} x {found.job.cluster.accelerator.name}"
    job = found.job
    memory = serving_memory_figure(job.model, job.layout, found.memory, job.weights, job.kv_dtype, job.engine)
    return estimate_of(name, [*tree.timing(), *technique_figures(job), *tree.bounds(), memory, *tree.paid(), *more])


def serving_memory_figure(
    model: Model,
    layout: ServingLayout,
    held: ServingMemory,
    form: WeightFormat,
    kv_dtype: CacheFormat,
    row: Engine,
) -> Figure:
    """The memory of the fullest GPU, item by item."""
    degrees = tuple(given(n, int(getattr(layout, n))) for n in ("tp", "pp", "ep", "dp"))
    each = derived(
        "cache bytes a token, all layers",
        number(kv_bytes_per_token(model, kv_dtype.elem_bytes)),
        "B",
        f"{COUNTED}: keys and values of every layer",
        given("KV dtype", kv_dtype.name),
        source=model.source,
        note="the growing part: windows and state-space layers keep a fixed amount",
    )
    stored = fact("weight format", form.name, "", source=form.source, note=form.meaning)
    held_by: dict[str, tuple[str, tuple[Figure, ...]]] = {
        "weights": ("tensor by tensor in the format, cut over the ranks", (stored, *degrees)),
        "KV cache": ("sequences x context in whole blocks, on the fullest rank", (each, *degrees)),
        "activations and workspace": (
            "the widest tensors of one chunk of prefill, and logits",
            (_engine(row, "workspace", row.workspace_bytes),),
        ),
        GRAPHS: ("what captured graphs take", (_engine(row, "graphs", row.graph_bytes),)),
        CONTEXT: ("context and communicators", (_engine(row, "context", row.context_bytes),)),
    }
    items = []
    for name, size in held.items.items():
        if not number(size):
            continue
        said, leaves = held_by.get(name, (name, ()))
        items.append(derived(name, number(size), "B", f"memory model: {said}", *leaves))
    return total("memory per GPU", "B", items)


def _engine(row: Engine, name: str, value: float | str, unit: str = "B") -> Figure:
    return fact(name, value, unit, source=f"data/engines.json, {row.name}: {row.source}", note=row.meaning)


class _Tree:
    """The figures of one estimate; what several share is built once."""

    def __init__(self, found: ServeEstimate) -> None:
        self.found, self.job = found, found.job
        self.device, self.row = Device(self.job.cluster), self.job.engine
        self.machine: Runner = runner(self.job)
        self.output = given("output tokens", self.job.output_tokens, "tokens")
        asked = prompt(self.job.model, self.job.input_tokens)
        read = self.job.input_tokens if self.job.decodes else int(asked.tokens)
        self.input = given("input tokens", read, "tokens")
        self.step = self._step()

    def _steady(self) -> Steady:
        """The replica in the state that the estimate describes."""
        return steady_state(self.job, self.machine, self.found.memory)[0]

    def _step(self) -> Figure:
        """One step of the engine, with its average share of prefill."""
        lines = [derived(n, s, "s", "kernel model" if n != "host" else _HOST) for n, s in self.found.breakdown]
        mean = sum(s for _, s in self.found.breakdown)
        if generates(self.job.model):
            steady = self._steady()
            share = number(steady.prefill_share)
            both = number(steady.decode.seconds), number(steady.mixed.seconds)
            if abs(both[0] + share * (both[1] - both[0]) - mean) <= _SAME * mean:
                return self._mixture(mean, share, steady)
        return total("mean step", "s", lines)

    def _mixture(self, mean: float, share: float, steady: Steady) -> Figure:
        decode = self._decode(steady)
        mixed = _parts("step with prefill", steady.mixed, "decoding and a chunk of prefill go through together")
        part = derived(
            "share of steps with prefill",
            share,
            "",
            f"{COUNTED}: prompt tokens due / tokens of a chunk",
            self.input,
            self.output,
        )
        formula = f"{decode.name} + {part.name} x ({mixed.name} - {decode.name})"
        return derived("mean step", mean, "s", formula, decode, part, mixed)

    def _decode(self, steady: Steady) -> Figure:
        """One step that decodes only, kernel by kernel."""
        job, stack = self.job, self.job.model.stacks[0]
        asked = prompt(job.model, job.input_tokens)
        load = StepLoad(
            decode_batch=steady.batch, decode_context=asked.own + job.output_tokens / 2, encoder=asked.encoder
        )
        parts = []
        ends = (("ends", (*stack.before, *stack.after), 1, False),)
        counts = np.bincount(np.asarray(stack.order, dtype=np.intp), minlength=len(stack.kinds)).tolist()
        kinds = ((k.name, k.items, c, True) for k, c in zip(stack.kinds, counts, strict=True))
        for name, items, count, inside in (*ends, *kinds):
            kernels = [
                self.device.kernel(
                    k.work, k.dtype, number(k.timing.seconds), weight_bits=k.weight_bits, kv_bytes=self.machine.kv_bytes
                )
                for k in self.machine.kernels_of(items, load, job.layout, inside=inside)
                if number(k.timing.seconds)
            ]
            one = total(f"one block {name}", "s", kernels)
            times = derived(f"blocks {name}", count, "", f"{COUNTED}: layers of this kind")
            parts.append(
                derived(f"all {name}", count * number(one.value), "s", f"{times.name} x {one.name}", times, one)
            )
        parts += [self._messages(number(steady.decode.communication_s), number(steady.batch)), self._host()]
        whole = number(steady.decode.seconds)
        if abs(sum(number(p.value) for p in parts) - whole) > _SAME * whole:
            return _parts("decoding step", steady.decode, f"{number(steady.batch):.4g} sequences, one token each")
        return total("decoding step", "s", parts, note=f"{number(steady.batch):.4g} sequences, one token each")

    def _messages(self, seconds: float, batch: float) -> Figure:
        job = self.job
        ranks = int(job.layout.num_gpus)
        if ranks == 1:
            return derived("communication", seconds, "s", "0 x ranks", given("ranks", 1))
        nbytes = batch * job.model.stacks[0].width * 2.0
        kind = "an all-reduce behind each row-parallel product, hops between stages, all-to-alls of experts"
        return self.device.message("communication", seconds, nbytes, ranks, kind)

    def _host(self) -> Figure:
        layers = given("layers", self.job.model.stacks[0].num_layers)
        layer, step = (
            _engine(self.row, "time a layer", self.row.layer_s, "s"),
            _engine(self.row, "time a step", self.row.step_s, "s"),
        )
        value = self.row.layer_s * self.job.model.stacks[0].num_layers + self.row.step_s
        return derived("host", value, "s", "time a layer x layers + time a step", layer, layers, step)

    def timing(self) -> list[Figure]:
        """TTFT, TPOT, the whole request and throughput."""
        found = self.found
        request = _engine(self.row, "host time of a request", self.row.request_s, "s")
        ttft = derived(
            "TTFT",
            found.ttft_s.value,
            "s",
            "queue model: handling, the prompt's chunks, what is ahead",
            request,
            self.step,
            self.input,
        )
        figures = [ttft, *interval("TTFT", ttft, found.ttft_s.band, found.ttft_s.low, found.ttft_s.high)]
        if found.tpot_s is None:
            return [*figures, *self._throughput(ttft, None)]
        same = abs(number(self.step.value) - found.tpot_s.value) <= _SAME * found.tpot_s.value
        tokens = tokens_figure(self.job)
        if tokens is not None and abs(number(self.step.value) / number(tokens.value) / found.tpot_s.value - 1) <= _SAME:
            return [*figures, *self._speculative_figures(tokens, ttft)]
        formula = self.step.name if same else "queue model: the mean step of a batch that comes and goes"
        tpot = derived("TPOT", found.tpot_s.value, "s", formula, self.step)
        whole = derived("whole request", found.e2e_s, "s", "TTFT + (output tokens - 1) x TPOT", ttft, self.output, tpot)
        figures += [tpot, *interval("TPOT", tpot, found.tpot_s.band, found.tpot_s.low, found.tpot_s.high), whole]
        return [*figures, *self._throughput(ttft, tpot)]

    def _speculative_figures(self, tokens: Figure, ttft: Figure) -> list[Figure]:
        """TPOT, the whole request and throughput where a step makes several tokens."""
        found = self.found
        assert found.tpot_s is not None
        tpot = derived("TPOT", found.tpot_s.value, "s", f"{self.step.name} / {tokens.name}", self.step, tokens)
        whole = derived("whole request", found.e2e_s, "s", "TTFT + (output tokens - 1) x TPOT", ttft, self.output, tpot)
        range_of = interval("TPOT", tpot, found.tpot_s.band, found.tpot_s.low, found.tpot_s.high)
        return [tpot, *range_of, whole, *self._throughput(ttft, tpot)]

    def _throughput(self, ttft: Figure, tpot: Figure | None) -> list[Figure]:
        found = self.found
        held = (ttft,) if tpot is None else (ttft, tpot, self.output)
        said = "arrivals" if self.job.arrivals_per_s is not None else "in flight / time of a request"
        rate = derived(
            "requests per second",
            found.requests_per_s,
            "1/s",
            f"queue model: {said}, or what the batch sustains",
            *held,
        )
        gpus = given("GPUs", found.num_gpus)
        self.rate, self.tokens, self.gpus = rate, rate, gpus
        name, unit, ranged = "requests per second", "1/s", found.throughput
        if found.output_tokens_per_s is not None:
            name, unit, ranged = "throughput", "tokens/s", found.output_tokens_per_s
            formula = f"{rate.name} x {self.output.name}"
            self.tokens = derived(name, ranged.value, unit, formula, rate, self.output)
        each = derived(f"{name} per GPU", ranged.value / found.num_gpus, unit, f"{name} / GPUs", self.tokens, gpus)
        return [self.tokens, each, *interval(name, self.tokens, ranged.band, ranged.low, ranged.high)]

    def bounds(self) -> list[Figure]:
        """A step at datasheet rates, and what the cache allows."""
        found = self.found
        peak = self.device.datasheet(f"peak {self.machine.dtype}", "FLOP/s")
        bandwidth = self.device.datasheet("hbm_bytes_per_s", "B/s")
        lower = derived(
            "lower bound of a step",
            found.lower_bound_s,
            "s",
            f"{COUNTED}: the longer of FLOP at peak and bytes at full bandwidth",
            peak,
            bandwidth,
        )
        budget = derived(
            "cache budget of a GPU",
            number(found.memory.kv_budget_bytes),
            "B",
            "memory model: what the engine's rule leaves after weights and workspace",
            _engine(self.row, "memory rule", self.row.memory_rule, ""),
            given("memory fraction", self.job.memory_frac or self.row.memory_frac),
            self.device.datasheet("hbm_bytes", "B"),
        )
        most = derived(
            "maximum concurrency",
            found.max_concurrency,
            "",
            "memory model: sequences in the budget while answers grow, at most a batch",
            budget,
            _engine(self.row, "largest batch", self.row.max_batch, ""),
        )
        whole = derived(
            "whole contexts",
            found.max_whole_contexts,
            "",
            "memory model: sequences in the budget with prompt and answer cached, at most a batch",
            budget,
            _engine(self.row, "largest batch", self.row.max_batch, ""),
        )
        cache = derived(
            "cache capacity", found.kv_capacity_tokens, "tokens", "memory model: tokens in the cache budget", budget
        )
        return [lower, most, whole, cache]

    def paid(self) -> list[Figure]:
        """Cost and energy of tokens."""
        found, figures = self.found, []
        paid = price(self.job.cluster)
        if paid is not None and found.usd_per_hour is not None:
            hourly = derived("cost per hour", found.usd_per_hour, "USD/h", f"{paid.name} x GPUs", paid, self.gpus)
            figures += self._token_prices(hourly)
        if found.joules_per_output_token is not None:
            figures.append(self._energy("energy per output token", found.joules_per_output_token))
        elif found.joules_per_request is not None:
            figures.append(self._energy("energy per request", found.joules_per_request))
        return figures

    def _token_prices(self, hourly: Figure) -> list[Figure]:
        """The bill over input and output tokens, by the time that each takes."""
        found, shares = self.found, []
        on_prompts = derived(
            "share of time on prompts", found.prefill_frac, "", "queue model: steps with prefill", self.step
        )
        tokens = derived(
            "input tokens per second",
            found.requests_per_s * self._input_tokens(),
            "tokens/s",
            f"{self.rate.name} x {self.input.name}",
            self.rate,
            self.input,
        )
        for value, name, share, per_s in (
            (found.usd_per_million_output_tokens, "output", f"(1 - {on_prompts.name})", self.tokens),
            (found.usd_per_million_input_tokens, "input", on_prompts.name, tokens),
        ):
            if value is not None:
                formula = f"{hourly.name} x {share} / ({per_s.name} x {HOUR_S:g}) x 1e6"
                shares.append(
                    derived(f"cost per million {name} tokens", value, "USD", formula, hourly, on_prompts, per_s)
                )
        return shares

    def _input_tokens(self) -> float:
        """Input tokens of a request."""
        return number(self.input.value)

    def _energy(self, name: str, joules: float) -> Figure:
        whole = sum(s for _, s in self.found.breakdown)
        compute, memory, messages = (s / whole for _, s in self.found.breakdown[:3])
        limit_w = number(self.device.datasheet("tdp_w", "W").value)
        draw, host, limit, pue = self.device.power(number(device_watts(limit_w, compute, memory, messages)))
        formula = f"GPUs x ({draw.name} + {host.name} x {limit.name}) x {pue.name} / {self.tokens.name}"
        return derived(name, joules, "J", formula, self.gpus, draw, host, limit, pue, self.tokens)


def _parts(name: str, step: StepTime, note: str) -> Figure:
    """A step by what its time goes to."""
    values = (step.compute_s, step.memory_s, step.communication_s, step.overhead_s)
    lines = [
        derived(n, number(v), "s", "kernel model" if n != "host" else _HOST)
        for n, v in zip(_LINES, values, strict=True)
    ]
    return total(name, "s", lines, note=note)
