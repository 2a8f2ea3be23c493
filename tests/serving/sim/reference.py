"""The simulator, step by step in plain Python: the definition of what is right. The compiled core equals it exactly.

One step of a replica:

1. Requests that have come wait, in the order of the policy. An engine that plans ahead decides about a step when the
   one before it begins: it sees those that have come by then; where nothing runs, all that have come.
2. Every sequence whose prompt is done decodes a token and, where it crosses into a new block, takes one. While blocks
   are short, prefixes that nobody uses are evicted, least recently used first; then the sequence admitted last gives
   way. A step that made one give way admits none.
3. What is left of the step's tokens goes to the prompt that is under way, then to waiting requests, while the batch has
   room and the blocks of the whole prompt are free. Cached blocks of its prefix are shared and not computed again.
4. Unless prompts and answers mix, a step that can work on a prompt decodes nothing.
5. At the end of the step every decoding sequence has its token, and every finished prompt its first (or next) one.

A replica's front end handles requests one after another before its scheduler sees them, and hands out the tokens of a
step one after another: clients see them then. Handling and handing out do not wait for each other.

At one time, steps end first, then requests that come are sent to replicas, then steps begin.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flopwise.serving.sim.cost import seen_pairs, step_ps
from flopwise.serving.sim.policies import BEHIND_REQUESTS, LEAST_LOADED, LEAST_TOKENS, ROUND_ROBIN
from flopwise.serving.sim.result import BINS, PARTS, Outcome, ReplicaTotals, Standing, Switches
from flopwise.serving.sim.setup import DECODE, PREFILL, Setup
from flopwise.serving.sim.trace import Column

NEVER = 2**63 - 1


def bin_of(gap_ps: int) -> int:
    """Bin of a gap: as high-dynamic-range histograms do, by the number's length and its first bits."""
    shift = max(gap_ps.bit_length() - 8, 0)
    return shift * PARTS + (gap_ps >> shift)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way."""

    row: int
    rank: int
    prompt: int
    output: int  # tokens that it is to make here
    prefix: int
    shareable: int  # blocks of its prefix that others could use
    todo: int  # tokens to work through before it decodes
    have: int = 0  # tokens in cache
    made: int = 0  # tokens of the answer
    blocks: int = 0  # of its own
    shared: int = 0  # blocks of the prefix that it uses
    owed: int = 0  # blocks on the host, to be moved back
    last_ps: int = 0  # when its last token came


@dataclass(slots=True)
class Prefix:
    """A cached prefix of one replica."""

    blocks: int
    users: int
    released_ps: int = 0


@dataclass(slots=True)
class Log:
    """What is written down of all replicas."""

    start_ps: list[int]
    first_ps: list[int]
    finish_ps: list[int]
    preemptions: list[int]
    replica: list[int]
    itl: list[int] = field(default_factory=lambda: [0] * BINS)  # tokens by the bin of the time since the one before


class ReferenceReplica:
    """One scheduler and its engine."""

    def __init__(self, setup: Setup, role: int, log: Log) -> None:
        self.setup, self.limits, self.role, self.log = setup, setup.limits, role, log
        self.tokens_ps, self.decode_ps = setup.cost.tokens_ps.tolist(), setup.cost.decode_ps.tolist()
        self.cached_ps, self.window_ps = setup.cost.cached_ps.tolist(), setup.cost.window_ps.tolist()
        self.numbers = setup.cost.numbers
        self.end_ps = NEVER  # of the step in progress
        self.ended_ps = 0  # of the last one
        self.began_ps = 0  # the step in progress
        self.desk_ps = self.stream_ps = 0  # when the front end is free for a request, and has handed out all tokens
        self.handled: list[tuple[int, Sequence]] = []  # requests in the front end, and when it is done with each
        self.requests = self.tokens = 0  # that wait or run, and what they ask for
        self.busy_ps = self.steps = self.worked = self.made = self.reused = self.preemptions = self.peak_blocks = 0
        self.start(NEVER)

    def start(self, on_ps: int) -> None:
        """Empty and ready from then on."""
        self.on_ps, self.accepts = on_ps, on_ps < NEVER
        self.waiting: list[tuple[int, Sequence]] = []  # a heap by rank
        self.running: list[Sequence] = []  # in the order of admission
        self.decoding: list[Sequence] = []  # in the step in progress
        self.chunks: list[tuple[Sequence, int]] = []  # prompts in it, and how many of their tokens
        self.prefixes: dict[int, Prefix] = {}
        self.used = 0  # blocks

    def see(self, now: int) -> None:
        """Take over what the front end is done with."""
        planned = self.limits.ahead and self.ended_ps == now and self.running
        while self.handled and self.handled[0][0] <= (self.began_ps if planned else now):
            _, sequence = self.handled.pop(0)
            heapq.heappush(self.waiting, (sequence.rank, sequence))

    def begin(self, now: int) -> None:
        """Decide what the next step does."""
        self.began_ps = now
        budget, moved, preempted = self.limits.step_tokens, 0, False
        self.decoding, self.chunks = [s for s in self.running if s.todo == 0], []
        partial = next((s for s in self.running if s.todo), None)
        prompts_only = not self.limits.mix and (partial is not None or (self.fits() and self.waiting[0][1].todo > 0))
        if prompts_only:
            self.decoding = []
        else:
            moved, preempted = self.grow(now)
            budget -= len(self.decoding)
        if partial is not None and partial in self.running and budget > 0:
            self.chunks.append((partial, min(partial.todo, budget)))
            budget -= self.chunks[0][1]
        while budget > 0 and not preempted and self.fits():
            if not (self.limits.mix or prompts_only or self.waiting[0][1].todo == 0):
                break
            sequence = self.admit(now)
            moved, sequence.owed = moved + sequence.owed, 0
            self.chunks.append((sequence, min(sequence.todo, budget)))
            budget -= self.chunks[-1][1]
        self.end_ps = now + self.duration() + moved * self.limits.swap_ps_per_block
        self.busy_ps += self.end_ps - now
        self.steps += 1
        self.made += len(self.decoding)
        self.worked += sum(c for _, c in self.chunks)
        self.peak_blocks = max(self.peak_blocks, self.used)

    def duration(self) -> int:
        """Picoseconds of the step that has been decided."""
        window = self.setup.cost.window
        return step_ps(
            self.tokens_ps,
            self.decode_ps,
            self.cached_ps,
            self.window_ps,
            self.numbers,
            len(self.decoding),
            sum(s.have for s in self.decoding),
            sum(min(s.have, window) for s in self.decoding),
            sum(c for _, c in self.chunks),
            sum(seen_pairs(s.have, c, 0) for s, c in self.chunks),
            sum(seen_pairs(s.have, c, window) for s, c in self.chunks) if window else 0,
        )

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.limits.block_tokens)

    def fits(self) -> bool:
        """Whether the head of the queue can be admitted, evicting prefixes that nobody uses."""
        if not self.waiting or len(self.running) >= self.limits.max_batch:
            return False
        head = self.waiting[0][1]
        entry = self.cached_prefix(head)
        own = self.blocks_of(head.have + head.todo) - (min(entry.blocks, head.shareable) if entry else 0)
        idle = sum(p.blocks for p in self.prefixes.values() if p.users == 0 and p is not entry)
        return own <= self.limits.num_blocks - self.used + idle

    def cached_prefix(self, sequence: Sequence) -> Prefix | None:
        """The cached prefix that a request can use; not one so long that it and the request exceed the cache."""
        entry = self.prefixes.get(sequence.prefix)
        if entry is None or sequence.have or not sequence.shareable:
            return None
        most = self.blocks_of(sequence.prompt + sequence.output - 1) + max(entry.blocks - sequence.shareable, 0)
        return entry if most <= self.limits.num_blocks else None

    def admit(self, now: int) -> Sequence:
        """Move the head of the queue into the batch."""
        _, sequence = heapq.heappop(self.waiting)
        sequence.blocks = self.blocks_of(sequence.have + sequence.todo)
        entry = self.cached_prefix(sequence)
        if entry:
            entry.users += 1
            sequence.shared = min(entry.blocks, sequence.shareable)
            sequence.have = sequence.shared * self.limits.block_tokens
            sequence.todo -= sequence.have
            sequence.blocks -= sequence.shared
            self.reused += sequence.have
        while sequence.blocks > self.limits.num_blocks - self.used:
            self.evict()
        self.used += sequence.blocks
        self.running.append(sequence)
        if self.log.start_ps[sequence.row] < 0:
            self.log.start_ps[sequence.row] = now
        return sequence

    def evict(self) -> bool:
        """Drop the prefix that has been without a user for longest; False where all are in use."""
        idle = [(p.released_ps, name) for name, p in self.prefixes.items() if p.users == 0]
        if idle:
            self.used -= self.prefixes.pop(min(idle)[1]).blocks
        return bool(idle)

    def release(self, sequence: Sequence, now: int) -> None:
        """Give back the blocks of a sequence that leaves the batch."""
        self.running.remove(sequence)
        self.used -= sequence.blocks
        if sequence.shared:
            entry = self.prefixes[sequence.prefix]
            entry.users, entry.released_ps = entry.users - 1, now
        sequence.blocks = sequence.shared = 0

    def grow(self, now: int) -> tuple[int, bool]:
        """Blocks for the next token of all that decode: (blocks moved to the host, whether one had to give way)."""
        moved, preempted = 0, False
        need = sum(s.have % self.limits.block_tokens == 0 for s in self.decoding)
        while need > self.limits.num_blocks - self.used:
            if self.evict():
                continue
            victim, preempted = self.running[-1], True
            self.release(victim, now)
            if victim in self.decoding:
                self.decoding.remove(victim)
                need -= victim.have % self.limits.block_tokens == 0
            if self.limits.preempt == "swap":
                victim.owed = self.blocks_of(victim.have)
                moved += victim.owed
            else:
                victim.have, victim.todo = 0, victim.prompt + victim.made
            heapq.heappush(self.waiting, (victim.rank, victim))
            self.log.preemptions[victim.row] += 1
            self.preemptions += 1
        for sequence in self.decoding:
            sequence.blocks += sequence.have % self.limits.block_tokens == 0
        self.used += need
        return moved, preempted

    def finish(self) -> list[Sequence]:
        """End the step in progress: tokens come out; finished sequences leave and are returned."""
        now, self.end_ps = self.end_ps, NEVER
        self.ended_ps = now
        out = len(self.decoding) + sum(0 < c == s.todo for s, c in self.chunks)
        self.stream_ps = max(self.stream_ps, now) + out * self.setup.cost.stream_ps
        self.seen_ps = self.stream_ps - self.setup.cost.stream_ps  # when clients have the tokens of this step
        for sequence in self.decoding:
            sequence.have += 1
            self.emit(sequence, now)
        for sequence, chunk in self.chunks:
            sequence.have += chunk
            sequence.todo -= chunk
            if chunk and sequence.todo == 0:
                self.made += 1
                self.emit(sequence, now)
                self.remember(sequence)
        done = [s for s in self.running if s.made == s.output]
        for sequence in done:
            self.release(sequence, now)
            self.requests -= 1
            self.tokens -= sequence.prompt + sequence.output
        return done

    def emit(self, sequence: Sequence, now: int) -> None:
        """One token of the answer."""
        sequence.made += 1
        if sequence.made == 1:
            self.log.first_ps[sequence.row] = self.seen_ps
        else:
            self.log.itl[bin_of(now - sequence.last_ps)] += 1
        sequence.last_ps = now

    def remember(self, sequence: Sequence) -> None:
        """Cache the prefix of a finished prompt, if it is not yet."""
        own = sequence.shareable if self.limits.prefix_cache and not sequence.shared else 0
        if own and sequence.prefix not in self.prefixes:
            self.prefixes[sequence.prefix] = Prefix(blocks=own, users=1)
            sequence.blocks -= own
            sequence.shared = own


class ReferenceFleet:
    """Replicas behind a balancer, advanced event by event; the interface of `flopwise.serving.sim.fleet.FastFleet`."""

    def __init__(self, setup: Setup, on_compile: object = None) -> None:
        del on_compile  # nothing is compiled
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
        self.made_ps = [0] * rows  # when a prompt that moves was done
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
                r.accepts or r.requests > 0, len(r.waiting) + len(r.handled), len(r.running), r.used, r.busy_ps,
                r.steps, r.worked, r.made, r.reused, r.preemptions, r.peak_blocks, r.ended_ps, r.requests,
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
                if replica.end_ps == NEVER and replica.on_ps <= self.now_ps:
                    replica.see(self.now_ps)
                if replica.end_ps == NEVER and (replica.waiting or replica.running) and replica.on_ps <= self.now_ps:
                    replica.begin(self.now_ps)
            self.now_ps = min(until_ps, max(self.next_ps(), self.now_ps))

    def next_ps(self) -> int:
        """When something happens next."""
        times = [r.end_ps for r in self.replicas]
        times += [r.on_ps for r in self.replicas if r.on_ps > self.now_ps]
        times += [r.handled[0][0] for r in self.replicas if r.handled and r.handled[0][0] > self.now_ps]
        if self.routed < self.issued and self.come_ps[self.routed] > self.now_ps:
            times.append(self.come_ps[self.routed])
        times += [when for when, _ in self.moving if when > self.now_ps]
        return min(times)

    def _leave(self, sequence: Sequence, replica: ReferenceReplica) -> None:
        """A sequence is done on a replica: it goes on to decode, or its user thinks and asks again."""
        now, row = self.now_ps, sequence.row
        if replica.role == PREFILL and self.setup.trace.output[row] > 1:
            self.made_ps[row] = now
            heapq.heappush(self.moving, (now + int(self.setup.transfer_ps[row]), row))
            return
        self.log.finish_ps[row] = replica.seen_ps
        self.answered_count += 1
        if self.setup.users and self.issued < len(self.come_ps):
            again = replica.seen_ps + self.setup.think_ps + self.setup.cost.request_ps
            self.come_ps[self.issued] = max(again, self.come_ps[self.issued - 1])
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
            sequence.have, sequence.made, sequence.last_ps = prompt, 1, self.made_ps[row]
            replica.handled.append((self.now_ps, sequence))
        else:
            ready_ps = max(self.now_ps, replica.desk_ps) + prompt * setup.cost.front_token_ps
            replica.desk_ps = ready_ps + setup.cost.front_ps
            replica.handled.append((ready_ps, sequence))
        replica.requests += 1
        replica.tokens += prompt + sequence.output
        self.log.replica[row] = self.replicas.index(replica)


REFERENCE: Any = ReferenceFleet
"""As the `engine` of `simulate` and `elastic`."""
