"""What a step waits for where states or weights live in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.fabric import pcie_bytes_per_s
from flopwise.ops.types import Floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.training.layout import Layout

HOST_BYTES_PER_S = 110e9
"""At which the host of a node updates: 28 bytes a parameter, 1e9 parameters in about 0.25 s (ZeRO-Offload, table 4)."""
MAX_GPUS_PER_HOST = 8


def gpus_per_host(fabric: Fabric) -> int:
    """Devices that share one host's memory bandwidth: a node's, at most eight."""
    return max(1, min(max((level.size for level in fabric.levels[:-1]), default=1), MAX_GPUS_PER_HOST))


def host_update_s(traffic_bytes: Floats, fabric: Fabric) -> Floats:
    """Seconds in which the host updates the parameters of its devices, `traffic_bytes` for each device; broadcasts.

    Source: Ren et al. 2021 (arXiv:2101.06840) section 5.1 and table 4: a vectorised Adam bound by host memory.
    Assumes: two sockets a node; its devices' shares are updated at the same time.
    """
    return traffic_bytes * gpus_per_host(fabric) / HOST_BYTES_PER_S


def states_transfer_s(
    params: Floats, grad_bytes: float, weight_bytes: float, rates: Rates, backward_s: Floats, update_s: Floats
) -> Floats:
    """Exposed seconds of gradients down to the host and updated weights up; once a step; broadcasts.

    Gradients leave while the last backward pass runs; weights come back piece by piece behind the update.

    Source: Ren et al. 2021 (arXiv:2101.06840) section 4.1, figures 4 and 5.
    Assumes: pinned memory; both directions at the full rate.
    Raises: MissingFactError: as `pcie_bytes_per_s`.
    """
    rate = pcie_bytes_per_s(rates)
    down, up = params * grad_bytes / rate, params * weight_bytes / rate
    return np.maximum(down - backward_s, 0.0) + np.maximum(up - update_s, 0.0)


def passes_transfer_s(
    weights: Floats, activations: Floats, rates: Rates, forward_s: Floats, backward_s: Floats, num_micro: Floats
) -> Floats:
    """Exposed seconds of what every micro-batch moves between device and host, per step; broadcasts.

    `weights`: bytes of a rank's shard, which come up for both passes; `activations`: bytes that go down in the forward
    pass, beside the weights that come up, and come back in the backward pass, after them. What hides behind compute
    takes memory bandwidth from it: each byte is read or written once on the device.

    Source: Rajbhandari et al. 2021 (arXiv:2104.07857) section 5.1: bandwidth-centric partitioning, prefetched; NVIDIA
    Transformer Engine, CPU offloading: copies of activations overlap with compute and share its memory bandwidth.
    Assumes: copying hides as much as the pass takes; the link carries its rate both ways at once; every device has a
    link of its own to a host whose memory keeps up (where switches share an uplink it does not: 3 of 12 GB/s on DGX-2).
    Raises: MissingFactError: as `pcie_bytes_per_s`.
    """
    rate = pcie_bytes_per_s(rates)
    up, kept = weights / rate, activations / rate
    open_s = np.maximum(np.maximum(up, kept) - forward_s, 0.0) + np.maximum(up + kept - backward_s, 0.0)
    return num_micro * (open_s + 2.0 * activations / rates.read_bytes_per_s)


def offload_s(
    layout: Layout,
    params: Floats,
    widths: tuple[float, float],
    activations: Floats,
    stage: NDArray[np.float64],
    rates: Rates,
    update_s: Floats,
    num_micro: Floats,
) -> Floats:
    """Exposed transfers between device and host, per step; broadcasts.

    `widths`: bytes of a gradient and of a weight; `activations`: bytes that a micro-batch moves; `stage`: its forward,
    backward and recompute first.

    Source and assumptions: `states_transfer_s`, `passes_transfer_s`.
    Raises: MissingFactError: as `pcie_bytes_per_s`.
    """
    forward_s, backward_s = stage[0], stage[1] + stage[2]
    total: Floats = 0.0
    if layout.offload_optimizer:
        total = states_transfer_s(params, *widths, rates, backward_s, update_s)
    if layout.offload_parameters or layout.offload_activations:
        weights = params * (widths[1] if layout.offload_parameters else 0.0)
        total = total + passes_transfer_s(weights, activations, rates, forward_s, backward_s, num_micro)
    return total
