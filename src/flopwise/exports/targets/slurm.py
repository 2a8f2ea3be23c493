"""SLURM: a batch script that starts torchrun on each node, saves before its time is over, and queues itself anew."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import command_text, comment_text, script_text
from flopwise.exports.exported import Files
from flopwise.exports.launch import run_title
from flopwise.exports.training_command import training_command, training_refusals
from flopwise.facts.software import platform
from flopwise.training.run import job_goodput
from flopwise.units import DAY_S, HOUR_S

MARGIN_S = 60
"""SLURM may send a signal so much earlier than asked for (sbatch, `--signal`)."""
LONGEST_WARNING_S = 65535
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SETTINGS = {"queue": "partition", "account": "account", "priority": "qos"}
"""Directives that settings say; what is not said is the cluster's default."""
MEET = """cd "$SLURM_SUBMIT_DIR"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export PET_MASTER_ADDR="${hosts[0]}" PET_MASTER_PORT="$((20000 + SLURM_JOB_ID % 10000))\""""
STOP = """# SIGUSR1 comes before the time is over: the program saves and stops, and the job queues itself anew.
# torchrun itself would end its processes at once on SIGTERM, so that it has to leave that to them.
again=0
trap 'again=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
export TORCHELASTIC_SIGNALS_TO_HANDLE=SIGINT"""
START = """# shellcheck disable=SC2016
srun --cpus-per-task="$SLURM_CPUS_ON_NODE" --kill-on-bad-exit=1 \\
  bash -c 'trap "" TERM; export PET_NODE_RANK="$SLURM_NODEID"; exec "$@"' node \\
  {command} "$@" &
run=$!
status=0
wait "$run" || status=$?
while kill -0 "$run" 2>/dev/null; do
  status=0
  wait "$run" || status=$?
done
if ((again)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status\""""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why SLURM cannot run the plan."""
    for setting in SETTINGS:
        if CONTROL.search(getattr(deployment.settings, setting) or ""):
            yield f"--{setting}: an sbatch directive is a single line; leave out line breaks and control characters"
    yield from training_refusals(deployment)


def time_text(seconds: float) -> str:
    """Days-hours:minutes:seconds, in whole minutes upwards."""
    minutes = math.ceil(seconds / 60)
    days, hours = divmod(minutes * 60, int(DAY_S))
    return f"{days}-{hours // int(HOUR_S):02d}:{hours % int(HOUR_S) // 60:02d}:00"


def warning_s(deployment: Deployment) -> int:
    """Seconds before the time limit at which a run is signalled to save: a step, the checkpoint, SLURM's margin.

    Source: `training.goodput` for the checkpoint; sbatch's manual for the margin.
    Assumes: the signal comes at the beginning of a step.
    """
    step_s = deployment.candidate.figures["step_s"]
    assert step_s is not None
    return min(math.ceil(step_s + job_goodput(deployment.train_job)[1].write_s) + MARGIN_S, LONGEST_WARNING_S)


def directives(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Options of sbatch with their values; "" for those that have none."""
    chosen = deployment.candidate
    longest = chosen.seconds_high if chosen.seconds_high is not None else chosen.seconds
    yield "job-name", deployment.name
    yield "nodes", str(deployment.num_nodes)
    yield "ntasks-per-node", "1"
    if platform(deployment.accelerator) != "cpu":
        yield "gpus-per-node", str(deployment.gpus_per_node)
    yield "exclusive", ""
    yield "mem", "0"
    yield "time", time_text(chosen.start_s + longest)
    yield "signal", f"B:USR1@{warning_s(deployment)}"
    yield "requeue", ""
    yield "open-mode", "append"
    yield "output", "%x-%j.out"
    for setting, name in SETTINGS.items():
        if (value := getattr(deployment.settings, setting)) is not None:
            yield name, value


def directive_text(name: str, value: str) -> str:
    """One directive; sbatch reads quotes and backslashes as a shell does within double quotes."""
    if not value:
        return f"#SBATCH --{name}"
    if re.fullmatch(r"[A-Za-z0-9_%.,:@/+-]+", value):
        return f"#SBATCH --{name}={value}"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{quoted}"'


def export(deployment: Deployment) -> Files:
    """`run.sbatch`, and what its command reads, in the folder from which it is submitted."""
    one = training_command(deployment)
    head = "\n".join(directive_text(name, value) for name, value in directives(deployment))
    environment = [f"export {command_text((), one.env)}"] if one.env else []
    start = START.replace("{command}", command_text(one.args).replace("\n", "\n  "))
    script = script_text(comment_text(run_title(deployment)), MEET, *environment, STOP, start)
    shebang, rest = script.split("\n", 1)
    left = [
        f"--{setting} ({name})" for setting, name in SETTINGS.items() if getattr(deployment.settings, setting) is None
    ]
    notes = [
        "the time limit is the upper end of the plan's interval; if the partition allows less: sbatch --time=...",
        "whole nodes are taken, with all of their cores and memory",
        *([f"defaults of the cluster apply to {', '.join(left)}"] if left else []),
    ]
    return Files(
        files={**one.files, "run.sbatch": f"{shebang}\n{head}\n{rest}"},
        apply=("sbatch run.sbatch",), assumptions=(*one.assumptions, *notes),
    )  # fmt: skip
