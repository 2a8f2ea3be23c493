"""The simulator compiled: stretches of equal steps in closed form. What it does is defined by its tests' `reference`.

All is int64. Between two events (a sequence ends or fills its window, a request could be admitted, blocks run short,
the time asked for is reached) steps differ by a constant, so their sum is one product. Letters: w is the world, p a
replica, s a slot, r a request, k the column of counts, a all columns and tables. These are bare pointers: arrays have
seven numbers each to be handed over, and places are asked whether they count from the end. Imported only to be
compiled: numba takes a third of a second.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numba
import numpy as np
from numba import int64, njit, types
from llvmlite import ir
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from flopwise.serving.sim import cost, layout
from flopwise.serving.sim.compiler import Compiler
from flopwise.serving.sim.layout import BACK, FETCHING, FRONT, LEAVING, MOVING, REPLICA, TURNS, WORLD
from flopwise.serving.sim.policies import BEHIND_REQUESTS, LEAST_TOKENS, ROUND_ROBIN
from flopwise.serving.sim.result import PARTS
from flopwise.serving.sim.setup import DECODE, PREFILL, WHOLE

NEVER = 2**62
SHARED = layout.SHARED
"""Whether this is compiled for prompts that share beginnings, sessions and stores. A constant: without it all that has
to do with them is neither compiled nor asked for."""
PART_BITS = PARTS.bit_length() - 1
BITS = 20
LOW = 2**BITS - 1
SOON = 10**5
"""Steps that are looked ahead."""
REPLICA_BIT = 40
"""Of those who leave at one time, those of the first replica leave first: its number stands above the request's."""
NEAR = 16
"""Places by which a queue in order lets others move up for one that comes before them."""
AHEAD = 8
"""Requests that are brought from memory before they are admitted: that takes as long as a few admissions."""
AT_ONCE = 2
"""Of them, those looked for at each admission."""
FAR_RANKS = 64 * AHEAD
"""Ranks behind which none are looked for: they will be others when their turn comes."""
HOW = {"error_model": "numpy", "_nrt": False, "pipeline_class": Compiler}
"""How all is compiled. Nothing is allocated, so no array needs a count of its users: that took half of the time."""
inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **HOW)
"""Compiled into whatever calls it: handing over all arrays would take longer than what is done with them."""
NONE, SINGLE = np.int64(0), np.int64(1)
"""Arguments: a plain constant would have the function compiled once more for just that value."""

step_ps = inner(cost.step_ps)
seen_pairs = inner(cost.seen_pairs)


@intrinsic
def quotient(_typing, _number, _by):
    """Whole part of a number over another, where neither is negative: of others signs and zeros are asked for."""

    def code(_context, builder, _signature, arguments):
        return builder.udiv(*arguments)

    return int64(int64, int64), code


@inner
def remainder(number, by):
    """The rest of a division, where neither number is negative."""
    return number - quotient(number, by) * by


@inner
def blocks_of(tokens, w):
    return quotient(tokens + w.block_tokens - 1, w.block_tokens)


@intrinsic
def lowest_bit(_typing, _word):
    """The place of the lowest bit that is set in a word that has one."""

    def code(context, builder, _signature, arguments):
        return builder.cttz(arguments[0], context.get_constant(types.boolean, 1))

    return int64(int64), code


@intrinsic
def highest_bit(_typing, _word):
    """The place of the highest bit that is set in a word that has one."""

    def code(context, builder, _signature, arguments):
        zeros = builder.ctlz(arguments[0], context.get_constant(types.boolean, 1))
        return builder.sub(context.get_constant(int64, 63), zeros)

    return int64(int64), code


@intrinsic
def lower(_typing, _number, _other):
    """The lower of two numbers: `min` is a function that is compiled and called."""

    def code(_context, builder, _signature, arguments):
        return builder.select(builder.icmp_signed("<", *arguments), *arguments)

    return int64(int64, int64), code


@intrinsic
def higher(_typing, _number, _other):
    """The higher of two numbers."""

    def code(_context, builder, _signature, arguments):
        return builder.select(builder.icmp_signed(">", *arguments), *arguments)

    return int64(int64, int64), code


@intrinsic
def record(_typing, table, _place):
    """The record at a place of a table."""

    def code(_context, builder, _signature, arguments):
        return builder.gep(arguments[0], arguments[1:])

    return table.dtype(table, int64), code


@intrinsic
def fetch_early(_typing, table, _place):
    """Have the processor bring an entry of a table into its cache while it does something else."""

    def code(context, builder, _signature, arguments):
        entry = builder.gep(arguments[0], arguments[1:])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        to_write, to_stay, data = number(1), number(3), number(1)
        builder.call(fetch, [builder.bitcast(entry, byte), to_write, to_stay, data])
        return context.get_dummy_value()

    return types.void(table, int64), code


@inner
def wait(w, p, rows, ranks, by_rank, row):
    """A request joins those that wait at a replica.

    The first of them is known; the others are a set of ranks: a tree of words whose leaves have a bit for each rank,
    and whose other words have a bit for each word below that is not empty. Bits are numbered through: bit b lies in
    word b // 64, and stands for word b + 1.
    """
    rank = record(rows, row).rank
    if p.root < 0:
        p.root, p.rank = row, rank
        return
    if rank < p.rank:
        p.root, p.rank, rank = row, rank, p.rank
    bit = 64 * w.leaves + rank
    while bit >= 0:
        word = p.ranks + (bit >> 6)
        before = ranks[word]
        ranks[word] = before | (1 << (bit & 63))
        if before:
            break
        bit = (bit >> 6) - 1
        fetch_early(by_rank, rank)


@inner
def fetch_next(w, p, a):
    """Bring those from memory that are to be admitted soon: requests lie in the order of arrival."""
    p.fetched -= 1
    if p.early < p.rank or p.early > p.rank + FAR_RANKS or p.fetched < 0:
        p.early, p.fetched = p.rank, 0
    for _ in range(AT_ONCE if p.fetched < AHEAD else 0):
        rank = p.early + 1
        others = a.ranks[p.ranks + w.leaves + (rank >> 6)] >> (rank & 63) if rank < w.requests else NONE
        if others:
            p.early = rank + lowest_bit(others)
            p.fetched += 1
            row = a.by_rank[p.early]
            fetch_early(a.rows, row)
            fetch_early(a.progress, row)
        else:
            p.early = rank | 63


@inner
def take_root(w, p, a):
    """The first of those that wait leaves them, and the first of the others leaves their set to take its place."""
    p.root, bit = -1, NONE - 1
    if a.ranks[p.ranks]:
        word = w.leaves + (p.rank >> 6)  # the others have higher ranks, many of them the next ones
        while a.ranks[p.ranks + word] == 0:
            word = (word - 1) >> 6
        bit = 64 * word + lowest_bit(a.ranks[p.ranks + word])
        while word < w.leaves:
            word = bit + 1
            bit = 64 * word + lowest_bit(a.ranks[p.ranks + word])
        p.rank = bit - 64 * w.leaves
        p.root = a.by_rank[p.rank]
        fetch_next(w, p, a)
    while bit >= 0:
        word = p.ranks + (bit >> 6)
        left = a.ranks[word] & ~(1 << (bit & 63))
        a.ranks[word] = left
        if left:
            break
        bit = (bit >> 6) - 1


@inner
def enqueue(line, entries, time, row):
    """Into a heap by time, and among equal times by row; its root is at `line.first`.

    What comes nearly in order is put in order, which is a heap, too: then the first leaves by moving the root on.
    """
    if line.size == 0:
        line.first, line.ordered = 0, 1
    at = line.size
    line.size += 1
    while at > 0:
        if line.size - at > NEAR:
            line.ordered = 0
        up = at - 1 if line.ordered else (at - 1) >> 1
        above = record(entries, line.first + up)
        if above.time < time or (above.time == time and above.row < row):
            break
        entry = record(entries, line.first + at)
        entry.time, entry.row = above.time, above.row
        at = up
    entry = record(entries, line.first + at)
    entry.time, entry.row = time, row


@inner
def dequeue(line, entries):
    """The first leaves such a heap."""
    line.size -= 1
    if line.ordered:
        line.first += 1
        return
    size, first = line.size, line.first
    last = record(entries, first + size)
    time, row = last.time, last.row
    at = 0
    while 2 * at + 1 < size:  # the last one's place is read as if it were still there: it is no sooner than itself
        child = 2 * at + 1
        left, right = record(entries, first + child), record(entries, first + child + 1)
        child += (right.time < left.time) | ((right.time == left.time) & (right.row < left.row))
        least = record(entries, first + child)
        if least.time > time or (least.time == time and least.row >= row):
            break
        entry = record(entries, first + at)
        entry.time, entry.row = least.time, least.row
        at = child
    entry = record(entries, first + at)
    entry.time, entry.row = time, row


@inner
def push(lists, first, size, key):
    """Into the heap of a replica's next events, of which there are `size`."""
    at = size
    while at > 0:
        above = lists[first + ((at - 1) >> 1)]
        if above <= key:
            break
        lists[first + at] = above
        at = (at - 1) >> 1
    lists[first + at] = key


@inner
def pull(lists, first, size, at):
    """Out of it, from place `at`; `size` counts what is left."""
    key = lists[first + size]
    while at > 0:
        above = lists[first + ((at - 1) >> 1)]
        if above <= key:
            break
        lists[first + at] = above
        at = (at - 1) >> 1
    while 2 * at + 1 < size:
        child = 2 * at + 1
        child += lists[first + child + 1] < lists[first + child]
        least = lists[first + child]
        if least >= key:
            break
        lists[first + at] = least
        at = child
    lists[first + at] = key


@inner
def note(k, gap, more, steps, weight):
    """`weight` tokens a step in the histogram of gaps; each gap is `more` longer than the one before."""
    while steps > 0:
        shift = higher(highest_bit(gap | 1) - PART_BITS, NONE)
        part = gap >> shift
        edge = (part + 1) << shift
        count = steps
        if gap + more * (steps - 1) >= edge:
            count = quotient(edge - gap + more - 1, more)
        k[shift * PARTS + part] += count * weight
        gap += more * count
        steps -= count


@inner
def size_of(a, node):
    """Blocks of a node: from the end of the one that it hangs from to its own."""
    above = a.parent[node]
    return a.node_end[node] - (a.node_end[above] if above >= 0 else 0)


@inner
def unlink(entries, base, ends, node):
    """Take a node out of a list by age, whose first and last are in `ends`."""
    entry = record(entries, base + node)
    if entry.before >= 0:
        record(entries, base + entry.before).after = entry.after
    else:
        ends.oldest = entry.after
    if entry.after >= 0:
        record(entries, base + entry.after).before = entry.before
    else:
        ends.newest = entry.before


@inner
def append(entries, base, ends, node):
    """The newest of a list by age."""
    entry = record(entries, base + node)
    entry.before, entry.after = ends.newest, -1
    if ends.newest >= 0:
        record(entries, base + ends.newest).after = node
    else:
        ends.oldest = node
    ends.newest = node


@inner
def release(p, a, node):
    """A user less of a node and those that it hangs from; without any, a node may be evicted."""
    while node >= 0:
        entry = record(a.pre, p.base + node)
        entry.users -= 1
        if entry.users == 0:
            entry.released = p.now
            append(a.pre, p.base, p, node)
            p.idle += size_of(a, node)
        node = a.parent[node]


@inner
def evict(w, p, a):
    """Drop the node that has been without a user for longest; of several, the one that hangs from the others."""
    node = p.oldest
    other = record(a.pre, p.base + node).after
    while other >= 0 and record(a.pre, p.base + other).released == record(a.pre, p.base + p.oldest).released:
        node = higher(node, other)
        other = record(a.pre, p.base + other).after
    unlink(a.pre, p.base, p, node)
    p.idle -= size_of(a, node)
    p.used -= size_of(a, node)
    record(a.pre, p.base + node).there = 0
    if w.links:
        put_away(w, p, a, node)


@inner
def put_away(w, p, a, node):
    """Move cached blocks without room on the device to the first store that can hold them; the oldest there move on."""
    size = size_of(a, node)
    place = p.store
    while place < p.store + w.links and record(a.links, place).blocks < size:
        place += 1
    if place == p.store + w.links:
        return
    lay(w, a, place, node)
    full = place
    while full >= place:  # the lowest first: it makes room before more comes
        link = record(a.links, full)
        if link.used <= link.blocks:
            full -= 1
            continue
        old = link.oldest
        take_out(w, a, full, old)
        further, size = full + 1, size_of(a, old)
        while further < p.store + w.links and record(a.links, further).blocks < size:
            further += 1
        if further < p.store + w.links:
            lay(w, a, further, old)
            full = further


@inner
def lay(w, a, place, node):
    """A node as the newest of a store."""
    link, base = record(a.links, place), place * w.nodes
    if record(a.low, base + node).there:
        unlink(a.low, base, link, node)
    else:
        record(a.low, base + node).there = 1
        link.used += size_of(a, node)
    append(a.low, base, link, node)


@inner
def take_out(w, a, place, node):
    """A node out of a store."""
    base = place * w.nodes
    unlink(a.low, base, record(a.links, place), node)
    record(a.low, base + node).there = 0
    record(a.links, place).used -= size_of(a, node)


@inner
def path_down(p, a, node, above):
    """The first node below `above` (-1: the root) on the way to `node`; those on the way know the next one."""
    top = node
    while node != above:
        top, node = node, a.parent[node]
        if node >= 0:
            record(a.pre, p.base + node).down = top
    return top


@inner
def fetch(w, p, a, row, when):
    """Bring what stores hold of a request's prefix; when it is there, or -1 where they have nothing of it."""
    above = deepest(p, a, a.prefix[row])
    if above == a.prefix[row]:
        return -1
    node = path_down(p, a, a.prefix[row], above)
    ready, staged = np.int64(-1), np.int64(-1)
    while True:
        place = p.store
        while place < p.store + w.links and record(a.low, place * w.nodes + node).there == 0:
            place += 1
        if place == p.store + w.links:
            break
        take_out(w, a, place, node)
        link, size = record(a.links, place), size_of(a, node)
        link.free = higher(when, link.free) + size * link.block_ps
        link.fetched += size
        ready, staged = higher(ready, link.free + link.latency_ps), node
        if node == a.prefix[row]:
            break
        node = record(a.pre, p.base + node).down
    if staged >= 0:
        a.staged[row], a.staged_on[row] = staged + 1, a.node_end[above] if above >= 0 else 0
    return ready


@inner
def deepest(p, a, node):
    """The nearest to `node` of what is on the device on the way to it, or -1."""
    while node >= 0 and record(a.pre, p.base + node).there == 0:
        node = a.parent[node]
    return node


@inner
def cache(p, a, place, node):
    """Let others use the blocks of a sequence up to `node`; its own up to where somebody else's are there already."""
    s = record(a.slots, p.first + place)
    if node < 0 or node == s.at:
        return
    down = path_down(p, a, node, s.at)
    while record(a.pre, p.base + down).there == 0:
        size = size_of(a, down)
        record(a.pre, p.base + down).there, record(a.pre, p.base + down).users = 1, 1
        s.at, s.shared, s.hold = down, s.shared + size, s.hold - size
        if down == node:
            break
        down = record(a.pre, p.base + down).down


@inner
def target(p, r):
    """Tokens of a request's answer that this replica makes."""
    return 1 if p.role == PREFILL else r.output


@inner
def add_load(p, r):
    """Count a request, and its tokens, among those of a replica that wait or run."""
    p.requests += 1
    p.tokens += r.prompt + target(p, r)


@inner
def cached_node(w, p, a, row):
    """The end of what is cached of a request's prefix, or -1."""
    if w.nodes == 0 or record(a.rows, row).have > 0:
        return np.int64(-1)
    return deepest(p, a, a.prefix[row])


@inner
def todo_of(r):
    if r.made > 0 and r.have > 0:
        return 0
    return r.prompt + r.made - r.have


@inner
def waits(p, rows):
    """The request to be admitted next, or -1."""
    if p.plain and p.head >= 0:
        first = record(rows, p.head)
        if first.come <= p.seen and (p.root < 0 or first.rank < p.rank):
            return p.head
    return p.root


@inner
def own_blocks(w, p, a, row):
    """Blocks that a request takes where it can be admitted, else -1."""
    if row < 0 or p.running >= w.max_batch:
        return NONE - 1
    r = record(a.rows, row)
    own, idle = blocks_of(r.have + todo_of(r), w), np.int64(0)
    if SHARED:
        idle = p.idle
        node = cached_node(w, p, a, row)
        if node >= 0:
            own -= a.node_end[node]
        while node >= 0 and record(a.pre, p.base + node).users == 0:
            idle -= size_of(a, node)
            node = a.parent[node]
    return own if own <= w.num_blocks - p.used + idle else NONE - 1


@inner
def reuse(w, p, a, s, row):
    """Take what is cached of a request's prefix, on the device or brought from a store."""
    node = cached_node(w, p, a, row)
    s.at = node
    if node >= 0:
        s.shared = a.node_end[node]
        s.base = s.shared * w.block_tokens
    while node >= 0:
        if record(a.pre, p.base + node).users == 0:
            unlink(a.pre, p.base, p, node)
            p.idle -= size_of(a, node)
        record(a.pre, p.base + node).users += 1
        node = a.parent[node]
    if w.links and a.staged[row] > 0:  # what was brought is of use where nothing is missing before it
        if s.shared >= a.staged_on[row]:
            s.base = higher(s.base, a.node_end[a.staged[row] - 1] * w.block_tokens)
        a.staged[row] = 0
    if record(a.rows, row).have == 0:
        p.reused += s.base


@inner
def admit(w, p, a, row, own):
    """Move a request from the queue into a slot, with so many blocks of its own."""
    if row == p.root:
        take_root(w, p, a)
    else:
        p.head = record(a.rows, row).left
    place = p.free
    s = record(a.slots, p.first + place)
    p.free = s.after
    s.row, s.base, s.shared = row, record(a.rows, row).have, 0
    if SHARED:
        reuse(w, p, a, s, row)
        while own > w.num_blocks - p.used:
            evict(w, p, a)
    s.hold = own
    p.used += own
    s.before, s.after = p.last, -1
    if p.last >= 0:
        record(a.slots, p.first + p.last).after = place
    p.last = place
    p.running += 1
    p.queued -= 1
    if record(a.progress, row).start < 0:
        record(a.progress, row).start = p.now
    return place


@inner
def leave(p, a, place, own):
    """Free a slot and its `own` blocks."""
    s = record(a.slots, p.first + place)
    if s.before >= 0:
        record(a.slots, p.first + s.before).after = s.after
    if s.after >= 0:
        record(a.slots, p.first + s.after).before = s.before
    else:
        p.last = s.before
    s.after = p.free
    p.free = place
    p.running -= 1
    p.used -= own
    if SHARED and s.at >= 0:
        release(p, a, s.at)


@inner
def stop(w, p, slots, k, place):
    """Take a sequence out of the decoding batch, its place in the heap apart; its own blocks."""
    s = record(slots, p.first + place)
    tokens = s.base + p.step
    p.cached -= tokens
    p.windowed -= lower(tokens, w.window)
    p.growing -= tokens < w.window
    k[p.phases + s.phase] -= 1
    return blocks_of(tokens, w) - s.shared


@inner
def finish(w, p, a, place, own):
    """A request has its last token of this replica."""
    s = record(a.slots, p.first + place)
    row = s.row
    if SHARED and w.nodes and p.role == WHOLE and s.at == a.prefix[row]:
        before = s.shared
        cache(p, a, place, a.keep[row])
        own -= s.shared - before
    leave(p, a, place, own)
    p.requests -= 1
    p.tokens -= s.tokens
    if p.role == PREFILL and record(a.rows, row).output > 1:
        r = record(a.rows, row)
        record(a.progress, row).first += r.last
        r.have, r.come = r.prompt, p.now + r.last
        r.last = r.come
        enqueue(record(a.lines, MOVING), a.moving, r.come, row)
        return
    record(a.progress, row).finish = p.stream - w.stream_ps
    w.done += 1
    if SHARED and a.next[row] > 0:
        turn = a.next[row]
        a.came[turn] = p.stream - w.stream_ps + a.pause[turn] - 1
        record(a.rows, turn).come = a.came[turn] + w.request_ps
        enqueue(record(a.lines, TURNS), a.turns, record(a.rows, turn).come, turn)
    if w.closed and w.issued < w.requests:
        if not w.direct:
            enqueue(record(a.lines, LEAVING), a.leaving, p.now, (record(a.progress, row).where << REPLICA_BIT) | row)
            return
        row, r = w.issued, record(a.rows, w.issued)
        issue(w, a, p.stream - w.stream_ps)
        if p.accepts and w.next == row and r.come <= w.until:
            w.next += 1
            record(a.progress, row).where = 0
            add_load(p, r)
            post(w, p, a, row, r.come)


@inner
def join(w, p, a, place):
    """A prompt is done, or a sequence is back: its token comes out and it decodes from now on."""
    s = record(a.slots, p.first + place)
    row, r = s.row, record(a.rows, s.row)
    most = target(p, r)
    s.tokens = r.prompt + most
    if s.worked:
        r.made += 1
        p.made += 1
        if r.made == 1:
            record(a.progress, row).first = p.stream - w.stream_ps
        else:
            note(a.k, p.now - r.last, NONE, SINGLE, SINGLE)
        if p.role != PREFILL:
            r.last = p.now
        if SHARED and w.nodes:
            cache(p, a, place, a.prefix[row])
        if r.made == most:
            finish(w, p, a, place, s.hold)
            return
    tokens = s.base
    if p.batch == p.fresh:
        p.decoded = r.last
    elif r.last != p.decoded:
        a.lists[p.late + p.fresh] = place
        p.fresh += 1
    s.base = tokens - p.step
    s.end = p.step + most - r.made
    push(a.lists, p.heap, p.batch, ((lower(s.end, w.window - s.base) if tokens < w.window else s.end) << BITS) | place)
    p.batch += 1
    p.cached += tokens
    p.windowed += lower(tokens, w.window)
    p.growing += tokens < w.window
    s.phase = (s.shared + s.hold) * w.block_tokens - tokens + p.turn
    if s.phase >= w.block_tokens:
        s.phase -= w.block_tokens
    a.k[p.phases + s.phase] += 1


@inner
def end_step(w, p, a):
    p.stepping, p.ended = 0, p.now
    p.stream = higher(p.stream, p.now) + p.out * w.stream_ps
    while p.batch > 0 and a.lists[p.heap] >> BITS <= p.step:
        place = a.lists[p.heap] & LOW
        s = record(a.slots, p.first + place)
        pull(a.lists, p.heap, p.batch - 1, NONE)
        if s.end > p.step:  # its window is full
            p.growing -= 1
            push(a.lists, p.heap, p.batch - 1, (s.end << BITS) | place)
        else:
            p.batch -= 1
            p.growing -= s.base + p.step == w.window
            own = stop(w, p, a.slots, a.k, place)
            finish(w, p, a, place, own)
    for place in range(p.joins):
        join(w, p, a, a.lists[p.joining + place])
    p.joined, p.joins = p.joins, 0


@inner
def give_way(w, p, a):
    """Take the sequence admitted last out of the batch: blocks that move to the host."""
    place = p.last
    s = record(a.slots, p.first + place)
    row, own, r = s.row, s.hold, record(a.rows, s.row)
    have = s.base
    if place == p.part:
        p.part = -1
    else:
        have += p.step
        at = 0
        while a.lists[p.heap + at] & LOW != place:
            at += 1
        p.batch -= 1
        pull(a.lists, p.heap, p.batch, at)
        r.made = target(p, r) - s.end + p.step
        late = 0
        while late < p.fresh and a.lists[p.late + late] != place:
            late += 1
        if late < p.fresh:
            p.fresh -= 1
            a.lists[p.late + late] = a.lists[p.late + p.fresh]
        else:
            r.last = p.decoded
        own = stop(w, p, a.slots, a.k, place)
    leave(p, a, place, own)
    s.shared, s.at = 0, -1
    r.have = have if w.swap else 0
    a.owed[row] = blocks_of(r.have, w)
    a.preempted[row] += 1
    p.preemptions += 1
    p.queued += 1
    wait(w, p, a.rows, a.ranks, a.by_rank, row)
    return a.owed[row]


@inner
def load_ps(p, a, batch, worked, pairs, window_pairs):
    """The time of a step with `batch` sequences that decode and prompts of `worked` tokens, in ps."""
    tables = a.tokens_ps, a.decode_ps, a.cached_ps, a.window_ps, a.scalars
    return step_ps(*tables, batch, p.cached, p.windowed, worked, pairs, window_pairs)


@inner
def steps_ps(count, first, more):
    """The time of steps of which the first takes `first` and each further one `more` more."""
    return count * first + more * (count * (count - 1) >> 1)


@inner
def stretch(w, p, a, until, budget, fixed, more):
    """Steps that decode alone until something else can happen; the first has its blocks already."""
    steps = (a.lists[p.heap] >> BITS) - p.step
    room = w.num_blocks - p.used
    if (room - p.batch) * w.block_tokens < p.batch * (steps - 1):  # blocks may run short
        cycles = lower(quotient(steps - 1, w.block_tokens), quotient(room, p.batch))
        granted = 1 + cycles * w.block_tokens
        room -= cycles * p.batch
        turn = (p.turn + 1) % w.block_tokens
        while granted < steps and a.k[p.phases + turn] <= room:
            room -= a.k[p.phases + turn]
            turn = turn + 1 if turn + 1 < w.block_tokens else 0
            granted += 1
        steps = granted
    end, later = until, False
    takes = p.running < w.max_batch and (budget > 0 or not w.mix)
    if takes and p.head >= 0 and not (p.plain and waits(p, a.rows) >= 0):
        come = record(a.rows, p.head).come
        if come <= p.now:
            return 1
        later = w.ahead > 0 and come < until
        until = lower(until, come)
    left, most = until - p.now, steps
    if steps > 1 and (steps - 1.0) * (fixed + 0.5 * more * (steps - 2.0)) >= 0.999 * left:
        steps = SINGLE
        if fixed < left:
            slope = fixed - 0.5 * more
            steps = lower(higher(int64(2.0 * left / (slope + sqrt(slope * slope + 2.0 * more * left))), 1), most)
        while steps > 1 and steps_ps(steps - 1, fixed, more) >= left:
            steps -= 1
        while steps < most and steps_ps(steps, fixed, more) < left:
            steps += 1
    if later and steps < most and p.now + steps_ps(steps, fixed, more) < end:
        steps += 1
    return steps


@inner
def decode(w, p, a, steps, duration, more):
    """Let all decoding sequences make `steps` tokens; the first step takes `duration`, each further one `more` more."""
    size = w.block_tokens
    turn = p.turn
    if p.fresh == 0 and p.decoded == p.now:
        note(a.k, duration, more, steps, p.batch)
    else:
        note(a.k, p.now + duration - p.decoded, NONE, SINGLE, p.batch - p.fresh)
        for place in range(p.fresh):
            row = record(a.slots, p.first + a.lists[p.late + place]).row
            note(a.k, p.now + duration - record(a.rows, row).last, NONE, SINGLE, SINGLE)
        p.fresh = 0
        note(a.k, duration + more, more, steps - 1, p.batch)
    over = steps
    if steps >= size:
        cycles = quotient(steps, size)
        p.used += cycles * p.batch
        over -= cycles * size
    for _ in range(over):
        p.used += a.k[p.phases + turn]
        turn = turn + 1 if turn + 1 < size else 0
    p.turn = turn
    p.step += steps
    p.cached += steps * p.batch
    p.windowed += steps * p.growing
    p.made += steps * p.batch
    p.decoded = p.now + steps_ps(steps, duration, more)
    if (
        steps > 1
    ):  # the last one's tokens go out when it ends; steps grow longer, so that the queue is longest at an end
        out, last = p.batch * w.stream_ps, p.decoded - duration - more * (steps - 1)
        p.stream = higher(higher(p.stream, p.now + duration) + (steps - 1) * out, last + out)


@inner
def delay_first_tokens(w, p, a):
    """First tokens of a step of prompts go out once the next such step is launched."""
    wait_ps = w.next_launch_ps - (p.ended - p.began)
    if p.ended == p.now and p.role == WHOLE and wait_ps > 0:
        for place in range(p.joined):
            s = record(a.slots, p.first + a.lists[p.joining + place])
            r = record(a.rows, s.row)
            if s.worked and r.made == 1 and r.output > 1:
                record(a.progress, s.row).first += wait_ps
                if r.last == p.decoded:
                    a.lists[p.late + p.fresh] = a.lists[p.joining + place]
                    p.fresh += 1
                r.last += wait_ps


@inner
def begin_step(w, p, a, until):
    """Decide what the next step does, or the next steps where they only decode."""
    row = waits(p, a.rows)
    only = not w.mix and p.part >= 0
    if not w.mix and row >= 0 and todo_of(record(a.rows, row)) > 0 and own_blocks(w, p, a, row) >= 0:
        only = True
    if only and p.joined > 0:
        delay_first_tokens(w, p, a)
    p.joined = 0
    budget, moved, preempted, batch, grown = w.step_tokens, 0, False, 0, 0
    if not only and p.batch > 0:
        turn = p.phases + p.turn
        while a.k[turn] > w.num_blocks - p.used:
            idle = False
            if SHARED:
                idle = p.oldest >= 0
                if idle:
                    evict(w, p, a)
            if not idle:
                preempted = True
                moved += give_way(w, p, a)
        batch, grown = p.batch, a.k[turn]
        budget -= batch
        p.used += grown
    p.out = batch
    worked, pairs, window_pairs, place = 0, 0, 0, p.part
    while budget > 0:
        if place < 0:
            row = waits(p, a.rows)
            open_to = not preempted and row >= 0 and (w.mix or only or todo_of(record(a.rows, row)) == 0)
            own = own_blocks(w, p, a, row) if open_to else NONE - 1
            if own < 0:
                break
            place = admit(w, p, a, row, own)
            if w.swap:
                moved += a.owed[row]
                a.owed[row] = 0
        s = record(a.slots, p.first + place)
        r = record(a.rows, s.row)
        todo = todo_of(r) + r.have - s.base if todo_of(r) > 0 else 0
        chunk = lower(todo, budget)
        pairs += seen_pairs(s.base, chunk, NONE)
        if w.window:
            window_pairs += seen_pairs(s.base, chunk, w.window)
        s.base, s.worked = s.base + chunk, chunk
        budget, worked = budget - chunk, worked + chunk
        if chunk == todo:
            a.lists[p.joining + p.joins] = place
            p.joins += 1
            p.out += chunk > 0
            p.part = -1
        else:
            p.part = place
        place = -1
    duration = moved * w.swap_ps + load_ps(p, a, batch, worked, pairs, window_pairs)
    steps, more = 1, 0
    if batch > 0:
        more = a.cached_ps[batch] * batch + a.window_ps[batch] * p.growing
        if p.joins == 0 and p.part < 0 and moved == 0 and not preempted:
            steps = stretch(w, p, a, until, budget, duration, more)
        p.used -= grown
        decode(w, p, a, steps, duration, more)
    whole = steps_ps(steps, duration, more)
    p.stepping, p.now = 1, p.now + whole
    p.began = p.now - duration - more * (steps - 1)
    p.busy += whole
    p.steps += steps
    p.worked += worked
    p.peak = higher(p.peak, p.used)


@inner
def waiting_until(w, p, a, bound):
    """A time before which nobody leaves on account of those who wait, `bound` at most, while nobody else leaves.

    Who does not fit now never does before others leave; only who waits behind others by arrival stays behind them.
    """
    if p.running >= w.max_batch:
        return bound
    row = waits(p, a.rows)
    if row >= 0 and ((SHARED and p.joins > 0) or own_blocks(w, p, a, row) >= 0):
        return p.now
    if p.head >= 0 and not (p.plain and row >= 0):
        return lower(bound, record(a.rows, p.head).come + w.least_ps)
    return bound


@inner
def next_leave(w, p, a):
    """A time before which nothing leaves the replica: that of the next leave, if no request comes before."""
    batch, cached, windowed, growing = p.batch, p.cached, p.windowed, p.growing
    if p.stepping == 0 and p.running == 0 and p.root < 0:
        return higher(p.now, record(a.rows, p.head).come) + w.least_ps if p.head >= 0 else NEVER
    steps = (a.lists[p.heap] >> BITS) - p.step if batch > 0 else int64(SOON)
    for place in range(p.joins):
        s = record(a.slots, p.first + a.lists[p.joining + place])
        r = record(a.rows, s.row)
        steps = lower(steps, target(p, r) - r.made - (s.worked > 0))
        batch, cached, windowed = batch + 1, cached + s.base, windowed + lower(s.base, w.window)
        if s.base < w.window:  # further steps are shorter from then on
            steps, growing = lower(steps, w.window - s.base), growing + 1
    if steps <= 0:
        return p.now
    soon = p.now + w.least_ps
    if p.part >= 0 or batch == 0:
        return soon
    steps = lower(steps, SOON)
    if (w.num_blocks - p.used - batch) * w.block_tokens < batch * steps:  # somebody may have to make room
        steps = quotient(higher(w.num_blocks - p.used - batch, NONE) * w.block_tokens, batch)
    tables = a.tokens_ps, a.decode_ps, a.cached_ps, a.window_ps, a.scalars
    fixed = step_ps(*tables, batch, cached, windowed, NONE, NONE, NONE)
    more = a.cached_ps[batch] * batch + a.window_ps[batch] * growing
    return higher(waiting_until(w, p, a, p.now + steps_ps(steps, fixed, more)), soon)


@inner
def run(w, p, a, reached):
    """Steps of a replica that end by the time to be reached, and those that begin before.

    Where nothing leaves by then and nobody comes, they are left for later: they may be one stretch with further ones.
    """
    while True:
        if p.stepping and p.now <= reached:
            end_step(w, p, a)
        rests = p.stepping > 0
        if not rests:
            p.seen = p.began if w.ahead and p.ended == p.now and p.running > 0 else p.now
            if not p.plain:
                while p.head >= 0 and record(a.rows, p.head).come <= p.seen:
                    row = p.head
                    p.head = record(a.rows, row).left
                    wait(w, p, a.rows, a.ranks, a.by_rank, row)
            if p.running == 0 and p.root < 0:
                rests = p.head < 0 or record(a.rows, p.head).come > reached
                if not rests and record(a.rows, p.head).come > p.now:
                    p.now = record(a.rows, p.head).come
                    continue
            rests |= p.now >= reached
        if rests or (reached < w.until and p.head < 0 and p.root < 0 and p.part < 0):
            if p.due <= reached:
                p.due = next_leave(w, p, a)
            if rests or p.due > reached:
                break
        begin_step(w, p, a, reached)


@inner
def takes(p, when):
    """True if a replica takes requests at `when`."""
    return p.accepts and p.on <= when


@inner
def in_turn(ps, side, when):
    """Of the replicas that take requests at `when`, the one whose turn it is."""
    takers, least = 0, side.first
    for r in range(side.first, side.last):
        takers += takes(record(ps, r), when)
    turn = remainder(side.sent, takers)
    for r in range(side.first, side.last):
        if takes(record(ps, r), when):
            if turn == 0:
                least = r
            turn -= 1
    return least


@inner
def least_loaded(w, ps, side, when):
    """The least loaded of the replicas that take requests at `when`."""
    least, top = side.first, NEVER + NONE
    for r in range(side.first, side.last):
        p = record(ps, r)
        load = p.tokens if w.balancer == LEAST_TOKENS else p.requests
        if takes(p, when) and load < top:
            least, top = r, load
    return least


@inner
def near_prefix(ps, a, row, back, when, least):
    """The replica that last had the prefix of a request, unless it has far more load than the least loaded."""
    node = a.prefix[row]
    while node >= 0 and a.sent[2 * node + back] < 0:
        node = a.parent[node]
    last = int64(-1)
    if node >= 0 and 2 * a.node_end[node] >= a.node_end[a.prefix[row]]:
        last = a.sent[2 * node + back]
    if last >= 0 and takes(record(ps, last), when):
        behind, top = record(ps, last).requests, record(ps, least).requests
        if not (behind > top + BEHIND_REQUESTS and 2 * behind > 3 * top):
            least = last
    node = a.prefix[row]
    while node >= 0:
        a.sent[2 * node + back] = least
        node = a.parent[node]
    return least


@inner
def assign(w, ps, a, row, back, when):
    """Have the balancer choose a replica, whose load has the request from then on."""
    side = record(a.sides, back)
    if w.balancer == ROUND_ROBIN:
        r = side.turn
        if r >= 0:
            side.turn = r + 1 if r + 1 < side.last else side.first
        else:
            r = in_turn(ps, side, when)
        side.sent += 1
    else:
        r = least_loaded(w, ps, side, when)
        if SHARED and w.balancer > LEAST_TOKENS and a.prefix[row] >= 0:
            r = near_prefix(ps, a, row, back, when, r)
    record(a.progress, row).where = r
    add_load(record(ps, r), record(a.rows, row))
    return r


@inner
def post(w, p, a, row, when):
    """Put a request into a replica's inbox, where its front end is done with it."""
    r = record(a.rows, row)
    r.left = -1
    if SHARED and w.sessions and p.plain:
        r.rank, a.by_rank[w.sent] = w.sent, row
        w.sent += 1
    if p.role != DECODE:
        r.come = higher(when, p.desk) + r.prompt * w.front_token_ps
        p.desk = r.come + w.front_ps
    if p.head >= 0:
        record(a.rows, p.tail).left = row
    else:
        p.head = row
    p.tail = row
    p.queued += 1
    if not p.plain:
        fetch_early(a.ranks, p.ranks + w.leaves + (r.rank >> 6))
    p.due = lower(p.due, higher(higher(p.now, when), r.come) + w.least_ps)


@inner
def issue(w, a, seen):
    """The next request of a closed loop, sent by who has `seen` the answer before."""
    row = w.issued
    came = higher(seen + w.think, a.came[row - 1])
    a.came[row], record(a.rows, row).come = came, came + w.request_ps
    w.issued += 1


@inner
def issue_before(w, a, soon):
    """Requests that follow the answers of a closed loop before `soon`, and before the first of them may be answered."""
    line = record(a.lines, LEAVING)
    while line.size and record(a.leaving, line.first).time < soon:
        answered = record(a.leaving, line.first).row & (2**REPLICA_BIT - 1)
        dequeue(line, a.leaving)
        if w.issued < w.requests:
            issue(w, a, record(a.progress, answered).finish)
            soon = lower(soon, record(a.rows, w.issued - 1).come + w.least_ps)


@inner
def next_new(w, a, on):
    """The time of the next request for the front, its row, and the heap that it comes from, or -1."""
    when, row, line = NEVER + NONE, NONE - 1, NONE - 1
    if SHARED:
        while w.sessions and w.next < w.issued and a.pause[w.next] > 0:
            w.next += 1  # it comes after an answer
    if w.next < w.issued:
        when, row = record(a.rows, w.next).come, w.next
    if SHARED and record(a.lines, TURNS).size:
        first = record(a.turns, record(a.lines, TURNS).first)
        if first.time < when:
            when, row, line = first.time, first.row, NONE + TURNS
    if row >= 0:
        when = higher(when, on)
    if SHARED and record(a.lines, FETCHING).size:
        first = record(a.fetching, record(a.lines, FETCHING).first)
        if first.time < when:
            when, row, line = first.time, first.row, NONE + FETCHING
    return when, row, line


@inner
def next_moved(a, on):
    """The time of the next prompt whose cache has moved to the back, and its row."""
    if record(a.lines, MOVING).size == 0:
        return NEVER + NONE, NONE - 1
    first = record(a.moving, record(a.lines, MOVING).first)
    return higher(first.time, on), first.row


@inner
def send(w, ps, a, back, known):
    """Send on what comes to a side before a time up to which it is `known` what comes; when the next one comes."""
    side = record(a.sides, back)
    while True:
        line: Any = NONE + MOVING
        if back:
            when, row = next_moved(a, side.on)
        else:
            when, row, line = next_new(w, a, side.on)
        if when > w.until or when >= known or (side.looks and side.due <= when):
            return when
        if line == MOVING:
            dequeue(record(a.lines, MOVING), a.moving)
        elif SHARED and line == TURNS:
            dequeue(record(a.lines, TURNS), a.turns)
        elif SHARED and line == FETCHING:
            dequeue(record(a.lines, FETCHING), a.fetching)
        else:
            w.next += 1
        if not (SHARED and line == FETCHING):
            assign(w, ps, a, row, back, when)
            if SHARED and w.links and back == FRONT and a.prefix[row] >= 0:
                w.brought = row
                return when
        p = record(ps, record(a.progress, row).where)
        post(w, p, a, row, when)
        side.due = lower(side.due, p.due)


@inner
def bring(w, p, a, when):
    """A request waits for what stores hold of its prefix, or goes into the inbox."""
    row = w.brought
    ready = fetch(w, p, a, row, when)
    if ready >= 0:
        record(a.rows, row).come = ready
        enqueue(record(a.lines, FETCHING), a.fetching, ready, row)
    else:
        post(w, p, a, row, when)
    w.brought = -1


@inner
def open_side(w, ps, side):
    """Find when replicas take requests, and whose turn it is where all of them do."""
    side.on, side.turn = NEVER, side.first
    for r in range(side.first, side.last):
        p = record(ps, r)
        if p.accepts:
            side.on = lower(side.on, p.on)
        if not p.accepts or p.on > w.until:
            side.turn = -1
    if side.turn >= 0 and side.last > side.first:
        side.turn += remainder(side.sent, side.last - side.first)


def pointer(table):
    """The type of a table of records, or of numbers."""
    return types.CPointer(int64 if table == np.int64 else numba.from_dtype(table))


KINDS = [pointer(layout.RECORDS.get(name, np.int64)) for name in layout.Tables._fields]
SIGNATURE = types.void(pointer(WORLD), pointer(REPLICA), types.NamedTuple(KINDS, layout.Tables), int64)


@njit(SIGNATURE, no_cpython_wrapper=True, no_cfunc_wrapper=True, **HOW)
def drive(world, ps, a, end):
    """All replicas up to a time.

    Round by round those where something may leave are advanced as far as it is known what comes to them: what leaves
    one side comes to the other after the gap of that side, at the earliest. As they are ahead of one another, what
    leaves is put in order before it is followed by a request.
    """
    w, front, back = record(world, NONE), record(a.sides, FRONT), record(a.sides, BACK)
    open_side(w, ps, front)
    open_side(w, ps, back)
    w.until = end
    come, over = NEVER + NONE, False
    while not over:
        moved, _ = next_moved(a, back.on)
        ended = lower(back.due, moved + w.least_ps)  # nothing ends at the back before, nor does what is not there yet
        if w.closed:
            issue_before(w, a, lower(lower(front.due, ended), come + w.least_ps))
        reached: Any = NEVER + NONE
        due: Any = NEVER + NONE
        for r in range(w.replicas):
            if not r or r == back.first:
                known = NEVER + NONE
                if r:
                    front.due, due = due, NEVER + NONE
                    known = lower(front.due, reached + w.least_ps) + back.gap  # what comes to the front must be done
                elif w.together:
                    known = ended
                when = send(w, ps, a, int64(r > 0), known)
                if r == 0:
                    come = when
                    soon = lower(lower(front.due, ended), come + w.least_ps)
                    if record(a.lines, LEAVING).size:
                        soon = lower(soon, record(a.leaving, record(a.lines, LEAVING).first).time)
                    over, known = lower(lower(come, moved), soon) > end, soon + front.gap
                reached = lower(lower(when, known), end)
            p = record(ps, r)
            brings = SHARED and w.brought >= 0 and record(a.progress, w.brought).where == r
            if over or brings or p.due <= reached:
                run(w, p, a, reached)
            if SHARED and brings:
                bring(w, p, a, reached)
            due = lower(due, p.due)
        if back.first == w.replicas:
            front.due = due
        else:
            back.due = due


(compiled,) = drive.overloads.values()
with global_compiler_lock:
    CODE = compiled.fndesc.mangled_name, compiled.library.emit_native_object()
"""The name of `drive` in the object file, and the file."""
