"""Where the compiled simulator keeps what: columns of requests, and records."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flopwise.serving.sim.result import BINS

COLUMNS = 10
(
    BY_RANK,  # the request of each place in the order of the policy
    PREFIX,  # node of the tree that its prompt leads to, -1: nobody shares it
    KEEP,  # node that prompt and answer lead to
    OWED,  # blocks on the host
    PREEMPTED,
    CAME,  # when it came, in a closed loop
    NEXT,  # the request that follows its answer; 0: none
    PAUSE,  # before it, and 1: since the answer that it follows; 0: it follows none
    STAGED,  # node, and 1, up to which its prefix was brought from a store
    STAGED_ON,  # blocks before what was brought
) = range(COLUMNS)
"""Rows of the table of what is seldom looked at of requests: int64[COLUMNS, requests]."""
ROWS = {
    "by_rank": BY_RANK, "prefix": PREFIX, "keep": KEEP, "owed": OWED, "preempted": PREEMPTED,
    "came": CAME, "next": NEXT, "pause": PAUSE, "staged": STAGED, "staged_on": STAGED_ON,
}  # fmt: skip
"""Their names among `Tables`."""


def record(*names: str) -> np.dtype[np.void]:
    """A record of int64 fields."""
    return np.dtype([(name, np.int64) for name in names])


REQUEST = record(
    "come",  # when the scheduler sees it; before it is sent to a replica, without the queue of its front end
    "prompt", "output",
    "rank",  # place in the order of the policy
    "left",  # next in the inbox
    "last",  # when the last token came that is known of; before the first one of two pools: how long its cache moves
    "made",  # tokens of the answer, where it is not in a batch
    "have",  # tokens in cache, where it is not in a batch
)  # fmt: skip
"""What a step looks at of a request: together, as it comes from memory by 64 bytes."""
PROGRESS = record("start", "first", "finish", "where")
"""What becomes of a request, as in `Outcome`: together, as requests are not always taken in their order."""
REPLICA = record(
    "due",  # nothing leaves before that
    "role", "on", "accepts", "requests", "tokens",  # what balancers look at, in one line of memory
    "plain",  # requests come in the order of the policy
    "queued",
    "first", "base", "phases", "store",  # where its slots, its nodes, its counts of `PHASES` and its stores begin
    "heap",  # where its list of the next event of each decoding sequence begins, a heap by step
    "joining",  # that of slots whose prompts end with the step
    "late",  # that of slots whose last token came at another time than that of those that decoded before
    "now", "stepping",  # end of the step in progress, if there is one
    "began", "seen",  # when that step began; requests that have come by then may be in the next one
    "step", "turn",  # decoding steps so far, and their number modulo the tokens of a block
    "batch", "cached", "windowed", "growing",  # decoding sequences, their tokens, those in the window, those below it
    "used", "idle",  # blocks; those of nodes without a user
    "part", "joins", "fresh",  # slot of the prompt under way; how many are in the lists `joining` and `late`
    "running", "last", "free",  # slots: the last admitted, the first free one
    "head", "tail", "root", "rank",  # inbox by arrival; the first of those that wait, and its rank
    "ranks",  # where the set of those that wait begins
    "decoded",  # when the decoding sequences had their last token
    "out",  # tokens of the step in progress
    "desk", "stream",  # when the front end is free for the next request, and has handed out all tokens so far
    "ended", "busy", "steps", "worked", "made", "reused", "preemptions", "peak",
    "oldest", "newest",  # nodes without a user
    "early", "fetched",  # rank up to which requests are brought from memory early, and how many of them wait
    "joined",  # prompts that the step before has read to the end
    "spare",  # up to a whole line
)  # fmt: skip
SLOT = record(
    "row",
    "base",  # cached tokens less `step` while it decodes; cached tokens before
    "end",  # `step` at which it is done
    "at", "shared", "hold",  # node up to which it shares; blocks: shared; its own, until it decodes
    "worked",  # its prompt was worked through before it joins
    "tokens",  # of its prompt and of its answer that is made here
    "phase",  # number of the step that takes a new block for it, modulo the tokens of a block
    "before", "after",  # neighbours in the order of admission
)  # fmt: skip
LISTS = 3
"""Lists of each replica, with as many places each as it has slots."""
QUEUED = record("time", "row")
"""A request in a heap of those that come somewhere later."""
LINE = record("first", "size", "ordered")
"""Such a heap: where its root is, how many are in it, and whether they lie in order."""
LINES = 4
MOVING, TURNS, FETCHING, LEAVING = range(LINES)
"""Heaps: between pools, in a pause after the answer before, waiting for what stores bring, followed by a request of a
closed loop."""
FRONT, BACK = range(2)
"""Replicas that requests are sent to, and those that decode what others have worked through."""
SIDE = record(
    "first", "last",  # its replicas, up to before the last
    "looks",  # the choice among them goes by their loads
    "gap",  # between what leaves, at the back the front, and what comes for it
    "sent",  # requests in turn
    "on", "turn",  # when the first of them takes requests; whose turn it is, -1: not all of them do
    "due",  # nothing leaves before that
)  # fmt: skip
CACHED = record("there", "users", "released", "before", "after", "down")
"""A node of the tree of prefixes, on one device or in one store."""
LINK = record("blocks", "used", "oldest", "newest", "block_ps", "latency_ps", "free", "fetched")
"""A store of one replica, below its device, and the link to it."""
SHARED = True
"""What `core` is compiled for next: with prompts that share beginnings, or without."""
PARENT, END = range(2)
"""Rows of the tree: what a node hangs from (-1: nothing), and blocks from the start of a prompt to its end."""
WORLD = record(
    "max_batch", "step_tokens", "block_tokens", "num_blocks", "mix", "ahead", "swap", "swap_ps", "nodes", "links",
    "window", "balancer",
    "together",  # requests are sent where no replica is ahead of them
    "closed", "direct",  # an answer is followed by a request; which the only replica puts into its own inbox
    "think", "request_ps", "front_ps", "front_token_ps", "stream_ps", "next_launch_ps",
    "least_ps",  # no step with tokens is shorter
    "next", "issued", "done",
    "brought",  # the request that comes to a replica now, which looks for its prefix in stores; or -1
    "until",  # the time to which all are advanced
    "leaves",  # words before the leaves of a set of ranks
    "sessions", "sent",
    "replicas", "requests",  # how many there are
)  # fmt: skip


class Tables(NamedTuple):
    """Addresses of the tables of `RECORDS`, and of the columns of numbers, that the compiled simulator works on."""

    slots: Any
    lists: Any
    lines: Any
    sides: Any
    moving: Any
    turns: Any
    fetching: Any
    leaving: Any
    rows: Any
    progress: Any
    by_rank: Any
    prefix: Any
    keep: Any
    owed: Any
    preempted: Any
    came: Any
    next: Any
    pause: Any
    staged: Any
    staged_on: Any
    ranks: Any
    pre: Any
    parent: Any
    node_end: Any
    low: Any
    links: Any
    tokens_ps: Any
    decode_ps: Any
    cached_ps: Any
    window_ps: Any
    scalars: Any
    k: Any
    sent: Any


RECORDS = {
    "slots": SLOT, "lines": LINE, "sides": SIDE, "moving": QUEUED, "turns": QUEUED, "fetching": QUEUED,
    "leaving": QUEUED, "rows": REQUEST, "progress": PROGRESS, "pre": CACHED, "low": CACHED, "links": LINK,
}  # fmt: skip
"""What is in the tables that hold records; in all others numbers of 64 bits."""
PHASES = BINS
"""Place in the column of counts, behind the histogram, of the sequences by the step that takes a new block."""
