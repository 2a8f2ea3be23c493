"""Parts of the compiled simulator: queues, heaps, blocks and prefixes of a replica.

Imported lazily: numba takes a third of a second. Letters: w is the world, p a replica, s a slot, q the table of
requests, k the column of counts; `first` and `base` are where a replica's slots and prefixes begin.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from flopwise.serving.sim.layout import (
    CAME, COME, HAVE, LAST, LEFT, MADE, MOVE, OUTPUT, OWED, PHASES, PREFIX, PROMPT, RANK, RIGHT, SHARE, START,
)  # fmt: skip
from flopwise.serving.sim.result import PARTS
from flopwise.serving.sim.setup import PREFILL

HOW = {"error_model": "numpy", "_nrt": False}
"""How all is compiled. Nothing is allocated, so no array needs a count of its users: that took half of the time."""
inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **HOW)
"""Compiled into whatever calls it."""
hot = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **HOW)
"""The same, where handing over all arrays would take longer than what is done with them."""
NONE, SINGLE, BY_RANK, BY_TIME = np.int64(0), np.int64(1), np.int64(RANK), np.int64(COME)
"""Arguments: a plain constant would have the function compiled once more for just that value."""


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
