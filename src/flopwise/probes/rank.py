"""One process of a group that times its messages: `python -m flopwise.probes.rank LIBRARY RANK RANKS FILE`.

The first process reads operations from its input, one JSON object per line, and answers each with the seconds of its
repetitions, and an empty line with none; the other processes follow it.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from flopwise.probes.timing import FINEST_S, LEAST, MOST

LOST_S = 60
"""Seconds after which a silent process is given up."""


class Group:
    """This process in its group."""

    def __init__(self, library: str, rank: int, ranks: int, meeting: str) -> None:
        self._torch, self._dist = import_module("torch"), import_module("torch.distributed")
        self._rank, self._ranks = rank, ranks
        self._at = f"cuda:{rank}" if library == "nccl" else "cpu"
        if library == "nccl":
            self._torch.cuda.set_device(rank)
        self._dist.init_process_group(
            library, init_method=f"file://{meeting}", rank=rank, world_size=ranks,
            timeout=dt.timedelta(seconds=LOST_S),
        )  # fmt: skip

    def from_first(self, words: list[Any]) -> list[Any]:
        """An object of the first process, in every process."""
        objects = list(words)
        self._dist.broadcast_object_list(objects, src=0)
        return objects

    def operation(self, name: str, nbytes: int) -> Callable[[], Any]:
        """A message of `nbytes` in total."""
        if name == "all_reduce":
            return partial(self._dist.all_reduce, self._torch.ones(nbytes // 4, device=self._at))
        part = self._torch.ones(nbytes // 4 // self._ranks, device=self._at)
        whole = [self._torch.empty_like(part) for _ in range(self._ranks)]
        return partial(self._dist.all_gather, whole, part)

    def took_s(self, run: Callable[[], Any], count: int) -> float:
        """Seconds of `count` repetitions that start in all processes together."""
        self._dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            run()
        if self._at != "cpu":
            self._torch.cuda.synchronize()
        return time.perf_counter() - begun

    def samples(self, name: str, nbytes: int, seconds: float) -> list[float]:
        """Seconds of each repetition; the first process decides how many."""
        run = self.operation(name, nbytes)
        self.took_s(run, 2)
        once = self.took_s(run, 2) / 2
        count = max(1, math.ceil(max(FINEST_S, seconds / MOST) / once))
        number = max(LEAST, min(MOST, round(seconds / (count * once))))
        count, number = self.from_first([count, number])
        return [self.took_s(run, count) / count for _ in range(number)]


def main() -> None:
    """Follow the first process until its input ends."""
    library, rank, ranks, meeting = sys.argv[1:]
    group = Group(library, int(rank), int(ranks), meeting)
    while True:
        line = sys.stdin.readline() if rank == "0" else ""
        (text,) = group.from_first([line])
        if not text:
            return
        request = json.loads(text) if text.strip() else None
        samples = group.samples(request["operation"], request["bytes"], request["seconds"]) if request else []
        if rank == "0":
            sys.stdout.write(json.dumps(samples) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
