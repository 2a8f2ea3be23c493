"""The public names with their types, made by `python docs/generate.py`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date
from flopwise.api.explain import explain as explain
from flopwise.backtests.run import Backtest
from flopwise.buy_or_build.alternatives import CostComparison, Kind, MonthlyTraffic, MonthlyTraffic as MonthlyTraffic
from flopwise.buy_or_build.spec import AlternativesSpec, ComparisonSpec
from flopwise.changes.format_fit import FitAnswer
from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.roofline import RooflineAnswer
from flopwise.cost.spec import MachineSpec
from flopwise.errors import FlopwiseError as FlopwiseError, InfeasibleError as InfeasibleError, MissingFactError as MissingFactError, SpecError as SpecError, UnknownNameError as UnknownNameError
from flopwise.exports.exported import Exported, write_export as write_export
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import export_targets as export_targets
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.offers import Offer
from flopwise.facts.spec import DatedSourceSpec, DeviceFilter, ModelFilter, ModelName, OfferFilter, SourceSpec
from flopwise.fitting.profile import CalibrationProfile, calibration_profile as calibration_profile, calibrations as calibrations, remove_calibration as remove_calibration
from flopwise.fleet.assess import Advance
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.check import Check
from flopwise.observations.comparison import Replay
from flopwise.observations.observation import Observation
from flopwise.observations.spec import ObserveSpec
from flopwise.price_import.age import PriceAges
from flopwise.price_import.imports import PriceImport, list_prices as list_prices, remove_prices as remove_prices
from flopwise.probes.file import Probe, Probe as Probe
from flopwise.probes.spec import ProbeSpec
from flopwise.provenance import Figure as Figure
from flopwise.records.comparison import Comparison
from flopwise.records.explanation import ExplainedRun
from flopwise.records.imports.imported import ImportedRun
from flopwise.records.imports.spec import ImportSpec
from flopwise.records.model import RecordedRun
from flopwise.records.rows import RunRows
from flopwise.records.spec import RunFilter
from flopwise.results import FactRows
from flopwise.search.answer import Plan
from flopwise.search.model_sizes import LargestModels
from flopwise.search.spec import AdaptersSpec, ConstraintsSpec, Latency, QueueingSpec, RankingSpec, TargetsSpec, TrafficSpec, WorkloadSpec
from flopwise.search.sweep import Sweep, SweptWorkload
from flopwise.search.workload import Resolved
from flopwise.serving.answer import ServeAnswer
from flopwise.serving.load_curve import ServeSweep
from flopwise.serving.sim.answer import SimulateAnswer
from flopwise.serving.sim.autoscale import Autoscaling
from flopwise.serving.sim.batch import BatchAnswer
from flopwise.serving.sim.elasticity import AutoscaleAnswer
from flopwise.serving.sim.request import ResponseCache
from flopwise.serving.sim.result import Slo
from flopwise.serving.sim.source import Traffic, Traffic as Traffic
from flopwise.serving.spec import BatchRequest, PriorityClass, QueueSpec, RequestSpec, ResponseCacheSpec, Scheduling, ServingSpec, SessionsSpec, StartSpec, TechniqueRequest
from flopwise.shapes.answer import ShapeAnswer
from flopwise.shapes.spec import ShapeSpec
from flopwise.storage.bandwidth import StorageAnswer
from flopwise.storage.spec import SampleSpec, StorageRequest
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import WatchStatus
from flopwise.training.answer import TrainAnswer
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.sampled_answer import SampledTrainAnswer
from flopwise.training.spec import DataSpec, ReadsSpec, TrainingSpec
from pathlib import Path
from typing import Any, Literal

__version__: str
__all__ = ["__version__", "assess", "backtest", "compare", "calibrate", "check", "explain", "fit", "export", "amounts_in", "gpus", "instances", "largest_models", "models", "io", "memory", "observe", "replay", "plan", "prices", "import_prices", "refresh_prices", "probe", "roofline", "serve", "serve_sweep", "advise", "simulate", "autoscale", "batch", "sweep", "train", "MonthlyTraffic", "write_export", "export_targets", "calibration_profile", "calibrations", "remove_calibration", "list_prices", "remove_prices", "import_runs", "explain_run", "compare_runs", "run_rows", "runs", "recorded_run", "export_runs", "delete_runs", "watch", "watch_live", "FlopwiseError", "InfeasibleError", "MissingFactError", "SpecError", "UnknownNameError", "Probe", "Figure", "Traffic"]

def assess(
    fleet: str | Path | dict[str, Any],
    *,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    scenarios: int = ...,
    seed: int = ...,
    today: str | None = ...,
    advance: Advance | None = ...,
) -> Assessment:
    """Assess a platform: machines of each workload, the monthly bill, and decisions to take.

    Args:
        fleet: path of a YAML file (docs/questions/fleet.md), or plain data with the same keys.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        scenarios: random draws of demand, prices and interruptions; 0 leaves them out.
        seed: of the draws; the same seed gives the same figures.
        today: day that the age of prices counts from, such as "2026-11-21" (default: the clock's, in UTC).
        advance: called with (what is done, steps done, steps in all) as it goes.

    Raises:
        SpecError: something in the fleet is wrong; says where.
        InfeasibleError: the policies leave no allocation; says which.

    Examples:
        >>> import flopwise
        >>> job = {"name": "tune", "model": "gpt2", "task": "finetune", "data": {"tokens": "1M"}}
        >>> fleet = {"name": "demo", "workloads": [job], "policies": {"providers": {"aws": 1}}}
        >>> answer = flopwise.assess(fleet, scenarios=0)
        >>> print(answer.workloads[0].name, answer.workloads[0].feasible)
        tune True
    """

def backtest(
    kind: str,
    file: Path | str,
    *,
    facts: Path | str | None = ...,
    calibration: str | None = ...,
    progress: Callable[[float, float | None], None] | None = ...,
) -> Backtest:
    """Predict every row of a measurement file: errors, and how often the intervals cover.

    What a row measured is never used to predict it.

    Args:
        kind: weights, memory, kernels, training, gpu-hours, io or serving.
        file: a CSV with the columns of that kind.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        progress: called with (rows done, rows in all).

    Raises:
        SpecError: the file cannot be read or lacks a column that the kind needs.
        UnknownNameError: there is no such kind.

    Examples:
        >>> import flopwise
        >>> done = flopwise.backtest("training", "examples/measured-training.csv")
        >>> print(done.kind.name, len(done.predictions))
        training ...
    """

def compare(
    model: str,
    *,
    traffic: MonthlyTraffic | None = ...,
    method: Mapping[str, Any] | None = ...,
    targets: Mapping[str, Any] | None = ...,
    constraints: Mapping[str, Any] | None = ...,
    simulate: bool = ...,
    assume_family: str | None = ...,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    advance: Callable[[int, int], None] | None = ...,
    tokens_per_month: Sequence[float] | None | str = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    growth_frac: float | str = ...,
    peak: float | None | str = ...,
    months: int | str = ...,
    ways: Sequence[Kind] | str = ...,
    apis: Sequence[str] = ...,
    api_prices: Sequence[tuple[float, float]] | str = ...,
    finetune_tokens: float | str = ...,
    pretrain_tokens: float | None | str = ...,
    pretrain_model: str | None = ...,
    runs: int | str = ...,
    upkeep_usd_per_month: float | str = ...,
    purchase: Sequence[str] = ...,
    train_purchase: Sequence[str] = ...,
    lora: int | None | str = ...,
    qlora: bool = ...,
    lora_targets: Sequence[str] = ...,
    ttft: Any | str = ...,
    tpot: Any | str = ...,
    latency: Any | str = ...,
    providers: Sequence[str] = ...,
    regions: Sequence[str] = ...,
    gpus: Sequence[str] = ...,
    vendors: Sequence[str] = ...,
    exclude: Sequence[str] = ...,
    software: Sequence[str] = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    instances: Sequence[str] = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    growth: float | str = ...,
    way: Sequence[Kind] | str = ...,
    api: Sequence[str] = ...,
    api_price: Sequence[tuple[float, float]] | str = ...,
    upkeep: float | str = ...,
    provider: Sequence[str] = ...,
    region: Sequence[str] = ...,
    gpu: Sequence[str] = ...,
    vendor: Sequence[str] = ...,
    instance: Sequence[str] = ...,
    **specs: ComparisonSpec | AlternativesSpec,
) -> CostComparison:
    """Compare the ways to answer the same traffic with a model: an API, open weights, fine-tuning, training.

    Each way has an up-front cost and a monthly one, in US dollars, with 80 % intervals.

    Args:
        model: a catalog name, a hub id, or a size such as "7B".
        traffic: instead of `tokens_per_month` and what goes with it.
        method: of fine-tuning, with the keys of `method` in a workload file: `{"kind": "lora", "rank": 16}`.
        targets: of the service, with the keys of `targets` in a workload file: `{"ttft": {"p95": "1s"}}`.
        constraints: on its machines, with the keys of `constraints` in a workload file: `{"gpus": ["h100"]}`.
        simulate: run plans of services through the simulator before they are ranked.
        assume_family: treat a model that is not known as one of this family.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        advance: called with (units of work done, units in all) as it goes.
        tokens_per_month: Tokens of the first month, prompts and answers: 500M, or apart as 400M/100M.
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        growth_frac (or growth): Traffic that each month adds, such as 5%; from -0.99 to 1.
        peak: Peak rate over the mean rate: for diurnal arrivals, and to size the replicas of a plan.
        months: Months to compare.
        ways (or way): Only this way.
        apis (or api): A hosted model: groq/Llama-3.1-8B, or a name alone for its cheapest host.
        api_prices (or api_price): A price of your own, USD a million tokens: 0.15/0.60.
        finetune_tokens: Tokens of fine-tuning.
        pretrain_tokens: Tokens of training from scratch, or auto (default): the compute-optimal number.
        pretrain_model: Train this model from scratch instead, such as 1B.
        runs: Training runs paid for.
        upkeep_usd_per_month (or upkeep): USD a month for people and storage of a self-hosted service.
        purchase: Purchase option.
        train_purchase: Purchase option of training, as --purchase.
        lora: Train LoRA adapters of this rank on a frozen base.
        qlora: Train adapters on a 4-bit base, of rank 16 unless --lora sets another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        ttft: Time to the first token: 500ms, or at a percentile: p95=1s.
        tpot: Time per further output token, on average: 50ms, p95=50ms.
        latency: Whole request, from arrival to last token: 5s, p99=5s.
        providers (or provider): Offers of this provider only: aws, gcp, azure, lambda ...
        regions (or region): Offers in this region only; patterns such as eu-* are fine.
        gpus (or gpu): Accelerators by name, vendor or family: h100, a100 (all variants), nvidia, hopper; 8xh100 for at most 8; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        vendors (or vendor): Devices of these vendors only: NVIDIA, AMD, Google ...
        exclude: Leave out devices of these names, vendors or families: b200, amd, hopper.
        software: Software that the project runs on; machines that need a port are left out (default: cuda and cpu, on which a PyTorch project runs unchanged, and the software of devices that are named).
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        instances (or instance): Offers of this instance type only; they set price and network.

    Raises:
        SpecError: a figure is out of range, or there is no volume.
        UnknownNameError: a name is not known.
        InfeasibleError: no way is feasible; the reasons of each.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.compare("Llama-3.1-8B", tokens_per_month="500M", way="api", months=6)
        >>> [way.kind for way in answer.ways]
        ['api']
    """

def calibrate(
    *files: str | Path,
    name: str | None = ...,
    model: ModelName | None = ...,
    users: int | None | str = ...,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    dry_run: bool = ...,
    force: bool = ...,
    advance: Callable[[float, float | None], None] | None = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    **specs: MachineSpec | ServingSpec | SourceSpec,
) -> CalibrationProfile:
    """Refit the constants that measurements can decide, into a calibration profile.

    Options of machines and of the deployment (`gpu="h100", tp=2` ...) say how an observed `model` is served.

    Args:
        files: what `flopwise probe` wrote, CSV files as `backtest` reads them, or names of recorded runs; with a
            `model`, observations that `flopwise observe` wrote, or results of a load generator.
        name: of the profile (default: as the first file).
        model: what an observed deployment serves.
        users: clients of a closed loop, where a file does not say how many; None takes requests at their times.
        facts: folder of rows that override the shipped ones.
        calibration: profile to start from, instead of the shipped constants.
        dry_run: write nothing.
        force: replace a profile of the same name.
        advance: called with (units of work done, units in all) as it goes.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.

    Raises:
        SpecError: a file is broken or of no known kind, nothing in it can be predicted, requests are too few, or
            the name is taken.

    Examples:
        >>> import flopwise
        >>> profile = flopwise.calibrate("examples/measured-training.csv", name="ours", dry_run=True)
        >>> profile.name
        'ours'
    """

def check(
    fleet: str | Path | dict[str, Any],
    *,
    existing: str | Path | None = ...,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    today: str | None = ...,
    advance: Advance | None = ...,
) -> Check:
    """Check the machines that a platform has today: targets, cost, and what to change.

    Args:
        fleet: path of a fleet file whose workloads say under `existing` what they run on, or plain data with the
            same keys.
        existing: a table of the machines instead (CSV: name, instance, count, hours ...).
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        today: day that the age of prices counts from (default: the clock's, in UTC).
        advance: called with (what is done, steps done, steps in all) as it goes.

    Raises:
        SpecError: something in the fleet or the table is wrong; says where.
        UnknownNameError: a name is not known.

    Examples:
        >>> import flopwise
        >>> have = [{"instance": "g5.xlarge", "count": 1}]
        >>> job = {"name": "tune", "model": "gpt2", "task": "finetune", "data": {"tokens": "1M"}, "existing": have}
        >>> answer = flopwise.check({"name": "demo", "workloads": [job], "policies": {"providers": {"aws": 1}}})
        >>> [workload.name for workload in answer.workloads]
        ['tune']
    """

def fit(
    model: ModelName,
    *,
    context: int | None | str = ...,
    output: int | None | str = ...,
    formats: str | Sequence[str] | None = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    **specs: MachineSpec | ServingSpec | DatedSourceSpec,
) -> FitAnswer:
    """Compare weight formats on a device: whether they fit, longest context, requests at once, tokens/s and price.

    All accelerators that are given make one replica: `gpu="2xa100-80gb"`.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        context: tokens of a request, answer included: 32768 or "32k" (default: 8k, or the model's own).
        output: tokens of the answer among them.
        formats: weight formats to compare, such as "bf16,fp8" (default: the checkpoint's, 16 bits, and the usual
            smaller ones that engine and device run).
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.fit("Llama-3.1-8B", gpu="rtx4090", context="16k", formats="bf16,fp8")
        >>> [row.weights for row in answer.formats]
        ['bf16', 'fp8']
    """

def export(
    target: str,
    plan: Plan | Assessment | str | Path,
    *,
    rank: int | str = ...,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    name: str | None = ...,
    image: str | None = ...,
    script: str | None = ...,
    learning_rate: float | None | str = ...,
    model_path: str | None = ...,
    draft_path: str | None = ...,
    data: str | None = ...,
    output: str | None = ...,
    weights_secret: str | None = ...,
    pull_secret: str | None = ...,
    alert_secret: str | None = ...,
    namespace: str | None = ...,
    queue: str | None = ...,
    priority: str | None = ...,
    cluster: str | None = ...,
    account: str | None = ...,
    hostname: str | None = ...,
    gateway: str | None = ...,
    prometheus: str | None = ...,
    machines: str | None = ...,
    contact: str | None = ...,
    **specs: ExportSettings,
) -> Exported:
    """The files that deploy a plan with another tool; `write_export` writes them.

    Names, images, places and references to secrets that are not given are placeholders in the files, which `to_fill`
    lists.

    Args:
        target: a name of `export_targets`.
        plan: a plan, its file, an assessment, or the folder of a report.
        rank: which candidate of a plan, from 1.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        name: Name of the deployment (default: the workload's).
        image: Container image (default for serving: the engine's own release; for training, build your own).
        script: Training program to use instead of the exported one.
        learning_rate: Learning rate, which plans do not have (default: the trainer's, if any).
        model_path: Weights: a hub id, a folder or a URI (default: the model's hub id).
        draft_path: Weights of the draft model (default: its hub id, if it is a model).
        data: Training or batch data: a path, a hub id or a URI.
        output: Checkpoints and results: a path or a URI.
        weights_secret: Secret that holds the token for gated weights, under the key `token`.
        pull_secret: Secret that holds the registry's credentials.
        alert_secret: File or secret that holds the webhook URL that alerts are sent to.
        namespace: Kubernetes namespace (default: that of the context).
        queue: Kueue's local queue, or SLURM's partition.
        priority: Kubernetes priority class, or SLURM's QOS.
        cluster: Name of the Kubernetes cluster that node pools belong to.
        account: Cloud account: a GCP project, an Azure resource group, a SLURM account.
        hostname: Host name of the gateway.
        gateway: Gateway (Gateway API) that routes attach to.
        prometheus: Address of the Prometheus server that scalers query.
        machines: Addresses of the machines, separated by commas.
        contact: Email address for budgets and alerts.

    Raises:
        SpecError: no such plan, target, candidate or setting.
        InfeasibleError: the target cannot express the plan; says why.

    Examples:
        >>> import flopwise
        >>> plan = flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="a100-80gb", max_gpus=1)
        >>> sorted(flopwise.export("torchrun", plan).files)
        [...'run.sh'...]
    """

def amounts_in(
    currency: str,
    *,
    facts: str | Path | None = ...,
) -> AbstractContextManager[None]:
    """Show amounts in another currency within a `with` block: in verdicts, tables and reports.

    Attributes and `to_dict` stay in US dollars; arguments may name the currency as well (`budget="500 EUR"`).

    Args:
        currency: "EUR" at the dated rate that the facts have, or "EUR=1.08" at 1.08 US dollars for one.
        facts: folder of rows that override the shipped ones.

    Raises:
        UnknownNameError: no rate is known of it.
        SpecError: a rate that cannot be.

    Examples:
        >>> import flopwise
        >>> with flopwise.amounts_in("EUR=1.25"):
        ...     print(flopwise.serve("Llama-3.1-8B", gpu="l4", price=1).settings[-1])
        ('price', '€0.80 per accelerator-hour (given)')
    """

def gpus(
    name: str | None = ...,
    *,
    matching: str | None = ...,
    facts: Path | str | None = ...,
    calibration: str | None = ...,
    vendor: str | None = ...,
    architecture: str | None = ...,
    kind: str | None = ...,
    min_hbm_bytes: float | None | str = ...,
    min_memory: float | None | str = ...,
    **specs: DeviceFilter,
) -> FactRows[Accelerator]:
    """The accelerators that pass every filter, in the order of the catalog.

    Args:
        name: one of them in any common spelling ("h100", "8xh100"), else a part of names.
        matching: part of the name.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        vendor: Only devices of this vendor: NVIDIA, AMD, Intel, Google ...
        architecture: Only this architecture: Hopper, CDNA3 ...
        kind: Only this kind of device; `cpu` instances are those without an accelerator.
        min_hbm_bytes (or min_memory): At least this much memory: 40GB, 80GiB.

    Raises:
        UnknownNameError: no accelerator has such a name, vendor or architecture.
        SpecError: no such kind of device.

    Examples:
        >>> import flopwise
        >>> [device.name for device in flopwise.gpus("h200")]
        ['H200-SXM-141']
        >>> len(flopwise.gpus(vendor="AMD", min_hbm_bytes="100GB")) > 3
        True
    """

def instances(
    name: str | None = ...,
    *,
    matching: str | None = ...,
    facts: Path | str | None = ...,
    provider: str | None = ...,
    region: str | None = ...,
    gpu: str | None = ...,
    vendor: str | None = ...,
    kind: str | None = ...,
    purchase: str | None = ...,
    max_usd_per_hour: float | None | str = ...,
    max_price: float | None | str = ...,
    **specs: OfferFilter,
) -> FactRows[Offer]:
    """The cloud offers that pass every filter, in the order of the catalog.

    Args:
        name: an instance type, or an accelerator, which means `gpu`.
        matching: part of the instance type's name.
        facts: folder of rows that override the shipped ones.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        region: Offers in this region only; patterns such as eu-* are fine.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        vendor: Only devices of this vendor: NVIDIA, AMD, Intel, Google ...
        kind: Only this kind of device; `cpu` instances are those without an accelerator.
        purchase: Purchase option.
        max_usd_per_hour (or max_price): At most this many US dollars an hour, on demand or as --purchase says.

    Raises:
        UnknownNameError: no offer has such an instance, provider or region, or there is no such accelerator or
            vendor.
        SpecError: no such kind of device or purchase option.

    Examples:
        >>> import flopwise
        >>> {offer.count for offer in flopwise.instances(gpu="8xh100", provider="aws")}
        {8}
    """

def largest_models(
    *names: str,
    facts: Path | str | None = ...,
    calibration: str | None = ...,
) -> FactRows[LargestModels]:
    """The largest model that one of each accelerator trains and serves, by format.

    Args:
        names: accelerators in any common spelling; all that are known without names.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.

    Raises:
        UnknownNameError: no accelerator by such a name.

    Examples:
        >>> import flopwise
        >>> (answer,) = flopwise.largest_models("l4")
        >>> answer.gpu
        'L4'
    """

def models(
    name: str | None = ...,
    *,
    matching: str | None = ...,
    facts: Path | str | None = ...,
    family: str | None = ...,
    kind: str | None = ...,
    **specs: ModelFilter,
) -> FactRows[Mapping[str, Any]]:
    """The rows of the catalog of models that pass every filter: name, model_type, kind, parameters ...

    Args:
        name: a model, else a part of names.
        matching: part of the name or of the hub id, whatever the case, with a dash for a blank.
        facts: folder of rows that override the shipped ones.
        family: List only models of this model_type: llama, qwen3_moe ...
        kind: List only models of this kind: decoder, encoder, vision ...

    Raises:
        UnknownNameError: no model is of such a name, family or kind.

    Examples:
        >>> import flopwise
        >>> flopwise.models("Llama-3.1-8B")[0]["parameters"]
        8030261248
    """

def io(
    model: ModelName | None = ...,
    *,
    gpus: int | None | str = ...,
    seq: int | None | str = ...,
    batch: int | None | str = ...,
    precision: str | None = ...,
    flops_per_sample: float | None | str = ...,
    sample_bytes: float | None | str = ...,
    token_bytes: float | None | str = ...,
    efficiency: float | None | str = ...,
    achieved_flops_per_s: float | None | str = ...,
    records: str = ...,
    record_bytes: float | None | str = ...,
    dataset_bytes: float | None | str = ...,
    cache_bytes: float | None | str = ...,
    policy: str = ...,
    shuffle: str = ...,
    storage: Sequence[str] = ...,
    storage_bytes_per_s: float | None | str = ...,
    devices: int | str = ...,
    connections: int | str = ...,
    checkpoint_interval_s: float | None | str = ...,
    checkpoint_stall_frac: float | str = ...,
    restore_within_s: float | None | str = ...,
    load_within_s: float | None | str = ...,
    optimizer: str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    achieved: float | None | str = ...,
    dataset: float | None | str = ...,
    cache: float | None | str = ...,
    cache_policy: str = ...,
    storage_bandwidth: float | None | str = ...,
    checkpoint_interval: float | None | str = ...,
    checkpoint_stall: float | str = ...,
    restore_within: float | None | str = ...,
    load_within: float | None | str = ...,
    **specs: SampleSpec | StorageRequest | MachineSpec | SourceSpec,
) -> StorageAnswer:
    """Storage bandwidth that training needs, and which storage keeps up.

    The achieved rate is our estimate, unless `efficiency` or `achieved_flops_per_s` is given. Bandwidths are in
    bytes/s.

    Args:
        model: a benchmark workload (cosmoflow, deepcam, resnet50, unet3d, tiramisu, bert), any model, or None with
            `flops_per_sample` and `sample_bytes`.
        gpus: number of accelerators (default: one whole node).
        seq: Tokens of a sequence: 8k (8,192).
        batch: Samples per accelerator and step.
        precision: Of the matrix products (default: the workload's reference implementation, else bf16).
        flops_per_sample: FLOPs of a sample, forward and backward: 4.2T, 247Gi (base 2).
        sample_bytes: Bytes of a sample as fed: 16MiB.
        token_bytes: Bytes per stored token (default: 2, or 4 above 65,536 words).
        efficiency: Achieved share of the datasheet's rates: 0.4, 40% (default: estimated).
        achieved_flops_per_s (or achieved): FLOP/s that one accelerator achieves: 35TFLOP/s.
        records: Samples as fed to the network, or as the benchmark stores them.
        record_bytes: Bytes of a stored sample, instead of --records.
        dataset_bytes (or dataset): Bytes of the whole data set.
        cache_bytes (or cache): Bytes that a node can keep: page cache or local drives.
        policy (or cache_policy): lru: a page cache that evicts what was used longest ago; pinned: staged data, which stay.
        shuffle: How samples are shuffled: over all nodes, within a node's shard, or not at all.
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bytes_per_s (or storage_bandwidth): What storage delivers to a node, as measured instead: 3GB/s.
        devices: Drives of a node.
        connections: Connections of a node to an object store.
        checkpoint_interval_s (or checkpoint_interval): Time between checkpoints: 30min.
        checkpoint_stall_frac (or checkpoint_stall): Share of the time that writing may take.
        restore_within_s (or restore_within): Time to read a checkpoint back: 5min.
        load_within_s (or load_within): Time for a serving node to read all weights: 60s.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.io("resnet50", gpu="a100", gpus=64)
        >>> answer.num_nodes
        8
    """

def memory(
    model: ModelName,
    *,
    task: Literal['train', 'serve'] | None = ...,
    gpu: str | None = ...,
    grad_accum: int | None | str = ...,
    concurrency: int | None | str = ...,
    context: int | None | str = ...,
    tokens: float | None | str = ...,
    samples: float | None | str = ...,
    epochs: float | str = ...,
    seq: int | None | str = ...,
    global_batch: int | None | str = ...,
    global_batch_tokens: float | None | str = ...,
    padded: float | str = ...,
    packing: str | None = ...,
    mean_length: float | None | str = ...,
    length_spread: float | str = ...,
    lengths: Path | None | str = ...,
    precision: str = ...,
    optimizer: str = ...,
    stack: str | None = ...,
    attention: str | None = ...,
    grad_dtype: str | None = ...,
    master_weights: bool | None = ...,
    lora: int | None | str = ...,
    finetune: bool = ...,
    qlora: bool = ...,
    lora_targets: Sequence[str] = ...,
    base_format: str | None = ...,
    freeze: str | None = ...,
    expert_skew: float | None | str = ...,
    capacity_factor: float | None | str = ...,
    micro_batch: int | None | str = ...,
    dp: int | None | str = ...,
    tp: int | None | str = ...,
    pp: int | None | str = ...,
    cp: int | None | str = ...,
    ep: int | None | str = ...,
    expert_tp: int | None | str = ...,
    zero: int | None | str = ...,
    fsdp: bool = ...,
    shard: int | None | str = ...,
    grad_sync: str | None = ...,
    recompute: str | None = ...,
    recompute_modules: Sequence[str] = ...,
    recompute_every: int | None | str = ...,
    recompute_first: int | None | str = ...,
    interleave: int | None | str = ...,
    schedule: str | None = ...,
    stage_layers: Sequence[int] | str = ...,
    sequence_parallel: bool = ...,
    offload: Sequence[str] = ...,
    offload_layers: int | None | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    expert_tensor_parallel_size: int | None | str = ...,
    hsdp: int | None | str = ...,
    **specs: DataSpec | TrainingSpec | ServingSpec | DatedSourceSpec,
) -> MemoryAnswer:
    """Memory per accelerator of a training step, or of serving, item by item in bytes.

    Without a `task`, options of serving alone, such as `context`, mean serving; else it is training. Of several
    accelerators (`gpu="8xh100"`) without a degree, training shards everything over all of them (FSDP) and serving
    is one replica over all of them.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        task: "train" or "serve".
        gpu: what it has to fit: "h100", "2xa100-80gb".
        grad_accum: micro-batches of a training step; None: one, or as many as a pipeline has stages.
        concurrency: sequences in the cache at once, in serving.
        context: tokens of each of them: 32768 or "32k".
        tokens: Tokens of the whole run: 2T.
        samples: Sequences of the whole run, instead of tokens.
        epochs: Passes over the tokens or samples.
        seq: Tokens of a sequence: 8k (8,192).
        global_batch: Sequences of one optimizer step.
        global_batch_tokens: The global batch in tokens: 4M.
        padded: Share of each sequence that is padding, not counted as tokens of the run.
        packing: Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).
        mean_length: Mean tokens of a document, with --packing; lognormal.
        length_spread: Standard deviation of the lengths over their mean.
        lengths: Lengths of documents instead: a file with `tokens` or `tokens,count` per line.
        precision: Format of the matrix products in training.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software that predates it).
        grad_dtype: Format of the accumulated gradients (default: the stack's).
        master_weights: Keep a separate fp32 copy of the weights (default: as the stack does).
        lora: Train LoRA adapters of this rank on a frozen base.
        finetune: Fine-tune all weights of a pretrained model: batches as usual there, weights loaded at the start.
        qlora: Train adapters on a 4-bit base, of rank 16 unless --lora sets another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        base_format: Format of the frozen weights under adapters: nf4, int8 ... (default: bf16).
        freeze: Parts that are not trained, separated by commas: embedding, head, towers, first:N, all-but-last:N (layers).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        capacity_factor: Capacity of an expert, in mean loads; tokens above it are dropped (default: none are).
        micro_batch: Sequences in one pass of a replica.
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        cp: Context-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        expert_tp (or expert_tensor_parallel_size): Ranks of a tensor-parallel group that share one expert: 1 where experts are whole (default: the stack's).
        zero: ZeRO stage: 0 to 3.
        fsdp: Shard everything over the replicas, as ZeRO 3.
        shard (or hsdp): HSDP: ranks that ZeRO shards over (stage 3 by default); replicated beyond them.
        grad_sync: ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones with the last micro-batch of a chunk's round (interleaved pipelines) or of the step (default: the stack's).
        recompute: Activation recomputation (checkpointing).
        recompute_modules: Recompute these modules alone, as Megatron-Core does: core_attn, layernorm, activation (its moe_act), mla_up_proj, mlp, moe; attn_proj: the projections around attention.
        recompute_every: Full recompute of every N-th block only.
        recompute_first: Full recompute of the first N blocks of each (virtual) stage only.
        interleave: Virtual stages of each pipeline rank.
        schedule: Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.
        stage_layers: Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.
        sequence_parallel: Split norms and residuals within a tp group, too.
        offload: Keep these in host memory.
        offload_layers: Of each pipeline stage, the layers whose activations are in host memory, as Megatron-Core's cpu-offloading-num-layers (default: all but the last two).
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: only published figures of the model are known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.memory("Llama-3.1-8B", gpu="h100", context="8k", weights="fp8")
        >>> print(answer.fits, answer.task)
        True serve
    """

def observe(
    url: str | None = ...,
    *,
    out: Path | str | None = ...,
    facts: Path | str | None = ...,
    progress: Callable[[float, float], None] | None = ...,
    seconds: float | str = ...,
    interval_s: float | str = ...,
    load: Path | None | str = ...,
    seed: int | str = ...,
    every: float | str = ...,
    **specs: ObserveSpec,
) -> Observation:
    """Watch a running engine: latencies, load, cache, and its traffic as a trace.

    Args:
        url: address of vLLM, SGLang, TensorRT-LLM, TGI or llama.cpp; None reads the file of a load generator
            (`load`) alone.
        out: folder for `observation.json` and `trace.csv`, which `replay` simulates.
        facts: folder of rows that override the shipped ones.
        progress: called with (seconds done, seconds in all).
        seconds: How long to observe the engine.
        interval_s (or every): Time between two readings of its metrics.
        load: Result of a load generator with a record of each request: guidellm, vLLM's bench serve, AIPerf, genai-perf.
        seed: Random seed: the same seed gives the same run.

    Raises:
        SpecError: nobody answers, no engine that is known answers, no request was answered, or a file cannot be
            read.

    Examples:
        >>> import flopwise
        >>> seen = flopwise.observe(load="examples/guidellm.json")
        >>> seen.requests > 0
        True
    """

def replay(
    model: ModelName,
    folder: Path | str,
    *,
    replicas: int | str = ...,
    scale: float | str = ...,
    seed: int | str = ...,
    slo: Slo | None = ...,
    cache: ResponseCache | None = ...,
    attain: float | str = ...,
    on_compile: Callable[[], None] | None = ...,
    policy: str = ...,
    balancer: str = ...,
    step_tokens: int | None | str = ...,
    mix: bool | None = ...,
    preempt: str = ...,
    prefix_cache: bool | None = ...,
    kv_stores: str | None = ...,
    prefill_replicas: int | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    shared_prefix: int | None | str = ...,
    prefix_hit: float | None | str = ...,
    kv_keep: float | None | str = ...,
    draft: str | None = ...,
    draft_tokens: int | None | str = ...,
    acceptance: float | None | str = ...,
    draft_weights: str | None = ...,
    prefill_gpus: int | None | str = ...,
    offload_weights: float | None | str = ...,
    gpu_layers: int | None | str = ...,
    host: str | None = ...,
    expert_skew: float | None | str = ...,
    redundant_experts: int | None | str = ...,
    overlap: bool | None = ...,
    adapters: int | None | str = ...,
    adapter_rank: int | None | str = ...,
    images: int | None | str = ...,
    image_tokens: int | None | str = ...,
    structured: float | None | str = ...,
    mask_time: float | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    **specs: Scheduling | ServingSpec | TechniqueRequest | MachineSpec | SourceSpec,
) -> Replay:
    """Simulate the traffic of an observation and compare it with the measurements.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        folder: what `observe` wrote.
        replicas: behind the balancer.
        scale: speed of the replay; 2 is twice as fast.
        seed: random seed of what is drawn.
        slo: what a request must hold to count into the goodput; or by its parts, `ttft`, `tpot` and `latency`.
        cache: answers that are given again.
        attain: share of requests in time that decides how many replicas a cache saves.
        on_compile: called before the simulator is compiled for the first time.
        policy: Order of the queue: fcfs, priority, shortest, shortest-prompt, deadline.
        balancer: Load balancing: round-robin, least-loaded, least-tokens, prefix-aware.
        step_tokens: Token budget of an engine step (default: the engine's).
        mix: Mix prefill and decoding in one step (chunked prefill), or run prefill first (default: as the engine does).
        preempt: How a sequence is preempted when the KV cache is full.
        prefix_cache: Cache shared prefixes (default: where there are any).
        kv_stores: Tiers below the KV cache of each replica that keep evicted prefixes, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD per GB and month).
        prefill_replicas: Additional replicas that run only prefill and transfer the cache.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens of a prefix that all prompts share: computed and cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculative decoding with a draft model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of the draft's tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Additional accelerators per replica that run only prefill (disaggregated serving).
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: Layers that stay on the device, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        adapters: LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.
        adapter_rank: Rank of the adapters served on one base model (default: 16).
        images: Images in each prompt; --input counts their tokens, and the model's image tower encodes them.
        image_tokens: Prompt tokens that one image makes (default: those of the model's own resolution).
        structured: Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.
        mask_time: Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.

    Raises:
        SpecError: no such observation, or as `simulate`.
        InfeasibleError, MissingFactError: as `simulate`.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.replay("Llama-3.1-8B", "examples/observed", gpu="l40s")
        >>> answer.answer.summary.completed > 0
        True
    """

def plan(
    source: str | Path | dict[str, Any] | Resolved,
    *,
    model: str | None = ...,
    task: str | None = ...,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    assume_family: str | None = ...,
    advance: Callable[[int, int], None] | None = ...,
    on_compile: Callable[[], None] | None = ...,
    on_first: Callable[[Plan], None] | None = ...,
    on_ranked: Callable[[Plan], None] | None = ...,
    name: str | None = ...,
    simulate: bool = ...,
    objective: str = ...,
    spot: str = ...,
    reserved: str = ...,
    one_precision: str | None = ...,
    tokens: float | None | str = ...,
    samples: float | None | str = ...,
    epochs: float | str = ...,
    seq: int | None | str = ...,
    global_batch: int | None | str = ...,
    global_batch_tokens: float | None | str = ...,
    padded: float | str = ...,
    packing: str | None = ...,
    mean_length: float | None | str = ...,
    length_spread: float | str = ...,
    lengths: Path | None | str = ...,
    kind: str = ...,
    rank: int | str = ...,
    precision: str = ...,
    optimizer: str = ...,
    stack: str | None = ...,
    attention: str | None = ...,
    grad_dtype: str | None = ...,
    master_weights: bool | None = ...,
    lora: int | None | str = ...,
    finetune: bool = ...,
    qlora: bool = ...,
    lora_targets: Sequence[str] = ...,
    base_format: str | None = ...,
    freeze: str | None = ...,
    expert_skew: float | None | str = ...,
    capacity_factor: float | None | str = ...,
    micro_batch: int | None | str = ...,
    dp: int | None | str = ...,
    tp: int | None | str = ...,
    pp: int | None | str = ...,
    cp: int | None | str = ...,
    ep: int | None | str = ...,
    expert_tp: int | None | str = ...,
    zero: int | None | str = ...,
    fsdp: bool = ...,
    shard: int | None | str = ...,
    grad_sync: str | None = ...,
    recompute: str | None = ...,
    recompute_modules: Sequence[str] = ...,
    recompute_every: int | None | str = ...,
    recompute_first: int | None | str = ...,
    interleave: int | None | str = ...,
    schedule: str | None = ...,
    stage_layers: Sequence[int] | str = ...,
    sequence_parallel: bool = ...,
    offload: Sequence[str] = ...,
    offload_layers: int | None | str = ...,
    rate: float | None | str = ...,
    concurrency: int | None | str = ...,
    requests: int | None | str = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    trace: Any = ...,
    arrivals: str | None = ...,
    burstiness: float | None | str = ...,
    peak: float | None | str = ...,
    profile: Any = ...,
    turns: int | str | None = ...,
    think_s: float | str = ...,
    tool_share: float | None | str = ...,
    tool_pause: float | None | str = ...,
    kv_stores: str | None = ...,
    shared_prefix: int | None | str = ...,
    prefix_hit: float | None | str = ...,
    kv_keep: float | None | str = ...,
    draft: str | None = ...,
    draft_tokens: int | None | str = ...,
    acceptance: float | None | str = ...,
    draft_weights: str | None = ...,
    prefill_gpus: int | None | str = ...,
    offload_weights: float | None | str = ...,
    gpu_layers: int | None | str = ...,
    host: str | None = ...,
    redundant_experts: int | None | str = ...,
    overlap: bool | None = ...,
    adapters: int | None | str = ...,
    adapter_rank: int | None | str = ...,
    images: int | None | str = ...,
    image_tokens: int | None | str = ...,
    structured: float | None | str = ...,
    mask_time: float | None | str = ...,
    policy: str = ...,
    preempt: str = ...,
    priorities: Sequence[PriorityClass] | None = ...,
    response_cache: int | None | str = ...,
    distinct: int | None | str = ...,
    skew: float | None | str = ...,
    repeated: float | None | str = ...,
    cache_ttl: float | None | str = ...,
    cache_price: float | None | str = ...,
    ttft: Latency | None | str = ...,
    tpot: Latency | None | str = ...,
    latency: Latency | None | str = ...,
    throughput: float | None | str = ...,
    deadline: float | None | str = ...,
    budget: float | None | str = ...,
    confidence: float | str = ...,
    providers: Sequence[str] = ...,
    regions: Sequence[str] = ...,
    gpus: Sequence[str] = ...,
    vendors: Sequence[str] = ...,
    exclude: Sequence[str] = ...,
    software: Sequence[str] = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    instances: Sequence[str] = ...,
    purchase: Sequence[str] = ...,
    max_gpus: int | None | str = ...,
    min_gpus: int | None | str = ...,
    weight_formats: Sequence[str] = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    software_month: str | None = ...,
    inter_node_bandwidth: float | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    max_usd_per_hour: float | None | str = ...,
    mtbf: float | None | str = ...,
    node_mtbf: float | None | str = ...,
    failures: str | None = ...,
    restart: float | None | str = ...,
    checkpoint_every: float | None | str = ...,
    checkpoint_bandwidth: float | None | str = ...,
    checkpoint_per_gpu: float | None | str = ...,
    checkpoint_storage: str | None = ...,
    async_checkpoints: bool = ...,
    repair: float | None | str = ...,
    spares: int | None | str = ...,
    interruptions: float | None | str = ...,
    jitter: float | None | str = ...,
    validate_every: int | None | str = ...,
    validate_batches: int | None | str = ...,
    loader_rate: float | None | str = ...,
    expert_tensor_parallel_size: int | None | str = ...,
    hsdp: int | None | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    think: float | str = ...,
    provider: Sequence[str] = ...,
    region: Sequence[str] = ...,
    gpu: Sequence[str] = ...,
    vendor: Sequence[str] = ...,
    instance: Sequence[str] = ...,
    weights: Sequence[str] = ...,
    max_hourly: float | None | str = ...,
    **specs: WorkloadSpec | RankingSpec | DataSpec | AdaptersSpec | TrainingSpec | TrafficSpec | TechniqueRequest | QueueingSpec | TargetsSpec | ConstraintsSpec | RunConditionsSpec,
) -> Plan:
    """Rank the ways of running a workload over all offers: machines, layout, time, cost, energy.

    Costs are in US dollars: of the run in training and batch, of a month for a service. Where nothing meets the
    targets `plans` is empty and `misses` has the nearest.

    Args:
        source: a model with the workload in keywords, a workload file, plain data with its keys, or a workload
            already read.
        model: instead of that of a file.
        task: pretrain, finetune, serve, batch or encode.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        assume_family: read an unknown model_type as this known family.
        advance: called with (units of work done, units in all) as it goes.
        on_compile: called before the simulator is compiled for the first time.
        on_first: called with the plans of a few kinds of machines that may cost least, before the others are searched,
            where the search takes long.
        on_ranked: called with the plans as they are ranked, before their front, changes and ports are computed.
        name: Name used in the results.
        simulate: Services: run the best plans through the simulator before they are ranked, or rank by estimates alone.
        objective: What to rank by.
        spot: Offers whose spot price is unknown: leave them out, or assume the provider's published discounts.
        reserved: Offers whose reserved price is not known: leave them out, or assume the provider's published discounts.
        one_precision: One precision instead of all: of products in training, of weights in serving.
        tokens: Tokens of the whole run: 2T.
        samples: Sequences of the whole run, instead of tokens.
        epochs: Passes over the tokens or samples.
        seq: Tokens of a sequence: 8k (8,192).
        global_batch: Sequences of one optimizer step.
        global_batch_tokens: The global batch in tokens: 4M.
        padded: Share of each sequence that is padding, not counted as tokens of the run.
        packing: Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).
        mean_length: Mean tokens of a document, with --packing; lognormal.
        length_spread: Standard deviation of the lengths over their mean.
        lengths: Lengths of documents instead: a file with `tokens` or `tokens,count` per line.
        kind: All weights, adapters, or adapters on a quantised model.
        rank: Rank of the adapters.
        precision: Format of the matrix products in training.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software that predates it).
        grad_dtype: Format of the accumulated gradients (default: the stack's).
        master_weights: Keep a separate fp32 copy of the weights (default: as the stack does).
        lora: Train LoRA adapters of this rank on a frozen base.
        finetune: Fine-tune all weights of a pretrained model: batches as usual there, weights loaded at the start.
        qlora: Train adapters on a 4-bit base, of rank 16 unless --lora sets another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        base_format: Format of the frozen weights under adapters: nf4, int8 ... (default: bf16).
        freeze: Parts that are not trained, separated by commas: embedding, head, towers, first:N, all-but-last:N (layers).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        capacity_factor: Capacity of an expert, in mean loads; tokens above it are dropped (default: none are).
        micro_batch: Sequences in one pass of a replica.
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        cp: Context-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        expert_tp (or expert_tensor_parallel_size): Ranks of a tensor-parallel group that share one expert: 1 where experts are whole (default: the stack's).
        zero: ZeRO stage: 0 to 3.
        fsdp: Shard everything over the replicas, as ZeRO 3.
        shard (or hsdp): HSDP: ranks that ZeRO shards over (stage 3 by default); replicated beyond them.
        grad_sync: ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones with the last micro-batch of a chunk's round (interleaved pipelines) or of the step (default: the stack's).
        recompute: Activation recomputation (checkpointing).
        recompute_modules: Recompute these modules alone, as Megatron-Core does: core_attn, layernorm, activation (its moe_act), mla_up_proj, mlp, moe; attn_proj: the projections around attention.
        recompute_every: Full recompute of every N-th block only.
        recompute_first: Full recompute of the first N blocks of each (virtual) stage only.
        interleave: Virtual stages of each pipeline rank.
        schedule: Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.
        stage_layers: Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.
        sequence_parallel: Split norms and residuals within a tp group, too.
        offload: Keep these in host memory.
        offload_layers: Of each pipeline stage, the layers whose activations are in host memory, as Megatron-Core's cpu-offloading-num-layers (default: all but the last two).
        rate: Requests per second, on average: 20, 500/min.
        concurrency: Requests in flight over all replicas, in a closed loop begun by all at once (default: as many as fit in memory).
        requests: Total number of requests: a batch job, or instead of a duration.
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        trace: A CSV file of requests: arrival_s, prompt_tokens, output_tokens ...; or Mooncake's JSON lines: timestamp, input_length, output_length, hash_ids.
        arrivals: How requests arrive: poisson, gamma (bursts), uniform, or diurnal (a daily wave).
        burstiness: For gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, 3 is bursty.
        peak: Peak rate over the mean rate: for diurnal arrivals, and to size the replicas of a plan.
        profile: Rate by hour of the week: office, daily, a file of hour,rate or a trace; fleet files may list 24 or 168 rates. The given rate is the week's mean.
        turns: Turns of a session, as --input; the prompt of each contains all turns before it.
        think_s (or think): Pause of a user before the next request; for sessions, the mean pause between turns.
        tool_share: Share of later turns that follow a tool call, not a person (default: none).
        tool_pause: How long a tool takes on average.
        kv_stores: Tiers below the KV cache of each replica that keep evicted prefixes, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD per GB and month).
        shared_prefix: Tokens of a prefix that all prompts share: computed and cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculative decoding with a draft model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of the draft's tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Additional accelerators per replica that run only prefill (disaggregated serving).
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: Layers that stay on the device, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        adapters: LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.
        adapter_rank: Rank of the adapters served on one base model (default: 16).
        images: Images in each prompt; --input counts their tokens, and the model's image tower encodes them.
        image_tokens: Prompt tokens that one image makes (default: those of the model's own resolution).
        structured: Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.
        mask_time: Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).
        policy: Order of the queue: fcfs, priority, shortest, shortest-prompt, deadline.
        preempt: How a sequence is preempted when the KV cache is full.
        priorities: Priority classes with their shares of the requests: 0=20%,1=80%; with --policy priority, class 0 goes first.
        response_cache: Number of entries in a cache of answers to repeated prompts.
        distinct: Number of different prompts that are repeated.
        skew: Zipf exponent of their popularity (default: 1).
        repeated: Share of requests that repeat one of them (default: all).
        cache_ttl: How long an answer stays valid (default: forever).
        cache_price: US dollars per GB and hour of the cache's memory.
        ttft: Time to the first token: 500ms, or at a percentile: p95=1s.
        tpot: Time per further output token, on average: 50ms, p95=50ms.
        latency: Whole request, from arrival to last token: 5s, p99=5s.
        throughput: Tokens per second, over all accelerators.
        deadline: Time within which the run (with the start of its machines), or the queue, is done: 6h, 30d.
        budget: Budget in US dollars: of the whole run for training and batch, of a month for a service.
        confidence: Probability with which each target has to be met.
        providers (or provider): Offers of this provider only: aws, gcp, azure, lambda ...
        regions (or region): Offers in this region only; patterns such as eu-* are fine.
        gpus (or gpu): Accelerators by name, vendor or family: h100, a100 (all variants), nvidia, hopper; 8xh100 for at most 8; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        vendors (or vendor): Devices of these vendors only: NVIDIA, AMD, Google ...
        exclude: Leave out devices of these names, vendors or families: b200, amd, hopper.
        software: Software that the project runs on; machines that need a port are left out (default: cuda and cpu, on which a PyTorch project runs unchanged, and the software of devices that are named).
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        instances (or instance): Offers of this instance type only; they set price and network.
        purchase: Purchase option.
        max_gpus: Maximum number of accelerators.
        min_gpus: Minimum number of accelerators.
        weight_formats (or weights): bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).
        inter_node_bandwidth: Network bandwidth of one instance, shared by its accelerators, instead of its offer's: 400GB/s.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        max_usd_per_hour (or max_hourly): Maximum US dollars per hour, of all machines together.
        mtbf: Time between failures of one GPU with its share of the node.
        node_mtbf: Time between failures of one node.
        failures: Failures as in a published run: llama-3 (default), rsc-1, rsc-2, opt-175b, bloom.
        restart: Time from a failure until the run is back at full speed: 10min.
        checkpoint_every: Time between checkpoints (default: in training the one that loses least, in a queue never).
        checkpoint_bandwidth: Bandwidth at which the whole cluster writes checkpoints: 200GB/s.
        checkpoint_per_gpu: Bandwidth at which each accelerator writes its part: 2GB/s.
        checkpoint_storage: Storage that checkpoints are written to: lustre, nvme ...
        async_checkpoints: Write checkpoints in the background: training waits only for the copy to host memory.
        repair: Time to repair a failed node (default: replaced at once).
        spares: Standby nodes, with --repair.
        interruptions: Interruptions of one spot instance: 0.1/day.
        jitter: Spread of step times between GPUs; above 16 GPUs all wait for the slowest (default: 1.5%).
        validate_every: Steps between validations.
        validate_batches: Global batches of one validation (default: 1).
        loader_rate: Sequences that the data loader delivers to one GPU: 20/s.

    Raises:
        SpecError, UnknownNameError: something in the workload is wrong.
        InfeasibleError: the constraints leave no offer at all.

    Examples:
        >>> import flopwise
        >>> plan = flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="a100-80gb", max_gpus=1)
        >>> print(plan.plans[0].gpu, plan.plans[0].num_gpus)
        A100-... 1
    """

def prices(
    *,
    most_days: float | None = ...,
    facts: str | Path | None = ...,
    day: date | None = ...,
) -> PriceAges:
    """The age of all prices, by provider.

    Args:
        most_days: age in days from which a price is stale (default: 180).
        facts: folder of rows that override the shipped ones.
        day: that the age counts from (default: today, in UTC).

    Raises:
        SpecError: a file of facts or prices is broken.

    Examples:
        >>> import flopwise
        >>> {"aws", "gcp", "azure"} <= {age.provider for age in flopwise.prices().providers}
        True
    """

def import_prices(
    file: str | Path,
    *,
    name: str | None = ...,
    provider: str | None = ...,
    day: str | None = ...,
    skip_unknown: bool = ...,
    facts: str | Path | None = ...,
) -> PriceImport:
    """Put the prices of a file over the shipped ones; nothing changes if any row of it is wrong.

    The answer's `notes` name new providers and prices that are far from those already known.

    Args:
        file: a CSV of gpuhunt, of SkyPilot's catalog, or with the columns of our own table.
        name: of these prices (default: the file's).
        provider: whose they are where no column says it (default: the name of file or folder, which must be a known
            provider).
        day: date of prices without one (default: the file's).
        skip_unknown: leave out rows of accelerators that are not known.
        facts: folder of rows that override the shipped ones.

    Raises:
        SpecError: with file, row and column, what was given and what is allowed.

    Examples:
        >>> import flopwise
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp(), "ours.csv")
        >>> rows = "provider,instance,region,accelerator,count,on_demand_usd_per_hour,source,price_date"
        >>> _ = file.write_text(f"{rows}{chr(10)}ours,box,here,H100-SXM-80,8,16,contract,2026-11-01")
        >>> flopwise.import_prices(file).name
        'ours'
        >>> _ = flopwise.remove_prices("ours")
    """

def refresh_prices(
    *,
    providers: Sequence[str] = ...,
    facts: str | Path | None = ...,
) -> PriceImport:
    """Fetch today's prices through gpuhunt and lay them over the shipped ones, as the import `gpuhunt`.

    Args:
        providers: only theirs (default: of all).
        facts: folder of rows that override the shipped ones.

    Raises:
        InfeasibleError: gpuhunt is not installed, the network is not there, or it brought no price.

    Examples:
        >>> import flopwise
        >>> try:
        ...     fresh = flopwise.refresh_prices(providers=["aws"])
        ... except flopwise.InfeasibleError as error:
        ...     print("the existing prices stay")
        the existing prices ...
    """

def probe(
    progress: Callable[[float, float, str], object] | None = ...,
    *,
    device: Sequence[str] = ...,
    only: Sequence[str] = ...,
    quick: bool = ...,
    threads: int | None | str = ...,
    disk: Path | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    **specs: ProbeSpec | SourceSpec,
) -> Probe:
    """Measure this machine: through PyTorch where it is installed, else the processor through NumPy.

    An operation that fails is an entry with its reason.

    Args:
        progress: called with (seconds done, seconds in all, what comes next).
        device: Measure this device: cpu, cuda:0, mps (default: the first GPU and the CPU).
        only: Measure only this kind: launch, matmul, memory, attention, elementwise, transfers, collectives, disk, loops.
        quick: Fewer sizes and repetitions: under 20 seconds instead of two minutes.
        threads: CPU threads to use.
        disk: Folder whose disk is measured, in a temporary file (default: the current one).
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.

    Raises:
        SpecError: there is no such device, or a value cannot be.
        InfeasibleError: nothing could be measured.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.probe(quick=True, only=["launch"], device=["cpu"])
        >>> len(answer.measurements) > 0
        True
    """

def roofline(
    model: ModelName | None = ...,
    *,
    flops: float | None | str = ...,
    bytes: float | None | str = ...,
    dtype: str = ...,
    efficiency: float | None | str = ...,
    gpus: int | None | str = ...,
    batch: int | str = ...,
    seq: int | None | str = ...,
    training: bool = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    **specs: MachineSpec | SourceSpec,
) -> RooflineAnswer:
    """Time of a piece of work by the roofline: operations against bytes moved, in seconds.

    The work is `flops` and `bytes`, or one pass of `model` over `batch` samples of `seq` tokens.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        flops: floating-point operations: 1e15, "1PFLOP".
        bytes: moved to and from memory: "2TB".
        dtype: format that is multiplied.
        efficiency: achieved share of the datasheet's rates, of both (default: as calibrated).
        gpus: number of accelerators.
        batch: samples of a pass.
        seq: tokens of each sample.
        training: forward and backward pass.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.

    Raises:
        SpecError: neither work nor model is given, or both, or a value cannot be.
        MissingFactError: the accelerator has no such rate, or nobody published the model's figures.

    Examples:
        >>> import flopwise
        >>> flopwise.roofline(flops=1e15, bytes="2TB", gpu="h100").bound
        'compute'
    """

def serve(
    model: ModelName,
    *,
    gpus: int | None | str = ...,
    static: bool = ...,
    encode: bool = ...,
    simulate: bool = ...,
    closed_form: bool = ...,
    on_compile: Callable[[], None] | None = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    rate: float | None | str = ...,
    concurrency: int | None | str = ...,
    requests: int | None | str = ...,
    turns: int | str | None = ...,
    think_s: float | str = ...,
    tool_share: float | None | str = ...,
    tool_pause: float | None | str = ...,
    kv_stores: str | None = ...,
    policy: str = ...,
    preempt: str = ...,
    priorities: Sequence[PriorityClass] | None = ...,
    response_cache: int | None | str = ...,
    distinct: int | None | str = ...,
    skew: float | None | str = ...,
    repeated: float | None | str = ...,
    cache_ttl: float | None | str = ...,
    cache_price: float | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    shared_prefix: int | None | str = ...,
    prefix_hit: float | None | str = ...,
    kv_keep: float | None | str = ...,
    draft: str | None = ...,
    draft_tokens: int | None | str = ...,
    acceptance: float | None | str = ...,
    draft_weights: str | None = ...,
    prefill_gpus: int | None | str = ...,
    offload_weights: float | None | str = ...,
    gpu_layers: int | None | str = ...,
    host: str | None = ...,
    expert_skew: float | None | str = ...,
    redundant_experts: int | None | str = ...,
    overlap: bool | None = ...,
    adapters: int | None | str = ...,
    adapter_rank: int | None | str = ...,
    images: int | None | str = ...,
    image_tokens: int | None | str = ...,
    structured: float | None | str = ...,
    mask_time: float | None | str = ...,
    storage: str | None = ...,
    storage_bandwidth: float | None | str = ...,
    image_size: float | None | str = ...,
    image_bandwidth: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    think: float | str = ...,
    **specs: RequestSpec | SessionsSpec | QueueSpec | ResponseCacheSpec | MachineSpec | ServingSpec | TechniqueRequest | StartSpec | DatedSourceSpec,
) -> ServeAnswer:
    """Latency, throughput, memory, energy and price of serving a model.

    Times are in seconds, rates per second, money in US dollars. `gpus` accelerators hold gpus / (tp x pp x dp)
    replicas. With `rate` there are percentiles under that load; with `requests` a run with an end, simulated.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        gpus: number of accelerators (default: one replica).
        static: a fixed batch: all prompts first, then all answers.
        encode: one pass over each input, without an answer.
        simulate: latencies of `concurrency` users or under `rate` by simulated requests, not in closed form.
        closed_form: latencies in closed form, also where it is known to be off and requests would be simulated.
        on_compile: called before the simulator is compiled for the first time.
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        rate: Requests per second, on average: 20, 500/min.
        concurrency: Requests in flight over all replicas, in a closed loop begun by all at once (default: as many as fit in memory).
        requests: Total number of requests: a batch job, or instead of a duration.
        turns: Turns of a session, as --input; the prompt of each contains all turns before it.
        think_s (or think): Pause of a user before the next request; for sessions, the mean pause between turns.
        tool_share: Share of later turns that follow a tool call, not a person (default: none).
        tool_pause: How long a tool takes on average.
        kv_stores: Tiers below the KV cache of each replica that keep evicted prefixes, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD per GB and month).
        policy: Order of the queue: fcfs, priority, shortest, shortest-prompt, deadline.
        preempt: How a sequence is preempted when the KV cache is full.
        priorities: Priority classes with their shares of the requests: 0=20%,1=80%; with --policy priority, class 0 goes first.
        response_cache: Number of entries in a cache of answers to repeated prompts.
        distinct: Number of different prompts that are repeated.
        skew: Zipf exponent of their popularity (default: 1).
        repeated: Share of requests that repeat one of them (default: all).
        cache_ttl: How long an answer stays valid (default: forever).
        cache_price: US dollars per GB and hour of the cache's memory.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens of a prefix that all prompts share: computed and cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculative decoding with a draft model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of the draft's tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Additional accelerators per replica that run only prefill (disaggregated serving).
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: Layers that stay on the device, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        adapters: LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.
        adapter_rank: Rank of the adapters served on one base model (default: 16).
        images: Images in each prompt; --input counts their tokens, and the model's image tower encodes them.
        image_tokens: Prompt tokens that one image makes (default: those of the model's own resolution).
        structured: Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.
        mask_time: Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bandwidth: What storage delivers to a node, as measured instead: 3GB/s.
        image_size: Size of the container image that is pulled at a start: 10GB.
        image_bandwidth: Rate at which the image is pulled and unpacked: 200MB/s.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.serve("Llama-3.1-8B", gpu="l40s", input="1k", output=200, rate="2/s")
        >>> answer.estimate.tpot_s.low < answer.estimate.tpot_s.value < answer.estimate.tpot_s.high
        True
    """

def serve_sweep(
    model: ModelName,
    axis: str,
    *,
    values: tuple[int, ...] | None = ...,
    gpus: int | None | str = ...,
    static: bool = ...,
    encode: bool = ...,
    simulate: bool = ...,
    closed_form: bool = ...,
    on_compile: Callable[[], None] | None = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    rate: float | None | str = ...,
    concurrency: int | None | str = ...,
    requests: int | None | str = ...,
    turns: int | str | None = ...,
    think_s: float | str = ...,
    tool_share: float | None | str = ...,
    tool_pause: float | None | str = ...,
    kv_stores: str | None = ...,
    policy: str = ...,
    preempt: str = ...,
    priorities: Sequence[PriorityClass] | None = ...,
    response_cache: int | None | str = ...,
    distinct: int | None | str = ...,
    skew: float | None | str = ...,
    repeated: float | None | str = ...,
    cache_ttl: float | None | str = ...,
    cache_price: float | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    shared_prefix: int | None | str = ...,
    prefix_hit: float | None | str = ...,
    kv_keep: float | None | str = ...,
    draft: str | None = ...,
    draft_tokens: int | None | str = ...,
    acceptance: float | None | str = ...,
    draft_weights: str | None = ...,
    prefill_gpus: int | None | str = ...,
    offload_weights: float | None | str = ...,
    gpu_layers: int | None | str = ...,
    host: str | None = ...,
    expert_skew: float | None | str = ...,
    redundant_experts: int | None | str = ...,
    overlap: bool | None = ...,
    adapters: int | None | str = ...,
    adapter_rank: int | None | str = ...,
    images: int | None | str = ...,
    image_tokens: int | None | str = ...,
    structured: float | None | str = ...,
    mask_time: float | None | str = ...,
    storage: str | None = ...,
    storage_bandwidth: float | None | str = ...,
    image_size: float | None | str = ...,
    image_bandwidth: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    think: float | str = ...,
    **specs: RequestSpec | SessionsSpec | QueueSpec | ResponseCacheSpec | MachineSpec | ServingSpec | TechniqueRequest | StartSpec | DatedSourceSpec,
) -> ServeSweep:
    """Estimates of serving along an axis, with the point from which more load only waits.

    Each point is what `serve` says of it.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        axis: "concurrency" (requests in flight), "batch" (fixed batches) or "tp".
        values: along the axis (default: powers of two as far as memory holds; for tp those that divide the heads).
        gpus: number of accelerators (default: one replica); of tp each point is one replica.
        static: a fixed batch: all prompts first, then all answers.
        encode: one pass over each input, without an answer.
        simulate: latencies of `concurrency` users or under `rate` by simulated requests, not in closed form.
        closed_form: latencies in closed form, also where it is known to be off and requests would be simulated.
        on_compile: called before the simulator is compiled for the first time.
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        rate: Requests per second, on average: 20, 500/min.
        concurrency: Requests in flight over all replicas, in a closed loop begun by all at once (default: as many as fit in memory).
        requests: Total number of requests: a batch job, or instead of a duration.
        turns: Turns of a session, as --input; the prompt of each contains all turns before it.
        think_s (or think): Pause of a user before the next request; for sessions, the mean pause between turns.
        tool_share: Share of later turns that follow a tool call, not a person (default: none).
        tool_pause: How long a tool takes on average.
        kv_stores: Tiers below the KV cache of each replica that keep evicted prefixes, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD per GB and month).
        policy: Order of the queue: fcfs, priority, shortest, shortest-prompt, deadline.
        preempt: How a sequence is preempted when the KV cache is full.
        priorities: Priority classes with their shares of the requests: 0=20%,1=80%; with --policy priority, class 0 goes first.
        response_cache: Number of entries in a cache of answers to repeated prompts.
        distinct: Number of different prompts that are repeated.
        skew: Zipf exponent of their popularity (default: 1).
        repeated: Share of requests that repeat one of them (default: all).
        cache_ttl: How long an answer stays valid (default: forever).
        cache_price: US dollars per GB and hour of the cache's memory.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens of a prefix that all prompts share: computed and cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculative decoding with a draft model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of the draft's tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Additional accelerators per replica that run only prefill (disaggregated serving).
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: Layers that stay on the device, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        adapters: LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.
        adapter_rank: Rank of the adapters served on one base model (default: 16).
        images: Images in each prompt; --input counts their tokens, and the model's image tower encodes them.
        image_tokens: Prompt tokens that one image makes (default: those of the model's own resolution).
        structured: Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.
        mask_time: Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bandwidth: What storage delivers to a node, as measured instead: 3GB/s.
        image_size: Size of the container image that is pulled at a start: 10GB.
        image_bandwidth: Rate at which the image is pulled and unpacked: 200MB/s.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        UnknownNameError: no such axis.
        SpecError: a value that cannot be, or an axis whose value is fixed as well.

    Examples:
        >>> import flopwise
        >>> [point.value for point in flopwise.serve_sweep("Llama-3.1-8B", "batch", values=(1, 8), gpu="h100").points]
        [1, 8]
    """

def advise(
    model: ModelName,
    *,
    task: Literal['train', 'serve'] = ...,
    tp: int | None | str = ...,
    ep: int | None | str = ...,
    batch: int | None | str = ...,
    seq: int | None | str = ...,
    precision: str = ...,
    stack: str | None = ...,
    attention: str | None = ...,
    offload: Sequence[str] = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    **specs: ShapeSpec | MachineSpec | SourceSpec,
) -> ShapeAnswer:
    """Judge the shapes of a model on an accelerator, and list changes that would make it faster.

    In training there are `batch` sequences of `seq` tokens, in serving as many in the cache.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        task: "train" or "serve".
        tp: Tensor-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        batch: Sequences, or samples, of one pass.
        seq: Tokens of a sequence: 8k (8,192).
        precision: Format of the matrix products in training.
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software that predates it).
        offload: Keep these in host memory.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.

    Raises:
        SpecError: a value cannot be, or does not go with the task.
        MissingFactError: only published figures of the model are known, or the device lacks a rate.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.advise("gpt2-xl", gpu="a100-80gb", batch=8)
        >>> 0 < answer.memory_bound_frac < 1
        True
    """

def simulate(
    model: ModelName,
    *,
    replicas: int | str = ...,
    slo: Slo | None = ...,
    ttft: Latency | None | str = ...,
    tpot: Latency | None | str = ...,
    latency: Latency | None | str = ...,
    cache: ResponseCache | None = ...,
    attain: float | str = ...,
    on_compile: Callable[[], None] | None = ...,
    trace: Path | None | str = ...,
    scale: float | str = ...,
    rate: float | None | str = ...,
    arrivals: str = ...,
    duration_s: float | None | str = ...,
    requests: int | None | str = ...,
    burstiness: float | None | str = ...,
    peak: float | None | str = ...,
    peak_hour: float | None | str = ...,
    weekend: float | None | str = ...,
    profile: Any = ...,
    users: int | None | str = ...,
    think_s: float | str = ...,
    turns: int | str | None = ...,
    tool_share: float | None | str = ...,
    tool_pause: float | None | str = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    lengths_from: Path | None | str = ...,
    prefixes: int | str = ...,
    prefix_tokens: int | None | str = ...,
    priorities: Sequence[PriorityClass] | None = ...,
    seed: int | str = ...,
    policy: str = ...,
    balancer: str = ...,
    step_tokens: int | None | str = ...,
    mix: bool | None = ...,
    preempt: str = ...,
    prefix_cache: bool | None = ...,
    kv_stores: str | None = ...,
    prefill_replicas: int | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    shared_prefix: int | None | str = ...,
    prefix_hit: float | None | str = ...,
    kv_keep: float | None | str = ...,
    draft: str | None = ...,
    draft_tokens: int | None | str = ...,
    acceptance: float | None | str = ...,
    draft_weights: str | None = ...,
    prefill_gpus: int | None | str = ...,
    offload_weights: float | None | str = ...,
    gpu_layers: int | None | str = ...,
    host: str | None = ...,
    expert_skew: float | None | str = ...,
    redundant_experts: int | None | str = ...,
    overlap: bool | None = ...,
    adapters: int | None | str = ...,
    adapter_rank: int | None | str = ...,
    images: int | None | str = ...,
    image_tokens: int | None | str = ...,
    structured: float | None | str = ...,
    mask_time: float | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    duration: float | None | str = ...,
    think: float | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: Traffic | Scheduling | ServingSpec | TechniqueRequest | MachineSpec | DatedSourceSpec,
) -> SimulateAnswer:
    """Simulate requests through a deployment, step by step: latencies, throughput and cost.

    Times are in seconds.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        replicas: behind the balancer.
        slo: what a request must hold to count into the goodput; or by its parts, `ttft`, `tpot` and `latency`.
        ttft: time to the first token ("500ms").
        tpot: time per further token.
        latency: the whole request.
        cache: answers that are given again.
        attain: share of requests in time that decides how many replicas a cache saves.
        on_compile: called before the simulator is compiled for the first time.
        trace: A CSV file of requests: arrival_s, prompt_tokens, output_tokens ...; or Mooncake's JSON lines: timestamp, input_length, output_length, hash_ids.
        scale: Speed at which the trace is replayed: 2 is twice as fast.
        rate: Requests per second, on average: 20, 500/min.
        arrivals: How requests arrive: poisson, gamma (bursts), uniform, or diurnal (a daily wave).
        duration_s (or duration): Time during which requests arrive (default: 10 min).
        requests: Total number of requests: a batch job, or instead of a duration.
        burstiness: For gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, 3 is bursty.
        peak: Peak rate over the mean rate: for diurnal arrivals, and to size the replicas of a plan.
        peak_hour: Hour of the daily peak, for diurnal arrivals (default: 14).
        weekend: Traffic of a weekend day over that of a weekday, for diurnal arrivals.
        profile: Rate by hour of the week: office, daily, a file of hour,rate or a trace; fleet files may list 24 or 168 rates. The given rate is the week's mean.
        users: Closed loop of this many users, who begin together and send a request after each answer.
        think_s (or think): Pause of a user before the next request; for sessions, the mean pause between turns.
        turns: Turns of a session, as --input; the prompt of each contains all turns before it.
        tool_share: Share of later turns that follow a tool call, not a person (default: none).
        tool_pause: How long a tool takes on average.
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        lengths_from: Draw pairs of prompt and answer from this trace file.
        prefixes: Number of shared prefixes that prompts begin with.
        prefix_tokens: Tokens of each shared prefix, before --input.
        priorities: Priority classes with their shares of the requests: 0=20%,1=80%; with --policy priority, class 0 goes first.
        seed: Random seed: the same seed gives the same run.
        policy: Order of the queue: fcfs, priority, shortest, shortest-prompt, deadline.
        balancer: Load balancing: round-robin, least-loaded, least-tokens, prefix-aware.
        step_tokens: Token budget of an engine step (default: the engine's).
        mix: Mix prefill and decoding in one step (chunked prefill), or run prefill first (default: as the engine does).
        preempt: How a sequence is preempted when the KV cache is full.
        prefix_cache: Cache shared prefixes (default: where there are any).
        kv_stores: Tiers below the KV cache of each replica that keep evicted prefixes, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD per GB and month).
        prefill_replicas: Additional replicas that run only prefill and transfer the cache.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens of a prefix that all prompts share: computed and cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculative decoding with a draft model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of the draft's tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Additional accelerators per replica that run only prefill (disaggregated serving).
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: Layers that stay on the device, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        adapters: LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.
        adapter_rank: Rank of the adapters served on one base model (default: 16).
        images: Images in each prompt; --input counts their tokens, and the model's image tower encodes them.
        image_tokens: Prompt tokens that one image makes (default: those of the model's own resolution).
        structured: Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.
        mask_time: Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        InfeasibleError: weights and one request do not fit the memory.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.simulate("Llama-3.1-8B", gpu="h100", rate=2, requests=20, seed=1)
        >>> answer.summary.completed
        20
    """

def autoscale(
    model: ModelName,
    *,
    rule: Autoscaling | None = ...,
    slo: Slo | None = ...,
    ttft: Latency | None | str = ...,
    tpot: Latency | None | str = ...,
    latency: Latency | None | str = ...,
    attain: float | None | str = ...,
    compare: bool = ...,
    cache: ResponseCache | None = ...,
    on_compile: Callable[[], None] | None = ...,
    report: Callable[[float, float], None] | None = ...,
    trace: Path | None | str = ...,
    scale: float | str = ...,
    rate: float | None | str = ...,
    arrivals: str = ...,
    duration_s: float | None | str = ...,
    requests: int | None | str = ...,
    burstiness: float | None | str = ...,
    peak: float | None | str = ...,
    peak_hour: float | None | str = ...,
    weekend: float | None | str = ...,
    profile: Any = ...,
    users: int | None | str = ...,
    think_s: float | str = ...,
    turns: int | str | None = ...,
    tool_share: float | None | str = ...,
    tool_pause: float | None | str = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    lengths_from: Path | None | str = ...,
    prefixes: int | str = ...,
    prefix_tokens: int | None | str = ...,
    priorities: Sequence[PriorityClass] | None = ...,
    seed: int | str = ...,
    policy: str = ...,
    balancer: str = ...,
    step_tokens: int | None | str = ...,
    mix: bool | None = ...,
    preempt: str = ...,
    prefix_cache: bool | None = ...,
    kv_stores: str | None = ...,
    prefill_replicas: int | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    shared_prefix: int | None | str = ...,
    prefix_hit: float | None | str = ...,
    kv_keep: float | None | str = ...,
    draft: str | None = ...,
    draft_tokens: int | None | str = ...,
    acceptance: float | None | str = ...,
    draft_weights: str | None = ...,
    prefill_gpus: int | None | str = ...,
    offload_weights: float | None | str = ...,
    gpu_layers: int | None | str = ...,
    host: str | None = ...,
    expert_skew: float | None | str = ...,
    redundant_experts: int | None | str = ...,
    overlap: bool | None = ...,
    adapters: int | None | str = ...,
    adapter_rank: int | None | str = ...,
    images: int | None | str = ...,
    image_tokens: int | None | str = ...,
    structured: float | None | str = ...,
    mask_time: float | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    duration: float | None | str = ...,
    think: float | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: Traffic | Scheduling | ServingSpec | TechniqueRequest | MachineSpec | DatedSourceSpec,
) -> AutoscaleAnswer:
    """Run requests through replicas that an autoscaler starts and drains.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        rule: the autoscaler (default: by concurrency).
        slo: what a request must hold to count into the goodput; or by its parts, `ttft`, `tpot` and `latency`.
        ttft: time to the first token ("500ms").
        tpot: time per further token.
        latency: the whole request.
        attain: share of requests that fixed replicas must answer in time (default: as the autoscaler).
        compare: find the fewest fixed replicas that do as well.
        cache: answers that are given again.
        on_compile: called before the simulator is compiled for the first time.
        report: called with (steps done, steps in all).
        trace: A CSV file of requests: arrival_s, prompt_tokens, output_tokens ...; or Mooncake's JSON lines: timestamp, input_length, output_length, hash_ids.
        scale: Speed at which the trace is replayed: 2 is twice as fast.
        rate: Requests per second, on average: 20, 500/min.
        arrivals: How requests arrive: poisson, gamma (bursts), uniform, or diurnal (a daily wave).
        duration_s (or duration): Time during which requests arrive (default: 10 min).
        requests: Total number of requests: a batch job, or instead of a duration.
        burstiness: For gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, 3 is bursty.
        peak: Peak rate over the mean rate: for diurnal arrivals, and to size the replicas of a plan.
        peak_hour: Hour of the daily peak, for diurnal arrivals (default: 14).
        weekend: Traffic of a weekend day over that of a weekday, for diurnal arrivals.
        profile: Rate by hour of the week: office, daily, a file of hour,rate or a trace; fleet files may list 24 or 168 rates. The given rate is the week's mean.
        users: Closed loop of this many users, who begin together and send a request after each answer.
        think_s (or think): Pause of a user before the next request; for sessions, the mean pause between turns.
        turns: Turns of a session, as --input; the prompt of each contains all turns before it.
        tool_share: Share of later turns that follow a tool call, not a person (default: none).
        tool_pause: How long a tool takes on average.
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        lengths_from: Draw pairs of prompt and answer from this trace file.
        prefixes: Number of shared prefixes that prompts begin with.
        prefix_tokens: Tokens of each shared prefix, before --input.
        priorities: Priority classes with their shares of the requests: 0=20%,1=80%; with --policy priority, class 0 goes first.
        seed: Random seed: the same seed gives the same run.
        policy: Order of the queue: fcfs, priority, shortest, shortest-prompt, deadline.
        balancer: Load balancing: round-robin, least-loaded, least-tokens, prefix-aware.
        step_tokens: Token budget of an engine step (default: the engine's).
        mix: Mix prefill and decoding in one step (chunked prefill), or run prefill first (default: as the engine does).
        preempt: How a sequence is preempted when the KV cache is full.
        prefix_cache: Cache shared prefixes (default: where there are any).
        kv_stores: Tiers below the KV cache of each replica that keep evicted prefixes, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD per GB and month).
        prefill_replicas: Additional replicas that run only prefill and transfer the cache.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens of a prefix that all prompts share: computed and cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculative decoding with a draft model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of the draft's tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Additional accelerators per replica that run only prefill (disaggregated serving).
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: Layers that stay on the device, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        adapters: LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.
        adapter_rank: Rank of the adapters served on one base model (default: 16).
        images: Images in each prompt; --input counts their tokens, and the model's image tower encodes them.
        image_tokens: Prompt tokens that one image makes (default: those of the model's own resolution).
        structured: Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.
        mask_time: Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        SpecError: a value or a name that cannot be, or traffic that follows its answers.
        InfeasibleError, MissingFactError: as `simulate`.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.autoscale("Llama-3.1-8B", gpu="h100", rate=2, requests=20, compare=False, seed=1)
        >>> answer.answer.summary.completed
        20
    """

def batch(
    model: ModelName,
    requests: int | None | str = ...,
    *,
    concurrency: int | None | str = ...,
    report: Callable[[int, int], None] | None = ...,
    queue: int | None | str = ...,
    workers: int | str = ...,
    deadline: float | None | str = ...,
    spot_interruptions: float | None | str = ...,
    spot_price: float | None | str = ...,
    replace_s: float | None | str = ...,
    checkpoint_every: float | None | str = ...,
    checkpoint_time: float | str = ...,
    fallback: int | str = ...,
    trials: int | str = ...,
    cold_start: float | None | str = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    lengths_from: Path | None | str = ...,
    seed: int | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    shared_prefix: int | None | str = ...,
    prefix_hit: float | None | str = ...,
    kv_keep: float | None | str = ...,
    draft: str | None = ...,
    draft_tokens: int | None | str = ...,
    acceptance: float | None | str = ...,
    draft_weights: str | None = ...,
    prefill_gpus: int | None | str = ...,
    offload_weights: float | None | str = ...,
    gpu_layers: int | None | str = ...,
    host: str | None = ...,
    expert_skew: float | None | str = ...,
    redundant_experts: int | None | str = ...,
    overlap: bool | None = ...,
    adapters: int | None | str = ...,
    adapter_rank: int | None | str = ...,
    images: int | None | str = ...,
    image_tokens: int | None | str = ...,
    structured: float | None | str = ...,
    mask_time: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    replace: float | None | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: BatchRequest | MachineSpec | ServingSpec | TechniqueRequest | DatedSourceSpec,
) -> BatchAnswer:
    """Work off a queue of requests on spot workers: time, cost, and the odds of a deadline.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        requests: in the queue.
        concurrency: requests in flight at each worker (default: as many as memory holds).
        report: called with (trials done, trials in all).
        queue: Number of requests in a batch queue, instead of traffic.
        workers: Spot replicas that work on the queue.
        deadline: Time within which the run (with the start of its machines), or the queue, is done: 6h, 30d.
        spot_interruptions: Interruption rate of one spot instance: 0.1/day (default: the provider's, where known).
        spot_price: Price of one spot accelerator in US dollars per hour.
        replace_s (or replace): Time until an interrupted spot instance is replaced: 5min.
        checkpoint_every: Time between checkpoints (default: in training the one that loses least, in a queue never).
        checkpoint_time: Time that a worker takes to write a checkpoint.
        fallback: On-demand replicas that step in where the deadline is at risk.
        trials: Number of simulated trials.
        cold_start: Time from requesting a machine until it serves (default: a minute, then the start of the engine).
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        lengths_from: Draw pairs of prompt and answer from this trace file.
        seed: Random seed: the same seed gives the same run.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens of a prefix that all prompts share: computed and cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculative decoding with a draft model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of the draft's tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Additional accelerators per replica that run only prefill (disaggregated serving).
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: Layers that stay on the device, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        adapters: LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.
        adapter_rank: Rank of the adapters served on one base model (default: 16).
        images: Images in each prompt; --input counts their tokens, and the model's image tower encodes them.
        image_tokens: Prompt tokens that one image makes (default: those of the model's own resolution).
        structured: Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.
        mask_time: Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        SpecError: a value or a name that cannot be.
        InfeasibleError: the model does not fit, or interruptions undo the work faster than it is done.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.batch("Llama-3.1-8B", "10k", gpu="h100", workers=2, trials=20, provider="aws")
        >>> answer.queue.workers
        2
    """

def sweep(
    source: str | Path | dict[str, Any] | list[dict[str, Any]] | list[SweptWorkload],
    *,
    engine: str = ...,
    address: str | None = ...,
    workers: int | None = ...,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    assume_family: str | None = ...,
    advance: Callable[[int, int], None] | None = ...,
) -> Sweep:
    """Plan every workload of a sweep; the plans are the same with every engine.

    A workload that nothing can satisfy has no plan but reasons.

    Args:
        source: a file, plain data with the same keys, or points read before.
        engine: "inline", "processes" or "ray".
        address: of the Ray cluster.
        workers: processes (default: all cores).
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        assume_family: read an unknown model_type as this known family.
        advance: called with (units of work done, units in all) as it goes.

    Raises:
        SpecError: something in the file is wrong, Ray is not installed, or no cluster answers.

    Examples:
        >>> import flopwise
        >>> job = {"model": "gpt2", "task": "pretrain", "data": {"tokens": "10M"}, "constraints": {"gpus": ["l4"]}}
        >>> flopwise.sweep([{"name": "small", **job}]).num_planned
        1
    """

def train(
    model: ModelName,
    *,
    gpus: int | None | str = ...,
    tokens: float | None | str = ...,
    samples: float | None | str = ...,
    epochs: float | str = ...,
    seq: int | None | str = ...,
    global_batch: int | None | str = ...,
    global_batch_tokens: float | None | str = ...,
    padded: float | str = ...,
    packing: str | None = ...,
    mean_length: float | None | str = ...,
    length_spread: float | str = ...,
    lengths: Path | None | str = ...,
    precision: str = ...,
    optimizer: str = ...,
    stack: str | None = ...,
    attention: str | None = ...,
    grad_dtype: str | None = ...,
    master_weights: bool | None = ...,
    lora: int | None | str = ...,
    finetune: bool = ...,
    qlora: bool = ...,
    lora_targets: Sequence[str] = ...,
    base_format: str | None = ...,
    freeze: str | None = ...,
    expert_skew: float | None | str = ...,
    capacity_factor: float | None | str = ...,
    micro_batch: int | None | str = ...,
    dp: int | None | str = ...,
    tp: int | None | str = ...,
    pp: int | None | str = ...,
    cp: int | None | str = ...,
    ep: int | None | str = ...,
    expert_tp: int | None | str = ...,
    zero: int | None | str = ...,
    fsdp: bool = ...,
    shard: int | None | str = ...,
    grad_sync: str | None = ...,
    recompute: str | None = ...,
    recompute_modules: Sequence[str] = ...,
    recompute_every: int | None | str = ...,
    recompute_first: int | None | str = ...,
    interleave: int | None | str = ...,
    schedule: str | None = ...,
    stage_layers: Sequence[int] | str = ...,
    sequence_parallel: bool = ...,
    offload: Sequence[str] = ...,
    offload_layers: int | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    mtbf: float | None | str = ...,
    node_mtbf: float | None | str = ...,
    failures: str | None = ...,
    restart: float | None | str = ...,
    checkpoint_every: float | None | str = ...,
    checkpoint_bandwidth: float | None | str = ...,
    checkpoint_per_gpu: float | None | str = ...,
    checkpoint_storage: str | None = ...,
    async_checkpoints: bool = ...,
    repair: float | None | str = ...,
    spares: int | None | str = ...,
    interruptions: float | None | str = ...,
    jitter: float | None | str = ...,
    validate_every: int | None | str = ...,
    validate_batches: int | None | str = ...,
    loader_rate: float | None | str = ...,
    storage: str | None = ...,
    storage_bandwidth: float | None | str = ...,
    token_bytes: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    software_month: str | None = ...,
    expert_tensor_parallel_size: int | None | str = ...,
    hsdp: int | None | str = ...,
    **specs: DataSpec | TrainingSpec | MachineSpec | RunConditionsSpec | ReadsSpec | DatedSourceSpec,
) -> TrainAnswer | SampledTrainAnswer:
    """Step time, throughput, memory, time and cost of training a model.

    Times are in seconds, rates per second, money in US dollars. Without any degree the best layout that fits is
    found; a layout that does not fit is estimated all the same: `fits` says so, and what certainly cannot run shows no
    speed (`can_run`). Of a network without token layers, such as ResNet-50, the answer is a `SampledTrainAnswer`:
    samples per second of data-parallel replicas.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        gpus: number of accelerators (default: one).
        tokens: Tokens of the whole run: 2T.
        samples: Sequences of the whole run, instead of tokens.
        epochs: Passes over the tokens or samples.
        seq: Tokens of a sequence: 8k (8,192).
        global_batch: Sequences of one optimizer step.
        global_batch_tokens: The global batch in tokens: 4M.
        padded: Share of each sequence that is padding, not counted as tokens of the run.
        packing: Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).
        mean_length: Mean tokens of a document, with --packing; lognormal.
        length_spread: Standard deviation of the lengths over their mean.
        lengths: Lengths of documents instead: a file with `tokens` or `tokens,count` per line.
        precision: Format of the matrix products in training.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software that predates it).
        grad_dtype: Format of the accumulated gradients (default: the stack's).
        master_weights: Keep a separate fp32 copy of the weights (default: as the stack does).
        lora: Train LoRA adapters of this rank on a frozen base.
        finetune: Fine-tune all weights of a pretrained model: batches as usual there, weights loaded at the start.
        qlora: Train adapters on a 4-bit base, of rank 16 unless --lora sets another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        base_format: Format of the frozen weights under adapters: nf4, int8 ... (default: bf16).
        freeze: Parts that are not trained, separated by commas: embedding, head, towers, first:N, all-but-last:N (layers).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        capacity_factor: Capacity of an expert, in mean loads; tokens above it are dropped (default: none are).
        micro_batch: Sequences in one pass of a replica.
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        cp: Context-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        expert_tp (or expert_tensor_parallel_size): Ranks of a tensor-parallel group that share one expert: 1 where experts are whole (default: the stack's).
        zero: ZeRO stage: 0 to 3.
        fsdp: Shard everything over the replicas, as ZeRO 3.
        shard (or hsdp): HSDP: ranks that ZeRO shards over (stage 3 by default); replicated beyond them.
        grad_sync: ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones with the last micro-batch of a chunk's round (interleaved pipelines) or of the step (default: the stack's).
        recompute: Activation recomputation (checkpointing).
        recompute_modules: Recompute these modules alone, as Megatron-Core does: core_attn, layernorm, activation (its moe_act), mla_up_proj, mlp, moe; attn_proj: the projections around attention.
        recompute_every: Full recompute of every N-th block only.
        recompute_first: Full recompute of the first N blocks of each (virtual) stage only.
        interleave: Virtual stages of each pipeline rank.
        schedule: Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.
        stage_layers: Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.
        sequence_parallel: Split norms and residuals within a tp group, too.
        offload: Keep these in host memory.
        offload_layers: Of each pipeline stage, the layers whose activations are in host memory, as Megatron-Core's cpu-offloading-num-layers (default: all but the last two).
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        mtbf: Time between failures of one GPU with its share of the node.
        node_mtbf: Time between failures of one node.
        failures: Failures as in a published run: llama-3 (default), rsc-1, rsc-2, opt-175b, bloom.
        restart: Time from a failure until the run is back at full speed: 10min.
        checkpoint_every: Time between checkpoints (default: in training the one that loses least, in a queue never).
        checkpoint_bandwidth: Bandwidth at which the whole cluster writes checkpoints: 200GB/s.
        checkpoint_per_gpu: Bandwidth at which each accelerator writes its part: 2GB/s.
        checkpoint_storage: Storage that checkpoints are written to: lustre, nvme ...
        async_checkpoints: Write checkpoints in the background: training waits only for the copy to host memory.
        repair: Time to repair a failed node (default: replaced at once).
        spares: Standby nodes, with --repair.
        interruptions: Interruptions of one spot instance: 0.1/day.
        jitter: Spread of step times between GPUs; above 16 GPUs all wait for the slowest (default: 1.5%).
        validate_every: Steps between validations.
        validate_batches: Global batches of one validation (default: 1).
        loader_rate: Sequences that the data loader delivers to one GPU: 20/s.
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bandwidth: What storage delivers to a node, as measured instead: 3GB/s.
        token_bytes: Bytes per stored token (default: 2, or 4 above 65,536 words).
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        software_month: Month of the training stack or engine, for the generation that people ran then (default: as named).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.train("Llama-3.1-8B", gpu="64xh100", tokens="1T", seq="8k")
        >>> answer.estimate.low < answer.estimate.high
        True
    """

def import_runs(
    *files: Path | str,
    store: Path | str | None = ...,
    gpus: int | None | str = ...,
    format: str = ...,
    name: str | None = ...,
    model: str | None = ...,
    task: str | None = ...,
    metric: Sequence[str] = ...,
    replace: bool = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    include_retired: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None | str = ...,
    calibration: str | None = ...,
    tokens: float | None | str = ...,
    samples: float | None | str = ...,
    epochs: float | str = ...,
    seq: int | None | str = ...,
    global_batch: int | None | str = ...,
    global_batch_tokens: float | None | str = ...,
    padded: float | str = ...,
    packing: str | None = ...,
    mean_length: float | None | str = ...,
    length_spread: float | str = ...,
    lengths: Path | None | str = ...,
    precision: str = ...,
    optimizer: str = ...,
    stack: str | None = ...,
    attention: str | None = ...,
    grad_dtype: str | None = ...,
    master_weights: bool | None = ...,
    lora: int | None | str = ...,
    finetune: bool = ...,
    qlora: bool = ...,
    lora_targets: Sequence[str] = ...,
    base_format: str | None = ...,
    freeze: str | None = ...,
    expert_skew: float | None | str = ...,
    capacity_factor: float | None | str = ...,
    micro_batch: int | None | str = ...,
    dp: int | None | str = ...,
    tp: int | None | str = ...,
    pp: int | None | str = ...,
    cp: int | None | str = ...,
    ep: int | None | str = ...,
    expert_tp: int | None | str = ...,
    zero: int | None | str = ...,
    fsdp: bool = ...,
    shard: int | None | str = ...,
    grad_sync: str | None = ...,
    recompute: str | None = ...,
    recompute_modules: Sequence[str] = ...,
    recompute_every: int | None | str = ...,
    recompute_first: int | None | str = ...,
    interleave: int | None | str = ...,
    schedule: str | None = ...,
    stage_layers: Sequence[int] | str = ...,
    sequence_parallel: bool = ...,
    offload: Sequence[str] = ...,
    offload_layers: int | None | str = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    rate: float | None | str = ...,
    concurrency: int | None | str = ...,
    requests: int | None | str = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    batch_wait: int | None | str = ...,
    stream_interval: int | None | str = ...,
    prefill_delayer: bool = ...,
    eager: bool = ...,
    expert_tensor_parallel_size: int | None | str = ...,
    hsdp: int | None | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: ImportSpec | MachineSpec | SourceSpec | DataSpec | TrainingSpec | RequestSpec | ServingSpec,
) -> list[ImportedRun]:
    """Write runs of other tools to the store, with their expected figures where model and GPU are known.

    The same content is imported once. What a file says itself need not be given; options of training go with runs of
    training, those of requests and engines with runs of services.

    Args:
        files: files or folders of trainer-state, TensorBoard, W&B, MLflow, GuideLLM, genai-perf or vLLM's
            benchmark.
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).
        gpus: number of accelerators.
        format: Format: trainer-state, tensorboard, wandb, mlflow, guidellm, genai-perf, vllm-bench, flopwise-runs.
        name: Name of the run (default: as in the file).
        model: Model of the run; without it there is no estimate to compare with.
        task: What was trained (default: pretrain).
        metric: Name of a metric in the file, with an optional factor: step_s=step_ms*0.001.
        replace: Import runs again that were imported before, and replace them.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Include community and marketplace hosts, which have no SLA and no attestations.
        include_retired: Include machines that their provider has retired, or will by a day that it announced.
        purchase: Purchase option.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators per node.
        network: Network bandwidth per accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Power limit of one accelerator, below its own: 500W. Clocks drop with it.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of rows that override the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile that `flopwise calibrate` made of your measurements: its constants override the shipped ones.
        tokens: Tokens of the whole run: 2T.
        samples: Sequences of the whole run, instead of tokens.
        epochs: Passes over the tokens or samples.
        seq: Tokens of a sequence: 8k (8,192).
        global_batch: Sequences of one optimizer step.
        global_batch_tokens: The global batch in tokens: 4M.
        padded: Share of each sequence that is padding, not counted as tokens of the run.
        packing: Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).
        mean_length: Mean tokens of a document, with --packing; lognormal.
        length_spread: Standard deviation of the lengths over their mean.
        lengths: Lengths of documents instead: a file with `tokens` or `tokens,count` per line.
        precision: Format of the matrix products in training.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software that predates it).
        grad_dtype: Format of the accumulated gradients (default: the stack's).
        master_weights: Keep a separate fp32 copy of the weights (default: as the stack does).
        lora: Train LoRA adapters of this rank on a frozen base.
        finetune: Fine-tune all weights of a pretrained model: batches as usual there, weights loaded at the start.
        qlora: Train adapters on a 4-bit base, of rank 16 unless --lora sets another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        base_format: Format of the frozen weights under adapters: nf4, int8 ... (default: bf16).
        freeze: Parts that are not trained, separated by commas: embedding, head, towers, first:N, all-but-last:N (layers).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in serving as measured).
        capacity_factor: Capacity of an expert, in mean loads; tokens above it are dropped (default: none are).
        micro_batch: Sequences in one pass of a replica.
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        cp: Context-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        expert_tp (or expert_tensor_parallel_size): Ranks of a tensor-parallel group that share one expert: 1 where experts are whole (default: the stack's).
        zero: ZeRO stage: 0 to 3.
        fsdp: Shard everything over the replicas, as ZeRO 3.
        shard (or hsdp): HSDP: ranks that ZeRO shards over (stage 3 by default); replicated beyond them.
        grad_sync: ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones with the last micro-batch of a chunk's round (interleaved pipelines) or of the step (default: the stack's).
        recompute: Activation recomputation (checkpointing).
        recompute_modules: Recompute these modules alone, as Megatron-Core does: core_attn, layernorm, activation (its moe_act), mla_up_proj, mlp, moe; attn_proj: the projections around attention.
        recompute_every: Full recompute of every N-th block only.
        recompute_first: Full recompute of the first N blocks of each (virtual) stage only.
        interleave: Virtual stages of each pipeline rank.
        schedule: Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.
        stage_layers: Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.
        sequence_parallel: Split norms and residuals within a tp group, too.
        offload: Keep these in host memory.
        offload_layers: Of each pipeline stage, the layers whose activations are in host memory, as Megatron-Core's cpu-offloading-num-layers (default: all but the last two).
        input_tokens (or input): Tokens of a prompt: 1024 (default; simulated within a ninth of it), 1024:1024 (all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.
        output_tokens (or output): Tokens of an answer, as --input (default: 256); sharegpt-answers:200.
        rate: Requests per second, on average: 20, 500/min.
        concurrency: Requests in flight over all replicas, in a closed loop begun by all at once (default: as many as fit in memory).
        requests: Total number of requests: a batch job, or instead of a duration.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).
        kv_dtype: Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Share of device memory that the engine may use (default: the engine's).
        max_batch: Sequences that each attention replica runs at once (default: the engine's limit).
        recv_interval: Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).
        batch_wait: Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).
        stream_interval: Tokens streamed together after the first, as in vLLM and SGLang (default: 1).
        prefill_delayer: Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, TensorRT-LLM's attention_dp_config.enable_balance.
        eager: Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).

    Raises:
        SpecError: a file cannot be read, or an option is not of its kind of run; nothing is written then.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> one.run.task
        'serve'
    """

def explain_run(
    run: str,
    *,
    store: str | Path | None = ...,
    page: str | Path | None = ...,
) -> ExplainedRun:
    """Compare a run with its expected figures, and split the difference by term.

    Args:
        run: id, its first digits, or a name.
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).
        page: write the same as HTML there.

    Raises:
        UnknownNameError: there is no such run.
        SpecError: the store cannot be read, or the page not written.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.explain_run(one.run.run_id).measured is not None
        True
    """

def compare_runs(
    runs: Sequence[str],
    *,
    store: str | Path | None = ...,
    page: str | Path | None = ...,
) -> Comparison:
    """Runs against the first of them, and each against its plan.

    Args:
        runs: two or more, by id or name.
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).
        page: write the same as HTML there.

    Raises:
        UnknownNameError: there is no such run.
        SpecError: fewer than two runs, or the store cannot be read.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> try:
        ...     flopwise.compare_runs([one.run.run_id])
        ... except flopwise.SpecError as error:
        ...     print(type(error).__name__)
        SpecError
    """

def run_rows(
    runs: Sequence[str] = ...,
    kind: str = ...,
    *,
    store: str | Path | None = ...,
    file: str | Path | None = ...,
) -> RunRows:
    """Runs as rows that `backtest` and `calibrate` read.

    Args:
        runs: ids or names; empty: all of the store.
        kind: training, memory or serving.
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).
        file: write the rows there as CSV.

    Raises:
        UnknownNameError: there is no such run or kind.
        SpecError: the store cannot be read, the file not written, or no run makes a row.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> len(flopwise.run_rows([one.run.run_id], "serving").rows) > 0
        True
    """

def runs(
    *,
    store: str | Path | None = ...,
    task: str | None = ...,
    model: str | None = ...,
    status: str | None = ...,
    since: str | None = ...,
    **specs: RunFilter,
) -> list[RecordedRun]:
    """The runs in a store with the summaries of their metrics, without events; the latest first.

    Args:
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).
        task: Runs of this task.
        model: Runs whose model's name contains this text.
        status: Runs with this status; a run that was killed stays running.
        since: Runs that began within this time or since this day.

    Raises:
        SpecError: the store cannot be read, or one that was named is not there.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.runs(task="serve")[0].run.task
        'serve'
    """

def recorded_run(
    run: str,
    *,
    store: str | Path | None = ...,
) -> RecordedRun:
    """A run with all its events.

    Args:
        run: id, its first digits, or a name (the latest of that name).
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).

    Raises:
        UnknownNameError: there is none.
        SpecError: the store cannot be read.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.recorded_run(one.run.run_id[:8]).run.run_id == one.run.run_id
        True
    """

def export_runs(
    runs: Sequence[str],
    output: str | Path,
    *,
    form: str = ...,
    store: str | Path | None = ...,
) -> list[RecordedRun]:
    """Write runs to a file of JSON lines, which `import_runs` reads back, or to a folder of CSV tables.

    Args:
        runs: ids or names.
        output: the file, or the folder.
        form: "jsonl" or "csv".
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).

    Raises:
        SpecError: no such run, the store cannot be read, or the output not written.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> from tempfile import mkdtemp
        >>> len(flopwise.export_runs([one.run.run_id], mkdtemp() + "/runs.jsonl"))
        1
    """

def delete_runs(
    runs: Sequence[str],
    *,
    store: str | Path | None = ...,
) -> list[str]:
    """Delete runs with all that was recorded of them, all or none; returns their ids.

    Args:
        runs: ids or names.
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).

    Raises:
        UnknownNameError: there is no such run.
        SpecError: the store cannot be written.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.delete_runs([one.run.run_id]) == [one.run.run_id]
        True
    """

def watch(
    *,
    prometheus: str | None = ...,
    match: Sequence[str] = ...,
    run: str | None = ...,
    store: str | None = ...,
    interval: float | str = ...,
    window: float | str = ...,
    plan: Path | None | str = ...,
    rank: int | str = ...,
    price: float | None | str = ...,
    started: float | None | str = ...,
    budget: float | None | str = ...,
    budget_per_day: float | None | str = ...,
    target_p95: Sequence[tuple[str, float]] = ...,
    min_tokens_per_s: float | None | str = ...,
    utilisation: float | str = ...,
    utilisation_for: float | str = ...,
    memory: float | str = ...,
    memory_for: float | str = ...,
    webhook: str | None = ...,
    exec_on_budget: str | None = ...,
    state: Path | None | str = ...,
    anew: bool = ...,
    **specs: WatchSpec,
) -> WatchStatus:
    """Take one status of a job: its bound, its progress against the plan, and its cost.

    Reads this machine's GPUs, a Prometheus server (`prometheus=URL`) or a recorded run (`run=NAME`).

    Args:
        prometheus: Read a Prometheus server that scrapes dcgm-exporter, an engine, a run or node_exporter.
        match: Only series with this label: workload=chat.
        run: Read a recorded run, by id or name: live while it is running, else replayed.
        store: Store of runs: the path of an SQLite file, or postgresql://USER@HOST/DATABASE of a team (default: FLOPWISE_RUNS, else runs.db in your data folder).
        interval: Time between two readings.
        window: Time over which the bound is diagnosed.
        plan: A plan of `flopwise plan -o`: use its intervals, limits, price and budget.
        rank: The candidate of the plan.
        price: Price of all machines per hour.
        started: Time since the job began, from which cost counts (default: since the first reading).
        budget: Budget of the job, in US dollars.
        budget_per_day: Budget of 24 hours, in US dollars.
        target_p95: Limit of the 95th percentile of request latency, or ttft=TIME, tpot=TIME.
        min_tokens_per_s: Minimum throughput.
        utilisation: Maximum utilisation of a service's devices.
        utilisation_for: How long it may stay above that.
        memory: Maximum share of a device's memory in use.
        memory_for: How long it may stay above that.
        webhook: Post every alert that fires or clears there, as JSON.
        exec_on_budget: Run this command once when a budget is spent: it should stop the job.
        state: State file of this job: its start time, and whether the stop command has run.
        anew: Discard the state file: the job begins now.

    Raises:
        SpecError: no source, or options that cannot be; says what to install or to give.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.watch(run=one.run.run_id).source
        'run ...'
    """

def watch_live(
    *,
    prometheus: str | None = ...,
    match: Sequence[str] = ...,
    run: str | None = ...,
    store: str | None = ...,
    interval: float | str = ...,
    window: float | str = ...,
    plan: Path | None | str = ...,
    rank: int | str = ...,
    price: float | None | str = ...,
    started: float | None | str = ...,
    budget: float | None | str = ...,
    budget_per_day: float | None | str = ...,
    target_p95: Sequence[tuple[str, float]] = ...,
    min_tokens_per_s: float | None | str = ...,
    utilisation: float | str = ...,
    utilisation_for: float | str = ...,
    memory: float | str = ...,
    memory_for: float | str = ...,
    webhook: str | None = ...,
    exec_on_budget: str | None = ...,
    state: Path | None | str = ...,
    anew: bool = ...,
    **specs: WatchSpec,
) -> Iterator[WatchStatus]:
    """A status for each reading of a job, for as long as the source has some.

    Args:
        prometheus: Read a Prometheus server that scrapes dcgm-exporter, an engine, a run or node_exporter.
        match: Only series with this label: workload=chat.
        run: Read a recorded run, by id or name: live while it is running, else replayed.
        store: Store of runs: the path of an SQLite file, or postgresql://USER@HOST/DATABASE of a team (default: FLOPWISE_RUNS, else runs.db in your data folder).
        interval: Time between two readings.
        window: Time over which the bound is diagnosed.
        plan: A plan of `flopwise plan -o`: use its intervals, limits, price and budget.
        rank: The candidate of the plan.
        price: Price of all machines per hour.
        started: Time since the job began, from which cost counts (default: since the first reading).
        budget: Budget of the job, in US dollars.
        budget_per_day: Budget of 24 hours, in US dollars.
        target_p95: Limit of the 95th percentile of request latency, or ttft=TIME, tpot=TIME.
        min_tokens_per_s: Minimum throughput.
        utilisation: Maximum utilisation of a service's devices.
        utilisation_for: How long it may stay above that.
        memory: Maximum share of a device's memory in use.
        memory_for: How long it may stay above that.
        webhook: Post every alert that fires or clears there, as JSON.
        exec_on_budget: Run this command once when a budget is spent: it should stop the job.
        state: State file of this job: its start time, and whether the stop command has run.
        anew: Discard the state file: the job begins now.

    Raises:
        SpecError: as `watch`.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> next(flopwise.watch_live(run=one.run.run_id)).source
        'run ...'
    """
