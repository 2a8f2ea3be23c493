"""Replicas behind a balancer in plain Python: the other half of the definition of what is right.

At one time, steps end first, then requests that come are sent to replicas, then steps begin.
"""

from __future__ import annotations

import heapq

import numpy as np

from flopwise.serving.sim.policies import BEHIND_REQUESTS, LEAST_LOADED, LEAST_TOKENS, ROUND_ROBIN
from flopwise.serving.sim.reference import NEVER, Log, ReferenceReplica, Sequence
from flopwise.serving.sim.result import Outcome, ReplicaTotals, Standing, Switches
from flopwise.serving.sim.setup import DECODE, PREFILL, Setup
from flopwise.serving.sim.trace import Column


class ReferenceFleet:
    """Replicas behind a balancer, advanced event by event; the interface of `flopwise.serving.sim.fleet.Fleet`."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.now_ps = setup, -1
        rows = len(setup.trace)
        self.log = Log(*([v] * rows for v in (-1, -1, -1, 0, -1)))
        self.come_ps: list[int] = (setup.trace.arrival_ps + setup.cost.request_ps).tolist()
        self.issued = min(setup.users, rows) if setup.users else rows  # requests whose time of coming is known
        self.routed = 0  # of those, sent to a replica
        self.moving: list[tuple[int, int]] = []  # a heap of (when, row): prompts done, on the way to decode
        self.turn = [0, 0, 0]  # of the round robin, by role
        self.last: dict[tuple[int, int], ReferenceReplica] = {}  # where a prefix was last sent
        self.answered_count = 0
        self.switched = Switches(len(setup.roles))
        self.replicas = [ReferenceReplica(setup, role, self.log) for role in setup.roles]
        for place, on in enumerate(setup.on):
            if on:
                self.start(place, 0)

    def start(self, replica: int, on_ps: int) -> None:
        """A replica takes requests from then on; it must be empty."""
        machine, on_ps = self.replicas[replica], max(on_ps, self.now_ps + 1)
        self.switched.start(replica, on_ps, busy=machine.requests > 0, ended_ps=machine.ended_ps)
        machine.start(on_ps)

    def drain(self, replica: int) -> None:
        """A replica takes no further requests."""
        self.switched.drain(replica, self.now_ps)
        self.replicas[replica].accepts = False

    def totals(self) -> ReplicaTotals:
        """What the replicas have and have done."""
        rows = [
            (
                r.accepts or r.requests > 0, len(r.waiting), len(r.running), r.used, r.busy_ps, r.steps, r.worked,
                r.made, r.reused, r.preemptions, r.peak_blocks, r.ended_ps, r.requests,
            )
            for r in self.replicas
        ]  # fmt: skip
        return self.switched.totals(np.array(rows, dtype=np.int64).T, self.now_ps)

    def standing(self) -> Standing:
        """What the replicas have."""
        return Standing(*self.totals()[: len(Standing._fields)])

    def outcome(self) -> Outcome:
        """What has become of the requests."""
        log, come = self.log, np.array(self.come_ps, dtype=np.int64) - self.setup.cost.request_ps
        come[self.issued :] = -1
        columns = (log.start_ps, log.first_ps, log.finish_ps, log.preemptions, log.replica)
        return Outcome(come, *(np.array(c, dtype=np.int64) for c in columns))

    def itl(self) -> Column:
        """Histogram of the gaps between tokens."""
        return np.array(self.log.itl, dtype=np.int64)

    @property
    def unassigned_count(self) -> int:
        """Requests that have come and that no replica takes."""
        come = sum(c <= self.now_ps for c in self.come_ps[self.routed : self.issued])
        return come + sum(when <= self.now_ps for when, _ in self.moving)

    def advance(self, until_ps: int) -> None:
        """Everything up to `until_ps`: steps that end by then, requests that come by then, steps begun before then."""
        while True:
            for replica in self.replicas:
                if replica.end_ps == self.now_ps:
                    for sequence in replica.finish():
                        self._leave(sequence, replica)
            self.route()
            if self.now_ps >= until_ps:
                return
            for replica in self.replicas:
                if replica.end_ps == NEVER and (replica.waiting or replica.running) and replica.on_ps <= self.now_ps:
                    replica.begin(self.now_ps)
            self.now_ps = min(until_ps, max(self.next_ps(), self.now_ps))

    def next_ps(self) -> int:
        """When something happens next."""
        times = [r.end_ps for r in self.replicas]
        times += [r.on_ps for r in self.replicas if r.on_ps > self.now_ps]
        if self.routed < self.issued and self.come_ps[self.routed] > self.now_ps:
            times.append(self.come_ps[self.routed])
        times += [when for when, _ in self.moving if when > self.now_ps]
        return min(times)

    def _leave(self, sequence: Sequence, replica: ReferenceReplica) -> None:
        """A sequence is done on a replica: it goes on to decode, or its user thinks and asks again."""
        now, row = self.now_ps, sequence.row
        if replica.role == PREFILL and self.setup.trace.output[row] > 1:
            heapq.heappush(self.moving, (now + int(self.setup.transfer_ps[row]), row))
            return
        self.log.finish_ps[row] = now
        self.answered_count += 1
        if self.setup.users and self.issued < len(self.come_ps):
            self.come_ps[self.issued] = now + self.setup.think_ps + self.setup.cost.request_ps
            self.issued += 1

    def route(self) -> None:
        """Send requests that have come, and prompts that have moved, to replicas that take them."""
        front = [r for r in self.replicas if r.role != DECODE and r.accepts and r.on_ps <= self.now_ps]
        back = [r for r in self.replicas if r.role == DECODE and r.accepts and r.on_ps <= self.now_ps]
        while front and self.routed < self.issued and self.come_ps[self.routed] <= self.now_ps:
            self.send(self.routed, self.chosen(front, self.routed), handed_over=False)
            self.routed += 1
        while back and self.moving and self.moving[0][0] <= self.now_ps:
            _, row = heapq.heappop(self.moving)
            self.send(row, self.chosen(back, row), handed_over=True)

    def chosen(self, takers: list[ReferenceReplica], row: int) -> ReferenceReplica:
        """The balancer's choice; the first of those that are alike."""
        role, prefix = takers[0].role, int(self.setup.trace.prefix[row])
        if self.setup.balancer == ROUND_ROBIN:
            self.turn[role] += 1
            return takers[(self.turn[role] - 1) % len(takers)]
        if self.setup.balancer == LEAST_TOKENS:
            return min(takers, key=lambda r: r.tokens)
        least = min(takers, key=lambda r: r.requests)
        if self.setup.balancer == LEAST_LOADED or prefix < 0:
            return least
        last = self.last.get((role, prefix))
        if last not in takers or (
            last.requests > least.requests + BEHIND_REQUESTS and 2 * last.requests > 3 * least.requests
        ):
            last = least
        self.last[role, prefix] = last
        return last

    def send(self, row: int, replica: ReferenceReplica, *, handed_over: bool) -> None:
        """Put a request into a replica's queue."""
        setup, trace = self.setup, self.setup.trace
        prompt, prefix = int(trace.prompt[row]), int(trace.prefix[row])
        known = min(int(trace.prefix_tokens[row]), prompt - 1) // setup.limits.block_tokens
        sequence = Sequence(
            row=row,
            rank=int(setup.rank[row]),
            prompt=prompt,
            output=1 if replica.role == PREFILL else int(trace.output[row]),
            prefix=prefix,
            shareable=known if setup.limits.prefix_cache and prefix >= 0 else 0,
            todo=0 if handed_over else prompt - int(setup.hits[row]),
            have=0 if handed_over else int(setup.hits[row]),
        )
        if handed_over:
            sequence.have, sequence.made, sequence.last_ps = prompt, 1, self.log.first_ps[row]
        heapq.heappush(replica.waiting, (sequence.rank, sequence))
        replica.requests += 1
        replica.tokens += prompt + sequence.output
        self.log.replica[row] = self.replicas.index(replica)
