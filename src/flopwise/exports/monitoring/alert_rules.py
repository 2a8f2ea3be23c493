"""Alert rules of a workload: thresholds above the plan's own values, explanations and actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.exports.monitoring.quantities import LATENCIES, latencies, quantities, record_of, spend_signal
from flopwise.exports.monitoring.signals import PERCENTILES, Series, Signal, constant_series, number_text, selector
from flopwise.exports.monitoring.watched import WatchedWorkload
from flopwise.facts.device_limits import (
    BUSY,
    BUSY_FOR_S,
    HARDWARE_XIDS,
    MEMORY,
    MEMORY_FOR_S,
    POWER_FOR_S,
    POWER_LIMIT,
    THROTTLE_BITS,
    THROTTLE_FOR_S,
)  # fmt: skip
from flopwise.fleet.assessment import Alert
from flopwise.units import HOURS_PER_MONTH, format_percent, format_seconds, format_usd
from flopwise.values import dataclass, replace

TENSOR_SLACK = 0.9
"""Factor on the tensor core threshold: datasheet rates assume less than the maximum clock (H100: 1,830 of 1,980 MHz).

Source: NVIDIA H100 whitepaper (2022), table 3.
"""
SPOT_TAINTS = (
    "aws-node-termination-handler/spot-itn", "cloud.google.com/impending-node-termination", "karpenter.sh/disrupted",
)  # fmt: skip
"""Taints of Kubernetes nodes that are about to be interrupted.

Source: aws/aws-node-termination-handler, GoogleCloudPlatform/k8s-node-termination-handler, Karpenter documentation.
"""

PASSED_S = 900.0
"""Minimum excess of an age over its limit in tests of alerts: more than its duration and some evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRule:
    """An alert: a signal beyond a threshold for a duration, with its severity and action.

    `guard`: PromQL after the comparison. `planned`: the plan's value of the signal, at which the alert must not
    fire; `quiet_series`: further series of the test in which it rests, besides those of the signal.
    """

    alert: str
    quantity: str
    signal: Signal
    threshold: float
    summary: str
    why: str
    action: str
    above: bool = True
    for_s: float = 0.0
    severity: str = "warning"
    guard: str = ""
    planned: float | None = None
    beyond: float | None = None  # a value that fires
    quiet_series: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    tested_alone: bool = False  # other alerts' series would change its signal

    @property
    def expr(self) -> str:
        """The alert's expression."""
        sign = ">" if self.above else "<"
        return f"{self.signal.expr} {sign} {number_text(self.threshold)}{self.guard}"

    @property
    def firing_value(self) -> float:
        """A value beyond the threshold."""
        if self.beyond is not None:
            return self.beyond
        return self.threshold * (1.2 if self.above else 0.5) if self.threshold else 1.0

    @property
    def quiet_value(self) -> float:
        """The plan's own value, or one within the threshold."""
        return self.planned if self.planned is not None else self.threshold * (0.8 if self.above else 1.2)


def watch_rules(watched: WatchedWorkload) -> list[WatchRule]:
    """All alerts of a workload, each name once."""
    rules = [
        *_utilisation(watched), *_memory(watched), *_latency(watched), *_rates(watched), *_spend(watched),
        *_devices(watched), *_faults(watched), *_run(watched), *_interruptions(watched), *_blind(watched),
    ]  # fmt: skip
    return list({rule.alert: rule for rule in reversed(rules)}.values())[::-1]


def of_record(name: str, watched: WatchedWorkload, signal: Signal) -> Signal:
    """The recorded series of a signal."""
    return replace(signal, expr=record_of(name, watched.name))


def _utilisation(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Utilisation above 90 % for 10 minutes, on a quantity that the plan keeps below it."""
    signals, name = quantities(watched), watched.name
    busy, load = signals.get("device_busy_ratio"), signals.get("load_ratio")
    planned = busy_frac(watched)
    row = watched.alerts.get("replica_load_frac") or watched.alerts.get("requests_per_s")
    more = row.action if row is not None else "scale up: use a larger machine, or add one"
    usual = f"{format_percent(BUSY, 0)} for 10 minutes is the usual limit"
    if watched.ends:
        if busy is None or "tokens_per_second" not in signals:
            return
        progress = "output_tokens_per_second" if "output_tokens_per_second" in signals else "tokens_per_second"
        moving = f"{record_of(progress, name)} > 0"
        tokens = signals[progress]
        yield WatchRule(
            alert="BusyWithoutProgress", quantity="device_busy_ratio", threshold=BUSY, for_s=BUSY_FOR_S,
            severity="critical", tested_alone=True,
            signal=of_record("device_busy_ratio", watched, busy), guard=f" unless on (workload) {moving}", planned=0.99,
            summary="devices are busy, but no tokens are processed", beyond=0.99, quiet_series=tokens.series(1000.0),
            why=f"{usual}; a training run should be busy all the time, so the alert also requires that no tokens are "
            "processed: devices that wait for one another are busy",
            action="stop the run and restart it from its last checkpoint; look for the rank that others wait for",
        )  # fmt: skip
        return
    by_load = planned is not None and planned >= BUSY and load is not None
    if by_load and load is not None:
        yield WatchRule(
            alert="UtilisationHigh", quantity="load_ratio", signal=of_record("load_ratio", watched, load),
            threshold=BUSY, for_s=BUSY_FOR_S, summary="replicas are near their capacity", planned=_load(watched),
            action=more,
            why=f"{usual}; measured on requests, because a kernel is planned to run "
            f"{format_percent(planned or 0, 0)} of the time: at the busiest hour replicas are at "
            f"{format_percent(_load(watched) or 0, 0)} of capacity",
        )  # fmt: skip
    elif busy is not None and (planned is None or planned < BUSY):
        why = usual if planned is None else f"{usual}; {format_percent(planned, 0)} is planned"
        yield WatchRule(
            alert="UtilisationHigh", quantity="device_busy_ratio", why=why, threshold=BUSY, for_s=BUSY_FOR_S,
            planned=planned,
            signal=of_record("device_busy_ratio", watched, busy), summary="devices are busy nearly all the time",
            action=more, beyond=0.97,
        )  # fmt: skip
        row = watched.alerts.get("replica_load_frac")
        if row is not None and load is not None:
            yield _from_row(watched, row, "ReplicaLoadHigh", "load_ratio", load, "replicas are near their capacity",
                            _load(watched))  # fmt: skip


def busy_frac(watched: WatchedWorkload) -> float | None:
    """The planned share of the time in which a device of a service has a request; None if it is not known.

    From the simulation, else 1 - e^-L for L requests in flight on average per replica (M/G/infinity).

    Source: queueing theory; Little 1961 (L = rate x time). Assumes: random arrivals.
    """
    deployment = watched.deployment
    if deployment is None or watched.ends:
        return None
    candidate, workload = deployment.candidate, deployment.workload
    if candidate.simulated is not None:
        return candidate.simulated.utilisation_frac
    flying = float(workload.concurrency or (workload.requests_per_s or 0.0) * candidate.seconds) / deployment.replicas
    return 1 - math.exp(-flying)


def _load(watched: WatchedWorkload) -> float | None:
    return None if watched.deployment is None else watched.deployment.candidate.figures.get("busy_frac")


def _from_row(
    watched: WatchedWorkload, row: Alert, alert: str, quantity: str, signal: Signal, summary: str,
    planned: float | None, threshold: float | None = None,
) -> WatchRule:  # fmt: skip
    """A rule from a threshold of an assessment."""
    return WatchRule(
        alert=alert, quantity=quantity, signal=of_record(quantity, watched, signal), summary=summary, why=row.why,
        threshold=row.threshold if threshold is None else threshold, for_s=row.for_s, severity=row.severity,
        action=row.action, above=row.above, planned=planned,
    )  # fmt: skip


def _memory(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Memory above 85 % for 5 minutes: of devices if the plan stays below it, else of the engine's cache."""
    signals, row = quantities(watched), watched.alerts.get("device_memory_bytes")
    memory, cache = signals.get("memory_ratio"), signals.get("cache_ratio")
    usual = f"{format_percent(MEMORY, 0)} for 5 minutes is the usual limit"
    limit = None if row is None else row.threshold / watched.capacity_bytes
    engine = watched.engine and row is not None and limit is not None and limit > MEMORY
    planned, deployment = None, watched.deployment
    served = None if deployment is None else deployment.serving
    allots = served is not None and (served.decodes or served.engine.memory_rule != "all")  # memory, at the start
    if deployment is not None and not allots:
        planned = deployment.candidate.memory_bytes / watched.capacity_bytes
    if memory is not None and not engine and (limit is None or limit <= MEMORY):
        why = usual if planned is None else f"{usual}; {format_percent(planned, 0)} is planned"
        yield WatchRule(
            alert="MemoryHigh", quantity="memory_ratio", signal=of_record("memory_ratio", watched, memory),
            threshold=MEMORY, for_s=MEMORY_FOR_S, summary="a device's memory is nearly full", why=why, beyond=0.97,
            planned=planned, action="use a smaller batch" + (", or more recompute" if watched.trains else ""),
        )  # fmt: skip
    if cache is not None and not watched.ends and engine:
        peak = watched.deployment.candidate.simulated if watched.deployment is not None else None
        kept = None if peak is None else peak.kv_peak_frac
        if kept is None or kept < MEMORY:
            yield WatchRule(
                alert="MemoryHigh", quantity="cache_ratio", signal=of_record("cache_ratio", watched, cache),
                threshold=MEMORY, for_s=MEMORY_FOR_S, summary="the KV cache is nearly full",
                beyond=0.97,
                why=f"{usual}; measured on the KV cache, because the engine reserves its memory at the start"
                + ("" if kept is None else f"; {format_percent(kept, 0)} is the peak in the simulation"),
                planned=kept, action="use a smaller batch or shorter contexts, else add a replica",
            )  # fmt: skip
    preempted = watched.meters.rate("preemptions")
    if preempted is not None and not watched.ends:
        yield WatchRule(
            alert="RequestsPreempted", quantity="preemptions", signal=preempted, threshold=0.0, for_s=300, planned=0.0,
            summary="the KV cache is full, and requests are preempted and recomputed", beyond=0.5,
            why="the plan's batch fits in the cache", action="use a smaller batch, or give the engine more memory",
        )  # fmt: skip
    if row is not None and memory is not None and limit is not None and limit < 1:
        why = (
            row.why
            if limit <= MEMORY
            else f"{row.why}; instead of {format_percent(MEMORY, 0)}, which the plan itself may reach"
        )
        yield replace(
            _from_row(watched, row, "DeviceMemoryBeyondPlan", "memory_ratio", memory, "more memory than planned",
                      planned, limit), why=why, beyond=(limit + 1) / 2,
        )  # fmt: skip


def _latency(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Percentiles above their targets, or, without a target, above the upper end of the plan's interval."""
    if watched.ends or watched.deployment is None:
        return
    signals = {(record, percentile): signal for record, percentile, signal in latencies(watched)}
    latency_alerts = [key for key in watched.alerts if key.rsplit("_seconds_", 1)[0] in LATENCIES]
    for meaning, record in LATENCIES.items():
        key = next((key for key in latency_alerts if key.startswith(f"{meaning}_seconds_")), None)
        row = None if key is None else watched.alerts[key]
        percentile = key.rsplit("_", 1)[1] if key else watched.percentile(f"{meaning}_s")
        signal = signals.get((record, percentile))
        target = row.threshold if row is not None else watched.value(f"{meaning}_s", "high")
        if signal is None or target is None or (latency_alerts and row is None):
            continue
        known = watched.meters.record(meaning)
        assert known is not None
        threshold = next((end for end in known.bounds if end >= target * (1 - 1e-9)), target)
        if known.bounds and threshold >= known.bounds[-1]:
            continue
        why = row.why if row is not None else "the upper end of the plan's interval, since no target is given"
        if threshold > target * (1 + 1e-9):
            why += f"; the target is {format_seconds(target)}, the next reported bucket {format_seconds(threshold)}"
        beyond = next((end for end in known.bounds if end > threshold), 2 * threshold)
        name = {"ttft": "TimeToFirstTokenHigh", "tpot": "TimePerTokenHigh", "latency": "LatencyHigh"}[meaning]
        yield WatchRule(
            alert=name, quantity=record, threshold=threshold, for_s=300, severity="critical", beyond=beyond,
            signal=replace(signal, expr=record_of(record, watched.name, quantile=str(PERCENTILES[percentile])),
                           labels={"quantile": str(PERCENTILES[percentile])}),
            summary=f"{percentile} {LATENCY_WORDS[meaning]} above {format_seconds(target)}", why=why,
            planned=min(watched.value(f"{meaning}_s") or 0.0, threshold) or None,
            action="use a smaller or quantised model, a smaller batch or shorter prompts; else add a replica, or shed "
            "load",
        )  # fmt: skip


LATENCY_WORDS = {"ttft": "time to first token", "tpot": "time per output token", "latency": "latency"}


def _rates(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Alerts on the throughput of runs, and on requests and queues of services."""
    signals, rows = quantities(watched), watched.alerts
    rate = (
        "tokens_per_second"
        if watched.trains or "output_tokens_per_second" not in signals
        else "output_tokens_per_second"
    )
    low = rows.get("tokens_per_s")
    if low is not None and rate in signals:
        yield _from_row(watched, low, "ThroughputLow", rate, signals[rate], "throughput is below the plan's interval",
                        watched.value("tokens_per_s") or watched.value("output_tokens_per_s"))  # fmt: skip
    arrivals, waiting = rows.get("requests_per_s"), rows.get("requests_waiting")
    if arrivals is not None and "requests_per_second" in signals:
        load, capacity = _load(watched), watched.value("requests_per_s")
        yield _from_row(watched, arrivals, "RequestRateHigh", "requests_per_second", signals["requests_per_second"],
                        "more requests than the replicas are planned for",
                        min(load * capacity, 0.9 * arrivals.threshold) if load and capacity else None)  # fmt: skip
    if waiting is not None and "requests_waiting" in signals:
        yield _from_row(watched, waiting, "RequestsWaiting", "requests_waiting", signals["requests_waiting"],
                        "the queue is too long for the latency target", 0.0)  # fmt: skip


def _spend(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Alerts on the cost of a day or a run above the plan, and of a month above the budget."""
    day, run = watched.alerts.get("spend_usd_per_day"), watched.alerts.get("spend_usd_per_run")
    stop = watched.environment == "development"
    if day is not None:
        rule = _from_row(watched, day, "CostPerDayHigh", "cost_usd_per_day", spend_signal(watched.name, 24.0),
                         "a day costs more than planned", watched.planned_usd)  # fmt: skip
        action = f"{'stop these development machines; ' if stop else ''}{day.action}, development machines first"
        yield replace(rule, action=action, labels={"stop": "development"} if stop else {})
    if run is not None:
        hours = 1.1 * run.threshold / max(watched.usd_per_hour + watched.steady_usd_per_hour, 1e-9)
        signal = spend_signal(watched.name, hours)
        yield replace(
            _from_row(watched, run, "CostPerRunHigh", "cost_usd_per_run", signal, "a run costs more than planned",
                      watched.planned_usd), signal=signal,
            why=f"{run.why}; of the last {hours:,.1f} hours, in which the planned run would cost 10 % more",
        )  # fmt: skip
    budget = None if watched.deployment is None else watched.deployment.workload.budget_usd
    if budget is not None and "spend_usd_this_month" not in watched.alerts:
        month = spend_signal(watched.name, HOURS_PER_MONTH)
        cost = watched.deployment.candidate.cost_usd if watched.deployment is not None else None
        yield WatchRule(
            alert="BudgetSpent", quantity="cost_usd_per_month", signal=month, threshold=budget, severity="critical",
            summary=f"cost of {HOURS_PER_MONTH:,.0f} hours above the budget of {format_usd(budget)}",
            why="the plan's budget" + ("" if cost is None else f"; {format_usd(cost)} is planned"),
            action="warn the budget owner, stop development machines, postpone what can wait, or raise the budget",
            planned=cost if cost is not None and cost < budget else None,
        )  # fmt: skip


def _devices(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Alerts on temperature and power against the device's own limits."""
    meters, tdp = watched.meters, watched.accelerator.tdp_w
    for meaning, alert, what in (
        ("temperature", "TemperatureHigh", "GPU"), ("memory_temperature", "MemoryTemperatureHigh", "GPU memory"),
    ):  # fmt: skip
        heat, limit = meters.gauge(meaning, "max", each=True), meters.gauge(f"{meaning}_limit", "max", each=True)
        if heat is None or limit is None:
            continue
        yield WatchRule(
            alert=alert, quantity=f"{meaning}_celsius", threshold=0.0, for_s=300, severity="critical", beyond=1.0,
            signal=replace(heat, expr=f"{heat.expr} - ({limit.expr} > 0)", series=_difference(heat, limit, 85.0)),
            summary=f"{what} is above its maximum operating temperature", planned=-20.0, why="the device's own limit",
            action="check fans, airflow and cooling; move the work, or lower the power limit",
        )  # fmt: skip
    power, cap = meters.gauge("power", "max", each=True), meters.gauge("power_limit", "max", each=True)
    if power is None or (cap is None and tdp is None):
        return
    watts = tdp or 400.0
    ratio = replace(power, series=lambda v: power.series(v * watts), expr=f"{power.expr} / {number_text(watts)}")
    if cap is not None:
        ratio = replace(power, expr=f"{power.expr} / ({cap.expr})",
                       series=lambda v: {**power.series(v * watts), **cap.series(watts)})  # fmt: skip
    most = format_percent(DEFAULT_POWER.compute, 0)
    yield WatchRule(
        alert="PowerAtLimit", quantity="power_ratio", signal=ratio, threshold=POWER_LIMIT, for_s=POWER_FOR_S,
        summary="a device is at its power limit", planned=DEFAULT_POWER.compute, beyond=1.0,
        why=f"clocks drop at the limit; the plan assumes at most {most}" + (f" of {tdp:,.0f} W" if tdp else ""),
        action="check whether the limit was lowered (nvidia-smi -q -d POWER); expect less throughput than planned",
    )  # fmt: skip


def _difference(above: Signal, below: Signal, level: float) -> Callable[[float], Series]:
    return lambda value: {**above.series(level + value), **below.series(level)}


def _faults(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Alerts on errors that the driver reports, and on throttled clocks."""
    meters = watched.meters
    xid, reasons = meters.gauge("xid", "max", each=True), meters.gauge("throttle_reasons", "max", each=True)
    if xid is not None:
        codes = ", ".join(f"{code} {what}" for code, what in HARDWARE_XIDS.items())
        these = " or ".join(f"{xid.expr} == {code}" for code in HARDWARE_XIDS)
        record = meters.record("xid")
        assert record is not None
        yield WatchRule(
            alert="XidHardwareError", quantity="xid", signal=replace(xid, expr=f"({these})"), threshold=0.0,
            severity="critical", summary="the driver reports a hardware fault of a GPU", beyond=79.0, planned=0.0,
            why=f"errors after which a GPU has to be reset: {codes}",
            action="drain the machine, save its log (nvidia-bug-report.sh), reset the GPU; replace it if that fails",
        )  # fmt: skip
        changed = f"max by ({', '.join(['workload', *xid.labels])}) (changes({meters.select(record)}[15m]))"
        steps = {meters.sample(record): f"0+0x15 13+0x{EVENT_SAMPLES}"}
        yield WatchRule(
            alert="XidError", quantity="xid", signal=replace(xid, expr=changed, series=_steps(steps, xid)),
            threshold=0.0, planned=0.0, beyond=1.0, summary="the driver reports an error of a GPU",
            why="most are faults of the program, such as 13 and 31; the number is the value of " + record.metric,
            action="look the number up in NVIDIA's catalog of Xid errors; restart what ran there",
        )  # fmt: skip
    if reasons is not None:
        bits = " + ".join(f"floor({reasons.expr} / {bit}) % 2" for bit in THROTTLE_BITS)
        yield WatchRule(
            alert="Throttled", quantity="throttle_reasons", threshold=0.0, for_s=THROTTLE_FOR_S, planned=0.0,
            beyond=1.0,
            signal=replace(reasons, expr=f"({bits})", series=lambda v: reasons.series(64.0 if v else 4.0)),
            summary="a GPU is throttled",
            why=f"because of {', '.join(THROTTLE_BITS.values())}, not of the power limit",
            action="look at temperature, power supply and fans; move the work to another machine",
        )  # fmt: skip


EVENT_SAMPLES = 20


def _steps(firing: Series, signal: Signal) -> Callable[[float], Series]:
    return lambda value: firing if value else signal.series(0.0)


def _run(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Alerts on MFU below the plan's interval, and on the age of the last checkpoint."""
    estimate, signals = watched.estimate, quantities(watched)
    if estimate is None:
        return
    low = estimate.mfu_frac * estimate.low / estimate.tokens_per_s_per_gpu
    for name, alert, what in (("mfu_ratio", "MfuLow", "by tokens"), ("tensor_ratio", "TensorCoresIdle", "by counters")):
        if name not in signals:
            continue
        why, limit = f"the lower end of the planned {format_percent(estimate.mfu_frac, 1)}, {what}", low
        if name == "tensor_ratio":
            why += ", less a tenth; tensor cores also run recomputation, so their share cannot be far below MFU"
            limit *= TENSOR_SLACK
        yield WatchRule(
            alert=alert, quantity=name, signal=of_record(name, watched, signals[name]), threshold=limit, above=False,
            for_s=900, summary=f"MFU below plan, {what}", why=why, planned=estimate.mfu_frac,
            action="look for a slow machine, network or storage; profile a step; compare the layout with the plan",
        )  # fmt: skip
    age, run = signals.get("checkpoint_age_seconds"), estimate.run
    if age is not None and run is not None:
        usual = run.checkpoint_interval_s + run.checkpoint_write_s
        yield WatchRule(
            alert="CheckpointOld", quantity="checkpoint_age_seconds", severity="critical", for_s=60,
            signal=of_record("checkpoint_age_seconds", watched, age), threshold=2 * usual, planned=None,
            summary="no checkpoint for twice the planned interval", beyond=2 * usual + max(usual, PASSED_S),
            why=f"every {format_seconds(run.checkpoint_interval_s)} is planned, written in "
            f"{format_seconds(run.checkpoint_write_s)}",
            action="check storage and the run's log: the next failure loses all work since that checkpoint",
        )  # fmt: skip


def _interruptions(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Alerts on interruption notices of spot machines, and on more interruptions per month than expected."""
    row, name = watched.alerts.get("interruptions_per_month"), watched.name
    if row is None:
        return
    keys, pods = "|".join(SPOT_TAINTS), selector("kube_pod_info", {}, f'pod=~"{name}(-.*)?"')
    taint = selector("kube_node_spec_taint", {}, f'key=~"{keys}"')
    inside = f"max by (node) ({taint}) and on (node) max by (node) ({pods})"
    yield WatchRule(
        alert="SpotInterruption", quantity="spot_notice", threshold=0.0, severity="warning", beyond=1.0, planned=0.0,
        signal=Signal(expr=f"({inside})", labels={"node": "node-1"}, series=_notice(name)),
        summary="a spot machine is about to be interrupted", why="its node carries the taint of an interruption",
        action="write a checkpoint if the run does not do so itself; check that the machine is replaced",
    )  # fmt: skip
    if watched.changing:
        return
    machines = watched.num_machines * math.ceil(watched.runs_per_month)
    record = watched.meters.record("busy") or watched.meters.record("memory_free")
    seen = selector("up", {"workload": name}) if record is None else watched.meters.select(record)
    count = f"count by (workload) (count by (workload, instance) (present_over_time({seen}[730h])))"
    metric = "up" if record is None else record.metric
    limit = machines + row.threshold
    yield WatchRule(
        alert="InterruptionsFrequent", quantity="machines_seen", threshold=limit, severity=row.severity,
        tested_alone=True,
        signal=Signal(expr=count, labels={}, series=_machines(metric, name), value_of=round), summary=row.metric, why=(
            f"{row.why}; each adds a machine with a new address to the {machines:,} planned"),
        action=row.action, planned=machines, beyond=limit + 1,
    )  # fmt: skip


def _notice(name: str) -> Callable[[float], Series]:
    def taint(value: float) -> str:
        key = SPOT_TAINTS[0] if value else "example.com/other"
        return selector("kube_node_spec_taint", {"node": "node-1", "key": key})

    pod = selector("kube_pod_info", {"pod": f"{name}-0", "node": "node-1"})
    return lambda value: dict.fromkeys((pod, taint(value)), constant_series(1))


def _machines(metric: str, name: str) -> Callable[[float], Series]:
    return lambda value: {
        selector(metric, {"workload": name, "instance": f"machine-{n}"}): constant_series(1)
        for n in range(round(value))
    }


def _blind(watched: WatchedWorkload) -> Iterator[WatchRule]:
    """Alerts on targets that do not answer, and on metrics that rules need but the exporter does not send."""
    name, meters = watched.name, watched.meters
    device, base = meters.device, meters.record("busy") or meters.record("memory_free")
    if device is not None and base is not None:
        there = f"count by (workload) ({meters.select(base)})"
        rules = [signal.expr for signal in quantities(watched).values()]
        rules += [rule.expr for rule in (*_devices(watched), *_faults(watched))]
        needed = [
            r for r in watched.facts.metric_records
            if r.exporter == device.name and r != base and any(r.metric in rule for rule in rules)
        ]  # fmt: skip
        missing = (
            f'label_replace({there} unless on (workload) {meters.select(r)}, "metric", "{r.metric}", "", "")'
            for r in needed
        )
        answering = meters.sample(base)
        sent = {meters.sample(r): constant_series(1) for r in needed[1:]}
        yield WatchRule(
            alert="MetricsMissing", quantity="metrics", threshold=0.0, for_s=900, beyond=1.0, planned=0.0,
            tested_alone=True,
            signal=Signal(
                expr=f"({' or '.join(missing)})", labels={"metric": needed[0].metric},
                series=lambda v: {answering: constant_series(1), **sent,
                                  **({} if v else {meters.sample(needed[0]): constant_series(1)})},
            ),
            summary="an exporter does not send a metric that alerts need", why="those alerts cannot fire",
            action=(
                f"configure {device.name} with the counters of the target prometheus-scrape; virtual GPUs lack some "
                "of them"
            ),
        )  # fmt: skip
    up = selector("up", {"workload": name})
    yield WatchRule(
        alert="TargetDown", quantity="up", signal=Signal(
            expr=f"1 - min by (workload, job, instance) ({up})", labels={"job": "gpu", "instance": "machine-1:9400"},
            series=lambda v: {selector("up", {"workload": name, "job": "gpu", "instance": "machine-1:9400"}):
                              constant_series(1 - v)}),
        threshold=0.0, for_s=300, beyond=1.0, planned=0.0, summary="an exporter does not answer",
        why="its metrics are missing, and alerts on them cannot fire",
        action="check that the machine is up and that its exporter or engine is running",
    )  # fmt: skip
