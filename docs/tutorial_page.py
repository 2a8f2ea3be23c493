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
page is written by `python docs/generate.py`. No GPU, no account and no network is needed.

Each answer begins with the verdict in a sentence. "80 % interval" means what it says: of measurements like this one,
eight in ten lie inside; the answer names how many measured rows stand behind it. A name may be written as you like
(`h100`, `H100-SXM`, `8xh100`), quantities take units (`32k`, `1T`, `2/s`, `1s`, `$100`), and a wrong one is answered
with what is allowed.

## 1. Does it fit?

One row for each weight format: whether it fits and how likely, the longest request, how many run at once, how fast that
is and what it costs.

$ flopwise fit Llama-3.1-8B --gpu l4 --context 16k  # 9

The chance is not 0 or 1 because memory estimates have errors, too: it comes from measured ones. Take a format with room
to spare; `scores kept` is what public evaluations found of the 16-bit model's.

## 2. What takes the memory, and what would make it fit?

Item by item on the fullest accelerator. Without a serving option (`--context`, `--concurrency`) it is training.

$ flopwise memory Llama-3.1-8B --gpu a100-80gb --seq 4k  # 1

The changes that would make it fit are listed with what each saves. `--explain` shows the formula behind each item.

## 3. How fast does it answer?

TTFT is the time to the first token, TPOT that of each further one ([glossary](glossary.md)).

$ flopwise serve Llama-3.1-8B --gpu l40s --rate 2/s --input 1k --output 200  # 1

With `--rate` you see percentiles under that load, without it the most that memory holds. `flopwise simulate` with the
same options runs the requests one by one, and reads a trace of your own.

## 4. How long does the training take, and what does it cost?

The layout (data, tensor, pipeline parallel ...) is chosen unless you say one.

$ flopwise train Llama-3.1-8B --gpu 64xh100 --tokens 1T --seq 8k  # 1

MFU is the share of the datasheet's rate that goes into the model's own operations. `bound by` names what to improve;
`flopwise explain train ...` with the same options ranks what each change would do.

## 5. Which machines are the cheapest for it?

Over all offers with dated prices: machines, layouts and ways to buy, ranked; what misses the targets is left out.

$ flopwise plan Llama-3.1-8B --task finetune --lora 16 --tokens 50M --budget 100 --top 3  # 1

Every plan ends with the `train` or `serve` line that shows it in full. `-o plan.json` keeps it, and
`flopwise export kubernetes plan.json -o out` (or skypilot, torchrun, vllm ...) writes the files that run it.

## 6. Fine-tune, train from scratch, or call an API?

The same traffic answered in each way, month by month, and the volume from which own machines pay.

$ flopwise compare Llama-3.1-8B --tokens-per-month 500M --no-simulate  # 10

Prices carry their dates; `flopwise prices` says how old they are, and imports or refreshes them.

## Where to go next

| you want | go to |
|---|---|
| a whole platform: many workloads, several clouds, one bill | [fleet](questions/fleet.md) |
| to know how far to trust a figure | [how it works](how-it-works.md), [its origin](questions/origin.md) |
| sliders instead of options | `flopwise web`, [in a browser](questions/web.md) |
| the same from Python or a notebook | [Python](questions/python.md) |
| to see what your run really did | [record](questions/record.md), [watch](questions/watch.md) |
| estimates that learn from it | [calibrate](questions/calibrate.md) |
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
