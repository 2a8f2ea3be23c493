"""What prompts begin with that others began with before: names, sessions and chains of blocks, all as one tree.

A node stands for some blocks after those of the node that it hangs from. What is cached of a node's path is cached from
the start of the prompt on; so is what stays when nodes are evicted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flopwise.serving.sim.trace import Column, PrefixTree, RequestTrace


class Prefixes(NamedTuple):
    """The tree of all prompts, in blocks, and where each request stands in it; -1: nowhere."""

    tree: PrefixTree
    prompt: Column  # node up to which a request may find its prompt cached, and caches it
    answer: Column  # node that its prompt and its answer leave in the cache

    @classmethod
    def of(cls, trace: RequestTrace, block_tokens: int) -> Prefixes:
        """The prefixes of all requests in whole blocks; the last token of a prompt is always computed.

        Source: vLLM, `get_computed_blocks`: full blocks only, and never all of a prompt; SGLang's radix tree (Zheng et
        al. 2023, arXiv:2312.07104, section 3) and vLLM's block hashes hold answers as well as prompts.
        Assumes: requests of one name begin with the same tokens, as many as two of them share.
        """
        if trace.tree is None and not (np.any(trace.prefix >= 0) or np.any(trace.session >= 0)):
            none, nowhere = np.empty(0, dtype=np.int64), np.full(len(trace), -1, dtype=np.int64)
            return Prefixes(PrefixTree(none, none), nowhere, nowhere)
        most = (trace.prompt - 1) // block_tokens
        if trace.tree is not None:
            tree = PrefixTree(trace.tree.parent, trace.tree.end // block_tokens)
            return Prefixes(tree, _node_within(tree, trace.prefix, most), trace.prefix)
        tree, node = _name_nodes(trace, np.minimum(trace.prefix_tokens // block_tokens, most))
        if not np.any(trace.session >= 0):
            return Prefixes(tree, node, node)
        return _session_nodes(trace, tree, node, most, block_tokens)


def _name_nodes(trace: RequestTrace, blocks: Column) -> tuple[PrefixTree, Column]:
    """Prefixes by name: shorter ones of a name are what its longer ones hang from."""
    rows = np.flatnonzero((trace.prefix >= 0) & (blocks > 0))
    node = np.full(len(trace), -1, dtype=np.int64)
    pairs, places = np.unique(np.stack([trace.prefix[rows], blocks[rows]], axis=1), axis=0, return_inverse=True)
    node[rows] = places.ravel()
    parent = np.arange(-1, len(pairs) - 1, dtype=np.int64)
    first = np.ones(len(pairs), dtype=bool)
    first[1:] = pairs[1:, 0] != pairs[:-1, 0]
    return PrefixTree(np.where(first, -1, parent), pairs[:, 1].astype(np.int64)), node


def _session_nodes(trace: RequestTrace, named: PrefixTree, node: Column, most: Column, block_tokens: int) -> Prefixes:
    """Two nodes a turn, of its prompt and of its answer; the first turn's hang from the name it begins with, if any.

    Source: definition. Assumes: a turn whose prompt is not longer than all before it has lost its history: engines find
    nothing of it but the name.
    """
    before, names = previous_turns(trace), len(named.parent)
    turns = np.flatnonzero(trace.session >= 0)
    prompt, answer = (np.full(len(trace), -1, dtype=np.int64) for _ in range(2))
    prompt[turns] = names + 2 * np.arange(len(turns))
    answer[turns] = prompt[turns] + 1
    whole = (trace.prompt + trace.output - 1) // block_tokens
    goes_on = before >= 0
    goes_on[goes_on] = trace.prompt[goes_on] >= (trace.prompt + trace.output)[before[goes_on]]
    above = np.where(goes_on, answer[before], node)
    parent, end = (np.zeros(2 * len(turns), dtype=np.int64) for _ in range(2))
    parent[0::2], parent[1::2] = above[turns], prompt[turns]
    end[0::2], end[1::2] = most[turns], whole[turns]
    tree = PrefixTree(np.concatenate([named.parent, parent]), np.concatenate([named.end, end]))
    return Prefixes(tree, np.where(prompt >= 0, prompt, node), np.where(prompt >= 0, answer, node))


def previous_turns(trace: RequestTrace) -> Column:
    """The row of the turn before each in its session, -1 for the first and for requests without one."""
    before = np.full(len(trace), -1, dtype=np.int64)
    order = np.argsort(trace.session, kind="stable")
    same = trace.session[order][1:] == trace.session[order][:-1]
    same &= trace.session[order][1:] >= 0
    before[order[1:][same]] = order[:-1][same]
    return before


def _node_within(tree: PrefixTree, node: Column, most: Column) -> Column:
    """The nearest node above each that ends within `most` blocks."""
    node = node.copy()
    rows = np.flatnonzero(node >= 0)
    while len(rows := rows[tree.end[node[rows]] > most[rows]]):
        node[rows] = tree.parent[node[rows]]
        rows = rows[node[rows] >= 0]
    return node
