"""Plan a service, a batch job or an encoder over every offer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import ceil, inf
from typing import Any

import msgspec
import numpy as np

from flopwise.changes.format_fit import usual_names
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import defaults
from flopwise.facts.accelerators import SHARED_KINDS, Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import BF16, CacheFormat, WeightFormat
from flopwise.ops.tensors import parameters
from flopwise.ops.weights import changes_weights
from flopwise.search.answer import SILENT, TARGET_NAMES, Candidate, Listeners, PlanDraft, RejectionLog
from flopwise.search.deployments import (
    SIZED,
    Answer,
    ReplicaQuestion,
    deployments_together,
    latency_percentiles,
    least_prompt_s,
    size_together,
    sized_replicas,
)
from flopwise.search.nodes import FIRST_NODES, NodeKind, node_kinds, nothing_left
from flopwise.search.option_table import OptionTable, Place
from flopwise.search.rank import (
    NEAREST_MISSES,
    Floats,
    Mask,
    Pick,
    candidates,
    cheaper_misses,
    likeliest,
    spot_assumptions,
)
from flopwise.search.replica import answers_in_one_pass, replica_job, with_facts, with_lengths
from flopwise.search.serving_analysis import (
    floors,
    format_on,
    ladder_step,
    levers,
    target_costs,
    tokens_per_decode_step,
    weights_read_s,
)
from flopwise.search.serving_option import Offered, ServingOption, options_together
from flopwise.search.spec import ANY
from flopwise.search.verify import MOST_RUNS, verified_plans
from flopwise.search.workload import Resolved
from flopwise.serving.deployment import FP8, own_cache, usual_engine
from flopwise.serving.estimate import check_request
from flopwise.serving.memory import ServingLayout
from flopwise.serving.precision import layer_weight_bits
from flopwise.serving.sessions import ANSWERS_ELSEWHERE
from flopwise.serving.sim.stores import HOST
from flopwise.serving.technique_rules import check_techniques, technique_assumptions, technique_settings
from flopwise.units import format_items, format_number, format_percent, format_seconds
from flopwise.values import replace

NEAREST = 3
"""Ways to serve that are evaluated even where physics forbids the target: a miss is told by how much."""
WHOLE = "whole"
"""Front of the time of a whole request, or of the job."""
LAYOUTS = 2
"""Layouts of one option that may go to the simulator."""
SIXTEEN = 12.0
"""Bits of a weight above which it counts as one of 16 bits."""


def formats(workload: Resolved, model: Model) -> list[WeightFormat]:
    """The weight formats to search: those asked for, else as published; for models published in 16 bits fp8, too.

    `any`: the usual ones that the engine runs and that change the model's weights.
    """
    format_names = workload.limits.weight_formats or ([workload.one_precision] if workload.one_precision else [])
    if ANY in format_names:
        rows = map(workload.facts.weight_format, dict.fromkeys(usual_names(model.checkpoint_format)))
        return [row for row in rows if workload.engine.runs(row) and changes_weights(model, row)]
    if format_names:
        return [workload.facts.weight_format(name) for name in format_names]
    if model.checkpoint_format is not None:
        return [workload.facts.weight_format(model.checkpoint_format)]
    return [BF16] if answers_in_one_pass(model, workload) else [BF16, workload.facts.weight_format("fp8")]


def variants(workload: Resolved, model: Model) -> list[tuple[WeightFormat, CacheFormat]]:
    """(weights, cache) formats to search: as asked, else the cache in 16 bits, and in 8 bits under 8-bit weights.

    Source: the cache types that engines take (vLLM and SGLang, quantised KV cache: fp8; llama.cpp, --cache-type-k:
    q8_0).
    Assumes: who keeps weights in 16 bits wants the cache in 16 bits, too, unless the engine caches that model in 8.
    """
    wanted, cache_name = formats(workload, model), workload.limits.kv_dtype
    narrow = "q8_0" if workload.engine.local else "fp8"
    own_name = own_cache(workload.engine, model)
    plain, eight = (workload.facts.cache_format(name) for name in (cache_name or own_name, narrow))
    pairs = [(weights, plain) for weights in wanted]
    if cache_name is not None or plain == eight or answers_in_one_pass(model, workload):
        return pairs
    return pairs + [(weights, eight) for weights in wanted if layer_weight_bits(model, weights) < SIXTEEN]


def check_serving(workload: Resolved, model: Model, facts: Facts) -> tuple[str, ...]:
    """Refuse what no machine can serve; what is assumed of requests longer than the model is made for.

    Raises:
        SpecError, UnknownNameError: they cannot be, on whatever machine.
    """
    workload, _ = with_lengths(with_facts(workload, facts), model)
    variants(workload, model)
    _ = workload.engine
    answer = 1 if answers_in_one_pass(model, workload) else workload.output_tokens
    if workload.sessions is not None and answers_in_one_pass(model, workload):
        raise SpecError(f"traffic.turns: {model.name} answers in one pass: sessions need a model that generates")
    try:
        return check_request(model, workload.input_tokens, answer)
    except SpecError as error:
        raise SpecError(f"traffic.input_tokens: {error}") from None


def plan_serving(
    workload: Resolved, model: Model, facts: Facts, listeners: Listeners[PlanDraft] = SILENT, *, alone: bool = True,
    by_region: bool = False,
) -> PlanDraft:  # fmt: skip
    """Search every offer for the deployments that meet the workload's targets; the best are run before they are ranked.

    `by_region` as in `plan`; not `alone`, too, and nothing is run. First plans are not reported where those of the
    other machines are known.

    Raises:
        InfeasibleError: the constraints leave no offer.
        SpecError, UnknownNameError: something in the workload is wrong.
    """
    draft = PlanDraft(percentiles=latency_percentiles(workload))
    draft.assumptions += check_serving(workload, model, facts)
    if not alone and workload.sessions is not None and workload.sessions.kv_stores is not None:
        raise SpecError("traffic.kv_stores: a fleet's bill has no stores of caches; plan this service by itself")
    workload = with_facts(workload, facts)
    wanted, one_pass = variants(workload, model), answers_in_one_pass(model, workload)
    nodes = nodes_with_engine(
        node_kinds(workload, facts, draft.ruled_out, alone=alone), workload, model, draft.ruled_out
    )
    draft.assumptions = [
        *_default_assumptions(workload, model, nodes, wanted),
        *draft.assumptions,
        *_technique_assumptions(workload, model, nodes, wanted[0][0]),
        *_cache_assumptions(workload, paid=alone),
    ]
    simulates = alone and workload.simulate and (not one_pass or workload.requests_per_s is not None)
    steps = len(nodes) + (MOST_RUNS if simulates else 0)
    report = listeners.advance or (lambda *_: None)
    plain = [pair for pair in wanted if pair[1] == wanted[0][1]]
    _report_first(listeners.on_first, workload, model, nodes, plain)
    questions = _questions(workload, model, nodes, plain, draft)
    options = _options(questions, model, draft, lambda done: report(done, steps))
    smaller = [pair for pair in wanted if pair not in plain]
    if smaller:
        close = _nodes_for_smaller_caches(options, workload, draft, fronts=alone)
        options += _options(_questions(workload, model, close, smaller, draft), model, draft, lambda _: None)
    if workload.instances is not None:
        draft.plans = candidates(likeliest(options))
        return draft
    options = _with_batches_between(options, workload, model, draft)
    cheapest, picks, missed = _best(options, workload, fills=not alone)
    _count_missed([pick for _, pick in missed], draft)
    plans = verified_plans(
        picks, workload if simulates else None, draft, lambda done: report(len(nodes) + done, steps),
        listeners.on_compile, by_region=by_region,
    )  # fmt: skip
    draft.plans = [plan.candidate(place) for place, (_, plan) in enumerate(plans, start=1)]
    if draft.plans and not alone:
        draft.misses = cheaper_misses(options, draft.plans[0].cost_usd)
        return draft
    if listeners.on_ranked is not None:
        listeners.on_ranked(draft)
    draft.front = _shown(_front(cheapest, workload, WHOLE))
    if not one_pass:
        first = plans[0][1].pick if plans else None
        chosen = None if first is None else (float(first.option.cost_usd[first.row]), first.option, first.row)
        draft.target_costs = target_costs(cheapest, workload, chosen)
        if workload.task == "serve":
            draft.fronts = {name: _shown(_front(cheapest, workload, name)) for name in ("ttft", "tpot")}
    if plans:
        best, _ = plans[0]
        draft.levers = levers(best.option, best.candidate(), draft.plans)
        draft.assumptions += _simulation_assumptions(draft, workload) if simulates else []
        draft.assumptions += _spot_assumptions(draft, workload)
        return draft
    missed.sort(key=lambda entry: entry[0])
    nearest = [*draft.demoted, *(pick.candidate() for _, pick in missed[:NEAREST_MISSES])]
    draft.misses = [
        msgspec.structs.replace(one, rank=place) for place, one in enumerate(nearest[:NEAREST_MISSES], start=1)
    ]
    if not one_pass:
        draft.floors = floors(workload, model, nodes, list(dict.fromkeys(weights for weights, _ in wanted)))
    return draft


def _best(
    options: Sequence[ServingOption], workload: Resolved, *, fills: bool = False
) -> tuple[OptionTable, list[Pick[ServingOption]], list[tuple[float, Pick[ServingOption]]]]:
    """The cheapest ways in one table, the layouts that meet the targets, and what misses them.

    `fills`: machines may take more load later, as a fleet's do.
    """
    cheapest = OptionTable(_cheapest_ways(options), workload)
    table = cheapest if all(option.alike for option in options) else OptionTable(options, workload)
    return cheapest, *table.best_and_missed(options, LAYOUTS, fills=fills)


def floor_usd(workload: Resolved, model: Model, node: NodeKind) -> float:
    """Least cost of an hour of a service in 16 bits on a kind of node, or of a prompt of a batch; inf: not known.

    A service pays for machines that hold the narrowest weights and compute the prompts, a batch for its prompts' time.

    Source: weights over memory, operations of a prompt over the datasheet's peak rate. Assumes: perfect sharing, and
    that nothing of a prompt is cached.
    """
    usd_per_hour = float(node.priced[0].usd_per_hour)
    try:
        prompt_s = float(least_prompt_s(model, node, BF16.name, workload.input_tokens, np.asarray(node.count)))
    except MissingFactError:
        return inf
    if workload.task == "batch":
        return usd_per_hour * prompt_s / 3600
    narrowest = min(layer_weight_bits(model, form) for form in formats(workload, model))
    weights = narrowest / 8 * parameters(model) / (node.count * node.cluster.accelerator.hbm_bytes)
    return usd_per_hour * max(1, ceil(weights), ceil(prompt_s * (workload.requests_per_s or 0.0)))


def _report_first(
    on_first: Callable[[PlanDraft], None] | None, workload: Resolved, model: Model, nodes: Sequence[NodeKind],
    wanted: list[Forms],
) -> None:  # fmt: skip
    """Call `on_first` with the plans of the first nodes that have any, as estimated; not where the nodes are known."""
    if on_first is None:
        return
    nodes = sorted(nodes, key=lambda node: floor_usd(workload, model, node))
    for count in range(FIRST_NODES, len(nodes), FIRST_NODES):
        draft = PlanDraft(percentiles=latency_percentiles(workload))
        questions = _questions(workload, model, nodes[:count], wanted, draft)
        if sum(one in SIZED for one in questions) > len(questions) * (1 - 0.5 * FIRST_NODES / count):
            return
        options = _options(questions, model, draft, lambda _: None)
        picks = _best(options, workload)[1] if options else []
        if picks:
            ranked = verified_plans(picks, None, draft, lambda _: None)
            draft.plans = [plan.candidate(place) for place, (_, plan) in enumerate(ranked, start=1)]
            on_first(draft)
            return


def _cheapest_ways(options: Sequence[ServingOption]) -> list[ServingOption]:
    """Of the ways to buy the same deployments the cheapest, the first of equals; in some cases all.

    Whatever a dearer one holds of targets, of a budget and of a price by the hour, this one holds as well, for less:
    none of the others is on a front, or the cheapest of a target. What a batch job pays depends on terms besides; and
    what hosts keep may be larger than the memory of the cheapest.
    """
    best: dict[int, ServingOption] = {}
    for option in options:
        if option.workload.task == "batch" or option.fills_hosts:
            return list(options)
        kept = best.setdefault(id(option.shared), option)
        if option.priced.usd_per_hour < kept.priced.usd_per_hour:
            best[id(option.shared)] = option
    return [option for option in options if best[id(option.shared)] is option]


def _front(table: OptionTable, workload: Resolved, latency: str) -> list[Place]:
    """The front of cost against TTFT or TPOT, each among what meets the other targets, or of `WHOLE`.

    That is cost against the time of a request, or of the job: all that max_gpus allows.
    """
    if latency == WHOLE:
        return table.front(latency, (table.num_gpus <= workload.max_gpus) & (table.host_frac <= 1))
    changed: dict[str, Any] = {latency: None}
    return table.front(latency, table.allowed_rows(replace(workload, **changed)))


def _shown(points: Sequence[Place]) -> list[Candidate]:
    return candidates(Pick(option, row, option.odds()) for option, row in points)


def _default_assumptions(
    workload: Resolved, model: Model, nodes: Sequence[NodeKind], wanted: list[tuple[WeightFormat, CacheFormat]]
) -> list[str]:
    """Assumptions where the workload says nothing."""
    limits, flow, texts = workload.limits, workload, list[str]()
    if limits.engine is None:
        used = dict.fromkeys(usual_engine(workload.facts, model, node.cluster.accelerator).name for node in nodes)
        texts.append(f"the engine {' or '.join(used)}, as none was given (constraints.engine)")
    if answers_in_one_pass(model, workload):
        texts.append("the model answers in one pass: TTFT and latency are the whole request")
        return texts
    names = list(dict.fromkeys(weights.name for weights, _ in wanted))
    if ANY in limits.weight_formats:
        texts.append(f"weights in {', '.join(names)} were searched; check quality below 16 bits")
    elif not limits.weight_formats:
        care = "; check quality in fp8" if names == ["bf16", "fp8"] else ", as published"
        texts.append(f"weights in {' and '.join(names)} were searched (constraints.weight_formats){care}")
    narrow = next((cache.name for _, cache in wanted if cache.name != "bf16"), None)
    if limits.kv_dtype is None and wanted[0][1].name == narrow:
        texts.append(f"the KV cache in {narrow}, as {workload.engine.name} keeps it for {model.name}")
    elif limits.kv_dtype is None and narrow is not None:
        texts.append(
            f"the KV cache in bf16, and in {narrow} under 8-bit weights (constraints.kv_dtype); "
            f"check quality in {narrow}"
        )
    if flow.trace is not None:
        texts.append(
            f"replicas are sized for the busiest stretch of {flow.trace}: "
            f"{format_number(flow.requests_per_s or 0)} requests/s, {format_number(flow.peak)} times its mean"
        )
    elif flow.peak > 1:
        texts.append(f"replicas are sized for the peak of {format_number(flow.requests_per_s or 0)} requests/s")
    texts += [*_session_assumptions(workload), *_host_assumptions(workload)]
    if flow.inputs or flow.outputs or flow.trace is not None:
        texts.append("estimates assume requests of the mean length; the simulator uses the actual lengths")
    return texts


def _session_assumptions(workload: Resolved) -> list[str]:
    """The assumptions about sessions and their caches; nothing without sessions."""
    if workload.sessions is None:
        return []
    text = (
        f"sessions of {workload.sessions.turns} turns: rates and lengths are those of a turn, whose prompt holds all "
        "turns before it; estimates assume that the cache evicts the least recently used blocks (Che's "
        "approximation); the simulator evicts them one by one"
    )
    return [text, *([ANSWERS_ELSEWHERE] if workload.techniques.prefill_gpus else [])]


def _host_assumptions(workload: Resolved) -> list[str]:
    """That machines of unknown memory hold what is kept there; nothing where nothing is."""
    sessions = workload.sessions
    stores = sessions is not None and HOST in (sessions.kv_stores or "")
    kept = [name for name, there in (("weights", workload.techniques.offloads), ("caches", stores)) if there]
    if not kept:
        return []
    text = (
        "machines whose memory is not known (`flopwise instances NAME`) are taken to hold the "
        f"{' and '.join(kept)} that are kept in it"
    )
    return [text]


def _cache_assumptions(workload: Resolved, *, paid: bool) -> list[str]:
    """The part of the requests that a cache of answers takes; nothing without one. `paid`: the bill has its memory."""
    if workload.computed_frac == 1:
        return []
    text = (
        f"the response cache is warm and answers {format_percent(1 - workload.computed_frac)} of requests: replicas, "
        "latencies and targets are those of the others; costs per request and token are of all"
        f"{'' if paid else '; its memory is not in the bill of a fleet'}"
    )
    return [text]


def _technique_assumptions(
    workload: Resolved, model: Model, nodes: Sequence[NodeKind], weights: WeightFormat
) -> list[str]:
    """The techniques that are used and what is assumed of them; refuses what cannot be on any device.

    Raises: SpecError: which technique cannot be, and why.
    """
    if not workload.techniques.any:
        return []
    node = next((n for n in nodes if n.cluster.accelerator.kind not in SHARED_KINDS), nodes[0])
    pool, most, copies = workload.techniques.prefill_gpus or 0, workload.max_gpus, workload.techniques.redundant_experts
    if pool >= most:
        raise SpecError(
            f"techniques: with {format_items(pool, 'prefill GPU')} none of a plan's "
            f"{format_items(most, 'accelerator')} is left for answers; allowed: fewer (--prefill-gpus), or more in all "
            "(--max-gpus)"
        )
    if copies and not model.has_experts:
        raise SpecError(f"techniques: {copies} redundant experts: {model.name} has no experts; leave them out")
    try:
        job = replica_job(workload, model, node.cluster, weights, ServingLayout())
        check_techniques(replace(job, techniques=replace(job.techniques, prefill_gpus=0)))  # layouts that hold pools
    except SpecError as error:
        raise SpecError(f"techniques: {error}") from None
    return [*(f"{name}: {text}" for name, text in technique_settings(job)), *technique_assumptions(job)]


def _spot_assumptions(draft: PlanDraft, workload: Resolved) -> list[str]:
    """The assumptions about spot machines where plans have some, with the interruptions of the best plan's."""
    if not any(plan.purchase == "spot" for plan in draft.plans):
        return []
    lost = "a service on spot machines loses the requests on an instance that is taken back, and its capacity until "
    lost += "another one has started: neither latencies nor `meets` count that"
    return [*spot_assumptions(draft.plans[:1], workload.facts), *([] if workload.task == "batch" else [lost])]


def _simulation_assumptions(draft: PlanDraft, workload: Resolved) -> list[str]:
    """The simulated plans, and remarks on their figures."""
    kind = "a batch complete at the start" if workload.task == "batch" else "requests as they arrive"
    balancer = "least-loaded balancer"
    if draft.plans[0].figures["tpot_s"] is None and workload.is_poisson:
        balancer = "an even share before each replica"
    if workload.sessions is not None:
        kind, balancer = "sessions as they start", "turns go where their session's prefix is"
    ran = f"{draft.simulated} plans were run through the simulator ({kind}, {balancer}, in rank order)"
    return [f"{ran}; `meets` comes from its percentiles and the measured errors, for other plans from the estimate"]


def _nodes_for_smaller_caches(
    options: list[ServingOption], workload: Resolved, draft: PlanDraft, *, fronts: bool
) -> list[NodeKind]:
    """The nodes on which a cache of half the bytes could cost less, whatever others cost; the rest are counted.

    `fronts`: those that are a point of a front as well.

    Assumes: a service that one machine carries costs no less there.
    """
    nodes = {id(option.node): option.node for option in options}
    if workload.objective != "cost" or workload.task == "batch":
        return list(nodes.values())
    cheapest = OptionTable(_cheapest_ways(options), workload)
    alone = np.flatnonzero(cheapest.allowed_rows() & (cheapest.instances <= 1))
    single = {id(cheapest.options[number].node) for number in set(cheapest.owner[alone].tolist())}
    if fronts:
        points = (_front(cheapest, workload, name) for name in (WHOLE, "ttft", "tpot"))
        single -= {id(option.node) for front_points in points for option, _ in front_points}
    draft.ruled_out.add(
        "one machine suffices even with the larger KV cache", len(single), unit="machines", stage="targets"
    )
    return [node for key, node in nodes.items() if key not in single]


FEW_REPLICAS = 4
"""Up to so many, batches half apart leave none out: users / 4 and users / 3 have one between them or are neighbours."""
HALF_APART = 1.5
"""Ratio of neighbouring batches, and so of what a machine more or less between them may cost."""
REFINED = 48
"""Deployments that are tried at batches in between, at most; the cheapest first."""
BETWEEN = 8
"""Batches tried between two neighbours: one in twenty apart."""


def _with_batches_between(
    options: list[ServingOption], workload: Resolved, model: Model, draft: PlanDraft
) -> list[ServingOption]:
    """The options, the cheapest of each provider tried at more batches around the largest that meets the targets.

    Batches are half apart, so that a service on many replicas could do with up to a third less of them. Tried again is
    what could then be the cheapest of its provider. Models that answer in one pass need no smaller batch: one takes
    what waits.

    Source: none, a finer search. Assumes: a batch that misses a target is followed by none that meets it.
    """
    if workload.objective != "cost" or workload.task != "serve" or not options or not options[0].decodes:
        return options
    table = OptionTable(options, workload)
    meets, costs, starts = table.allowed_rows(), table.cost_usd, table.ends - table.sizes
    least: dict[str, float] = {}
    worth: dict[int, tuple[float, ServingOption, Mask]] = {}
    for option, start, end in zip(options, starts.tolist(), table.ends.tolist(), strict=True):
        rows = np.flatnonzero(meets[start:end])
        if not rows.size:
            continue
        best = rows[costs[start:end][rows].argmin()]
        usd, provider = float(costs[start + best]), option.priced.offer.provider
        least[provider] = min(usd, least.get(provider, inf))
        known = worth.get(id(option.shared))
        if option.deployments.replicas[best] > FEW_REPLICAS and (known is None or usd < known[0]):
            worth[id(option.shared)] = usd, option, meets[start:end]
    close = [one for one in worth.values() if one[0] <= HALF_APART * least[one[1].priced.offer.provider]]
    if not close:
        return options
    close = sorted(close, key=lambda one: one[0])[:REFINED]
    finer = list[ReplicaQuestion]()
    for _, option, met in close:
        found = option.deployments
        question = ReplicaQuestion.of(model, option.workload, option.node, found.weights, option.kv_dtype)
        finer.append(replace(question, between=_batches_between(found.batch, met, found.num_layouts)))
    draft.evaluated += 2 * BETWEEN * sum(option.deployments.num_layouts for _, option, _ in close)
    found_again = _options(finer, model, PlanDraft(percentiles=draft.percentiles), lambda _: None)
    better = {_bought(option): option for option in found_again}
    return [better.get(_bought(option), option) for option in options]


def _bought(option: ServingOption) -> Hashable:
    """Machines, the way to buy them, and the formats on them."""
    return id(option.node), id(option.priced), option.deployments.weights.name, option.kv_dtype.name


def _batches_between(batch: Floats, meets: Mask, num_layouts: int) -> Floats:
    """Batches between the largest of each layout that meets the targets and its neighbours: shape (sizes, layouts)."""
    sizes, good = batch.reshape(-1, num_layouts), meets.reshape(-1, num_layouts)
    largest = np.maximum(np.where(good, sizes, 0.0).max(axis=0), sizes.min(axis=0))
    below = np.where(sizes < largest, sizes, 0.0).max(axis=0)  # rows beyond a layout's largest repeat it
    above = np.where(sizes > largest, sizes, np.inf).min(axis=0)
    below, above = np.where(below > 0.0, below, largest), np.where(above < np.inf, above, largest)
    steps = np.arange(1, BETWEEN + 1)[:, None] / (BETWEEN + 1)
    between = [low * (high / low) ** steps for low, high in ((below, largest), (largest, above))]
    return np.asarray(np.round(np.concatenate(between)))


Forms = tuple[WeightFormat, CacheFormat]


def _questions(
    workload: Resolved, model: Model, nodes: list[NodeKind], wanted: list[Forms], draft: PlanDraft
) -> list[ReplicaQuestion]:
    """The questions to every node in every format, those of the same devices side by side."""
    groups: dict[tuple[object, ...], list[tuple[Resolved, NodeKind, WeightFormat, CacheFormat]]] = defaultdict(list)
    for node, (weights, kv_dtype) in _pairs_worth_a_look(workload, model, nodes, wanted, draft):
        resolved = _with_its_engine(workload, model, node.cluster.accelerator)
        as_usual = workload.limits.kv_dtype is None and own_cache(resolved.engine, model) != FP8
        if as_usual and kv_dtype.name == FP8 and FP8 not in node.cluster.rates.peak:
            continue  # nobody asked for it, and it has no kernels there
        known = _format_there(resolved, node, weights, draft)
        if known is not None:
            groups[node.cluster.rates.key].append((resolved, node, known, kv_dtype))
    return [ReplicaQuestion.of(model, *each) for group in groups.values() for each in group]


def _options(
    questions: Sequence[ReplicaQuestion], model: Model, draft: PlanDraft, advance: Callable[[int], None]
) -> list[ServingOption]:
    """Every deployment on every node; nodes with the same devices are sized together."""
    sized_there, answers, done = size_together(questions), list[tuple[ReplicaQuestion, Answer]](), set[int]()
    for one in questions:
        advance(len(done))
        done.add(id(one.node))
        sized = sized_there[one] if one in sized_there else _sized_there(one, draft)
        if sized is not None:
            answers.append((one, sized))
    offered = list[Offered]()
    for (one, _), deployments in zip(answers, deployments_together(answers), strict=True):
        assert deployments is not None
        node = one.node
        draft.evaluated += deployments.considered
        if deployments.too_big:
            reason = "does not fit in memory"
            example = "" if draft.ruled_out.has(reason) else f"{node.label}: {deployments.room_text()}"
            draft.ruled_out.add(reason, deployments.too_big, example, stage="memory")
        if deployments.batch.size:
            offered.append(Offered(one.workload, node, deployments, one.kv_dtype, node.priced))
    return options_together(model, offered)


def _pairs_worth_a_look(
    workload: Resolved, model: Model, nodes: list[NodeKind], wanted: list[Forms], draft: PlanDraft
) -> Iterator[tuple[NodeKind, Forms]]:
    """Each node with each of the formats, but where reading the weights takes longer than the target of TPOT."""
    target = None if answers_in_one_pass(model, workload) else workload.tpot
    each = tokens_per_decode_step(workload)
    limit_s = np.inf if target is None else ladder_step(target.seconds, 1)
    forms = list(dict.fromkeys(weights for weights, _ in wanted))
    read_s = {
        (id(n), form.name): 0.0 if target is None else weights_read_s(model, n, form) / each
        for n in nodes
        for form in forms
    }
    spared = sorted(read_s, key=read_s.__getitem__)[:NEAREST]  # even if hopeless: a miss is told by how much
    for node in nodes:
        for weights, kv_dtype in wanted:
            floor_s = read_s[id(node), weights.name]
            if floor_s > limit_s and (id(node), weights.name) not in spared:
                reason = "reading the weights once takes longer than the TPOT target"
                example = f"{node.label}: {format_seconds(floor_s)} in {weights.name}"
                draft.ruled_out.add(reason, 1, example, unit="machines", stage="targets")
                continue
            yield node, (weights, kv_dtype)


def _format_there(workload: Resolved, node: NodeKind, weights: WeightFormat, draft: PlanDraft) -> WeightFormat | None:
    """A format as it runs on one node, one of 16 bits as what the device has; None, and counted, where it does not."""
    device, engine = node.cluster.accelerator, workload.engine
    names = workload.limits.weight_formats
    open_choice = (not names or ANY in names) and workload.one_precision is None
    if open_choice and weights == BF16 and not engine.runs(weights, device):
        weights = workload.facts.weight_format(engine.plain_format(device))
    if engine.runs(weights) and not engine.runs(weights, device):
        reason = f"{engine.name} is not documented to run {weights.name} weights there"
        draft.ruled_out.add(reason, 1, f"{node.label}: {engine.ports_source}", unit="machines", stage="formats")
        return None
    try:
        return format_on(weights, node.cluster, workload.facts)
    except MissingFactError as error:
        draft.ruled_out.add("the device does not run this format", 1, str(error), unit="machines", stage="formats")
        return None


def _sized_there(question: ReplicaQuestion, draft: PlanDraft) -> Answer:
    """Replicas on one node; None where none can be, counted where the device lacks a rate or cannot do a technique."""
    try:
        return sized_replicas(question)
    except MissingFactError as error:
        draft.ruled_out.add("the device does not run this format", 1, str(error), unit="machines", stage="formats")
        return None
    except SpecError as error:
        if not question.workload.techniques.any:
            raise
        draft.ruled_out.add(
            "a technique is not supported there", 1, f"{question.node.name}: {error}", unit="machines", stage="formats"
        )
        return None


def _count_missed(missed: Sequence[Pick[ServingOption]], draft: PlanDraft) -> None:
    """Count what misses by the target that it misses most likely; ways to buy the same deployments miss the same."""
    likeliest: dict[int, str] = {}
    for option, row, odds in missed:
        if id(odds) not in likeliest:
            likeliest[id(odds)] = min(odds, key=lambda name: float(odds[name].max())) if odds else "the limits"
        workload, reason = option.workload, f"misses {TARGET_NAMES.get(likeliest[id(odds)], likeliest[id(odds)])}"
        if (option.num_gpus > workload.max_gpus).all():
            reason = "needs more GPUs than --max-gpus allows"
        elif (option.num_gpus < workload.min_gpus).all():
            reason = "takes fewer GPUs than --min-gpus asks for"
        example = "" if draft.ruled_out.has(reason, "offers") else _miss(option, row)
        draft.ruled_out.add(reason, 1, example, unit="offers", stage="targets")


def _miss(option: ServingOption, row: int) -> str:
    deployments, instances = option.deployments, int(option.instances[row])
    ttft, tpot = format_seconds(float(deployments.ttft_s[row])), format_seconds(float(deployments.tpot_s[row]))
    times = f"TTFT {ttft}, TPOT {tpot} on {instances} instances"
    return f"{option.priced.offer.instance} {deployments.weights.name}: {times}"


def _with_its_engine(workload: Resolved, model: Model, accelerator: Accelerator) -> Resolved:
    """The workload with the engine that people run on a device, where it names none.

    Source: `flopwise.serving.deployment.usual_engine`.
    """
    if workload.limits.engine is not None:
        return workload
    engine = usual_engine(workload.facts, model, accelerator).name
    if engine == defaults.ENGINE:
        return workload
    return replace(workload, limits=replace(workload.limits, engine=engine))


def nodes_with_engine(
    kinds: list[NodeKind], workload: Resolved, model: Model, ruled_out: RejectionLog
) -> list[NodeKind]:
    """The kinds on which the workload's inference engine runs; the others are counted in `ruled_out`.

    Raises: InfeasibleError: nothing is left.
    """
    kept = []
    for kind in kinds:
        device = kind.cluster.accelerator
        engine = _with_its_engine(workload, model, device).engine
        if engine.runs_on(device):
            kept.append(kind)
        else:
            ruled_out.add(f"{engine.name} is not known to run there", len(kind.priced), device.name, unit="offers")
    if not kept:
        raise nothing_left(ruled_out)
    return kept
