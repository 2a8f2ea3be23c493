"""The simulator compiled: stretches of equal steps in closed form. What it does is defined by its tests' `reference`.

All is int64. Between two events (a sequence ends or fills its window, a request could be admitted, blocks run short,
the time asked for is reached) steps differ by a constant, so their sum is one product. Letters: w is the world, p a
replica, s a slot, q the table of requests, k the column of counts; `first` and `base` are where a replica's slots and
prefixes begin. Imported lazily: numba takes a third of a second.
"""

from __future__ import annotations

from math import sqrt

import numba
import numpy as np
from numba import int64, njit, void

from flopwise.serving.sim import cost, layout
from flopwise.serving.sim.layout import (
    CACHED, CAME, COME, FIRST, HAVE, LAST, LEFT, MADE, MOVE, OUTPUT, OWED, PHASES, PREEMPTED, PREFIX, PROMPT, RANK,
    REPLICA, RIGHT, SHARE, SLOT, START, WHERE, WORLD,
)  # fmt: skip
from flopwise.serving.sim.policies import BEHIND_REQUESTS, LEAST_TOKENS, ROUND_ROBIN
from flopwise.serving.sim.result import PARTS
from flopwise.serving.sim.setup import DECODE, PREFILL

NEVER = 2**62
BITS = 20
LOW = 2**BITS - 1
SOON = 10**5
"""Steps that are looked ahead."""
HOW = {"error_model": "numpy", "_nrt": False}
"""How all is compiled. Nothing is allocated, so no array needs a count of its users: that took half of the time."""
inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **HOW)
"""Compiled into whatever calls it."""
hot = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **HOW)
"""The same, where handing over all arrays would take longer than what is done with them."""
NONE, SINGLE, BY_RANK, BY_TIME = np.int64(0), np.int64(1), np.int64(RANK), np.int64(COME)
"""Arguments: a plain constant would have the function compiled once more for just that value."""

step_ps = inner(cost.step_ps)
seen_pairs = inner(cost.seen_pairs)


@inner
def blocks_of(tokens, w):
    return (tokens + w.block_tokens - 1) // w.block_tokens


@inner
def meld(q, key, a, b):
    """Two skew heaps of requests as one; -1 is the empty one."""
    if a < 0 or b < 0:
        return max(a, b)
    if q[key, b] < q[key, a] or (q[key, b] == q[key, a] and b < a):
        a, b = b, a
    top = a
    while True:
        right, q[RIGHT, a] = q[RIGHT, a], q[LEFT, a]
        if right >= 0 and (q[key, right] < q[key, b] or (q[key, right] == q[key, b] and right < b)):
            right, b = b, right
        q[LEFT, a] = b
        if right < 0:
            return top
        a, b = b, right


@inner
def single(q, row):
    q[LEFT, row] = -1
    q[RIGHT, row] = -1
    return row


@inner
def push(slots, first, size, key):
    """Into the heap of a replica's next events, of which there are `size`."""
    at = size
    while at > 0 and slots[first + ((at - 1) >> 1)].heap > key:
        slots[first + at].heap = slots[first + ((at - 1) >> 1)].heap
        at = (at - 1) >> 1
    slots[first + at].heap = key


@inner
def pull(slots, first, size, at):
    """Out of it, from place `at`; `size` counts what is left."""
    key = slots[first + size].heap
    while at > 0 and slots[first + ((at - 1) >> 1)].heap > key:
        slots[first + at].heap = slots[first + ((at - 1) >> 1)].heap
        at = (at - 1) >> 1
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and slots[first + child + 1].heap < slots[first + child].heap:
            child += 1
        if slots[first + child].heap >= key:
            break
        slots[first + at].heap = slots[first + child].heap
        at = child
    slots[first + at].heap = key


@inner
def note(k, gap, more, steps, weight):
    """`weight` tokens a step in the histogram of gaps; each gap is `more` longer than the one before."""
    while steps > 0:
        shift = 0
        for bits in (32, 16, 8, 4, 2, 1):
            if gap >> (shift + bits) >= PARTS:
                shift += bits
        part = gap >> shift
        edge = (part + 1) << shift
        count = steps
        if gap + more * (steps - 1) >= edge:
            count = (edge - gap + more - 1) // more
        k[shift * PARTS + part] += count * weight
        gap += more * count
        steps -= count


@inner
def unlink_prefix(pre, p, base, name):
    entry = pre[base + name]
    if entry.before >= 0:
        pre[base + entry.before].after = entry.after
    else:
        p.oldest = entry.after
    if entry.after >= 0:
        pre[base + entry.after].before = entry.before
    else:
        p.newest = entry.before
    p.idle -= entry.blocks


@inner
def unshare(pre, p, base, name, now):
    """A user less; without any, the prefix may be evicted."""
    entry = pre[base + name]
    entry.users -= 1
    entry.released = now
    if entry.users == 0:
        entry.before, entry.after = p.newest, -1
        if p.newest >= 0:
            pre[base + p.newest].after = name
        else:
            p.oldest = name
        p.newest = name
        p.idle += entry.blocks


@inner
def evict(pre, p, base):
    name = p.oldest
    other = pre[base + name].after
    while other >= 0 and pre[base + other].released == pre[base + p.oldest].released:
        name = min(name, other)
        other = pre[base + other].after
    unlink_prefix(pre, p, base, name)
    p.used -= pre[base + name].blocks
    pre[base + name].blocks = 0


@inner
def target(p, q, row):
    """Tokens of the answer that this replica makes."""
    return 1 if p.role == PREFILL else q[OUTPUT, row]


@inner
def cached_prefix(w, p, q, pre, base, row):
    """The cached prefix that a request can use, or -1."""
    name = q[PREFIX, row]
    if w.prefixes == 0 or name < 0 or q[HAVE, row] > 0 or q[SHARE, row] == 0 or pre[base + name].blocks == 0:
        return -1
    most = blocks_of(q[PROMPT, row] + target(p, q, row) - 1, w) + max(pre[base + name].blocks - q[SHARE, row], 0)
    return name if most <= w.num_blocks else -1


@inner
def todo_of(q, row):
    if q[MADE, row] > 0 and q[HAVE, row] > 0:
        return 0
    return q[PROMPT, row] + q[MADE, row] - q[HAVE, row]


@inner
def waits(p, q):
    """The request to be admitted next, or -1."""
    row = p.root
    if p.plain and p.head >= 0 and q[COME, p.head] <= p.now and (row < 0 or p.head < row):
        row = p.head
    return row


@hot
def fits(w, p, q, pre, base, row):
    if row < 0 or p.running >= w.max_batch:
        return False
    own, idle = blocks_of(q[HAVE, row] + todo_of(q, row), w), p.idle
    name = cached_prefix(w, p, q, pre, base, row)
    if name >= 0:
        own -= min(pre[base + name].blocks, q[SHARE, row])
        if pre[base + name].users == 0:
            idle -= pre[base + name].blocks
    return own <= w.num_blocks - p.used + idle


@hot
def admit(w, p, slots, q, pre, first, base, row):
    """Move a request from the queue into a slot."""
    if row == p.root:
        p.root = meld(q, BY_RANK, q[LEFT, row], q[RIGHT, row])
    else:
        p.head = q[LEFT, row]
    place = p.free
    s = slots[first + place]
    p.free = s.after
    s.row, s.base, s.shared = row, q[HAVE, row], 0
    own = blocks_of(q[HAVE, row] + todo_of(q, row), w)
    name = cached_prefix(w, p, q, pre, base, row)
    if name >= 0:
        if pre[base + name].users == 0:
            unlink_prefix(pre, p, base, name)
        pre[base + name].users += 1
        s.shared = min(pre[base + name].blocks, q[SHARE, row])
        s.base = s.shared * w.block_tokens
        own -= s.shared
        p.reused += s.base
    while own > w.num_blocks - p.used:
        evict(pre, p, base)
    s.hold = own
    p.used += own
    s.before, s.after = p.last, -1
    if p.last >= 0:
        slots[first + p.last].after = place
    p.last = place
    p.running += 1
    p.queued -= 1
    if q[START, row] < 0:
        q[START, row] = p.now
    return place


@inner
def leave(p, slots, q, pre, first, base, place, own):
    """Free a slot and its `own` blocks."""
    s = slots[first + place]
    if s.before >= 0:
        slots[first + s.before].after = s.after
    if s.after >= 0:
        slots[first + s.after].before = s.before
    else:
        p.last = s.before
    s.after = p.free
    p.free = place
    p.running -= 1
    p.used -= own
    if s.shared > 0:
        unshare(pre, p, base, q[PREFIX, s.row], p.now)


@hot
def stop(w, p, slots, k, r, place):
    """Take a sequence out of the decoding batch, its place in the heap apart; its own blocks."""
    s = slots[r * w.max_batch + place]
    tokens = s.base + p.step
    p.cached -= tokens
    p.windowed -= min(tokens, w.window)
    p.growing -= tokens < w.window
    k[PHASES + r * w.block_tokens + (-s.base) % w.block_tokens] -= 1
    return blocks_of(tokens, w) - s.shared


@hot
def finish(w, p, slots, q, pre, first, base, place, own):
    """A request has its last token of this replica."""
    row = slots[first + place].row
    leave(p, slots, q, pre, first, base, place, own)
    made = target(p, q, row)
    q[LAST, row], q[MADE, row] = p.now, made
    p.requests -= 1
    p.tokens -= q[PROMPT, row] + made
    if made < q[OUTPUT, row]:
        q[HAVE, row], q[OWED, row] = q[PROMPT, row], 0
        q[COME, row] = p.now + q[MOVE, row]
        w.moving = meld(q, BY_TIME, w.moving, single(q, row))
        return
    w.done += 1
    if w.closed and w.issued < q.shape[1]:
        q[CAME, w.issued] = p.now + w.think
        q[COME, w.issued] = p.now + w.think + w.request_ps
        w.issued += 1


@hot
def join(w, p, slots, q, pre, k, r, place):
    """A prompt is done, or a sequence is back: its token comes out and it decodes from now on."""
    first, base = r * w.max_batch, r * w.prefixes
    s = slots[first + place]
    row = s.row
    most = target(p, q, row)
    if s.worked:
        q[MADE, row] += 1
        p.made += 1
        if q[MADE, row] == 1:
            q[FIRST, row] = p.now
        else:
            note(k, p.now - q[LAST, row], NONE, SINGLE, SINGLE)
        q[LAST, row] = p.now
        name = q[PREFIX, row]
        if s.shared == 0 and q[SHARE, row] > 0 and pre[base + name].blocks == 0:
            s.shared = q[SHARE, row]
            s.hold -= s.shared
            pre[base + name].blocks, pre[base + name].users = s.shared, 1
        if q[MADE, row] == most:
            finish(w, p, slots, q, pre, first, base, place, s.hold)
            return
    tokens = s.base
    if p.batch == p.fresh:
        p.decoded = q[LAST, row]
    elif q[LAST, row] != p.decoded:
        slots[first + p.fresh].fresh = place
        p.fresh += 1
    s.base = tokens - p.step
    s.end = p.step + most - q[MADE, row]
    push(slots, first, p.batch, ((min(s.end, w.window - s.base) if tokens < w.window else s.end) << BITS) | place)
    p.batch += 1
    p.cached += tokens
    p.windowed += min(tokens, w.window)
    p.growing += tokens < w.window
    k[PHASES + r * w.block_tokens + (-s.base) % w.block_tokens] += 1


@hot
def end_step(w, p, slots, q, pre, k, r):
    first = r * w.max_batch
    p.stepping, p.ended = 0, p.now
    while p.batch > 0 and slots[first].heap >> BITS <= p.step:
        place = slots[first].heap & LOW
        s = slots[first + place]
        pull(slots, first, p.batch - 1, NONE)
        if s.end > p.step:  # its window is full
            p.growing -= 1
            push(slots, first, p.batch - 1, (s.end << BITS) | place)
        else:
            p.batch -= 1
            p.growing -= s.base + p.step == w.window
            own = stop(w, p, slots, k, r, place)
            finish(w, p, slots, q, pre, first, r * w.prefixes, place, own)
    for place in range(p.joins):
        join(w, p, slots, q, pre, k, r, slots[first + place].join)
    p.joins = 0


@inner
def give_way(w, p, slots, q, pre, k, r):
    """Take the sequence admitted last out of the batch: blocks that move to the host."""
    first, place = r * w.max_batch, p.last
    s = slots[first + place]
    row, own = s.row, s.hold
    have = s.base
    if place == p.part:
        p.part = -1
    else:
        have += p.step
        at = 0
        while slots[first + at].heap & LOW != place:
            at += 1
        p.batch -= 1
        pull(slots, first, p.batch, at)
        q[MADE, row] = target(p, q, row) - s.end + p.step
        late = 0
        while late < p.fresh and slots[first + late].fresh != place:
            late += 1
        if late < p.fresh:
            p.fresh -= 1
            slots[first + late].fresh = slots[first + p.fresh].fresh
        else:
            q[LAST, row] = p.decoded
        own = stop(w, p, slots, k, r, place)
    leave(p, slots, q, pre, first, r * w.prefixes, place, own)
    s.shared = 0
    q[HAVE, row] = have if w.swap else 0
    q[OWED, row] = blocks_of(q[HAVE, row], w)
    q[PREEMPTED, row] += 1
    p.preemptions += 1
    p.queued += 1
    p.root = meld(q, BY_RANK, p.root, single(q, row))
    return q[OWED, row]


@hot
def stretch(w, p, slots, q, k, r, until, budget, fixed, more):
    """Steps that decode alone until something else can happen; the first has its blocks already."""
    steps = (slots[r * w.max_batch].heap >> BITS) - p.step
    room = w.num_blocks - p.used
    if room < p.batch * ((steps - 1) // w.block_tokens + 1):  # blocks may run short
        cycles = min((steps - 1) // w.block_tokens, room // p.batch)
        granted = 1 + cycles * w.block_tokens
        room -= cycles * p.batch
        turn = (p.turn + 1) % w.block_tokens
        while granted < steps and k[PHASES + r * w.block_tokens + turn] <= room:
            room -= k[PHASES + r * w.block_tokens + turn]
            turn = turn + 1 if turn + 1 < w.block_tokens else 0
            granted += 1
        steps = granted
    if p.head >= 0 and p.running < w.max_batch and (budget > 0 or not w.mix) and not (p.plain and waits(p, q) >= 0):
        until = min(until, q[COME, p.head])
    left = until - p.now
    if steps > 1 and (steps - 1.0) * (fixed + 0.5 * more * (steps - 2.0)) >= 0.999 * left:
        slope, most = fixed - 0.5 * more, steps
        steps = min(max(int(2.0 * left / (slope + sqrt(slope * slope + 2.0 * more * left))), 1), most)
        while steps > 1 and (steps - 1) * fixed + more * ((steps - 1) * (steps - 2) // 2) >= left:
            steps -= 1
        while steps < most and steps * fixed + more * (steps * (steps - 1) // 2) < left:
            steps += 1
    return steps


@hot
def decode(w, p, slots, q, k, r, steps, duration, more):
    """Let all decoding sequences make `steps` tokens; the first step takes `duration`, each further one `more` more."""
    first, size = r * w.max_batch, w.block_tokens
    start, turn = PHASES + r * size, p.turn
    if p.fresh == 0 and p.decoded == p.now:
        note(k, duration, more, steps, p.batch)
    else:
        note(k, p.now + duration - p.decoded, NONE, SINGLE, p.batch - p.fresh)
        for place in range(p.fresh):
            row = slots[first + slots[first + place].fresh].row
            note(k, p.now + duration - q[LAST, row], NONE, SINGLE, SINGLE)
        p.fresh = 0
        note(k, duration + more, more, steps - 1, p.batch)
    p.used += (steps // size) * p.batch
    for _ in range(steps % size):
        p.used += k[start + turn]
        turn = turn + 1 if turn + 1 < size else 0
    p.turn = turn
    p.step += steps
    p.cached += steps * p.batch
    p.windowed += steps * p.growing
    p.made += steps * p.batch
    p.decoded = p.now + steps * duration + more * (steps * (steps - 1) // 2)


@hot
def begin_step(w, p, slots, q, pre, tables, prefill, k, r, until):
    """Decide what the next step does, or the next steps where they only decode."""
    first, base = r * w.max_batch, r * w.prefixes
    row = waits(p, q)
    only = not w.mix and (p.part >= 0 or (row >= 0 and todo_of(q, row) > 0 and fits(w, p, q, pre, base, row)))
    budget, moved, preempted, batch, grown = w.step_tokens, 0, False, 0, 0
    if not only and p.batch > 0:
        turn = PHASES + r * w.block_tokens + p.turn
        while k[turn] > w.num_blocks - p.used:
            if p.oldest >= 0:
                evict(pre, p, base)
            else:
                preempted = True
                moved += give_way(w, p, slots, q, pre, k, r)
        batch, grown = p.batch, k[turn]
        budget -= batch
        p.used += grown
    worked, pairs, window_pairs, place = 0, 0, 0, p.part
    while budget > 0:
        if place < 0:
            row = waits(p, q)
            open_to = not preempted and row >= 0 and (w.mix or only or todo_of(q, row) == 0)
            if not (open_to and fits(w, p, q, pre, base, row)):
                break
            place = admit(w, p, slots, q, pre, first, base, row)
            moved += q[OWED, row]
            q[OWED, row] = 0
        s = slots[first + place]
        todo = todo_of(q, s.row) + q[HAVE, s.row] - s.base if todo_of(q, s.row) > 0 else 0
        chunk = min(todo, budget)
        pairs += seen_pairs(s.base, chunk, NONE)
        if w.window:
            window_pairs += seen_pairs(s.base, chunk, w.window)
        s.base, s.worked = s.base + chunk, chunk
        budget, worked = budget - chunk, worked + chunk
        if chunk == todo:
            slots[first + p.joins].join = place
            p.joins += 1
            p.part = -1
        else:
            p.part = place
        place = -1
    duration = step_ps(
        tables[0], tables[1], tables[2], tables[3], prefill, batch, p.cached, p.windowed, worked, pairs, window_pairs
    ) + moved * w.swap_ps  # fmt: skip
    steps, more = 1, 0
    if batch > 0:
        more = tables[2, batch] * batch + tables[3, batch] * p.growing
        if p.joins == 0 and p.part < 0 and moved == 0 and not preempted:
            steps = stretch(w, p, slots, q, k, r, until, budget, duration, more)
        p.used -= grown
        decode(w, p, slots, q, k, r, steps, duration, more)
    whole = steps * duration + more * (steps * (steps - 1) // 2)
    p.stepping, p.now = 1, p.now + whole
    p.busy += whole
    p.steps += steps
    p.worked += worked
    p.peak = max(p.peak, p.used)


@inner
def next_leave(w, p, slots, tables, prefill, r):
    """A time before which nothing leaves the replica."""
    if p.stepping == 0:
        return p.now + 1 if p.running > 0 or p.root >= 0 or p.head >= 0 else NEVER
    steps = (slots[r * w.max_batch].heap >> BITS) - p.step
    if p.joins > 0 or p.part >= 0 or p.root >= 0 or p.head >= 0 or p.batch == 0 or steps <= 0:
        return p.now
    if w.num_blocks - p.used < p.batch * (steps // w.block_tokens + 1):
        return p.now
    fixed = step_ps(
        tables[0], tables[1], tables[2], tables[3], prefill, p.batch, p.cached, p.windowed, NONE, NONE, NONE
    )  # fmt: skip
    steps = min(steps, SOON)
    more = tables[2, p.batch] * p.batch + tables[3, p.batch] * p.growing
    return p.now + steps * fixed + more * (steps * (steps - 1) // 2)


@inner
def advance(w, p, slots, q, pre, tables, prefill, k, r, until):
    """One replica: steps that end by `until`, and those that begin before."""
    while True:
        if p.stepping:
            if p.now > until:
                break
            end_step(w, p, slots, q, pre, k, r)
        if not p.plain:
            while p.head >= 0 and q[COME, p.head] <= p.now:
                row = p.head
                p.head = q[LEFT, row]
                p.root = meld(q, BY_RANK, p.root, single(q, row))
        if p.running == 0 and p.root < 0:
            if p.head < 0 or q[COME, p.head] > until:
                break
            if q[COME, p.head] > p.now:
                p.now = q[COME, p.head]
                continue
        if p.now >= until:
            break
        begin_step(w, p, slots, q, pre, tables, prefill, k, r, until)
    if w.loads:
        p.due = next_leave(w, p, slots, tables, prefill, r)


@inner
def chosen(w, ps, sent, q, row, back, when):
    """The balancer's choice among replicas that take requests at `when`."""
    takers, least, best, top = 0, 0, -1, NEVER
    for r in range(len(ps)):
        if ps[r].accepts and (ps[r].role == DECODE) == (back > 0) and ps[r].on <= when:
            load = ps[r].tokens if w.balancer == LEAST_TOKENS else ps[r].requests
            takers += 1
            if load < top:
                best, top = r, load
    least = best
    if w.balancer == ROUND_ROBIN:
        turn = (w.back_turn if back else w.turn) % takers
        for r in range(len(ps)):
            if ps[r].accepts and (ps[r].role == DECODE) == (back > 0) and ps[r].on <= when:
                if turn == 0:
                    least = r
                turn -= 1
        if back:
            w.back_turn += 1
        else:
            w.turn += 1
    elif w.balancer > LEAST_TOKENS and q[PREFIX, row] >= 0:
        place = 2 * q[PREFIX, row] + back
        last = sent[place]
        if last >= 0 and ps[last].accepts and ps[last].on <= when:
            behind = ps[last].requests
            if not (behind > top + BEHIND_REQUESTS and 2 * behind > 3 * top):
                least = last
        sent[place] = least
    return least


@inner
def send(p, q, row, when):
    """Put a request into a replica's inbox."""
    q[LEFT, row] = -1
    if p.head >= 0:
        q[LEFT, p.tail] = row
    else:
        p.head = row
    p.tail = row
    p.queued += 1
    p.requests += 1
    p.tokens += q[PROMPT, row] + target(p, q, row)
    p.due = min(p.due, max(p.now, when))


WORLD_TYPE, ONE, TWO = numba.from_dtype(WORLD), int64[::1], int64[:, ::1]
REPLICAS, SLOTS, PREFIXES = (numba.from_dtype(t)[::1] for t in (REPLICA, SLOT, CACHED))


@njit(void(WORLD_TYPE[::1], REPLICAS, SLOTS, TWO, PREFIXES, TWO, ONE, ONE, ONE, int64), cache=layout.CACHED_CODE, **HOW)
def drive(world, ps, slots, q, pre, tables, prefill, k, sent, until):
    """All replicas up to a time."""
    w = world[0]
    front_on, back_on = NEVER, NEVER
    for r in range(len(ps)):
        if ps[r].accepts and ps[r].role == DECODE:
            back_on = min(back_on, ps[r].on)
        elif ps[r].accepts:
            front_on = min(front_on, ps[r].on)
    while True:
        front = max(q[COME, w.next], front_on) if w.next < w.issued else NEVER
        back = max(q[COME, w.moving], back_on) if w.moving >= 0 else NEVER
        when = min(front, back, until)
        if w.loads:
            due, r = when + 1, len(ps)
            for other in range(len(ps)):
                if ps[other].due < due:
                    due, r = ps[other].due, other
            if due <= when:  # what leaves may come back: then no replica may be ahead of the others
                advance(w, ps[r], slots, q, pre, tables, prefill, k, r, due if w.feedback else when)
                continue
        if front <= when:
            r = chosen(w, ps, sent, q, w.next, NONE, front)
            q[WHERE, w.next] = r
            send(ps[r], q, w.next, front)
            w.next += 1
        elif back <= when:
            row = w.moving
            w.moving = meld(q, BY_TIME, q[LEFT, row], q[RIGHT, row])
            r = chosen(w, ps, sent, q, row, SINGLE, back)
            q[WHERE, row] = r
            send(ps[r], q, row, back)
        else:
            break
    for r in range(len(ps)):
        advance(w, ps[r], slots, q, pre, tables, prefill, k, r, until)
