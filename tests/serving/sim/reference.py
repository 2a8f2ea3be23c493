"""The simulator, step by step in plain Python: the definition of what is right. The compiled core equals it exactly.

One step of a replica:

1. Requests that have come wait, in the order of the policy. An engine that plans ahead decides about a step when the
   one before it begins: it sees those that have come by then; where nothing runs, all that have come.
2. Every sequence whose prompt is done decodes a token and, where it crosses into a new block, takes one. While blocks
   are short, prefixes that nobody uses are evicted, least recently used first, what hangs from others before these;
   then the sequence admitted last gives way. A step that made one give way admits none.
3. What is left of the step's tokens goes to the prompt that is under way, then to waiting requests, while the batch has
   room and the blocks of the whole prompt are free. Cached blocks of its prefix are shared and not computed again.
4. Unless prompts and answers mix, a step that can work on a prompt decodes nothing.
5. At the end of the step every decoding sequence has its token, and every finished prompt its first (or next) one. An
   engine that hands tokens out once the next step is launched keeps first ones, unless they are all of an answer, until
   then where that is a step of prompts: until the end of two launches, counted from the beginning of the first.

A replica's front end handles requests one after another before its scheduler sees them, and hands out the tokens of a
step one after another: clients see them then. Handling and handing out do not wait for each other.

What is evicted goes to the first of the replica's stores that it fits in, and pushes what lies there longest to the
next. A request that comes and finds the next part of its prefix there, and not on the device, waits until the store's
link, one part after another, has brought it; if meanwhile what lies before it is gone, it was brought in vain.

Turns of a session come a pause after the answer before them. An answer leaves its cache, with its prompt's, for them.

At one time, steps end first, then requests that come are sent to replicas, then those that were brought something, then
prompts that have moved; then steps begin.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flopwise.serving.sim.cost import seen_pairs, step_ps
from flopwise.serving.sim.policies import BEHIND_REQUESTS, LEAST_LOADED, LEAST_TOKENS, ROUND_ROBIN
from flopwise.serving.sim.result import BINS, PARTS, Outcome, ReplicaTotals, Standing, Switches
from flopwise.serving.sim.setup import DECODE, PREFILL, WHOLE, Setup
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
    path: tuple[int, ...]  # nodes of its prompt, from the start on
    rest: tuple[int, ...]  # nodes that its answer adds
    todo: int  # tokens to work through before it decodes
    have: int = 0  # tokens in cache
    made: int = 0  # tokens of the answer
    blocks: int = 0  # of its own
    shared: list[int] = field(default_factory=list)  # nodes whose blocks it uses
    staged: int = 0  # blocks from the start of its prompt to the end of what was brought
    staged_on: int = 0  # and to its beginning
    owed: int = 0  # blocks on the host, to be moved back
    last_ps: int = 0  # when its last token came


@dataclass(slots=True)
class Prefix:
    """A cached node of one replica."""

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
        self.scalars = setup.cost.scalars
        self.end_ps = NEVER  # of the step in progress
        self.ended_ps = 0  # of the last one
        self.began_ps = 0  # the step in progress
        self.joined: list[Sequence] = []  # prompts that have had their first token at the end of the last
        self.desk_ps = self.stream_ps = 0  # when the front end is free for a request, and has handed out all tokens
        self.handled: list[tuple[int, Sequence]] = []  # requests in the front end, and when it is done with each
        self.requests = self.tokens = 0  # that wait or run, and what they ask for
        self.busy_ps = self.steps = self.worked = self.made = self.reused = self.preemptions = self.peak_blocks = 0
        self.fetched = [0] * len(self.limits.stores)
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
        self.stores: list[dict[int, int]] = [{} for _ in self.limits.stores]  # blocks by node, the oldest first
        self.link_free_ps = [0] * len(self.stores)

    def see(self, now: int) -> None:
        """Take over what the front end is done with."""
        planned = self.limits.ahead and self.ended_ps == now and self.running
        while self.handled and self.handled[0][0] <= (self.began_ps if planned else now):
            _, sequence = self.handled.pop(0)
            heapq.heappush(self.waiting, (sequence.rank, sequence))

    def begin(self, now: int) -> None:
        """Decide what the next step does."""
        wait_ps = self.setup.cost.next_launch_ps - (self.ended_ps - self.began_ps)
        self.began_ps = now
        budget, moved, preempted = self.limits.step_tokens, 0, False
        self.decoding, self.chunks = [s for s in self.running if s.todo == 0], []
        partial = next((s for s in self.running if s.todo), None)
        prompts_only = not self.limits.mix and (partial is not None or (self.fits() and self.waiting[0][1].todo > 0))
        if prompts_only and self.ended_ps == now and self.role == WHOLE and wait_ps > 0:
            for sequence in self.joined:
                self.log.first_ps[sequence.row] += wait_ps
                sequence.last_ps += wait_ps
        self.joined = []
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
            self.scalars,
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
        cached = self.cached_nodes(head)
        own = self.blocks_of(head.have + head.todo) - sum(self.prefixes[n].blocks for n in cached)
        idle = sum(p.blocks for n, p in self.prefixes.items() if p.users == 0 and n not in cached)
        return own <= self.limits.num_blocks - self.used + idle

    def cached_nodes(self, sequence: Sequence) -> list[int]:
        """The cached nodes that a request can use, from the start of its prompt on."""
        if sequence.have or not self.limits.prefix_cache:
            return []
        return list(itertools.takewhile(self.prefixes.__contains__, sequence.path))

    def admit(self, now: int) -> Sequence:
        """Move the head of the queue into the batch."""
        _, sequence = heapq.heappop(self.waiting)
        sequence.blocks = self.blocks_of(sequence.have + sequence.todo)
        if not sequence.have:
            sequence.shared = self.cached_nodes(sequence)
            found = sum(self.prefixes[n].blocks for n in sequence.shared)
            sequence.blocks -= found
            if found >= sequence.staged_on:
                found = max(found, sequence.staged)
            sequence.have = found * self.limits.block_tokens
            sequence.todo -= sequence.have
            self.reused += sequence.have
        sequence.staged = sequence.staged_on = 0
        for node in sequence.shared:
            self.prefixes[node].users += 1
        while sequence.blocks > self.limits.num_blocks - self.used:
            self.evict()
        self.used += sequence.blocks
        self.running.append(sequence)
        if self.log.start_ps[sequence.row] < 0:
            self.log.start_ps[sequence.row] = now
        return sequence

    def evict(self) -> bool:
        """Drop the prefix that has been without a user for longest; False where all are in use."""
        idle = [(p.released_ps, -node) for node, p in self.prefixes.items() if p.users == 0]
        if idle:
            node = -min(idle)[1]
            blocks = self.prefixes.pop(node).blocks
            self.used -= blocks
            self.put_away(node, blocks, 0)
        return bool(idle)

    def put_away(self, node: int, blocks: int, first: int) -> None:
        """Into the first store from `first` on that could hold it; what is then too much goes further down."""
        sizes = [store.blocks for store in self.limits.stores]
        place = next((i for i in range(first, len(sizes)) if blocks <= sizes[i]), None)
        if place is None:
            return
        store = self.stores[place]
        store.pop(node, None)
        store[node] = blocks
        while sum(store.values()) > sizes[place]:
            oldest = next(iter(store))
            self.put_away(oldest, store.pop(oldest), place + 1)

    def fetch(self, sequence: Sequence, now: int) -> int | None:
        """Bring what stores hold of a prefix; when it is there, or None where they have nothing of it."""
        if not self.limits.prefix_cache:
            return None
        cached = list(itertools.takewhile(self.prefixes.__contains__, sequence.path))
        on_device = sum(self.prefixes[n].blocks for n in cached)
        brought, ready = on_device, None
        for node in sequence.path[len(cached) :]:
            place = next((i for i, store in enumerate(self.stores) if node in store), None)
            if place is None:
                break
            blocks, how = self.stores[place].pop(node), self.limits.stores[place]
            self.link_free_ps[place] = max(now, self.link_free_ps[place]) + blocks * how.block_ps
            self.fetched[place] += blocks
            ready = max(ready or 0, self.link_free_ps[place] + how.latency_ps)
            brought += blocks
        if ready is not None:
            sequence.staged, sequence.staged_on = brought, on_device
        return ready

    def release(self, sequence: Sequence, now: int) -> None:
        """Give back the blocks of a sequence that leaves the batch."""
        self.running.remove(sequence)
        self.used -= sequence.blocks
        for node in sequence.shared:
            entry = self.prefixes[node]
            entry.users -= 1
            if not entry.users:
                entry.released_ps = now
        sequence.blocks, sequence.shared = 0, []

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
            self.remember_answer(sequence)
        for sequence, chunk in self.chunks:
            sequence.have += chunk
            sequence.todo -= chunk
            if chunk and sequence.todo == 0:
                self.made += 1
                self.emit(sequence, now)
                self.remember(sequence, sequence.path)
                self.remember_answer(sequence)
        self.joined = [s for s, c in self.chunks if c and s.todo == 0 and s.made == 1 and s.output > 1]
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

    def remember_answer(self, sequence: Sequence) -> None:
        """Cache what a finished answer adds, if its whole prompt is shared."""
        if self.role == WHOLE and sequence.made == sequence.output and tuple(sequence.shared) == sequence.path:
            self.remember(sequence, sequence.path + sequence.rest)

    def remember(self, sequence: Sequence, path: tuple[int, ...]) -> None:
        """Let others use a sequence's blocks along `path`, up to where somebody else's are there already."""
        end = self.setup.prefixes.tree.end
        for before, node in itertools.pairwise((-1, *path)):
            if not self.limits.prefix_cache or (node in self.prefixes and node not in sequence.shared):
                break
            if node not in sequence.shared:
                blocks = int(end[node]) - (int(end[before]) if before >= 0 else 0)
                self.prefixes[node] = Prefix(blocks=blocks, users=1)
                sequence.blocks -= blocks
                sequence.shared.append(node)


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
        self.turns: list[tuple[int, int]] = []  # a heap of (when, row): requests that follow answers
        self.fetching: list[tuple[int, int, Sequence, ReferenceReplica]] = []  # a heap by time: stores bring something
        self.ranks: list[int] = setup.rank.tolist()
        self.posted = 0  # requests of sessions that an inbox has had
        self.moving: list[tuple[int, int]] = []  # a heap of (when, row): prompts done, on the way to decode
        self.turn = [0, 0, 0]  # of the round robin, by role
        self.last: dict[tuple[int, int], ReferenceReplica] = {}  # where a node was last sent
        self.answered_count = 0
        self.made_ps = [0] * rows  # when the cache of a prompt that moves is there
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
        come[[row for row in range(len(come)) if self.follows(row) and self.log.replica[row] < 0]] = -1
        columns = (log.start_ps, log.first_ps, log.finish_ps, log.preemptions, log.replica)
        return Outcome(come, *(np.array(c, dtype=np.int64) for c in columns))

    def itl(self) -> Column:
        """Histogram of the gaps between tokens."""
        return np.array(self.log.itl, dtype=np.int64)

    @property
    def fetched_blocks(self) -> Column:
        """Blocks that came back from each store, of all replicas."""
        return np.asarray(np.array([r.fetched for r in self.replicas], dtype=np.int64).sum(axis=0))

    @property
    def unassigned_count(self) -> int:
        """Requests that have come and that no replica takes."""
        rows = [row for row in range(self.routed, self.issued) if not self.follows(row)]
        come = sum(self.come_ps[row] <= self.now_ps for row in rows)
        return come + sum(when <= self.now_ps for when, _ in (*self.moving, *self.turns))

    def follows(self, row: int) -> bool:
        """Whether a request comes after an answer."""
        return bool(self.setup.trace.pause_ps[row] >= 0)

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
        times += [when for when, _ in (*self.moving, *self.turns) if when > self.now_ps]
        times += [when for when, *_ in self.fetching]
        return min(times)

    def _leave(self, sequence: Sequence, replica: ReferenceReplica) -> None:
        """A sequence is done on a replica: it goes on to decode, or its user thinks and asks again."""
        now, row = self.now_ps, sequence.row
        if replica.role == PREFILL and self.setup.trace.output[row] > 1:
            self.made_ps[row] = now + int(self.setup.transfer_ps[row])
            self.log.first_ps[row] += int(self.setup.transfer_ps[row])
            heapq.heappush(self.moving, (self.made_ps[row], row))
            return
        self.log.finish_ps[row] = replica.seen_ps
        self.answered_count += 1
        turn = int(self.setup.next_turn[row])
        if turn >= 0:
            came = replica.seen_ps + int(self.setup.trace.pause_ps[turn])
            self.come_ps[turn] = came + self.setup.cost.request_ps
            heapq.heappush(self.turns, (self.come_ps[turn], turn))
        if self.setup.users and self.issued < len(self.come_ps):
            again = replica.seen_ps + self.setup.think_ps + self.setup.cost.request_ps
            self.come_ps[self.issued] = max(again, self.come_ps[self.issued - 1])
            self.issued += 1

    def route(self) -> None:
        """Send requests that have come, and prompts that have moved, to replicas that take them."""
        front = [r for r in self.replicas if r.role != DECODE and r.accepts and r.on_ps <= self.now_ps]
        back = [r for r in self.replicas if r.role == DECODE and r.accepts and r.on_ps <= self.now_ps]
        while front and (row := self.next_row()) is not None:
            self.send(row, self.chosen(front, row), handed_over=False)
        while self.fetching and self.fetching[0][0] <= self.now_ps:
            _, _, sequence, replica = heapq.heappop(self.fetching)
            self.post(sequence, replica)
        while back and self.moving and self.moving[0][0] <= self.now_ps:
            _, row = heapq.heappop(self.moving)
            self.send(row, self.chosen(back, row), handed_over=True)

    def next_row(self) -> int | None:
        """The request that has come first of those that no replica has; of two those that follow no answer."""
        while self.routed < self.issued and self.follows(self.routed):
            self.routed += 1
        own = self.come_ps[self.routed] if self.routed < self.issued else NEVER
        after = self.turns[0][0] if self.turns else NEVER
        if min(own, after) > self.now_ps:
            return None
        if after < own:
            return heapq.heappop(self.turns)[1]
        self.routed += 1
        return self.routed - 1

    def path_of(self, node: int) -> tuple[int, ...]:
        """Nodes from the start of a prompt to `node`."""
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = int(self.setup.prefixes.tree.parent[node])
        return tuple(path)

    def chosen(self, takers: list[ReferenceReplica], row: int) -> ReferenceReplica:
        """The balancer's choice; the first of those that are alike."""
        role, path = takers[0].role, self.path_of(int(self.setup.prefixes.prompt[row]))
        if self.setup.balancer == ROUND_ROBIN:
            self.turn[role] += 1
            return takers[(self.turn[role] - 1) % len(takers)]
        if self.setup.balancer == LEAST_TOKENS:
            return min(takers, key=lambda r: r.tokens)
        least = min(takers, key=lambda r: r.requests)
        if self.setup.balancer == LEAST_LOADED or not path:
            return least
        end, last = self.setup.prefixes.tree.end, None
        near = next((node for node in reversed(path) if (role, node) in self.last), None)
        if near is not None and 2 * end[near] >= end[path[-1]]:
            last = self.last[role, near]
        if last not in takers or (
            last.requests > least.requests + BEHIND_REQUESTS and 2 * last.requests > 3 * least.requests
        ):
            last = least
        self.last |= {(role, node): last for node in path}
        return last

    def send(self, row: int, replica: ReferenceReplica, *, handed_over: bool) -> None:
        """Put a request into a replica's queue."""
        setup, trace = self.setup, self.setup.trace
        prompt, prefixes = int(trace.prompt[row]), setup.prefixes
        path = self.path_of(int(prefixes.prompt[row]))
        sequence = Sequence(
            row=row,
            rank=self.ranks[row],
            prompt=prompt,
            output=1 if replica.role == PREFILL else int(trace.output[row]),
            path=path,
            rest=self.path_of(int(prefixes.answer[row]))[len(path) :],
            todo=0 if handed_over else prompt - int(setup.hits[row]),
            have=0 if handed_over else int(setup.hits[row]),
        )
        if handed_over:
            sequence.have, sequence.made, sequence.last_ps = prompt, 1, self.made_ps[row]
        replica.requests += 1
        replica.tokens += prompt + sequence.output
        self.log.replica[row] = self.replicas.index(replica)
        ready = None if handed_over or not path else replica.fetch(sequence, self.now_ps)
        if ready is None:
            self.post(sequence, replica)
        else:
            heapq.heappush(self.fetching, (ready, row, sequence, replica))

    def post(self, sequence: Sequence, replica: ReferenceReplica) -> None:
        """Put a request into a replica's inbox, where its front end is done with it."""
        cost = self.setup.cost
        ready_ps = self.now_ps
        if replica.role != DECODE:
            ready_ps = max(self.now_ps, replica.desk_ps) + sequence.prompt * cost.front_token_ps
            replica.desk_ps = ready_ps + cost.front_ps
            if self.setup.trace.follows and self.setup.fcfs:
                sequence.rank, self.posted = self.posted, self.posted + 1
                self.ranks[sequence.row] = sequence.rank
        replica.handled.append((ready_ps, sequence))


REFERENCE: Any = ReferenceFleet
"""As the `engine` of `simulate` and `elastic`."""
