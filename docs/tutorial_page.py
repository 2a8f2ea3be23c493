"""docs/tutorial.md: six questions with the answers that the commands give, run when the page is made."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

from flopwise import cli

PAGE = Path(__file__).parent / "tutorial.md"
RUN = re.compile(r"^\$ (flopwise .+?)  # (\d+)$", re.MULTILINE)
"""A command to be run, and how many lines of its answer are shown."""
TEXT = """# Five minutes with flopwise

Six questions that people ask, and how to read the answers. Every output below was made by running its command; this
page is written by `python docs/generate.py`. You need no GPU, no account and no network.

The first line of an answer is the verdict. An 80 % interval contains the measured value in eight of ten comparable
measurements; the answer says how many measurements it is based on. Names can be written in any common spelling (`h100`,
`H100-SXM`, `8xh100`), quantities take units (`32k`, `1T`, `2/s`, `1s`, `$100`), and an error message lists the allowed
values.

## 1. Does it fit?

One row for each weight format: whether it fits and with which probability, the longest request, the number of requests
at once, the speed and the cost.

$ flopwise fit Llama-3.1-8B --gpu l4 --context 16k  # 9

The chance is neither 0 nor 1 because memory estimates have errors, which were measured. Choose a format with room to
spare; `scores kept` is the share of the 16-bit model's scores that public evaluations measured.

## 2. What takes the memory, and what would make it fit?

The memory of the fullest accelerator, item by item. Without a serving option (`--context`, `--concurrency`) the command
assumes training.

$ flopwise memory Llama-3.1-8B --gpu a100-80gb --seq 4k  # 1

The changes that would make it fit are listed with what each saves. `--explain` shows the formula behind each item.

## 3. How fast does it answer?

TTFT is the time to the first token, TPOT the time per token after it ([glossary](glossary.md)).

$ flopwise serve Llama-3.1-8B --gpu l40s --rate 2/s --input 1k --output 200  # 1

With `--rate` the answer has percentiles under that load; without it, the throughput with as many requests as memory
holds. `flopwise simulate` with the same options simulates every request, and can replay a trace of your own.

## 4. How long does the training take, and what does it cost?

The fastest layout (data, tensor, pipeline parallel ...) is chosen unless you give one.

$ flopwise train Llama-3.1-8B --gpu 64xh100 --tokens 1T --seq 8k  # 1

MFU is the share of the datasheet's rate that goes into the model's own operations. `bound by` names what to improve;
`flopwise explain train ...` with the same options ranks what each change would do.

## 5. Which machines are the cheapest for it?

All offers with dated prices are searched: machines, layouts and purchase options, ranked by cost; those that miss
a target are left out.

$ flopwise plan Llama-3.1-8B --task finetune --lora 16 --tokens 50M --budget 100 --top 3  # 1

The answer ends with the `train` or `serve` command that estimates the best plan in full. `-o plan.json` saves the plan,
and `flopwise export kubernetes plan.json -o out` (or skypilot, torchrun, vllm ...) writes the files that run it.

## 6. Fine-tune, train from scratch, or call an API?

The cost of the same traffic for each option, month by month, and the volume above which your own machines cost less.

$ flopwise compare Llama-3.1-8B --tokens-per-month 500M --no-simulate  # 10

Every price has a date; `flopwise prices` shows how old they are, and imports or refreshes them.

## Where to go next

| you want | go to |
|---|---|
| a whole platform: many workloads, several clouds, one bill | [fleet](questions/fleet.md) |
| to know how far to trust a figure | [how it works](how-it-works.md), [its origin](questions/origin.md) |
| sliders instead of options | `flopwise web`, [in a browser](questions/web.md) |
| the same from Python or a notebook | [Python](questions/python.md) |
| to see what your run really did | [record](questions/record.md), [watch](questions/watch.md) |
| estimates calibrated to your own measurements | [calibrate](questions/calibrate.md) |
| every option | [the command line](cli.md) |
"""


def page() -> str:
    """The whole page."""
    return RUN.sub(lambda found: answered(found[1], int(found[2])), TEXT)


def answered(line: str, shown: int) -> str:
    """A command with the first lines that it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main(shlex.split(line)[1:])
    assert code == 0, line
    output = out.getvalue().splitlines()
    rest = ["..."] if len(output) > shown else []
    return "\n".join(["```console", f"$ {line}", *output[:shown], *rest, "```"])


os.environ.setdefault("FLOPWISE_CONFIG", "")  # as for somebody without settings
