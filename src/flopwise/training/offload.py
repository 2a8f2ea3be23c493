"""What a step waits for where states or weights live in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.host import pcie_bytes_per_s
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


def host_update_s(params: Floats, traffic_bytes: float, fabric: Fabric) -> Floats:
    """Seconds in which the host updates `params` parameters of each of its devices; broadcasts.

    Source: Ren et al. 2021 (arXiv:2101.06840) section 5.1 and table 4: a vectorised Adam bound by host memory.
    Assumes: two sockets a node; its devices' shares are updated at the same time.
    """
    return params * traffic_bytes * gpus_per_host(fabric) / HOST_BYTES_PER_S


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


def weights_transfer_s(
    params: Floats, weight_bytes: float, rates: Rates, forward_s: Floats, backward_s: Floats, num_micro: Floats
) -> Floats:
    """Exposed seconds of a rank's shard of the weights coming up for both passes of every micro-batch; broadcasts.

    Source: Rajbhandari et al. 2021 (arXiv:2104.07857) section 5.1: bandwidth-centric partitioning, prefetched.
    Assumes: prefetching hides as much as the pass takes.
    Raises: MissingFactError: as `pcie_bytes_per_s`.
    """
    up = params * weight_bytes / pcie_bytes_per_s(rates)
    return num_micro * (np.maximum(up - forward_s, 0.0) + np.maximum(up - backward_s, 0.0))


def offload_s(
    layout: Layout,
    params: Floats,
    widths: tuple[float, float],
    stage: NDArray[np.float64],
    rates: Rates,
    update_s: Floats,
    num_micro: Floats,
) -> Floats:
    """Exposed transfers between device and host, per step; broadcasts.

    `widths`: bytes of a gradient and of a weight; `stage`: forward, backward and recompute of a micro-batch first.

    Source and assumptions: `states_transfer_s`, `weights_transfer_s`. Activations are taken to hide behind compute.
    Raises: MissingFactError: as `pcie_bytes_per_s`.
    """
    forward_s, backward_s = stage[0], stage[1] + stage[2]
    total: Floats = 0.0
    if layout.offload_optimizer:
        total = states_transfer_s(params, *widths, rates, backward_s, update_s)
    if layout.offload_parameters:
        total = total + weights_transfer_s(params, widths[1], rates, forward_s, backward_s, num_micro)
    return total
