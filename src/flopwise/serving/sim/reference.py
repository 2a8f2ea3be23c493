"""The simulator, step by step in plain Python: the definition of what is right. The compiled core equals it exactly.

One step of a replica:

1. Requests that have come wait, in the order of the policy.
2. Every sequence whose prompt is done decodes a token and, where it crosses into a new block, takes one. While blocks
   are short, prefixes that nobody uses are evicted, least recently used first; then the sequence admitted last gives
   way. A step that made one give way admits none.
3. What is left of the step's tokens goes to the prompt that is under way, then to waiting requests, while the batch has
   room and the blocks of the whole prompt are free. Cached blocks of its prefix are shared and not computed again.
4. Unless prompts and answers mix, a step that can work on a prompt decodes nothing.
5. At the end of the step every decoding sequence has its token, and every finished prompt its first (or next) one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from flopwise.serving.sim.cost import seen_pairs, step_ps
from flopwise.serving.sim.result import BINS, bin_of
from flopwise.serving.sim.setup import Setup

NEVER = 2**63 - 1


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

    def begin(self, now: int) -> None:
        """Decide what the next step does."""
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
            self.log.first_ps[sequence.row] = now
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
