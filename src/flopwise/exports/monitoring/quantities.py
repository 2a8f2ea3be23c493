"""Recorded quantities of a workload: utilisation, memory, power, rates, latencies, MFU, cost and energy, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flopwise.exports.monitoring.signals import (
    EVAL_MINUTES,
    PERCENTILES,
    Series,
    Signal,
    constant_series,
    counter_series,
    number_text,
    selector,
    times,
)
from flopwise.exports.monitoring.watched import WatchedWorkload
from flopwise.values import replace

LATENCIES = {"ttft": "time_to_first_token_seconds", "tpot": "time_per_token_seconds", "latency": "latency_seconds"}
"""Name of the recorded series of each latency."""


def record_of(name: str, workload: str, **labels: str) -> str:
    """A recorded quantity of a workload."""
    return selector(f"flopwise:{name}", {"workload": workload, **labels})


def quantities(watched: WatchedWorkload) -> dict[str, Signal]:
    """All quantities that the workload's exporters measure, by the name of the recorded series."""
    signals: dict[str, Signal | None] = dict(_machines(watched))
    signals |= dict(_traffic(watched))
    signals |= dict(_ratios(watched, {name for name, signal in signals.items() if signal is not None}))
    return {name: signal for name, signal in signals.items() if signal is not None}


def latencies(watched: WatchedWorkload) -> Iterator[tuple[str, str, Signal]]:
    """(name, percentile, signal) of latencies with a histogram of the engine."""
    for name, record in LATENCIES.items():
        for percentile in PERCENTILES:
            signal = watched.meters.quantile(name, percentile)
            if signal is not None:
                yield record, percentile, signal


def _machines(watched: WatchedWorkload) -> Iterator[tuple[str, Signal | None]]:
    meters = watched.meters
    idle, name = meters.record("idle"), watched.name
    if idle is not None:
        share = f"1 - avg by (workload) (rate({meters.select(idle)}[5m]))"
        yield (
            "device_busy_ratio",
            Signal(expr=share, labels={}, series=lambda v: {meters.sample(idle, cpu="0"): counter_series(1 - v)}),
        )
    else:
        yield "device_busy_ratio", meters.gauge("busy")
    yield "memory_ratio", _memory(watched)
    yield "temperature_celsius", meters.gauge("temperature", "max")
    energy = meters.rate("energy")
    yield "power_watts", meters.gauge("power", "sum") or energy
    yield "devices", _device_count(watched)
    count = record_of("devices", name)
    each = watched.usd_per_hour / (watched.num_gpus if _by_device(watched) else watched.num_machines)
    cost = f"{count} * {number_text(each)}"
    if watched.steady_usd_per_hour:
        cost += f" + {number_text(watched.steady_usd_per_hour)}"
    yield (
        "cost_usd_per_hour",
        Signal(expr=cost, labels={}, series=lambda v: {record_of("cost_usd_per_hour", name): constant_series(v)}),
    )
    yield "cost_usd_per_day", spend_signal(name, 24.0)


def _by_device(watched: WatchedWorkload) -> bool:
    device = watched.meters.device
    return device is not None and bool(device.device)


def _device_count(watched: WatchedWorkload) -> Signal:
    """Number of reporting devices, or of machines if their devices are not reported separately."""
    meters, name = watched.meters, watched.name
    record = meters.record("busy") or meters.record("memory_free")
    if record is None:
        return Signal(
            expr=f"count by (workload) ({selector('up', {'workload': name})} == 1)", labels={},
            series=lambda _: {selector("up", {"workload": name, "instance": "machine-1"}): constant_series(1)},
        )  # fmt: skip
    inside = meters.select(record)
    expr = inside if _by_device(watched) else f"count by (workload, instance) ({inside})"
    return Signal(
        expr=f"count by (workload) ({expr})", labels={}, series=lambda _: {meters.sample(record): constant_series(1)}
    )


def _memory(watched: WatchedWorkload) -> Signal | None:
    """Memory usage of the fullest device; of the machine if there is no device."""
    meters = watched.meters
    used, free, total = (meters.record(f"memory_{part}") for part in ("used", "free", "total"))
    whole = watched.capacity_bytes
    if used is not None and free is not None:
        one, other = meters.select(used), meters.select(free)
        return Signal(
            expr=f"max by (workload) ({one} / ({one} + {other}))", labels={},
            series=lambda v: {
                meters.sample(used): constant_series(v * whole / used.scale),
                meters.sample(free): constant_series((1 - v) * whole / free.scale),
            },
        )  # fmt: skip
    if total is not None and free is not None:
        return Signal(
            expr=f"1 - min by (workload) ({meters.select(free)} / {meters.select(total)})", labels={},
            series=lambda v: {
                meters.sample(total): constant_series(whole), meters.sample(free): constant_series((1 - v) * whole),
            },
        )  # fmt: skip
    return None


def spend_signal(workload: str, hours: float) -> Signal:
    """Cost of a workload over the last hours in USD, as a sum over evaluation steps."""
    minutes, series = max(1, round(60 * hours)), record_of("cost_usd_per_hour", workload)
    step = 1 if minutes <= 2 * 1440 else 10
    span = f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"
    points = min(EVAL_MINUTES, minutes) // step + 1
    return Signal(
        expr=f"sum_over_time({series}[{span}:{step}m]) * {number_text(step / 60)}", labels={},
        series=lambda v: {series: constant_series(v * 60 / step / points)},
    )  # fmt: skip


def _traffic(watched: WatchedWorkload) -> Iterator[tuple[str, Signal | None]]:
    """Requests and tokens of an engine, or of a run."""
    meters, name = watched.meters, watched.name
    inputs, outputs = meters.rate("input_tokens"), meters.rate("output_tokens")
    if watched.trains:
        yield "tokens_per_second", inputs
        age = meters.gauge("checkpoint_time", "max")
        if age is not None:
            yield (
                "checkpoint_age_seconds",
                replace(age, expr=f"time() - {age.expr}", series=lambda v: age.series(60 * EVAL_MINUTES - v)),
            )
        return
    if inputs is not None and outputs is not None and not _answers_at_once(watched):
        yield "output_tokens_per_second", outputs
        yield "tokens_per_second", replace(
            outputs, expr=f"{inputs.expr} + {outputs.expr}",
            series=lambda v: {**inputs.series(v / 2), **outputs.series(v / 2)},
        )  # fmt: skip
    else:
        yield "tokens_per_second", inputs
    requests = meters.rate("requests")
    length = watched.deployment.workload.output_tokens if watched.deployment else 0
    if requests is None and outputs is not None and length:
        requests = replace(
            outputs, expr=times(outputs.expr, 1 / length), series=lambda v: outputs.series(v * length)
        )  # fmt: skip
    yield "requests_per_second", requests
    yield "requests_waiting", meters.gauge("waiting", "sum")
    yield "requests_running", meters.gauge("running", "sum")
    yield "cache_ratio", meters.gauge("cache", "max")
    capacity = watched.value("requests_per_s")
    if requests is not None and capacity:
        yield "load_ratio", Signal(
            expr=f"{record_of('requests_per_second', name)} / {number_text(capacity)}", labels={},
            series=lambda v: requests.series(v * capacity),
        )  # fmt: skip


def _answers_at_once(watched: WatchedWorkload) -> bool:
    return watched.deployment is not None and watched.deployment.candidate.figures.get("output_tokens_per_s") is None


def _ratios(watched: WatchedWorkload, measured: set[str]) -> Iterator[tuple[str, Signal | None]]:
    """MFU, cost and energy per token, and goodput, from recorded series."""
    meters, name = watched.meters, watched.name
    tensor = meters.record("tensor_active")
    if tensor is not None:
        clock, boost = meters.gauge("clock"), watched.accelerator.boost_clock_hz
        expr = f"avg by (workload) (avg_over_time({meters.select(tensor)}[5m]))"
        if clock is not None and boost:
            expr = f"{expr} * ({clock.expr}) / {number_text(boost)}"
        yield "tensor_ratio", Signal(expr=expr, labels={}, series=_tensor_series(watched))
    if "tokens_per_second" not in measured:
        return
    rate = record_of("tokens_per_second", name)
    flops = flops_text(watched)
    if flops is not None:
        yield "mfu_ratio", Signal(expr=flops[0], labels={}, series=_mfu_series(watched, flops[1]))
    cost = record_of("cost_usd_per_hour", name)
    yield "cost_usd_per_1k_tokens", Signal(expr=f"{cost} / {rate} / 3.6", labels={}, series=_none)
    if "power_watts" in measured:
        power = record_of("power_watts", name)
        yield "energy_joules_per_token", Signal(expr=f"{power} / {rate}", labels={}, series=_none)
    goodput = _goodput(watched)
    if goodput:
        yield "goodput_ratio", Signal(expr=goodput, labels={}, series=_none)


def _none(_: float) -> Series:
    return {}


def _tensor_series(watched: WatchedWorkload) -> Callable[[float], Series]:
    meters, boost = watched.meters, watched.accelerator.boost_clock_hz

    def series(value: float) -> Series:
        tensor, clock = meters.gauge("tensor_active"), meters.gauge("clock")
        made = dict(tensor.series(value)) if tensor is not None else {}
        return made | (dict(clock.series(boost)) if clock is not None and boost else {})

    return series


def _mfu_series(watched: WatchedWorkload, per_unit: float) -> Callable[[float], Series]:
    tokens = watched.meters.rate("input_tokens")

    return _none if tokens is None else lambda value: tokens.series(value / per_unit)


def flops_text(watched: WatchedWorkload) -> tuple[str, float] | None:
    """(MFU as an expression, MFU at one token/s) from the model's FLOP per token; None for machines without a model.

    Training: the plan's MFU divided by its tokens/s, which is FLOP per token over the devices' peak. Serving: FLOP of
    the causal forward pass of a prompt per prompt token, and FLOP that the answer adds per output token.

    Source: Chowdhery et al. 2022 (arXiv:2204.02311) appendix B. Assumes: prompts and answers of the mean lengths.
    """
    name, deployment = watched.name, watched.deployment
    if deployment is None:
        return None
    if deployment.training is not None:
        estimate = watched.estimate
        assert estimate is not None
        each = estimate.mfu_frac / estimate.tokens_per_s
        return times(record_of("tokens_per_second", name), each), each
    from flopwise.ops.flops import causal_forward_flops  # noqa: PLC0415 - serving alone
    from flopwise.serving.precision import product_path  # noqa: PLC0415 - same

    job, workload, model = deployment.serve_job, deployment.workload, deployment.model
    rates = job.cluster.rates
    peak = rates.peak_flops_per_s(product_path(model, job.weights, rates).dtype)
    available = peak * sum(servers.replicas * servers.gpus_per_replica for servers in deployment.pools)
    inputs, outputs = workload.input_tokens, workload.output_tokens
    prompt = float(causal_forward_flops(model, 1, inputs))
    of_input = prompt / inputs / available
    total, answered = record_of("tokens_per_second", name), record_of("output_tokens_per_second", name)
    if _answers_at_once(watched) or watched.meters.record("output_tokens") is None:
        return times(total, of_input), of_input
    of_output = (float(causal_forward_flops(model, 1, inputs + outputs)) - prompt) / outputs / available
    return f"({total} - {answered}) * {number_text(of_input)} + {times(answered, of_output)}", of_input


def _goodput(watched: WatchedWorkload) -> str:
    """Goodput of a run: rate of an hour over the best of a day; of a service: requests within the latency target."""
    meters, name = watched.meters, watched.name
    if watched.trains:
        record = meters.record("input_tokens")
        assert record is not None
        best = f"max_over_time({record_of('tokens_per_second', name)}[1d])"
        return f"sum by (workload) (rate({meters.select(record)}[1h])) / {best}"
    workload = None if watched.deployment is None else watched.deployment.workload
    if workload is None or watched.ends:
        return ""
    meaning, target = ("latency", workload.latency) if workload.latency else ("ttft", workload.ttft)
    record = meters.record(meaning)
    if target is None or record is None or not record.bounds or meters.asks_in_turn:
        return ""  # no server sees the whole of what two take in turn
    end = next((end for end in record.bounds if end >= target.seconds * (1 - 1e-9)), None)
    if end is None:
        return ""
    within = meters.select(record, "_bucket")[:-1] + f',le=~"{_bound_pattern(end)}"}}'
    done = meters.select(record, "_count")
    return f"sum by (workload) (rate({within}[5m])) / sum by (workload) (rate({done}[5m]))"


def _bound_pattern(end: float) -> str:
    """A pattern for the end of a bucket, which exporters write as 1 or 1.0."""
    return f"{int(end)}([.]0)?" if end == int(end) else f"{end}"
