"""Replicas in the compiled simulator: advanced in time, and read, started and drained in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flopwise.serving.sim import layout
from flopwise.serving.sim.layout import CAME, FETCHING, LEAVING, LINES, MOVING, PAUSE, PREEMPTED, TURNS, Tables
from flopwise.serving.sim.machine_code import core
from flopwise.serving.sim.policies import PREFIX_AWARE, ROUND_ROBIN
from flopwise.serving.sim.result import BINS, Outcome, ReplicaTotals, Standing, Switches
from flopwise.serving.sim.setup import DECODE, PREFILL, Setup
from flopwise.serving.sim.trace import Column

NEVER = 2**62
FAR = 2**61
"""Longer than any run, and short enough to be added to the time of what never comes."""
PART = 2**13
"""Requests that are laid out at a time."""
CACHE_LINE_BYTES = 64
"""What a processor brings from memory at a time."""


class FastFleet:
    """Replicas, numbered as `Setup.roles`.

    Nothing that has happened is undone: `until_ps` only grows, and a step that has begun ends when it ends.
    """

    def __init__(self, setup: Setup, on_compile: Callable[[], None] | None = None) -> None:
        """Lay out the state of all replicas."""
        shared = setup.limits.prefix_cache or setup.trace.follows or setup.balancer == PREFIX_AWARE
        self.setup, self.now_ps, drive = setup, -1, core(on_compile, shared=bool(shared))
        self.switched = Switches(len(setup.roles))
        limits, rows, count = setup.limits, len(setup.trace), len(setup.roles)
        self.requests, self.progress = _requests(setup), _at_cache_lines(rows, layout.PROGRESS)
        self.progress.view(np.int64)[:] = -1
        self.columns = _columns(setup, shared=bool(shared))
        tree, stores = setup.prefixes.tree, limits.stores if limits.prefix_cache else ()
        leaves, words = _rank_words(rows)
        self.ranks = np.zeros(count * words, dtype=np.int64)
        self.tree = np.array(tree, dtype=np.int64).reshape(2, -1)
        nodes, sessions = len(tree.parent), setup.trace.follows
        self.world = np.zeros(1, dtype=layout.WORLD)
        self.replicas = _at_cache_lines(count, layout.REPLICA)
        self.slots = np.zeros(count * limits.max_batch, dtype=layout.SLOT)
        self.lists = np.zeros(layout.LISTS * len(self.slots), dtype=np.int64)
        self.lines = np.zeros(LINES, dtype=layout.LINE)
        self.queues = np.zeros((LINES, rows), dtype=layout.QUEUED)
        kept = nodes if limits.prefix_cache else 0
        self.prefixes = np.zeros(max(count * kept, 1), dtype=layout.CACHED)
        self.stored = np.zeros(max(count * kept * len(stores), 1), dtype=layout.CACHED)
        self.links = np.zeros(max(count * len(stores), 1), dtype=layout.LINK)
        for place, store in enumerate(stores):
            self.links["blocks"][place :: len(stores)] = store.blocks
            self.links["block_ps"][place :: len(stores)] = store.block_ps
            self.links["latency_ps"][place :: len(stores)] = store.latency_ps
        self.links["oldest"] = self.links["newest"] = -1
        steps = setup.cost
        columns = (steps.tokens_ps, steps.decode_ps, steps.cached_ps, steps.window_ps, np.array(steps.scalars))
        self.tables = np.zeros((len(columns), max(map(len, columns))), dtype=np.int64)
        for row, column in zip(self.tables, columns, strict=True):
            row[: len(column)] = column
        self.counts = np.zeros(layout.PHASES + count * limits.block_tokens, dtype=np.int64)
        self.sent = np.full(2 * max(nodes, 1) if setup.balancer == PREFIX_AWARE else 1, -1, dtype=np.int64)
        direct, together = bool(setup.users) and count == 1 and not stores, sessions or bool(stores)
        self.sides = _sides(setup, together=together, direct=direct)
        for name in ("max_batch", "step_tokens", "block_tokens", "num_blocks", "mix", "ahead"):
            self.world[name] = getattr(limits, name)
        values = {
            "swap": limits.preempt == "swap", "swap_ps": limits.swap_ps_per_block, "nodes": kept,
            "links": len(stores) if kept else 0, "sessions": sessions,
            "leaves": leaves, "window": setup.cost.window, "balancer": setup.balancer,
            "together": together, "closed": bool(setup.users), "direct": direct, "brought": -1,
            "think": setup.think_ps, "least_ps": setup.cost.tokens_ps[1:].min(initial=FAR),
            "issued": min(setup.users, rows) if setup.users else rows, "replicas": count, "requests": rows,
        }  # fmt: skip
        for name, value in values.items():
            self.world[name] = value
        for name in ("request_ps", "front_ps", "front_token_ps", "stream_ps", "next_launch_ps"):
            self.world[name] = getattr(setup.cost, name)
        self.replicas["role"], self.replicas["due"] = setup.roles, NEVER
        for name, start, each in (
            ("first", 0, limits.max_batch), ("base", 0, kept), ("phases", layout.PHASES, limits.block_tokens),
            ("store", 0, len(stores)), ("ranks", 0, words),
            ("heap", 0, limits.max_batch), ("joining", len(self.slots), limits.max_batch),
            ("late", 2 * len(self.slots), limits.max_batch),
        ):  # fmt: skip
            self.replicas[name] = start + each * np.arange(count)
        for name in ("part", "last", "head", "tail", "root", "oldest", "newest"):  # empty replicas have none
            self.replicas[name] = -1
        for place, on in enumerate(setup.on):
            if on:
                self.start(place, 0)
        self.drive = partial(drive, *map(_address, (self.world, self.replicas)), *self._tables())

    def _tables(self) -> Tables:
        """The places of all tables, which stay where they are."""
        parent, node_end = self.tree
        tables = {
            "slots": self.slots, "lists": self.lists, "lines": self.lines, "sides": self.sides, "rows": self.requests,
            "progress": self.progress, "ranks": self.ranks,
            "pre": self.prefixes, "parent": parent, "node_end": node_end, "low": self.stored, "links": self.links,
            "k": self.counts, "sent": self.sent,
            "moving": self.queues[MOVING], "turns": self.queues[TURNS], "fetching": self.queues[FETCHING],
            "leaving": self.queues[LEAVING],
            **{name: self.columns[row] for name, row in layout.ROWS.items()},
            **dict(zip(("tokens_ps", "decode_ps", "cached_ps", "window_ps", "scalars"), self.tables, strict=True)),
        }  # fmt: skip
        return Tables(**{name: _address(table) for name, table in tables.items()})

    def start(self, replica: int, on_ps: int) -> None:
        """An empty replica takes requests from `on_ps` on, with an empty cache; not before the time reached."""
        p, on_ps = self.replicas[replica], max(on_ps, self.now_ps + 1)
        self.switched.start(replica, on_ps, busy=bool(p["requests"]), ended_ps=int(p["ended"]))
        for name in ("step", "turn", "used", "idle", "free"):
            p[name] = 0
        p["oldest"] = p["newest"] = -1
        p["on"], p["now"], p["accepts"], p["due"] = on_ps, on_ps, 1, NEVER
        # what stores bring comes later than what was sent after it
        in_order = not self.world["links"][0] or self.world["sessions"][0]
        p["plain"] = self.setup.fcfs and p["role"] != DECODE and in_order
        batch, nodes = self.setup.limits.max_batch, int(self.world["nodes"][0])
        self.slots["after"][replica * batch : (replica + 1) * batch] = np.arange(1, batch + 1)
        self.prefixes[replica * nodes : (replica + 1) * nodes] = 0
        stores = int(self.world["links"][0])
        self.stored[replica * stores * nodes : (replica + 1) * stores * nodes] = 0
        mine = self.links[replica * stores : (replica + 1) * stores]
        mine["used"], mine["free"], mine["oldest"], mine["newest"] = 0, 0, -1, -1

    def drain(self, replica: int) -> None:
        """A replica takes no more requests, ends those that it has, and then is off."""
        self.switched.drain(replica, self.now_ps)
        self.replicas[replica]["accepts"] = 0

    def advance(self, until_ps: int) -> None:
        """Everything up to `until_ps`: steps that end by then, requests that come by then, steps begun before then."""
        self.now_ps = until_ps
        self.drive(until_ps)

    def totals(self) -> ReplicaTotals:
        """The state and the totals of the replicas at the time reached."""
        p = self.replicas
        names = (
            "queued", "running", "used", "busy", "steps", "worked", "made", "reused", "preemptions", "peak", "ended",
            "requests",
        )  # fmt: skip
        on = (p["accepts"] > 0) | (p["requests"] > 0)
        return self.switched.totals(np.array([on, *(p[name] for name in names)], dtype=np.int64), self.now_ps)

    def standing(self) -> Standing:
        """The first columns of the totals, quickly; they may change with the next `advance`, all but the last."""
        p = self.replicas
        on = (p["accepts"] > 0) | (p["requests"] > 0)
        return Standing(on, p["queued"], p["running"], p["used"], p["busy"].copy())

    def outcome(self) -> Outcome:
        """The outcome of the requests of the setup's trace."""
        setup, rows = self.setup, len(self.progress)
        issued = int(self.world["issued"][0])
        times = np.empty((len(layout.PROGRESS.names or ()), rows), dtype=np.int64)
        numbers = self.progress.view(np.int64).reshape(rows, len(times))
        for start in range(0, rows, PART):
            times[:, start : start + PART] = numbers[start : start + PART].T
        come = setup.trace.arrival_ps
        if setup.users:
            come = np.where(np.arange(rows) < issued, self.columns[CAME], -1)
        if setup.trace.follows:
            come = np.where(self.columns[PAUSE] > 0, self.columns[CAME], come)
        start_ps, first_ps, finish_ps, where = times
        return Outcome(come, start_ps, first_ps, finish_ps, self.columns[PREEMPTED], where)

    def itl(self) -> Column:
        """Histogram of the gaps between tokens."""
        return self.counts[:BINS].copy()

    @property
    def fetched_blocks(self) -> Column:
        """Blocks that came back from each store, of all replicas."""
        stores = int(self.world["links"][0])
        if not stores:
            return np.zeros(len(self.setup.limits.stores), dtype=np.int64)
        return np.asarray(self.links["fetched"].reshape(-1, stores).sum(axis=0))

    @property
    def answered_count(self) -> int:
        """Requests that are answered."""
        return int(self.world["done"][0])

    @property
    def unassigned_count(self) -> int:
        """Requests that have come and that no replica takes."""
        start, end = int(self.world["next"][0]), int(self.world["issued"][0])
        if self.world["sessions"][0]:  # turns come when they are answered, not in the order of the rows
            come = int(np.count_nonzero((self.requests["come"] <= self.now_ps) & (self.columns[PAUSE] == 0)
                                        & (np.arange(len(self.setup.trace)) >= start)))  # fmt: skip
        else:
            come = bisect_right(self.requests["come"], self.now_ps, start, end) - start
        for line in (MOVING, TURNS):
            first, size, _ = self.lines[line].tolist()
            if size:
                come += int(np.count_nonzero(self.queues["time"][line, first : first + size] <= self.now_ps))
        return come


def _address(table: NDArray[Any]) -> int:
    return int(table.ctypes.data)


def _rank_words(count: int) -> tuple[int, int]:
    """(words before the leaves, all words) of a set of `count` ranks, as `core.wait` keeps it."""
    leaves, width = 0, 1
    while 64 * width < count:
        leaves, width = leaves + width, 64 * width
    return leaves, leaves + -(-count // 64)


def _sides(setup: Setup, *, together: bool, direct: bool) -> NDArray[np.void]:
    """The two sides of the fleet; `direct`: the only replica sends what follows its answers to itself.

    The gap of the front is what a closed loop takes from an answer to the next request, that of the back is the
    shortest transfer. With stores and turns of sessions all are kept `together` at one time: what a replica holds is
    looked at from outside, and turns take their ranks as they come.
    """
    sides, by_load = np.zeros(2, dtype=layout.SIDE), setup.balancer != ROUND_ROBIN
    fronts = sum(role != DECODE for role in setup.roles)
    for side, first, last in zip(sides, (0, fronts), (fronts, len(setup.roles)), strict=True):
        side["first"], side["last"], side["due"] = first, last, NEVER
        side["looks"] = together or (by_load and last - first > 1)
    if not together:
        closed_ps = setup.cost.request_ps + setup.think_ps
        sides["gap"] = closed_ps if setup.users and not direct else FAR, setup.transfer_ps.min(initial=FAR)
    return sides


def _at_cache_lines(count: int, record: np.dtype[np.void]) -> NDArray[np.void]:
    """A table of `count` empty records that begins where a cache line does: numpy begins 16 bytes behind one.

    A request fills one line. Across two, requests in another order than that of arrival took half as long again.
    """
    size = count * record.itemsize
    memory = np.zeros(size + CACHE_LINE_BYTES, dtype=np.uint8)
    skip = -memory.ctypes.data % CACHE_LINE_BYTES
    return memory[skip : skip + size].view(record)


def _requests(setup: Setup) -> NDArray[np.void]:
    """The requests as replicas see them; filled part by part, each of which the processor's cache holds."""
    table, come_ps = _at_cache_lines(len(setup.trace), layout.REQUEST), setup.trace.arrival_ps
    columns = {"prompt": setup.trace.prompt, "output": setup.trace.output, "rank": setup.rank}
    if np.any(setup.hits):
        columns["have"] = setup.hits
    if PREFILL in setup.roles:
        columns["last"] = setup.transfer_ps
    for start in range(0, len(table), PART):
        part = slice(start, start + PART)
        np.add(come_ps[part], setup.cost.request_ps, out=table["come"][part])
        for name, column in columns.items():
            table[name][part] = column[part]
    return table


def _columns(setup: Setup, *, shared: bool) -> Column:
    """The columns of the requests; those that nobody touches take no memory. `shared`: as of `core`."""
    trace = setup.trace
    table = np.zeros((layout.COLUMNS, len(trace)), dtype=np.int64)
    table[layout.BY_RANK] = setup.by_rank
    if shared:
        table[layout.PREFIX], table[layout.KEEP] = setup.prefixes.prompt, setup.prefixes.answer
    if trace.follows:
        table[layout.NEXT] = np.maximum(setup.next_turn, 0)
        table[PAUSE] = trace.pause_ps + 1
        table[CAME] = -1
    if setup.users:
        table[CAME] = trace.arrival_ps
    return table
