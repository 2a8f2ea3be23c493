"""What trainers are told, against the plan, by hand."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import program
from training_samples import DATA_PARALLEL, FINETUNE, FULL, PRETRAIN, deployment_of, spread
from validators import shell

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Exported
from flopwise.exports.hugging_face import loader_workers
from flopwise.exports.launch import step_counts
from flopwise.exports.targets import exported_plan
from flopwise.exports.targets.megatron import chunk_layers
from flopwise.exports.training_command import training_command
from flopwise.facts.catalog import load_facts
from flopwise.training.goodput import daly_interval_s
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Layout, Recipe
from flopwise.training.run import job_goodput
from flopwise.training.stage_memory import pipeline_stages


def read(files: Exported, path: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(files.files[path])
    return document


def arguments_of(deployment: Deployment) -> dict[str, list[str]]:
    """Options of a command with their values."""
    found: dict[str, list[str]] = {}
    for word in training_command(deployment).args:
        if word.startswith("--"):
            found[last := word] = []
        elif found:
            found[last].append(word)
    return found


def test_steps_are_tokens_over_tokens_of_a_step() -> None:
    run = step_counts(spread({}))
    assert run.steps == math.ceil(50e6 / (64 * 2048)) == 382
    assert run.accumulation == 64 // (8 * 2) == 4


def test_a_checkpoint_comes_every_daly_interval_in_steps() -> None:
    deployment = spread({}, document=FULL | {"data": {"tokens": "100B", "seq_len": 2048, "global_batch": 64}})
    job, step_s = deployment.training, deployment.candidate.figures["step_s"]
    assert job is not None
    assert step_s is not None
    nbytes, good = job_goodput(job)
    write_s = nbytes / 8e9  # eight devices, 1 GB/s each
    between_s = float(daly_interval_s(write_s, good.mtbf_s))
    assert step_counts(deployment).checkpoint_steps == round(between_s / step_s)


def test_a_stated_interval_is_kept() -> None:
    every = FULL | {"checkpoints": {"every": "10min"}}
    deployment = spread({}, document=every | {"data": {"tokens": "10B", "seq_len": 2048, "global_batch": 64}})
    step_s = deployment.candidate.figures["step_s"]
    assert step_s is not None
    assert step_counts(deployment).checkpoint_steps == round(600 / step_s)


def test_the_trainer_is_told_the_layout() -> None:
    made = exported_plan("torchrun", spread({}, output="/out", data="/data", learning_rate=1e-5))
    arguments, job = read(made, "training_arguments.json"), read(made, "job.json")
    assert arguments["output_dir"] == "/out"
    assert arguments["max_steps"] == 382
    assert (arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]) == (2, 4)
    assert (arguments["bf16"], arguments["fp16"], arguments["torch_compile"]) == (True, False, True)
    assert arguments["learning_rate"] == 1e-5
    assert arguments["fsdp_config"]["reshard_after_forward"] is True
    assert arguments["activation_checkpointing"] is False
    assert job["model"] == "meta-llama/Llama-3.1-8B"
    assert (job["data"], job["seq_len"], job["from_weights"], job["dtype"]) == ("/data", 2048, True, "float32")
    assert "torchrun --nnodes 1 --nproc-per-node 8 train.py training_arguments.json" in made.files["run.sh"]


def test_learning_rate_is_left_out_and_said() -> None:
    made = exported_plan("torchrun", spread({}))
    assert "learning_rate" not in read(made, "training_arguments.json")
    assert any("learning rate" in note for note in made.assumptions)


@pytest.mark.parametrize(
    ("layout", "field", "value"),
    [
        ({"recompute": "full"}, "fsdp_activation_checkpointing", True),
        ({"recompute": "none"}, "fsdp_activation_checkpointing", False),
        ({"zero": 3}, "fsdp_reshard_after_forward", True),
        ({"zero": 2}, "fsdp_reshard_after_forward", False),
        ({"offload": ["optimizer", "parameters"]}, "fsdp_offload_params", True),
    ],
)
def test_accelerate_shards_as_planned(layout: dict[str, Any], field: str, value: object) -> None:
    config = yaml.safe_load(exported_plan("accelerate", spread(layout)).files["accelerate.yaml"])
    assert config["distributed_type"] == "FSDP"
    assert (config["num_machines"], config["num_processes"]) == (1, 8)
    assert config["fsdp_config"][field] is value


def test_groups_that_shard_are_replicated() -> None:
    deployment = spread({"shard": 4})
    config = yaml.safe_load(exported_plan("accelerate", deployment).files["accelerate.yaml"])
    sizes = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4}
    assert config["parallelism_config"] == sizes
    assert "PARALLELISM_CONFIG_DP_SHARD_SIZE=4" in exported_plan("torchrun", deployment).files["run.sh"]


def test_every_nth_block_and_offloaded_activations_reach_the_trainer() -> None:
    layout = {"recompute": "full", "recompute_every": 2, "offload": ["activations"]}
    arguments = read(exported_plan("torchrun", spread(layout)), "training_arguments.json")
    assert arguments["activation_checkpointing"] is True
    assert arguments["fsdp_config"]["activation_checkpointing"] is False
    wanted = {"use_reentrant": False, "every_n_layers": 2, "offload": True}
    assert arguments["activation_checkpointing_kwargs"] == wanted
    alone = read(exported_plan("torchrun", spread({"offload": ["activations"]})), "job.json")
    assert alone["offload_activations"] is True


def test_first_blocks_reach_the_trainer_as_every_nth_of_as_many() -> None:
    """Of 32 layers every sixth is one of five; the first five are planned."""
    made = exported_plan("torchrun", spread({"recompute": "full", "recompute_first": 5}))
    arguments = read(made, "training_arguments.json")
    assert arguments["activation_checkpointing"] is True
    assert arguments["activation_checkpointing_kwargs"]["every_n_layers"] == 6
    assert any("one is recomputed, in place of the first 5" in text for text in made.assumptions)


def test_deepspeed_has_batches_that_multiply_and_the_stage() -> None:
    layout = {"stack": "deepspeed-zero3", "offload": ["optimizer"], "recompute": "full"}
    made = exported_plan("deepspeed", spread(layout))
    config = read(made, "deepspeed.json")
    assert config["train_batch_size"] == 64 == 2 * 4 * 8
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (2, 4)
    assert config["zero_optimization"]["stage"] == 3
    assert config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert "offload_param" not in config["zero_optimization"]
    assert config["bf16"] == {"enabled": True}
    assert read(made, "training_arguments.json")["deepspeed"] == "deepspeed.json"
    assert read(made, "training_arguments.json")["activation_checkpointing"] is True
    nodes = exported_plan("accelerate", spread(layout)).files["accelerate.yaml"]
    assert yaml.safe_load(nodes)["deepspeed_config"]["deepspeed_config_file"] == "deepspeed.json"


def test_half_precision_scales_its_loss() -> None:
    layout = {"stack": "deepspeed-zero3", "precision": "fp16", "zero": 2}
    document = FULL | {"precision": "fp16"}
    config = read(exported_plan("deepspeed", spread(layout, document=document)), "deepspeed.json")
    assert config["fp16"]["enabled"] is True
    assert config["fp16"]["loss_scale"] == 0  # dynamic
    assert config["bf16"]["enabled"] is False


def test_adapters_are_the_plans() -> None:
    deployment = deployment_of(FINETUNE | {"method": {"kind": "qlora", "rank": 8, "targets": ["attention"]}})
    made = exported_plan("peft", deployment)
    adapters = read(made, "adapter_config.json")
    assert (adapters["r"], adapters["lora_alpha"], adapters["lora_dropout"]) == (8, 8, 0.0)
    assert adapters["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    quantised = read(made, "quantization.json")
    assert quantised["load_in_4bit"] is True
    assert (quantised["bnb_4bit_quant_type"], quantised["bnb_4bit_compute_dtype"]) == ("nf4", "bfloat16")
    assert read(made, "job.json")["adapter_dtype"] == "float32"


def test_megatron_is_told_the_models_shape_and_the_layout() -> None:
    layout = {"stack": "megatron-te", "dp": 2, "tp": 2, "pp": 2, "zero": 1, "recompute": "full", "interleave": 4}
    found = arguments_of(spread(layout, document=PRETRAIN | {"model": "Llama-3.1-8B"}, output="/o", learning_rate=3e-4))
    wanted = {
        "--num-layers": "32", "--hidden-size": "4096", "--ffn-hidden-size": "14336", "--num-attention-heads": "32",
        "--num-query-groups": "8", "--kv-channels": "128", "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "2", "--num-virtual-stages-per-pipeline-rank": "4", "--lr": "0.0003",
        "--micro-batch-size": "2", "--global-batch-size": "1024", "--seq-length": "4096", "--save": "/o",
        "--train-iters": str(math.ceil(100e9 / (1024 * 4096))), "--recompute-granularity": "full",
        "--position-embedding-type": "rope", "--normalization": "RMSNorm", "--hidden-dropout": "0.0",
    }  # fmt: skip
    assert {name: found[name][0] for name in wanted} == wanted
    for name in ("--swiglu", "--group-query-attention", "--sequence-parallel", "--use-distributed-optimizer", "--bf16",
                 "--disable-bias-linear", "--untie-embeddings-and-output-weights"):  # fmt: skip
        assert found[name] == []


def test_megatron_is_told_what_recipes_turn_on_where_the_plan_counts_on_it() -> None:
    """Flags of megatron/training/arguments.py for what Megatron-Bridge's scripts/performance set."""
    layout = {"dp": 4, "tp": 2, "zero": 1}
    plain, tuned = (
        arguments_of(spread({"stack": name, **layout}, document=PRETRAIN | {"model": "Llama-3.1-8B"}))
        for name in ("megatron-te", "nemo")
    )
    assert set(tuned) - set(plain) == {
        "--tp-comm-overlap", "--grad-reduce-in-bf16", "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl",
    }  # fmt: skip
    experts = {"dp": 8, "ep": 8, "zero": 1}
    plain, tuned = (
        arguments_of(spread({"stack": name, **experts}, document=PRETRAIN | {"model": "Mixtral-8x7B"}))
        for name in ("megatron-te", "nemo")
    )
    assert (plain["--moe-token-dispatcher-type"], tuned["--moe-token-dispatcher-type"]) == (["alltoall"], ["flex"])
    assert tuned["--moe-flex-dispatcher-backend"] == ["deepep"]


def test_megatron_is_told_of_experts_and_latent_attention() -> None:
    layout = {"stack": "megatron-te", "zero": 1, "ep": 8}
    found = arguments_of(spread(layout, document=PRETRAIN | {"model": "DeepSeek-V2-Lite"}))
    wanted = {
        "--num-experts": "64", "--moe-router-topk": "6", "--moe-ffn-hidden-size": "1408", "--kv-lora-rank": "512",
        "--moe-shared-expert-intermediate-size": "2816", "--qk-head-dim": "128", "--qk-pos-emb-head-dim": "64",
        "--v-head-dim": "128", "--expert-model-parallel-size": "8", "--ffn-hidden-size": "10944",
        "--moe-layer-freq": f"[{','.join(['0'] + ['1'] * 26)}]",
    }  # fmt: skip
    assert {name: found[name][0] for name in wanted} == wanted
    assert "--multi-latent-attention" in found
    assert "--q-lora-rank" not in found  # its queries are not compressed


def test_layers_lie_where_the_plan_has_them() -> None:
    facts = load_facts()
    recipe = Recipe(seq_len=2048, global_batch=64, optimizer=facts.optimizer("adamw"), stack=facts.stack("megatron-te"))
    for layers, stages in ((30, 4), (31, 4), (61, 8), (22, 4), (7, 2)):
        sizes = chunk_layers(layers, stages, 1)
        assert (len(sizes), sum(sizes)) == (stages, layers)
        model = facts.model("Llama-3.1-8B")
        stack = model.stacks[0]
        short = stack.__class__(**{f: getattr(stack, f) for f in stack.__slots__} | {"order": (0,) * layers})
        model = model.__class__(**{f: getattr(model, f) for f in model.__slots__} | {"stacks": (short,)})
        planned = pipeline_stages(MemoryTable(model, recipe), Layout(pp=stages))
        assert int(planned[0].layers) == sizes[0]
        assert int(planned[-1].layers) == sizes[-1]
        if stages > 2:
            assert max(int(stage.layers) for stage in planned) == max(sizes)


def test_virtual_stages_hold_whole_layers_embedding_or_head() -> None:
    """Llama 3 (arXiv:2407.21783) section 3.3.2: the first chunk has the embedding alone, the last the head."""
    sizes = chunk_layers(126, 16, 8)
    assert (len(sizes), sizes[0], sizes[-1], set(sizes[1:-1])) == (128, 0, 0, {1})
    assert chunk_layers(94, 32, 3) == [0, *[1] * 94, 0]
    assert chunk_layers(32, 2, 2) == [8, 8, 8, 8]
    layout = {"stack": "megatron-te", "dp": 1, "tp": 1, "pp": 8, "zero": 0, "interleave": 2}
    found = arguments_of(spread(layout, document=PRETRAIN | {"model": "Llama-3.2-3B"}))  # 28 layers
    stages = "Et*1|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2|t*1|t*1|t*1L"
    assert found["--pipeline-model-parallel-layout"] == [stages]
    assert "--num-virtual-stages-per-pipeline-rank" not in found


def test_torchtitan_is_told_the_degrees() -> None:
    layout = {"dp": 4, "tp": 2, "zero": 3, "recompute": "selective", "shard": 2}
    found = arguments_of(spread(layout, document=PRETRAIN | {"model": "Llama-3.1-8B"}, model_path="/tokenizer"))
    wanted = {
        "--module": "llama3", "--config": "llama3_8b", "--parallelism.tensor-parallel-degree": "2",
        "--parallelism.data-parallel-shard-degree": "2", "--parallelism.data-parallel-replicate-degree": "2",
        "--training.local-batch-size": "2", "--training.global-batch-size": "1024", "--training.seq-len": "4096",
        "--parallelism.fsdp-reshard-after-forward": "always", "--hf-assets-path": "/tokenizer",
    }  # fmt: skip
    assert {name: found[name][0] for name in wanted} == wanted
    assert "--compile.enable" in found
    assert (
        training_command(spread(layout, document=PRETRAIN | {"model": "Llama-3.1-8B"})).args[-1].endswith("selective")
    )


def test_some_blocks_are_those_of_each_virtual_stage() -> None:
    layout = {"stack": "megatron-te", "dp": 4, "pp": 2, "zero": 1, "interleave": 4, "recompute": "full"}
    document = PRETRAIN | {"model": "Llama-3.1-8B"}
    found = arguments_of(spread(layout | {"recompute_every": 3}, document=document))
    assert found["--recompute-method"] == ["block"]
    first = arguments_of(spread(layout | {"recompute_first": 3}, document=document))
    assert first["--recompute-method"] == ["block"]
    assert first["--recompute-num-layers"] == ["3"]
    assert found["--recompute-num-layers"] == ["2"]  # of the 32 / 8 = 4 layers of a stage every third: 1 1/3


def test_a_pipelines_local_batch_holds_all_its_micro_batches() -> None:
    found = arguments_of(spread({"dp": 4, "pp": 2, "zero": 1}, document=PRETRAIN | {"model": "Llama-3.1-8B"}))
    assert found["--training.local-batch-size"] == [str(1024 // 4)]
    assert found["--parallelism.pipeline-parallel-microbatch-size"] == ["2"]
    assert found["--parallelism.pipeline-parallel-layers-per-stage"] == ["16"]


@pytest.mark.parametrize(
    ("target", "layout", "reason"),
    [
        ("accelerate", {"pp": 2, "dp": 4}, "no pipeline parallelism"),
        ("accelerate", {"tp": 2, "dp": 4}, "no tensor parallelism"),
        ("deepspeed", {"zero": 3, "shard": 4}, "HSDP"),
        ("peft", {}, "trains all weights"),
        ("accelerate", {"precision": "fp8"}, "not in fp8"),
        ("megatron", {"zero": 3}, "ZeRO 1"),
        ("torchtitan", {"precision": "fp8"}, "no configuration"),
        ("torchtitan", {"recompute": "full", "recompute_every": 2}, "not every n-th"),
        ("torchtitan", {"recompute": "full", "recompute_first": 2}, "the first ones"),
    ],
)
def test_what_a_trainer_cannot_do_is_refused(target: str, layout: dict[str, Any], reason: str) -> None:
    document = FULL | ({"precision": "fp8"} if layout.get("precision") == "fp8" else {})
    with pytest.raises(InfeasibleError) as refused:
        exported_plan(target, spread(layout, document=document))
    assert any(reason in text for text in refused.value.reasons), refused.value.reasons


def test_a_candidate_that_would_do_is_named() -> None:
    chosen = spread({}).plan.plans
    ranks = [c.rank for c in chosen if max(c.layout[degree] for degree in ("tp", "pp", "cp", "ep")) == 1]
    with pytest.raises(InfeasibleError) as refused:
        exported_plan("accelerate", spread({"tp": 2, "dp": 4}))
    wanted = f"--rank {ranks[0]}" if ranks else "--stack megatron-te"
    assert wanted in refused.value.reasons[0]


def test_a_plan_for_another_stack_that_would_not_fit_is_refused() -> None:
    """Megatron keeps 16-bit weights and fuses its loss; Trainer's fp32 weights and logits do not fit beside."""
    layout = {"stack": "megatron-te", "zero": 1, "micro_batch": 8}
    with pytest.raises(InfeasibleError) as refused:
        exported_plan("accelerate", spread(layout))
    assert any("plan again with --stack hf-trainer" in text for text in refused.value.reasons)


def test_several_machines_are_told_apart_by_the_environment() -> None:
    deployment = deployment_of(FULL, {"num_gpus": 16, "num_instances": 2, "layout": DATA_PARALLEL | {"dp": 16}})
    for target, names in (("torchrun", "PET_NODE_RANK"), ("accelerate", "NODE_RANK"), ("deepspeed", "PET_MASTER_ADDR")):
        script = exported_plan(target, deployment).files["run.sh"]
        shell(script)
        assert names in script


@pytest.mark.parametrize("target", ["torchrun", "accelerate", "deepspeed", "slurm"])
def test_scripts_are_good_shell(target: str) -> None:
    files = exported_plan(target, spread({}, name="$(id) `x` 'y'")).files
    shell(next(text for path, text in files.items() if path.endswith((".sh", ".sbatch"))))


def directives(script: str) -> dict[str, str]:
    """Directives of sbatch, their values as its parser unquotes them."""
    lines = [line.removeprefix("#SBATCH ") for line in script.split("\nset -euo", maxsplit=1)[0].splitlines()[1:]]
    pairs = (shlex.split(line)[0].removeprefix("--").partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def test_slurm_is_told_nodes_and_time() -> None:
    deployment = deployment_of(
        FULL,
        {"num_gpus": 16, "num_instances": 2, "layout": DATA_PARALLEL | {"dp": 16}, "seconds_high": 100_000.0,
         "start_s": 400.0},
        queue='gpu "fast"', account="team-1",
    )  # fmt: skip
    found = directives(exported_plan("slurm", deployment).files["run.sbatch"])
    assert (found["nodes"], found["gpus-per-node"], found["ntasks-per-node"]) == ("2", "8", "1")
    assert found["time"] == "1-03:54:00"  # 100,400 s are 1,674 minutes, rounded upwards: 27 h 54 min
    assert (found["partition"], found["account"]) == ('gpu "fast"', "team-1")
    assert "qos" not in found
    job, step_s = deployment.training, deployment.candidate.figures["step_s"]
    assert job is not None
    assert step_s is not None
    assert found["signal"] == f"B:USR1@{math.ceil(step_s + job_goodput(job)[1].write_s) + 60}"


def test_a_line_end_in_a_directive_is_refused() -> None:
    with pytest.raises(InfeasibleError):
        exported_plan("slurm", spread({}, queue="a\n#SBATCH --nodes=1000"))


def test_the_batch_script_hands_its_signal_on_and_queues_anew(tmp_path: Path) -> None:
    """With stand-ins: srun runs the command here, torchrun waits for SIGTERM, scancel sends it, scontrol notes."""
    made = exported_plan("slurm", spread({})).files["run.sbatch"]
    (tmp_path / "run.sbatch").write_text(made, encoding="utf-8")
    programs = {
        "scontrol": 'if [ "$1" = show ]; then printf "node1\\nnode2\\n"; else echo "$@" >> calls; fi',
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"',
        "torchrun": 'echo "$PET_MASTER_ADDR $PET_NODE_RANK $*" > started; '
        'exec python3 -c "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); '
        "open('pid', 'w').write(str(os.getpid())); time.sleep(60)\"",
        "scancel": 'echo "$@" >> calls; kill -TERM "$(cat pid)"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_ON_NODE": "2", "SLURM_NODEID": "0",
    }  # fmt: skip
    wait = "for i in $(seq 1000); do [ -s pid ] && break; sleep 0.05; done; kill -USR1 $!; wait $!"
    done = subprocess.run(
        [program("bash", "apt-get install bash"), "-c", f"cd {shlex.quote(str(tmp_path))}; bash run.sbatch & {wait}"],
        env=environment, capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == ["--signal=TERM 12345", "requeue 12345"]
    started = (tmp_path / "started").read_text()
    assert re.match(r"node1 0 --nnodes 1 --nproc-per-node 8 train.py training_arguments.json", started)


def test_the_exported_program_is_the_packages_own(tmp_path: Path) -> None:
    text = exported_plan("torchrun", spread({})).files["train.py"]
    assert text == (Path(__file__).parents[2] / "src/flopwise/exports/programs/train.py").read_text(encoding="utf-8")
    assert compile(text, str(tmp_path), "exec")
    own = exported_plan("torchrun", spread({}, script="mine.py"))
    assert "train.py" not in own.files
    assert "mine.py training_arguments.json" in own.files["run.sh"]


def test_a_bare_size_brings_its_configuration() -> None:
    layout = {"stack": "hf-trainer", "zero": 3, "micro_batch": 1, "recompute": "full"}
    made = exported_plan(
        "accelerate",
        spread(layout, document=PRETRAIN | {"constraints": PRETRAIN["constraints"] | {"stack": "hf-trainer"}}),
    )
    config = read(made, "model/config.json")
    assert (config["model_type"], config["hidden_size"], config["num_hidden_layers"]) == ("llama", 4096, 32)
    assert read(made, "job.json")["model"] == "model"


@pytest.mark.parametrize(("vcpus", "workers"), [(None, 2), (2, 1), (12, 6), (192, 8)])
def test_loaders_take_half_of_the_vcpus_of_their_accelerator(vcpus: int | None, workers: int) -> None:
    one = deployment_of(FINETUNE)
    assert one.gpus_per_node == 1
    assert loader_workers(replace(one, offer=replace(one.offer, vcpus=vcpus))) == workers
