"""The compiled simulator equals the reference to the last bit, whatever is asked and whenever one looks."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.random import Generator
from reference import REFERENCE, ReferenceFleet

from flopwise.errors import SpecError
from flopwise.serving.sim import simulate as simulate_module
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import BlockStore, ReplicaLimits
from flopwise.serving.sim.fleet import FastFleet
from flopwise.serving.sim.machine_code import ObjectCode, _first_compilation, cache_folder, core
from flopwise.serving.sim.policies import BALANCERS, POLICIES
from flopwise.serving.sim.setup import Setup, Transfer, setup
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import PrefixTree, RequestTrace, trace

MOST_BATCH, MOST_TOKENS, MOST_DRAFTED = 30, 400, 6


def some_trace(rng: Generator) -> RequestTrace:
    count = int(rng.integers(1, 60))
    span_s = float(rng.choice([0, 1e-3, 0.1, 1]))  # many arrivals at one time among them
    return trace(
        np.sort(rng.random(count) * span_s).round(4),
        rng.integers(1, int(rng.choice([3, 40, 200])), count),
        rng.integers(1, int(rng.choice([2, 10, 100])), count),
        priority=rng.integers(0, 3, count),
        prefix=rng.integers(-1, 3, count),
        prefix_tokens=rng.integers(0, 80, count),
        deadline_s=rng.random(count) - 0.2,
    )


def some_sessions(rng: Generator) -> RequestTrace:
    """Turns that begin with all before them, most of them after its answer, some of them at times of their own."""
    rows: list[tuple[float, int, int, int, float, int]] = []
    for session in range(int(rng.integers(1, 14))):
        came_s, history = float(rng.choice([0, 0.1]) * rng.random()), int(rng.choice([0, 30]))
        name = int(rng.integers(-1, 2))
        for turn in range(int(rng.integers(1, 6))):
            prompt, output = history + int(rng.integers(1, 40)), int(rng.integers(1, 30))
            pause_s = float(rng.choice([0, 1e-7, 1e-2])) if turn and rng.random() < 0.8 else -1.0
            rows.append((round(came_s, 4), prompt, output, session, pause_s, name))
            history = prompt + output if rng.random() < 0.9 else 0  # some lose what was before
    rows.sort(key=lambda row: (row[0], row[3]))
    came, prompts, outputs, sessions, pauses, names = zip(*rows, strict=True)
    return trace(came, prompts, outputs, session=sessions, pause_s=pauses, prefix=names, prefix_tokens=[20] * len(rows))


def some_chains(rng: Generator) -> RequestTrace:
    """Prompts that begin with others' beginnings, at all depths."""
    parent, end = [-1], [int(rng.integers(1, 30))]
    for node in range(1, int(rng.integers(2, 30))):
        parent.append(int(rng.integers(-1, node)))
        end.append((end[parent[-1]] if parent[-1] >= 0 else 0) + int(rng.integers(0, 30)))
    count = int(rng.integers(1, 60))
    leaf = rng.integers(-1, len(parent), count)
    least = np.where(leaf >= 0, np.array(end)[leaf], 0)
    tree = PrefixTree(np.array(parent, dtype=np.int64), np.array(end, dtype=np.int64))
    asked = trace(
        np.sort(rng.random(count) * 0.1).round(4),
        least + rng.integers(0, 20, count) + (least == 0),
        rng.integers(1, 30, count),
    )
    return replace(asked, tree=tree, prefix=leaf)


def some_cost(rng: Generator, unit: int) -> StepCost:
    """`unit` 1: steps of a few picoseconds, so that many things happen at one time."""
    tokens = np.arange(MOST_TOKENS + MOST_DRAFTED * MOST_BATCH, dtype=np.int64)
    kinds = int(rng.integers(1, 3))  # of steps: without prompts, and with
    batch = np.tile(np.arange(MOST_BATCH + 1, dtype=np.int64), kinds)
    batch[MOST_BATCH + 1 :] *= 3
    return StepCost(
        beside=(kinds - 1) * (MOST_BATCH + 1),
        tokens_ps=unit * (rng.integers(1, 5) + tokens * rng.integers(0, 3)) * (tokens > 0),
        decode_ps=unit * batch * rng.integers(0, 3),
        cached_ps=np.repeat(rng.integers(0, 4, kinds), MOST_BATCH + 1) * (unit // 50 + 1),
        window_ps=np.repeat(rng.integers(0, 3, kinds), MOST_BATCH + 1) * (unit // 50 + 1),
        window=int(rng.choice([0, 1, 16, 30, 64])),
        prefill=tuple(unit * int(v) for v in rng.integers(0, 5, 4)),  # type: ignore[arg-type]
        request_ps=int(rng.choice([0, 5, 10**8])),
        front_ps=unit * int(rng.choice([0, 0, 3, 200])),
        front_token_ps=unit * int(rng.choice([0, 0, 1])),
        stream_ps=unit * int(rng.choice([0, 0, 1, 9])),
        decode_tokens=int(rng.integers(1, MOST_DRAFTED)),
        tokens_after_launch=bool(rng.integers(2)),
        beyond_ps=(unit * int(rng.choice([0, 50, 10**4])), unit * int(rng.integers(3))),
    )


def some_setup(rng: Generator, unit: int, *, spare: bool = True) -> Setup:
    limits = ReplicaLimits(
        max_batch=int(rng.choice([1, 2, 5, MOST_BATCH])),
        step_tokens=int(rng.choice([1, 4, 32, 300])),
        block_tokens=int(rng.choice([1, 3, 16])),
        num_blocks=int(rng.choice([5, 20, 60, 10**6])),
        mix=bool(rng.integers(2)),
        ahead=bool(rng.integers(2)),
        preempt="swap" if rng.integers(2) else "recompute",
        swap_ps_per_block=int(rng.choice([0, 3, 10**5])),
        prefix_cache=bool(rng.integers(4)),
        proposals=int(rng.choice([0, 0, 1, 4])),
        acceptance=float(rng.choice([0.0, 0.5, 1.0])),
        stores=tuple(
            BlockStore(blocks=int(rng.choice([0, 5, 40, 200])), block_ps=int(rng.choice([0, 3, 10**5])),
                       latency_ps=int(rng.choice([0, 7])))
            for _ in range(rng.integers(4))
        ),
    )  # fmt: skip
    requests, found = (some_trace(rng), some_sessions(rng), some_chains(rng))[rng.integers(3)], int(rng.integers(4))
    if found == 3 and (np.any(requests.session >= 0) or requests.tree is not None):
        found = 0
    if found > 1 and requests.tree is None:  # prefixes are those of all requests
        requests = replace(requests, prefix=np.full_like(requests.prefix, -1))
        limits = replace(limits, shared_tokens=30 * (found == 2), hit_frac=0.6 * (found == 3))
    return setup(
        requests,
        some_cost(rng, unit),
        limits,
        replicas=int(rng.integers(1, 4)),
        balancer=str(rng.choice(list(BALANCERS))),
        policy=str(rng.choice(list(POLICIES))),
        users=None if rng.integers(2) or requests.follows else int(rng.integers(1, 12)),
        think_s=float(rng.choice([0, 1e-5, 1e-2])),
        prefill_replicas=int(rng.choice([0, 0, 1, 2])),
        transfer=Transfer(latency_s=float(rng.choice([0, 1e-4])), s_per_token=1e-7),
        spare=int(spare),
    )


def some_loop(rng: Generator, unit: int, *, spare: bool) -> Setup:
    """Several replicas for prompts and several that decode, mostly in a closed loop, and no prefixes."""
    requests = some_trace(rng)
    return setup(
        replace(requests, prefix=np.full_like(requests.prefix, -1)),
        some_cost(rng, unit),
        ReplicaLimits(
            max_batch=int(rng.choice([1, 2, 5, MOST_BATCH])),
            step_tokens=int(rng.choice([1, 4, 32, 300])),
            block_tokens=int(rng.choice([1, 3, 16])),
            num_blocks=int(rng.choice([20, 60, 10**6])),
            mix=bool(rng.integers(2)),
            ahead=bool(rng.integers(2)),
        ),
        replicas=int(rng.integers(1, 6)),
        balancer=str(rng.choice(["round-robin", "least-loaded", "least-tokens"])),
        policy=str(rng.choice(list(POLICIES))),
        users=None if rng.random() < 0.2 else int(rng.integers(1, 25)),
        think_s=float(rng.choice([0, 1e-11, 1e-5])),
        prefill_replicas=int(rng.integers(0, 4)),
        transfer=Transfer(latency_s=float(rng.choice([0, 1e-11, 1e-4])), s_per_token=float(rng.choice([0, 1e-12]))),
        spare=int(spare),
    )


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), unit=st.sampled_from([1, 10**6]), steered=st.booleans())
@example(seed=6722, unit=10**6, steered=False)  # a store brings a prefix for the first of two that came at one time
@example(seed=1000022032, unit=1, steered=False)  # a store makes room for what it holds itself, older, already
@example(seed=255, unit=1, steered=False)  # a window fills that is shorter than what is left of an answer
@example(seed=30, unit=10**6, steered=False)  # a replica is not ahead of what moves to another one
@example(seed=254, unit=10**6, steered=True)  # nor of the turns of sessions
@example(seed=4, unit=10**6, steered=False)  # a step that begins before the look has begun
def test_it_equals_the_reference_at_every_look(seed: int, unit: int, steered: bool) -> None:
    """Advanced to times at random; with `steered`, replicas are started and drained on the way."""
    rng = np.random.default_rng(seed)
    check_every_look(rng, some_setup(rng, unit, spare=steered), unit, steered=steered)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), unit=st.sampled_from([1, 10**6]), steered=st.booleans())
@example(seed=6, unit=10**6, steered=False)  # an answer is followed by one that ends before those of others
def test_pools_in_a_closed_loop_equal_the_reference_at_every_look(seed: int, unit: int, steered: bool) -> None:
    """Replicas that are ahead of one another: what leaves one may bring a request before another one leaves."""
    rng = np.random.default_rng(seed)
    check_every_look(rng, some_loop(rng, unit, spare=steered), unit, steered=steered)


def check_every_look(rng: Generator, plan: Setup, unit: int, *, steered: bool) -> None:
    slow, fast = ReferenceFleet(plan), FastFleet(plan)
    spare, time_ps = len(plan.roles) - 1, 0
    for look in range(10_000):
        time_ps += int(10 ** rng.uniform(0, (6 if unit == 1 else 10) + look / 30))
        slow.advance(time_ps)
        fast.advance(time_ps)
        for name, expected, got in zip(slow.totals()._fields, slow.totals(), fast.totals(), strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=name)
        np.testing.assert_array_equal(fast.fetched_blocks, slow.fetched_blocks)
        assert (fast.unassigned_count, fast.answered_count) == (slow.unassigned_count, slow.answered_count)
        if slow.answered_count == len(plan.trace):
            break
        first = slow.replicas[0]
        for machines in (slow, fast) if steered else ():
            if look == 1:
                machines.start(spare, time_ps + 5)
            elif look == 3:
                machines.drain(0)
        if steered and look > 5 and not first.accepts and first.requests == 0:
            slow.start(0, time_ps)
            fast.start(0, time_ps)
    assert fast.answered_count == len(plan.trace)
    for name, expected, got in zip(slow.outcome()._fields, slow.outcome(), fast.outcome(), strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=name)
    np.testing.assert_array_equal(fast.itl(), slow.itl())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_how_often_one_looks_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = some_setup(rng, 10**6)
    often, once = FastFleet(plan), FastFleet(plan)
    for time_ps in range(0, 10**12, 10**9):
        often.advance(time_ps)
    for machines in (often, once):
        machines.advance(2**61)
        assert machines.answered_count == len(plan.trace)
    for name, expected, got in zip(once.outcome()._fields, once.outcome(), often.outcome(), strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=name)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_run_that_must_be_long_is_sampled_as_if_nobody_knew(seed: int) -> None:
    """Samples begin at the distance to which they would come by doubling."""
    rng = np.random.default_rng(seed)
    plan = some_setup(rng, 10**6, spare=False)
    least_ps = simulate_module._least_duration_ps(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate_module, "SHORTEST_SAMPLE_PS", 10**6)
        known = simulate_module._advance_to_end(FastFleet(plan), plan, 5)
        patch.setattr(simulate_module, "_least_duration_ps", lambda _plan: 0)
        assert simulate_module._advance_to_end(fast := FastFleet(plan), plan, 5) == known
    assert fast.outcome().finish_ps.max(initial=0) >= least_ps


@pytest.mark.parametrize("policy", ["shortest", "priority", "deadline"])
def test_a_crowd_is_admitted_in_the_order_of_the_policy(policy: str) -> None:
    """More than 64 * 64 wait at once, so that the set of those that wait has words of words of ranks."""
    count, rng = 64 * 64 + 100, np.random.default_rng(3)
    asked = trace(
        np.sort(rng.random(count) * 1e-9),
        rng.integers(1, 30, count),
        rng.integers(1, 3, count),
        priority=rng.integers(0, 9, count),
        deadline_s=rng.random(count) - 0.2,
    )
    cost, limits = some_cost(rng, 10**6), ReplicaLimits(max_batch=30, step_tokens=300, num_blocks=60)
    plan = setup(asked, cost, limits, policy=policy, prefill_replicas=1, replicas=2)
    slow, fast = ReferenceFleet(plan), FastFleet(plan)
    for machines in (slow, fast):
        for time_ps in (10**8, 2**61):
            machines.advance(time_ps)
        assert machines.answered_count == count
    for name, expected, got in zip(slow.outcome()._fields, slow.outcome(), fast.outcome(), strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.parametrize("overtaken", [1, 16, 17, 50])
def test_short_prompts_overtake_long_ones_between_pools(overtaken: int) -> None:
    """Caches of short prompts, sent last, arrive before those of long ones: few are put in order, many are a heap."""
    prompts = [*range(200, 200 - overtaken, -1), *range(1, 20)]
    asked = trace(np.arange(len(prompts)) * 1e-9, prompts, [3] * len(prompts))
    cost, limits = some_cost(np.random.default_rng(3), 1), ReplicaLimits(max_batch=2, step_tokens=300, num_blocks=60)
    plan = setup(asked, cost, limits, prefill_replicas=1, transfer=Transfer(latency_s=1e-3, s_per_token=1e-3))
    slow, fast = ReferenceFleet(plan), FastFleet(plan)
    for machines in (slow, fast):
        machines.advance(2**61)
        assert machines.answered_count == len(prompts)
    for name, expected, got in zip(slow.outcome()._fields, slow.outcome(), fast.outcome(), strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_both_engines_give_one_result() -> None:
    rng = np.random.default_rng(0)
    asked = trace(np.sort(rng.random(300)), rng.integers(1, 500, 300), rng.integers(1, 60, 300))
    cost, limits = some_cost(rng, 10**7), ReplicaLimits(max_batch=8, step_tokens=64, num_blocks=30)
    slow, fast = (simulate(asked, cost, limits, engine=e, replicas=2) for e in (REFERENCE, FastFleet))
    assert slow.summary() == fast.summary()
    assert np.count_nonzero(fast.reasons) == fast.summary().dropped > 0
    for expected, got in zip(slow.timeline, fast.timeline, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_replicas_that_are_on_are_not_started() -> None:
    plan = some_setup(np.random.default_rng(1), 1)
    for machines in (FastFleet(plan), ReferenceFleet(plan)):
        with pytest.raises(SpecError, match="must be drained"):
            machines.start(0, 5)


def test_the_compiler_is_imported_where_no_compiled_code_is_kept_alone() -> None:
    core()
    code = (
        "import sys, flopwise.serving.sim.simulate, flopwise.serving.sim.engine;"
        "from flopwise.serving.sim.machine_code import core;"
        "sys.exit(not callable(core()) or 'numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_function_goes_through_few_passes_once_for_each_kind_of_records() -> None:
    code = (
        "import sys; from flopwise.serving.sim import machine_code; machine_code._new_code(shared=True);"
        "module = sys.modules['flopwise.serving.sim.core_shared'];"
        "functions = {name: one.overloads for name, one in vars(module).items() if hasattr(one, 'overloads')};"
        "found = [one for each in functions.values() for one in each.values()];"
        "print(max(len(times) for one in found for times in one.metadata['pipeline_times'].values()));"
        "print(*(name for name, each in functions.items() if len(each) > 1))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    passes, for_two_kinds = done.stdout.splitlines()
    assert int(passes) <= 9  # numba has 22
    assert for_two_kinds == "unlink append"  # of lists of a replica and of a store


def test_code_that_is_not_whole_is_not_run(tmp_path: Path) -> None:
    made, path = ObjectCode("drive", bytes(range(256))), tmp_path / "code.o"
    assert ObjectCode.from_file(path) is ObjectCode.from_file(None) is None
    made.write(path)
    assert ObjectCode.from_file(path) == made
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + b"?", whole[:20], b"\xff \n", b""):
        path.write_bytes(damaged)
        assert ObjectCode.from_file(path) is None


def test_compiled_code_is_kept_where_the_user_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    folder = cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "given"
    assert folder.is_dir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.devnull)  # no folder can be made there
    folder = cache_folder()
    assert folder is not None
    assert folder.parent != Path(os.devnull)


def test_of_two_that_need_the_code_one_compiles_it(tmp_path: Path) -> None:
    """The other waits until it is kept; what finds compiled code waits for nobody."""
    pytest.importorskip("fcntl")
    ended, waits = list[str](), threading.Event()

    def says_that_it_waits() -> None:
        ended.append("told")
        waits.set()

    def second() -> None:
        with _first_compilation(tmp_path, says_that_it_waits):
            ended.append("second")

    thread = threading.Thread(target=second)
    with _first_compilation(tmp_path, None):
        thread.start()
        assert waits.wait(60)
        thread.join(0.2)
        assert ended == ["told"]
        ended.append("first")
        (tmp_path / "core.o").touch()
        with _first_compilation(tmp_path, lambda: ended.append("never")):
            pass
    thread.join()
    assert ended == ["told", "first", "second"]
