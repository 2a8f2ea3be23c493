"""The public names with their types, made by `python docs/generate.py`."""

from collections.abc import Callable, Iterator, Sequence
from flopwise.api.assess import assess as assess
from flopwise.api.backtest import backtest as backtest
from flopwise.api.buy_or_build import compare as compare
from flopwise.api.calibrate import calibrate as calibrate, calibration_profile as calibration_profile, calibrations as calibrations, remove_calibration as remove_calibration
from flopwise.api.check import check as check
from flopwise.api.currency import amounts_in as amounts_in
from flopwise.api.explain import explain as explain
from flopwise.api.export import export as export, export_targets as export_targets, write_export as write_export
from flopwise.api.facts import gpus as gpus, instances as instances, largest_models as largest_models, models as models
from flopwise.api.observe import observe as observe, replay as replay
from flopwise.api.plan import Advance
from flopwise.api.prices import import_prices as import_prices, list_prices as list_prices, prices as prices, refresh_prices as refresh_prices, remove_prices as remove_prices
from flopwise.api.run_imports import import_runs as import_runs
from flopwise.api.run_reports import compare_runs as compare_runs, explain_run as explain_run, run_rows as run_rows
from flopwise.api.runs import delete_runs as delete_runs, export_runs as export_runs, recorded_run as recorded_run
from flopwise.api.sweep import sweep as sweep
from flopwise.buy_or_build.alternatives import MonthlyTraffic as MonthlyTraffic
from flopwise.changes.format_fit import FitAnswer
from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.roofline import RooflineAnswer
from flopwise.cost.spec import MachineSpec
from flopwise.errors import FlopwiseError as FlopwiseError, InfeasibleError as InfeasibleError, MissingFactError as MissingFactError, SpecError as SpecError, UnknownNameError as UnknownNameError
from flopwise.facts.architecture import Model
from flopwise.facts.spec import SourceSpec
from flopwise.probes.file import Probe, Probe as Probe
from flopwise.probes.spec import ProbeSpec
from flopwise.provenance import Figure as Figure
from flopwise.records.model import RecordedRun
from flopwise.records.spec import RunFilter
from flopwise.search.answer import Plan
from flopwise.search.spec import AdaptersSpec, ConstraintsSpec, Latency, RankingSpec, TargetsSpec, TrafficSpec, WorkloadSpec
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
from flopwise.serving.spec import BatchRequest, RequestSpec, Scheduling, ServingSpec, StartSpec, TechniqueRequest
from flopwise.shapes.answer import ShapeAnswer
from flopwise.storage.bandwidth import StorageAnswer
from flopwise.storage.spec import SampleSpec, StorageRequest
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import WatchStatus
from flopwise.training.answer import TrainAnswer
from flopwise.training.spec import DataSpec, ReadsSpec, RunConditionsSpec, TrainingSpec
from pathlib import Path
from typing import Any, Literal

__version__: str
__all__ = ["__version__", "assess", "backtest", "compare", "calibrate", "calibration_profile", "calibrations", "remove_calibration", "check", "explain", "fit", "export", "export_targets", "write_export", "amounts_in", "gpus", "instances", "largest_models", "models", "io", "memory", "observe", "replay", "plan", "prices", "import_prices", "list_prices", "remove_prices", "refresh_prices", "probe", "roofline", "import_runs", "explain_run", "compare_runs", "run_rows", "runs", "recorded_run", "export_runs", "delete_runs", "serve", "serve_sweep", "advise", "simulate", "autoscale", "batch", "sweep", "train", "watch", "watch_live", "MonthlyTraffic", "FlopwiseError", "InfeasibleError", "MissingFactError", "SpecError", "UnknownNameError", "Probe", "Figure", "Traffic"]

def fit(
    model: Model | str,
    *,
    context: int | None | str = ...,
    output: int | None | str = ...,
    formats: str | Sequence[str] | None = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
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
    stream_interval: int | None | str = ...,
    eager: bool = ...,
    tp: int | str = ...,
    pp: int | str = ...,
    ep: int | str = ...,
    dp: int | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    **specs: MachineSpec | ServingSpec | SourceSpec,
) -> FitAnswer:
    """What fits in which weight format, on all GPUs that are given as one replica: `fit("...", gpu="2xa100-80gb")`.

    Requests have `context` tokens (8k where none are given, or what the model is made for), of them `output` answered.
    `formats` None: the checkpoint's own, 16 bits, and the usual smaller ones that engine and device run. `options` are
    those of `ServingSpec` (`engine="sglang", kv_dtype="fp8", tp=2 ...`), `MachineSpec` and `SourceSpec`, or whole
    specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.

    Keywords:
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        max_batch: Sequences that run at once, of each attention replica (default: the engine's).
        recv_interval: Steps from one look for new requests to the next: SGLang's --scheduler-recv-interval (default: 1).
        stream_interval: Tokens handed out together, after the first: a flag of vLLM and SGLang (default: 1).
        eager: Launch operations one by one, as with graphs switched off (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def io(
    model: Model | str | None = ...,
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
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
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
    """Storage bandwidth that training `model` needs, on `gpus` accelerators (one whole node where not given).

    `model` is a benchmark workload (`cosmoflow`, `deepcam`, `resnet50`, `unet3d`, `tiramisu`, `bert`), any model, or
    None with `flops_per_sample` and `sample_bytes`. The achieved rate is our estimate, unless `efficiency` (a share of
    the peak of `precision`) or `achieved_flops_per_s` of a device is given. `options` are those of `SampleSpec`,
    `StorageRequest`, `MachineSpec` and `SourceSpec`, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.

    Keywords:
        seq: Tokens of a sequence: 8k (8,192).
        batch: Samples of one accelerator and step.
        precision: Of the matrix products (default: the workload's reference implementation, else bf16).
        flops_per_sample: Forward and backward: 4.2T, 247Gi (base 2).
        sample_bytes: Bytes of a sample as fed: 16MiB.
        token_bytes: Bytes of a stored token (default: 2, or 4 above 65,536 words).
        efficiency: Achieved share of the datasheet's rates: 0.4, 40% (default: estimated).
        achieved_flops_per_s (or achieved): FLOP/s that one accelerator achieves: 35TFLOP/s.
        records: Samples as fed to the network, or as the benchmark stores them.
        record_bytes: Bytes of a stored sample, instead of either.
        dataset_bytes (or dataset): Bytes of the whole data set.
        cache_bytes (or cache): Bytes that a node can keep: page cache or local drives.
        policy (or cache_policy): The page cache evicts what was used longest ago; staged data stay.
        shuffle: Over all nodes, within a node's own part, or none.
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bytes_per_s (or storage_bandwidth): What storage delivers to a node, as measured instead: 3GB/s.
        devices: Drives of a node.
        connections: Of a node to an object store.
        checkpoint_interval_s (or checkpoint_interval): Time between checkpoints: 30min.
        checkpoint_stall_frac (or checkpoint_stall): Share of the time that writing may take.
        restore_within_s (or restore_within): Time to read a checkpoint back: 5min.
        load_within_s (or load_within): Time for a serving node to read all weights: 60s.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def memory(
    model: Model | str,
    *,
    task: Literal['train', 'serve'] | None = ...,
    gpu: str | None = ...,
    grad_accum: int | str = ...,
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
    lengths: Path | None = ...,
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
    zero: int | None | str = ...,
    fsdp: bool = ...,
    shard: int | None | str = ...,
    grad_sync: str | None = ...,
    recompute: str | None = ...,
    recompute_every: int | None | str = ...,
    recompute_first: int | None | str = ...,
    interleave: int | None | str = ...,
    schedule: str | None = ...,
    stage_layers: Sequence[int] | str = ...,
    sequence_parallel: bool = ...,
    offload: Sequence[str] = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
    max_batch: int | None | str = ...,
    recv_interval: int | None | str = ...,
    stream_interval: int | None | str = ...,
    eager: bool = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    hsdp: int | None | str = ...,
    **specs: DataSpec | TrainingSpec | ServingSpec | SourceSpec,
) -> MemoryAnswer:
    """Memory per GPU of one training step, or of serving `concurrency` sequences of `context` tokens.

    `gpu`: what it has to fit; `grad_accum`: micro-batches of a training step of `micro_batch` sequences.
    Without a `task` options of serving alone, such as `context`, mean serving; else it is training.

    Of several GPUs (`gpu="8xh100"`), where no degree is given, training shards everything over all of them (FSDP), and
    serving is one replica over all of them. `options` are those of `DataSpec` and `TrainingSpec` in training
    (`seq="8k", zero=3, lora=16 ...`), of `ServingSpec` in serving (`weights="fp8", tp=8 ...`), and of `SourceSpec`; or
    whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: only published figures of the model are known.

    Keywords:
        tokens: Tokens of the whole run: 2T.
        samples: Sequences of the whole run, instead of tokens.
        epochs: How often tokens or samples are gone through.
        seq: Tokens of a sequence: 8k (8,192).
        global_batch: Sequences of one optimizer step.
        global_batch_tokens: The same in tokens: 4M.
        padded: Share of each sequence that is padding, and no token of the run.
        packing: Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).
        mean_length: Mean tokens of a document, with --packing; lognormal.
        length_spread: Standard deviation of the lengths over their mean.
        lengths: Lengths of documents instead: a file, `tokens` or `tokens,count` a line.
        precision: Of the matrix products in training.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software of before it).
        grad_dtype: Of the accumulated gradients (default: the stack's).
        master_weights: A separate fp32 copy of the weights (default: the stack's).
        lora: Train adapters of this rank on a frozen base.
        finetune: All weights of a pretrained model: sequences and batches as in fine-tuning, weights brought at the start.
        qlora: Adapters on a 4-bit base, of rank 16 unless --lora says another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        base_format: Of the frozen weights under adapters: nf4, int8 ... (default: bf16).
        freeze: Not trained: embedding, head, towers, first:N layers, all-but-last:N layers; separated by commas.
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        capacity_factor: Experts compute this many times the mean load and drop what is more (default: nothing is dropped).
        micro_batch: Sequences of one pass of a replica.
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        cp: Context-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        zero: ZeRO stage: 0 to 3.
        fsdp: Shard everything over the replicas, as ZeRO 3.
        shard (or hsdp): HSDP: ranks that ZeRO (3 unless said) shards over, replicated beyond.
        grad_sync: ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones at the last (default: the stack's).
        recompute: Activations computed again.
        recompute_every: Full recompute of every N-th block only.
        recompute_first: Full recompute of the first N blocks of each (virtual) stage only.
        interleave: Virtual stages of each pipeline rank.
        schedule: Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.
        stage_layers: Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.
        sequence_parallel: Cut norms and residuals inside a tp group.
        offload: Keep these in host memory.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        max_batch: Sequences that run at once, of each attention replica (default: the engine's).
        recv_interval: Steps from one look for new requests to the next: SGLang's --scheduler-recv-interval (default: 1).
        stream_interval: Tokens handed out together, after the first: a flag of vLLM and SGLang (default: 1).
        eager: Launch operations one by one, as with graphs switched off (vLLM's --enforce-eager).
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def plan(
    source: str | Path | dict[str, Any] | Resolved,
    *,
    model: str | None = ...,
    task: str | None = ...,
    facts: str | Path | None = ...,
    calibration: str | None = ...,
    assume_family: str | None = ...,
    advance: Advance | None = ...,
    on_compile: Callable[[], None] | None = ...,
    name: str | None = ...,
    simulate: bool = ...,
    objective: str = ...,
    spot: str = ...,
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
    lengths: Path | None = ...,
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
    zero: int | None | str = ...,
    fsdp: bool = ...,
    shard: int | None | str = ...,
    grad_sync: str | None = ...,
    recompute: str | None = ...,
    recompute_every: int | None | str = ...,
    recompute_first: int | None | str = ...,
    interleave: int | None | str = ...,
    schedule: str | None = ...,
    stage_layers: Sequence[int] | str = ...,
    sequence_parallel: bool = ...,
    offload: Sequence[str] = ...,
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
    instances: Sequence[str] = ...,
    purchase: Sequence[str] = ...,
    max_gpus: int | None | str = ...,
    min_gpus: int | None | str = ...,
    weight_formats: Sequence[str] = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    memory_fraction: float | None | str = ...,
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
    hsdp: int | None | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    provider: Sequence[str] = ...,
    region: Sequence[str] = ...,
    gpu: Sequence[str] = ...,
    vendor: Sequence[str] = ...,
    instance: Sequence[str] = ...,
    weights: Sequence[str] = ...,
    max_hourly: float | None | str = ...,
    **specs: WorkloadSpec | RankingSpec | DataSpec | AdaptersSpec | TrainingSpec | TrafficSpec | TechniqueRequest | TargetsSpec | ConstraintsSpec | RunConditionsSpec,
) -> Plan:
    """Plan a workload over all offers: a file, plain data, one already read, or a model with the workload in `options`.

    `task` and `options` are those of the command line by name: `plan("Llama-3.1-8B", task="finetune", lora=16,
    tokens="50M", gpu="8xh100")`, `plan("Llama-3.1-8B", task="serve", rate="2/s", ttft="1s")`; over a file they change
    what it says, `model` its model.
    The plan is without candidates when nothing meets the targets; its `misses` are then the nearest. `advance(done,
    whole)` is called as the search goes, `on_compile` before the simulator is compiled for the first time.

    Raises:
        SpecError, UnknownNameError: something in the workload is wrong.
        InfeasibleError: the constraints leave no offer at all.

    Keywords:
        name: As results call it.
        simulate: Services: run the best plans through the simulator before they are ranked, or rank by estimates alone.
        objective: What to rank by.
        spot: Spot prices that are not known: left out, or assumed from the provider's published discounts.
        one_precision: One precision instead of all: of products in training, of weights in serving.
        tokens: Tokens of the whole run: 2T.
        samples: Sequences of the whole run, instead of tokens.
        epochs: How often tokens or samples are gone through.
        seq: Tokens of a sequence: 8k (8,192).
        global_batch: Sequences of one optimizer step.
        global_batch_tokens: The same in tokens: 4M.
        padded: Share of each sequence that is padding, and no token of the run.
        packing: Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).
        mean_length: Mean tokens of a document, with --packing; lognormal.
        length_spread: Standard deviation of the lengths over their mean.
        lengths: Lengths of documents instead: a file, `tokens` or `tokens,count` a line.
        kind: All weights, adapters, or adapters on a quantised model.
        rank: Of adapters.
        precision: Of the matrix products in training.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software of before it).
        grad_dtype: Of the accumulated gradients (default: the stack's).
        master_weights: A separate fp32 copy of the weights (default: the stack's).
        lora: Train adapters of this rank on a frozen base.
        finetune: All weights of a pretrained model: sequences and batches as in fine-tuning, weights brought at the start.
        qlora: Adapters on a 4-bit base, of rank 16 unless --lora says another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        base_format: Of the frozen weights under adapters: nf4, int8 ... (default: bf16).
        freeze: Not trained: embedding, head, towers, first:N layers, all-but-last:N layers; separated by commas.
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        capacity_factor: Experts compute this many times the mean load and drop what is more (default: nothing is dropped).
        micro_batch: Sequences of one pass of a replica.
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        cp: Context-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        zero: ZeRO stage: 0 to 3.
        fsdp: Shard everything over the replicas, as ZeRO 3.
        shard (or hsdp): HSDP: ranks that ZeRO (3 unless said) shards over, replicated beyond.
        grad_sync: ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones at the last (default: the stack's).
        recompute: Activations computed again.
        recompute_every: Full recompute of every N-th block only.
        recompute_first: Full recompute of the first N blocks of each (virtual) stage only.
        interleave: Virtual stages of each pipeline rank.
        schedule: Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.
        stage_layers: Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.
        sequence_parallel: Cut norms and residuals inside a tp group.
        offload: Keep these in host memory.
        rate: Requests that arrive a second, on average: 20, 500/min.
        concurrency: Requests in flight over all replicas, each followed by another (default: as many as memory holds).
        requests: Requests in all: a run with an end, of a batch job, or instead of a duration.
        input_tokens (or input): Tokens of a prompt: 1024 (default), 200:800, lognormal:512:cv=1.2.
        output_tokens (or output): Tokens of an answer, as --input (default: 256).
        trace: A CSV file of requests: arrival_s, prompt_tokens, output_tokens ...; or Mooncake's JSON lines: timestamp, input_length, output_length, hash_ids.
        arrivals: How requests come at their rate: poisson, gamma (bursts), uniform, or diurnal (a daily wave).
        burstiness: Of gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, 3 comes in clumps.
        peak: Highest rate over the mean rate: of diurnal arrivals, and what replicas of a plan are sized for.
        profile: Their rate by the hour of the week: office, daily, or a file of hour,rate or of a trace; files may list 24 or 168 rates. The rate that is given is the week's mean.
        shared_prefix: Tokens with which all prompts begin: computed once, cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculate: with a model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of proposed tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Accelerators of each replica, besides its own, for prompts only.
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: The same as layers that stay, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Two micro-batches hide each other's messages: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        ttft: Time to the first token: 500ms; in plans at a percentile: p95=1s.
        tpot: Time per further output token, on average: 50ms, p95=50ms.
        latency: Whole request, from arrival to last token: 5s, p99=5s.
        throughput: Tokens per second, over all accelerators.
        deadline: The run, or the queue, is done within this time: 6h, 30d.
        budget: US dollars: the whole run for training and batch, a month for a service.
        confidence: Probability with which each target has to be met.
        providers (or provider): Offers of this provider only: aws, gcp, azure, lambda ...
        regions (or region): Offers in this region only; patterns such as eu-* are fine.
        gpus (or gpu): Accelerators by name, vendor or family: h100, a100 (all variants), nvidia, hopper; 8xh100 for at most 8; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        vendors (or vendor): Devices of these vendors only: NVIDIA, AMD, Google ...
        exclude: No device of these names, vendors or families: b200, amd, hopper.
        software: What the project is written for; what needs a port is left out (default: cuda and cpu, what a project of PyTorch and CUDA runs on unchanged, and that of devices that are named).
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        instances (or instance): Offers of this instance type only; they set price and network.
        purchase: Way to buy.
        max_gpus: At most so many accelerators.
        min_gpus: At least so many accelerators.
        weight_formats (or weights): bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        inter_node_bandwidth: Of one instance to others, shared by its accelerators, instead of its offer's: 400GB/s.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        max_usd_per_hour (or max_hourly): At most so many US dollars an hour, all machines together.
        mtbf: Time between failures of one GPU with its share of the node.
        node_mtbf: Time between failures of one node.
        failures: Failures as in a published run: llama-3 (default), rsc-1, rsc-2, opt-175b, bloom.
        restart: From a failure to full speed: 10min.
        checkpoint_every: Time between checkpoints (default: in training the one that loses least, in a queue never).
        checkpoint_bandwidth: With which the whole cluster writes: 200GB/s.
        checkpoint_per_gpu: With which each accelerator writes its part: 2GB/s.
        checkpoint_storage: What each node writes to: lustre, nvme ...
        async_checkpoints: Training waits for the copy to host memory only.
        repair: A failed node is away so long (default: replaced at once).
        spares: Nodes that stand by, with --repair.
        interruptions: How often one spot instance is taken back: 0.1/day.
        jitter: Of step times between GPUs: above 16 all wait for the slowest (default: 1.5%).
        validate_every: Steps between validations.
        validate_batches: Global batches of one validation (default: 1).
        loader_rate: Sequences that the data loader delivers to one GPU: 20/s.
    """

def probe(
    progress: Callable[[float, float, str], object] | None = ...,
    *,
    device: Sequence[str] = ...,
    only: Sequence[str] = ...,
    quick: bool = ...,
    threads: int | None | str = ...,
    disk: Path | None = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    **specs: ProbeSpec | SourceSpec,
) -> Probe:
    """Measure this machine: through PyTorch where it is installed, else the processor through NumPy.

    `options` are those of `ProbeSpec` and `SourceSpec`, or whole specs. An operation that fails is an entry with its
    reason. `progress(seconds, of, what)` is called before each.

    Raises:
        SpecError: there is no such device, or a value cannot be.
        InfeasibleError: nothing could be measured.

    Keywords:
        device: Measure this device: cpu, cuda:0, mps. Without it the first GPU and the CPU.
        only: Measure this kind only: matmul, memory, attention, elementwise, launch, transfers, collectives, disk, loops.
        quick: Fewer sizes and repetitions: under 20 seconds instead of two minutes.
        threads: Threads of the CPU that are used.
        disk: Folder whose disk is measured, in a temporary file (default: the current one).
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def roofline(
    model: Model | str | None = ...,
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
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    **specs: MachineSpec | SourceSpec,
) -> RooflineAnswer:
    """Time of `flops` operations that move `bytes`, or of one pass of `model` over `batch` samples, on `gpus` devices.

    A pass is over `seq` tokens of each sample, forward alone, or backward, too, with `training`; `dtype` is the format
    that is multiplied.
    `efficiency` is the achieved fraction of the datasheet's rates, for both; without it the calibrated fractions hold.
    `options` are those of `MachineSpec` and `SourceSpec`, or whole specs.

    Raises:
        SpecError: neither work nor model is given, or both, or a value cannot be.
        MissingFactError: the accelerator has no such rate, or nobody published the model's figures.

    Keywords:
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
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
    """The runs in a store with the summaries of their metrics, without events; the one that began last first.

    `store`: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in the user's data folder). `which`:
    `task`, `model` (a part of its name), `status`, `since` ("7d", "2026-11-01"), as `RunFilter` has them.

    Raises:
        SpecError: the store cannot be read, or one that was named is not there.

    Keywords:
        task: Runs of this task.
        model: Runs whose model has this in its name.
        status: Runs of this status; one that was killed stays running.
        since: Runs that began within this time, or since this day.
    """

def serve(
    model: Model | str,
    *,
    gpus: int | None | str = ...,
    static: bool = ...,
    encode: bool = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    rate: float | None | str = ...,
    concurrency: int | None | str = ...,
    requests: int | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
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
    stream_interval: int | None | str = ...,
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
    storage: str | None = ...,
    storage_bandwidth: float | None | str = ...,
    image_size: float | None | str = ...,
    image_bandwidth: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: RequestSpec | MachineSpec | ServingSpec | TechniqueRequest | StartSpec | SourceSpec,
) -> ServeAnswer:
    """Serving `model`: `concurrency` requests in flight over all replicas (None: as many as memory holds).

    `gpus` accelerators hold gpus / (tp x pp x dp) replicas. With `rate` (requests per second) the latencies under that
    load, too; with `requests` a run with an end, simulated. With `encode` each request is one pass over its input,
    without an answer. Tokens that are not given are `DEFAULT_INPUT` and `DEFAULT_OUTPUT`, or what the model's context
    holds. `static`: a fixed batch, all prompts first, then all answers.
    `options` are those of `RequestSpec` (`rate="5/s" ...`), `MachineSpec` (`gpu="h100", provider="aws" ...`),
    `ServingSpec` (`tp=8, weights="fp8" ...`), `TechniqueRequest` (`draft="Llama-3.2-1B" ...`), `StartSpec` and
    `SourceSpec`, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.

    Keywords:
        input_tokens (or input): Tokens of a prompt: 1024 (default), 200:800, lognormal:512:cv=1.2.
        output_tokens (or output): Tokens of an answer, as --input (default: 256).
        rate: Requests that arrive a second, on average: 20, 500/min.
        concurrency: Requests in flight over all replicas, each followed by another (default: as many as memory holds).
        requests: Requests in all: a run with an end, of a batch job, or instead of a duration.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        max_batch: Sequences that run at once, of each attention replica (default: the engine's).
        recv_interval: Steps from one look for new requests to the next: SGLang's --scheduler-recv-interval (default: 1).
        stream_interval: Tokens handed out together, after the first: a flag of vLLM and SGLang (default: 1).
        eager: Launch operations one by one, as with graphs switched off (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens with which all prompts begin: computed once, cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculate: with a model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of proposed tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Accelerators of each replica, besides its own, for prompts only.
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: The same as layers that stay, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Two micro-batches hide each other's messages: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bandwidth: What storage delivers to a node, as measured instead: 3GB/s.
        image_size: Container image to pull at a start: 10GB.
        image_bandwidth: Rate of pulling and unpacking it: 200MB/s.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def serve_sweep(
    model: Model | str,
    axis: str,
    *,
    values: tuple[int, ...] | None = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    rate: float | None | str = ...,
    concurrency: int | None | str = ...,
    requests: int | None | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
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
    stream_interval: int | None | str = ...,
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
    storage: str | None = ...,
    storage_bandwidth: float | None | str = ...,
    image_size: float | None | str = ...,
    image_bandwidth: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: RequestSpec | MachineSpec | ServingSpec | TechniqueRequest | StartSpec | SourceSpec,
) -> ServeSweep:
    """Estimates along `axis`: "concurrency" (requests in flight), "batch" (fixed batches) or "tp".

    `values` None: powers of two as far as memory holds (for tp: that divide the heads, within a node of eight). All
    other keywords as `flopwise.serve`.

    Raises:
        UnknownNameError: no such axis.
        SpecError: a value that cannot be, or an axis whose value is fixed as well.

    Keywords:
        input_tokens (or input): Tokens of a prompt: 1024 (default), 200:800, lognormal:512:cv=1.2.
        output_tokens (or output): Tokens of an answer, as --input (default: 256).
        rate: Requests that arrive a second, on average: 20, 500/min.
        concurrency: Requests in flight over all replicas, each followed by another (default: as many as memory holds).
        requests: Requests in all: a run with an end, of a batch job, or instead of a duration.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        max_batch: Sequences that run at once, of each attention replica (default: the engine's).
        recv_interval: Steps from one look for new requests to the next: SGLang's --scheduler-recv-interval (default: 1).
        stream_interval: Tokens handed out together, after the first: a flag of vLLM and SGLang (default: 1).
        eager: Launch operations one by one, as with graphs switched off (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens with which all prompts begin: computed once, cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculate: with a model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of proposed tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Accelerators of each replica, besides its own, for prompts only.
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: The same as layers that stay, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Two micro-batches hide each other's messages: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bandwidth: What storage delivers to a node, as measured instead: 3GB/s.
        image_size: Container image to pull at a start: 10GB.
        image_bandwidth: Rate of pulling and unpacking it: 200MB/s.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def advise(
    model: Model | str,
    *,
    task: Literal['train', 'serve'] = ...,
    tp: int | str = ...,
    batch: int | None | str = ...,
    seq: int | None | str = ...,
    ep: int | None | str = ...,
    precision: str | None = ...,
    stack: str | None = ...,
    attention: str | None = ...,
    offload: bool = ...,
    weights: str | None = ...,
    kv_dtype: str | None = ...,
    engine: str | None = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    **specs: MachineSpec | SourceSpec,
) -> ShapeAnswer:
    """Shapes of `model` on `tp` accelerators: `batch` sequences of `seq` tokens in training, as many cached in serving.

    `precision`, `stack`, `attention`, `offload` (the optimizer to host memory) and `ep` go with training; `weights`,
    `kv_dtype` and `engine` with serving. `options` are those of `MachineSpec` and `SourceSpec`, or whole specs.

    Raises:
        SpecError: a value cannot be, or does not go with the task.
        MissingFactError: only published figures of the model are known, or the device lacks a rate.

    Keywords:
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def simulate(
    model: Any,
    *,
    replicas: int | str = ...,
    slo: Slo | None = ...,
    cache: ResponseCache | None = ...,
    attain: float | str = ...,
    on_compile: Callable[[], None] | None = ...,
    trace: Path | None = ...,
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
    together: bool = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    lengths_from: Path | None = ...,
    prefixes: int | str = ...,
    prefix_tokens: int | None | str = ...,
    seed: int | str = ...,
    policy: str = ...,
    balancer: str = ...,
    step_tokens: int | None | str = ...,
    mix: bool = ...,
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
    stream_interval: int | None | str = ...,
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
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    duration: float | None | str = ...,
    think: float | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: Traffic | Scheduling | ServingSpec | TechniqueRequest | MachineSpec | SourceSpec,
) -> SimulateAnswer:
    """Run requests through `replicas` of a deployment, step by step, and say what their users see.

    Further keywords are those of `Traffic` (`rate=5, trace=... `), `Scheduling`, `ServingSpec` (`tp=8 ...`),
    `TechniqueRequest` (`draft="eagle", acceptance=0.7 ...`), `MachineSpec` and `SourceSpec`, or whole specs. `slo`:
    what a request must hold to count into the goodput. `cache`: answers that are given again; the replicas that it
    saves are those that `attain` of the requests need to hold the objective.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        InfeasibleError: weights and one request do not fit the memory.
        MissingFactError: a fact that the answer needs is not known.

    Keywords:
        trace: A CSV file of requests: arrival_s, prompt_tokens, output_tokens ...; or Mooncake's JSON lines: timestamp, input_length, output_length, hash_ids.
        scale: Replay the trace so many times as fast.
        rate: Requests that arrive a second, on average: 20, 500/min.
        arrivals: How requests come at their rate: poisson, gamma (bursts), uniform, or diurnal (a daily wave).
        duration_s (or duration): Requests come this long (default: 10 min).
        requests: Requests in all: a run with an end, of a batch job, or instead of a duration.
        burstiness: Of gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, 3 comes in clumps.
        peak: Highest rate over the mean rate: of diurnal arrivals, and what replicas of a plan are sized for.
        peak_hour: Of diurnal arrivals (default: 14).
        weekend: Of diurnal arrivals: a weekend day over another.
        profile: Their rate by the hour of the week: office, daily, or a file of hour,rate or of a trace; files may list 24 or 168 rates. The rate that is given is the week's mean.
        users: Or so many users, who ask again after each answer.
        think_s (or think): Of users: the pause before they ask again; of sessions: on average.
        turns: What comes are sessions of so many turns, as --input: each begins with all before it.
        tool_share: Of the turns after the first: they follow a tool and no person (default: none).
        tool_pause: How long a tool takes on average.
        together: Of users: all begin at one instant, even if they ask alike.
        input_tokens (or input): Tokens of a prompt: 1024 (default), 200:800, lognormal:512:cv=1.2.
        output_tokens (or output): Tokens of an answer, as --input (default: 256).
        lengths_from: Draw pairs of prompt and answer from this trace file.
        prefixes: Prompts begin with one of so many texts,
        prefix_tokens: of so many tokens, before their --input.
        seed: Of the draws; the same seed, the same run.
        policy: Who goes first: fcfs, priority, shortest, shortest-prompt, deadline.
        balancer: Who goes where: round-robin, least-loaded, least-tokens, prefix-aware.
        step_tokens: Tokens of an engine step (default: the engine's).
        mix: Prompts and answers share steps, or prompts go first.
        preempt: What becomes of a sequence when the cache is full.
        prefix_cache: Keep shared prefixes (default: if any).
        kv_stores: Where prefixes go that the cache has no room for, of each replica, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD for a GB and month).
        prefill_replicas: So many further replicas do prompts only and hand them over.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        max_batch: Sequences that run at once, of each attention replica (default: the engine's).
        recv_interval: Steps from one look for new requests to the next: SGLang's --scheduler-recv-interval (default: 1).
        stream_interval: Tokens handed out together, after the first: a flag of vLLM and SGLang (default: 1).
        eager: Launch operations one by one, as with graphs switched off (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens with which all prompts begin: computed once, cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculate: with a model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of proposed tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Accelerators of each replica, besides its own, for prompts only.
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: The same as layers that stay, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Two micro-batches hide each other's messages: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def autoscale(
    model: Any,
    *,
    rule: Autoscaling | None = ...,
    slo: Slo | None = ...,
    attain: float | None | str = ...,
    compare: bool = ...,
    cache: ResponseCache | None = ...,
    on_compile: Callable[[], None] | None = ...,
    report: Callable[[float, float], None] | None = ...,
    trace: Path | None = ...,
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
    together: bool = ...,
    input_tokens: int | str | None = ...,
    output_tokens: int | str | None = ...,
    lengths_from: Path | None = ...,
    prefixes: int | str = ...,
    prefix_tokens: int | None | str = ...,
    seed: int | str = ...,
    policy: str = ...,
    balancer: str = ...,
    step_tokens: int | None | str = ...,
    mix: bool = ...,
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
    stream_interval: int | None | str = ...,
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
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
    purchase: str = ...,
    price: float | None | str = ...,
    gpus_per_node: int | None | str = ...,
    network: float | None | str = ...,
    intra_node: str | None = ...,
    power_limit: float | None | str = ...,
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    duration: float | None | str = ...,
    think: float | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: Traffic | Scheduling | ServingSpec | TechniqueRequest | MachineSpec | SourceSpec,
) -> AutoscaleAnswer:
    """Run requests through replicas that an autoscaler starts and drains; further keywords as `simulate`.

    With an objective, `compare` finds the fewest fixed replicas that hold it for as many requests as the autoscaler's
    do, or for a share `attain`; without one, a fixed peak is the most replicas that the autoscaler had.

    Raises:
        SpecError: a value or a name that cannot be, or traffic that follows its answers; InfeasibleError and
            MissingFactError as `simulate`.

    Keywords:
        trace: A CSV file of requests: arrival_s, prompt_tokens, output_tokens ...; or Mooncake's JSON lines: timestamp, input_length, output_length, hash_ids.
        scale: Replay the trace so many times as fast.
        rate: Requests that arrive a second, on average: 20, 500/min.
        arrivals: How requests come at their rate: poisson, gamma (bursts), uniform, or diurnal (a daily wave).
        duration_s (or duration): Requests come this long (default: 10 min).
        requests: Requests in all: a run with an end, of a batch job, or instead of a duration.
        burstiness: Of gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, 3 comes in clumps.
        peak: Highest rate over the mean rate: of diurnal arrivals, and what replicas of a plan are sized for.
        peak_hour: Of diurnal arrivals (default: 14).
        weekend: Of diurnal arrivals: a weekend day over another.
        profile: Their rate by the hour of the week: office, daily, or a file of hour,rate or of a trace; files may list 24 or 168 rates. The rate that is given is the week's mean.
        users: Or so many users, who ask again after each answer.
        think_s (or think): Of users: the pause before they ask again; of sessions: on average.
        turns: What comes are sessions of so many turns, as --input: each begins with all before it.
        tool_share: Of the turns after the first: they follow a tool and no person (default: none).
        tool_pause: How long a tool takes on average.
        together: Of users: all begin at one instant, even if they ask alike.
        input_tokens (or input): Tokens of a prompt: 1024 (default), 200:800, lognormal:512:cv=1.2.
        output_tokens (or output): Tokens of an answer, as --input (default: 256).
        lengths_from: Draw pairs of prompt and answer from this trace file.
        prefixes: Prompts begin with one of so many texts,
        prefix_tokens: of so many tokens, before their --input.
        seed: Of the draws; the same seed, the same run.
        policy: Who goes first: fcfs, priority, shortest, shortest-prompt, deadline.
        balancer: Who goes where: round-robin, least-loaded, least-tokens, prefix-aware.
        step_tokens: Tokens of an engine step (default: the engine's).
        mix: Prompts and answers share steps, or prompts go first.
        preempt: What becomes of a sequence when the cache is full.
        prefix_cache: Keep shared prefixes (default: if any).
        kv_stores: Where prefixes go that the cache has no room for, of each replica, the nearest first: host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD for a GB and month).
        prefill_replicas: So many further replicas do prompts only and hand them over.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        max_batch: Sequences that run at once, of each attention replica (default: the engine's).
        recv_interval: Steps from one look for new requests to the next: SGLang's --scheduler-recv-interval (default: 1).
        stream_interval: Tokens handed out together, after the first: a flag of vLLM and SGLang (default: 1).
        eager: Launch operations one by one, as with graphs switched off (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens with which all prompts begin: computed once, cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculate: with a model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of proposed tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Accelerators of each replica, besides its own, for prompts only.
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: The same as layers that stay, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Two micro-batches hide each other's messages: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def batch(
    model: Any,
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
    lengths_from: Path | None = ...,
    seed: int | str = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
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
    stream_interval: int | None | str = ...,
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
    assume_family: str | None = ...,
    offline: bool = ...,
    facts: Path | None = ...,
    calibration: str | None = ...,
    replace: float | None | str = ...,
    input: int | str | None = ...,
    output: int | str | None = ...,
    **specs: BatchRequest | MachineSpec | ServingSpec | TechniqueRequest | SourceSpec,
) -> BatchAnswer:
    """Work off `requests` on spot workers.

    `options` are those of `BatchRequest`, `ServingSpec`, `MachineSpec`, `TechniqueRequest` and `SourceSpec`, or whole
    specs.

    Raises:
        SpecError: a value or a name that cannot be; InfeasibleError: the model does not fit, or interruptions undo
            the work faster than it is done; MissingFactError: a fact that the answer needs is not known.

    Keywords:
        queue: Work off so many requests instead of traffic.
        workers: Spot replicas for it.
        deadline: The run, or the queue, is done within this time: 6h, 30d.
        spot_interruptions: How often one spot instance is taken back: 0.1/day (default: as known of the provider).
        spot_price: US dollars for one spot accelerator and hour.
        replace_s (or replace): Until another is found: 5min.
        checkpoint_every: Time between checkpoints (default: in training the one that loses least, in a queue never).
        checkpoint_time: A worker saves for so long.
        fallback: On-demand replicas that save the deadline.
        trials: Draws of interruptions.
        cold_start: From the wish for a machine to its first request (default: a minute for the machine, then the engine).
        input_tokens (or input): Tokens of a prompt: 1024 (default), 200:800, lognormal:512:cv=1.2.
        output_tokens (or output): Tokens of an answer, as --input (default: 256).
        lengths_from: Draw pairs of prompt and answer from this trace file.
        seed: Of the draws; the same seed, the same run.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        weights: bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ... (default: as the checkpoint is published).
        kv_dtype: Of the key-value cache: bf16 (default; fp32 with such weights), fp8 ...
        engine: vllm (default), sglang, tensorrt-llm, llama.cpp, hf ...; encoders: tei, onnxruntime, openvino, tensorrt.
        memory_fraction: Of the memory the engine may use (default: its own).
        max_batch: Sequences that run at once, of each attention replica (default: the engine's).
        recv_interval: Steps from one look for new requests to the next: SGLang's --scheduler-recv-interval (default: 1).
        stream_interval: Tokens handed out together, after the first: a flag of vLLM and SGLang (default: 1).
        eager: Launch operations one by one, as with graphs switched off (vLLM's --enforce-eager).
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        shared_prefix: Tokens with which all prompts begin: computed once, cached once.
        prefix_hit: Share of a prompt's tokens found in the cache: 0.6, 60%.
        kv_keep: Share of cached tokens that eviction keeps (H2O, SnapKV).
        draft: Speculate: with a model, eagle, mtp or ngram.
        draft_tokens: Tokens that the draft proposes (default: 4).
        acceptance: Share of proposed tokens that are accepted.
        draft_weights: Format of the draft's weights (default: as published).
        prefill_gpus: Accelerators of each replica, besides its own, for prompts only.
        offload_weights: Share of the layers whose weights are kept in host memory.
        gpu_layers: The same as layers that stay, as llama.cpp -ngl.
        host: Processor that computes offloaded layers (llama.cpp).
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        redundant_experts: Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.
        overlap: Two micro-batches hide each other's messages: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def train(
    model: Model | str,
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
    lengths: Path | None = ...,
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
    zero: int | None | str = ...,
    fsdp: bool = ...,
    shard: int | None | str = ...,
    grad_sync: str | None = ...,
    recompute: str | None = ...,
    recompute_every: int | None | str = ...,
    recompute_first: int | None | str = ...,
    interleave: int | None | str = ...,
    schedule: str | None = ...,
    stage_layers: Sequence[int] | str = ...,
    sequence_parallel: bool = ...,
    offload: Sequence[str] = ...,
    gpu: str | None = ...,
    provider: str | None = ...,
    instance: str | None = ...,
    region: str | None = ...,
    marketplace: bool = ...,
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
    facts: Path | None = ...,
    calibration: str | None = ...,
    hsdp: int | None | str = ...,
    **specs: DataSpec | TrainingSpec | MachineSpec | RunConditionsSpec | ReadsSpec | SourceSpec,
) -> TrainAnswer:
    """Training `model` on `gpus` accelerators (default: one): sequences of `seq` tokens, `global_batch` a step.

    The run is `tokens` long, or `samples` sequences, each `epochs` times. `options` are those of `DataSpec` (`seq="8k",
    tokens="1T" ...`), `TrainingSpec` (`tp=8, zero=1, recompute="full" ...`), `MachineSpec` (`gpu="h100", provider="aws"
    ...`), `RunConditionsSpec` (`spares=2 ...`), `ReadsSpec` (`storage="nfs" ...`) and `SourceSpec`, or whole specs.
    Without any degree the best layout that fits is looked for. A layout that doesn't fit is estimated all the same:
    `fits` says so.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.

    Keywords:
        tokens: Tokens of the whole run: 2T.
        samples: Sequences of the whole run, instead of tokens.
        epochs: How often tokens or samples are gone through.
        seq: Tokens of a sequence: 8k (8,192).
        global_batch: Sequences of one optimizer step.
        global_batch_tokens: The same in tokens: 4M.
        padded: Share of each sequence that is padding, and no token of the run.
        packing: Documents shorter than a sequence are padded to the longest of a micro-batch, or packed (default: full).
        mean_length: Mean tokens of a document, with --packing; lognormal.
        length_spread: Standard deviation of the lengths over their mean.
        lengths: Lengths of documents instead: a file, `tokens` or `tokens,count` a line.
        precision: Of the matrix products in training.
        optimizer: adamw, adamw-8bit, adafactor, sgd, lion, muon ...
        stack: Training software: fsdp-compile, megatron, hf, deepspeed, torchtune ...
        attention: Attention implementation (default: flash; eager in software of before it).
        grad_dtype: Of the accumulated gradients (default: the stack's).
        master_weights: A separate fp32 copy of the weights (default: the stack's).
        lora: Train adapters of this rank on a frozen base.
        finetune: All weights of a pretrained model: sequences and batches as in fine-tuning, weights brought at the start.
        qlora: Adapters on a 4-bit base, of rank 16 unless --lora says another.
        lora_targets: all-linear (default), attention, qv, or a list such as q,k,v,o.
        base_format: Of the frozen weights under adapters: nf4, int8 ... (default: bf16).
        freeze: Not trained: embedding, head, towers, first:N layers, all-but-last:N layers; separated by commas.
        expert_skew: Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).
        capacity_factor: Experts compute this many times the mean load and drop what is more (default: nothing is dropped).
        micro_batch: Sequences of one pass of a replica.
        dp: Data-parallel replicas; in serving, attention replicas that share the experts.
        tp: Tensor-parallel degree.
        pp: Pipeline stages.
        cp: Context-parallel degree.
        ep: Expert-parallel degree (within dp x cp in training, tp x dp in serving).
        zero: ZeRO stage: 0 to 3.
        fsdp: Shard everything over the replicas, as ZeRO 3.
        shard (or hsdp): HSDP: ranks that ZeRO (3 unless said) shards over, replicated beyond.
        grad_sync: ZeRO 2 and 3 reduce gradients at each micro-batch, or whole ones at the last (default: the stack's).
        recompute: Activations computed again.
        recompute_every: Full recompute of every N-th block only.
        recompute_first: Full recompute of the first N blocks of each (virtual) stage only.
        interleave: Virtual stages of each pipeline rank.
        schedule: Pipeline schedule: 1f1b (default), interleaved, gpipe, zero-bubble, zb-v, dualpipe, dualpipe-v.
        stage_layers: Layers of each pipeline stage or virtual stage: 7,8,8,7; 0 where embedding or head is alone.
        sequence_parallel: Cut norms and residuals inside a tp group.
        offload: Keep these in host memory.
        gpu: Accelerator, in any common spelling: h100, A100-80GB (or --instance), with their number before it where there are several: 8xh100; or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.
        provider: Offers of this provider only: aws, gcp, azure, lambda ...
        instance: Offers of this instance type only; they set price and network.
        region: Offers in this region only; patterns such as eu-* are fine.
        marketplace: Hosts of third parties, too: communities and marketplaces, without SLA and attestations.
        purchase: Way to buy.
        price: US dollars for one accelerator and hour, instead of an offer's.
        gpus_per_node: Accelerators of a node.
        network: Network of one accelerator between nodes: 400Gbps, 50GB/s.
        intra_node: How accelerators of a node reach each other: fast link, PCIe with peer access, or through the host's memory (default: as machines with them are usually built).
        power_limit: Of one accelerator, below its own: 500W. Products run at lower clocks.
        mtbf: Time between failures of one GPU with its share of the node.
        node_mtbf: Time between failures of one node.
        failures: Failures as in a published run: llama-3 (default), rsc-1, rsc-2, opt-175b, bloom.
        restart: From a failure to full speed: 10min.
        checkpoint_every: Time between checkpoints (default: in training the one that loses least, in a queue never).
        checkpoint_bandwidth: With which the whole cluster writes: 200GB/s.
        checkpoint_per_gpu: With which each accelerator writes its part: 2GB/s.
        checkpoint_storage: What each node writes to: lustre, nvme ...
        async_checkpoints: Training waits for the copy to host memory only.
        repair: A failed node is away so long (default: replaced at once).
        spares: Nodes that stand by, with --repair.
        interruptions: How often one spot instance is taken back: 0.1/day.
        jitter: Of step times between GPUs: above 16 all wait for the slowest (default: 1.5%).
        validate_every: Steps between validations.
        validate_batches: Global batches of one validation (default: 1).
        loader_rate: Sequences that the data loader delivers to one GPU: 20/s.
        storage: Kind of storage that data (in serving, weights at a start) are read from: nfs, lustre, nvme, s3 ...
        storage_bandwidth: What storage delivers to a node, as measured instead: 3GB/s.
        token_bytes: Bytes of a stored token (default: 2, or 4 above 65,536 words).
        assume_family: Read an unknown model_type as this known family.
        offline: Take configurations from the local cache only.
        facts: Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.
        calibration: Profile of your own measurements that `flopwise calibrate` made: its constants hold over the shipped ones.
    """

def watch(
    *,
    prometheus: str | None = ...,
    match: Sequence[str] = ...,
    run: str | None = ...,
    store: str | None = ...,
    interval: float | str = ...,
    window: float | str = ...,
    plan: Path | None = ...,
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
    state: Path | None = ...,
    anew: bool = ...,
    **specs: WatchSpec,
) -> WatchStatus:
    """One look at what the options name (see `WatchSpec`): this machine's GPUs, `prometheus=URL` or `run=NAME`.

    Raises:
        SpecError: no source, or options that cannot be; says what to install or to give.

    Keywords:
        prometheus: Read a Prometheus server that scrapes dcgm-exporter, an engine, a run or node_exporter.
        match: Only series with this label: workload=chat.
        run: Read a recorded run, by id or name: live while it goes on, else played back.
        store: The store of runs: a file, or postgresql://... (or FLOPWISE_RUNS).
        interval: Between two looks.
        window: Over which a bound is judged.
        plan: A plan of `flopwise plan -o`: its intervals, limits, price and budget hold.
        rank: The candidate of the plan.
        price: Price of all machines an hour.
        started: How long ago the job began: cost counts from then, else from the first look.
        budget: The job may cost this.
        budget_per_day: 24 hours may cost this.
        target_p95: 95th percentile of the whole answer, or ttft=TIME (first token), tpot=TIME (of a token).
        min_tokens_per_s: Least throughput.
        utilisation: Most utilisation of a service's devices.
        utilisation_for: How long it may be above.
        memory: Most memory of a device in use.
        memory_for: How long it may be above.
        webhook: Post every alert that fires or clears there, as JSON.
        exec_on_budget: Run this command once when a budget is spent: it should stop the job.
        state: File of this job that keeps when it began and that the command ran, for when watch is started again.
        anew: Forget what is kept: the job begins now.
    """

def watch_live(
    *,
    prometheus: str | None = ...,
    match: Sequence[str] = ...,
    run: str | None = ...,
    store: str | None = ...,
    interval: float | str = ...,
    window: float | str = ...,
    plan: Path | None = ...,
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
    state: Path | None = ...,
    anew: bool = ...,
    **specs: WatchSpec,
) -> Iterator[WatchStatus]:
    """A status for each reading, for as long as the source has some; options and errors as of `watch`.
    Keywords:
        prometheus: Read a Prometheus server that scrapes dcgm-exporter, an engine, a run or node_exporter.
        match: Only series with this label: workload=chat.
        run: Read a recorded run, by id or name: live while it goes on, else played back.
        store: The store of runs: a file, or postgresql://... (or FLOPWISE_RUNS).
        interval: Between two looks.
        window: Over which a bound is judged.
        plan: A plan of `flopwise plan -o`: its intervals, limits, price and budget hold.
        rank: The candidate of the plan.
        price: Price of all machines an hour.
        started: How long ago the job began: cost counts from then, else from the first look.
        budget: The job may cost this.
        budget_per_day: 24 hours may cost this.
        target_p95: 95th percentile of the whole answer, or ttft=TIME (first token), tpot=TIME (of a token).
        min_tokens_per_s: Least throughput.
        utilisation: Most utilisation of a service's devices.
        utilisation_for: How long it may be above.
        memory: Most memory of a device in use.
        memory_for: How long it may be above.
        webhook: Post every alert that fires or clears there, as JSON.
        exec_on_budget: Run this command once when a budget is spent: it should stop the job.
        state: File of this job that keeps when it began and that the command ran, for when watch is started again.
        anew: Forget what is kept: the job begins now.
    """
