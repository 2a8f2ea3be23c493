"""How much longer a processor's own work takes after large reads, which displace its code from the caches.

    python benchmarks/cold_host.py [--core N]

An eager layer of PyTorch (norms, four products, attention, activation, of width 64) and a piece of pure Python run in
turn with reads of some size; what a turn takes is the thread's own time, so that other programs move it little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS = 64, 2, 32
MIB = (0.25, 1, 2, 4, 8, 16, 32, 64, 128)
TURNS = 60


class Norm(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """A root mean square norm in plain operations, as engines write it for processors."""

    def __init__(self) -> None:
        """All weights one."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        """The norm of each row."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):  # type: ignore[misc]  # same
    """A decoder's layer with weights that hardly displace anything."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.norms = nn.ModuleList([Norm(), Norm()])
        widths = {"qkv": (WIDTH, 2 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (WIDTH, WIDTH)}
        self.products = nn.ModuleDict({name: nn.Linear(*ends, bias=False) for name, ends in widths.items()})

    def forward(self, x: Any, keys: Any, values: Any) -> Any:
        """One new token over cached ones."""
        query, _ = self.products["qkv"](self.norms[0](x)).split([WIDTH, WIDTH], -1)
        heads = query.view(-1, HEADS, WIDTH // HEADS).transpose(0, 1)
        mixed = functional.scaled_dot_product_attention(heads, keys, values).transpose(0, 1).reshape(-1, WIDTH)
        x = x + self.products["out"](mixed)
        gate, up = self.products["up"](self.norms[1](x)).chunk(2, -1)
        return x + self.products["down"](functional.silu(gate) * up)


def python_work() -> list[str]:
    """Dictionaries and small lists, as a scheduler has them."""
    found = {str(number): [number, {"a": number}] for number in range(60)}
    return sorted(name for name, value in found.items() if value)


def seconds_after(work: Callable[[], Any], reads: Any) -> float:
    """Median of a turn of `work` after reading all of `reads`."""
    found = []
    for _ in range(TURNS):
        reads.sum()
        begin = time.thread_time()
        work()
        found.append(time.thread_time() - begin)
    return statistics.median(found)


def main() -> None:
    """A line a kind of work: microseconds by MiB read before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="core to run on")
    os.sched_setaffinity(0, {parser.parse_args().core})
    torch.set_num_threads(1)
    layer, x = Layer().eval(), torch.randn(1, WIDTH)
    cache = [torch.randn(HEADS, TOKENS, WIDTH // HEADS) for _ in range(2)]
    memory = torch.ones(int(MIB[-1] * 2**18))
    print("MiB read before     " + "".join(f"{size:8g}" for size in MIB))
    with torch.inference_mode():
        for name, work in {"layer of PyTorch, us": lambda: layer(x, *cache), "pure Python, us": python_work}.items():
            for _ in range(TURNS):
                work()
            found = [seconds_after(work, memory[: int(size * 2**18)]) for size in MIB]
            print(f"{name:20s}" + "".join(f"{1e6 * value:8.0f}" for value in found), flush=True)


if __name__ == "__main__":
    main()
