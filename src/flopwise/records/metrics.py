"""The metrics of recorded runs: name, unit and meaning, shared by the store, the callbacks and `watch`."""

from __future__ import annotations

from flopwise.values import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that is measured during a run."""

    name: str
    unit: str
    meaning: str
    cumulative: bool = False  # a total since the run began: it only grows


METRICS = {
    metric.name: metric
    for metric in (
        Metric("step_s", "s", "time from the end of one optimizer step to the end of the next"),
        Metric("data_wait_s", "s", "time of a step in which the loop waited for its next batch"),
        Metric(
            "communication_s", "s", "time of a step in which devices waited for messages that compute does not hide"
        ),
        Metric("tokens_per_s", "tokens/s", "tokens trained on, or generated, a second by the whole run"),
        Metric("samples_per_s", "samples/s", "sequences or images a second by the whole run"),
        Metric("tokens", "tokens", "tokens since the run began", cumulative=True),
        Metric("loss", "", "training loss of a step"),
        Metric("eval_loss", "", "loss on held-out data"),
        Metric("learning_rate", "", "learning rate of a step"),
        Metric("grad_norm", "", "norm of all gradients before clipping"),
        Metric("loss_scale", "", "factor by which the loss is scaled in fp16"),
        Metric("mfu_frac", "", "model FLOPs utilisation: a step's model FLOPs over what the devices' datasheets allow"),
        Metric("model_flops_per_s", "FLOP/s", "model FLOPs a second by the whole run, recomputed ones apart"),
        Metric("plan_deviation_frac", "", "time of the last steps over the expected time, less 1"),
        Metric("peak_memory_bytes", "bytes", "most memory allocated on a device so far"),
        Metric("reserved_memory_bytes", "bytes", "most memory that the framework reserved on a device so far"),
        Metric(
            "untrained_memory_bytes", "bytes", "of the peak on a CPU, what the process held before, its model apart"
        ),
        Metric("used_memory_bytes", "bytes", "memory of a device in use, by all processes"),
        Metric("energy_joules", "J", "energy of the accelerators since the run began", cumulative=True),
        Metric("cost_usd", "USD", "price of the machines since the run began", cumulative=True),
        Metric("elapsed_s", "s", "time for which the run was recorded, over all of its processes", cumulative=True),
        Metric("eta_s", "s", "time until the run ends, at the rate of its last steps"),
        Metric("utilization_frac", "", "share of time in which a device ran any kernel"),
        Metric("tensor_active_frac", "", "share of cycles in which a device's tensor units worked"),
        Metric("memory_active_frac", "", "share of cycles in which a device's memory interface moved data"),
        Metric("temperature_c", "degrees C", "temperature of a device"),
        Metric("power_w", "W", "power that a device draws"),
        Metric("sm_clock_hz", "Hz", "clock of a device's multiprocessors"),
        Metric("pcie_bytes_per_s", "bytes/s", "traffic of a device over PCIe, both directions"),
        Metric("nvlink_bytes_per_s", "bytes/s", "traffic of a device over NVLink, both directions"),
        Metric("ttft_s", "s", "time from a request's arrival to its first token"),
        Metric("itl_s", "s", "time between two tokens of an answer"),
        Metric("e2e_s", "s", "time from a request's arrival to the end of its answer"),
        Metric("ttfb_s", "s", "time from a request's arrival to the first byte of its answer"),
        Metric("chunks", "chunks", "number of chunks in which an answer was sent"),
        Metric("failed_requests", "requests", "requests answered with an error, or not at all", cumulative=True),
        Metric("preemptions", "requests", "requests that an engine preempted for lack of memory", cumulative=True),
        Metric("requests_per_s", "requests/s", "requests answered a second"),
        Metric("requests_running", "requests", "requests in the running batch"),
        Metric("requests_waiting", "requests", "requests in the queue"),
        Metric("cache_frac", "", "share of the KV cache in use"),
    )
}


def counter_growth(before: float, now: float, wrap: float = 0.0) -> float:
    """Growth of a counter from `before` to `now`, at least 0, in the unit of the counter.

    A counter that fell was reset, and its growth is `now`; one that overflows at `wrap` also grew by the part up to it.

    Source: Prometheus documentation, increase(): breaks in monotonicity count as resets.
    Assumes: at most one reset; counts just before a reset are not known.
    """
    return now - before if now >= before else max(now - before + wrap if wrap else now, 0.0)
