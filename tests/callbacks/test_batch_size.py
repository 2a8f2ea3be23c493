"""The largest batch that fits, on the CPU with a limit, and on a GPU that is played."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from read_back import SIZES

from flopwise.errors import InfeasibleError, SpecError
from libraries import needs

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore"), needs("transformers")]
torch = pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from flopwise.callbacks import find_batch_size
from flopwise.callbacks.devices import resident_peak_bytes
torch.manual_seed(0)
torch.set_num_threads(1)  # a second one waits in a loop while a neighbour has the core
net = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
                                   vocab_size=8000))  # logits take the memory, and hardly any time
def batch(n):
    ids = torch.randint(1, 8000, (n, 128))
    return {"input_ids": ids, "labels": ids}
before, draws = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
limit = resident_peak_bytes() + 250e6
found = find_batch_size(net, batch, memory_limit=limit)
assert torch.equal(torch.get_rng_state(), draws)
assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
assert all(p.grad is None for p in net.parameters())
assert found.peak_bytes <= limit
rows = {row.batch: row.fits for row in found.trials}
assert rows[found.batch], found
assert not any(fits for n, fits in rows.items() if n > found.batch), found
assert not rows.get(found.batch + 1, False), found
assert len(found.trials) <= 6, found
assert found.batch / 2 <= found.guess <= found.batch * 2, found
print("fits", found.batch)
"""


def test_the_memory_model_guesses_and_trials_confirm() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.startswith("fits")


class FakeMemory:
    """torch.cuda of a device with `room` bytes, on which a batch takes `fixed` and `each` a sequence."""

    def __init__(self, room: float, fixed: float, each: float) -> None:
        self.room, self.fixed, self.each, self.peak = room, fixed, each, 0.0

    def run(self, batch: int) -> None:
        self.peak = self.fixed + self.each * batch
        if self.peak > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def played(monkeypatch: pytest.MonkeyPatch, memory: FakeMemory) -> list[int]:
    """Trials measured by the fake; the batches that were tried."""
    from flopwise.callbacks import batch_size

    tried: list[int] = []

    def run(self: Any, batch: int) -> Any:
        tried.append(batch)
        self.limit_bytes = memory.room
        self.is_cpu = False
        try:
            memory.run(batch)
            trial = batch_size.BatchTrial(batch, fits=True, peak_bytes=memory.peak)
        except RuntimeError as error:
            if not batch_size._is_out_of_memory(error):
                raise
            trial = batch_size.BatchTrial(batch, fits=False, peak_bytes=None)
        self.rows.append(trial)
        return trial

    monkeypatch.setattr(batch_size._Trials, "run", run)
    return tried


def net() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SIZES))


def batch(count: int) -> Any:
    return {"input_ids": torch.ones((count, 32), dtype=torch.long)}


@pytest.mark.parametrize(("each", "most"), [(1e9, 70), (0.11e9, 636), (33e9, 2)])
def test_few_trials_find_the_largest_whatever_a_sequence_takes(
    monkeypatch: pytest.MonkeyPatch, each: float, most: int
) -> None:
    from flopwise.callbacks import find_batch_size

    tried = played(monkeypatch, FakeMemory(80e9, 10e9, each))
    found = find_batch_size(net(), batch, memory_limit=80e9)
    assert most * 0.98 - 1 <= found.batch <= most
    assert len(tried) <= 8
    assert len(set(tried)) == len(tried)


def test_not_even_one_sequence_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from flopwise.callbacks import find_batch_size

    played(monkeypatch, FakeMemory(8e9, 10e9, 1e9))
    with pytest.raises(InfeasibleError, match="not even one"):
        find_batch_size(net(), batch, memory_limit=8e9)


def test_what_the_optimizer_will_keep_is_left_free() -> None:
    from flopwise.callbacks.batch_size import _states_bytes

    parameters = [torch.nn.Parameter(torch.zeros(1000))]
    assert _states_bytes(torch.optim.AdamW(parameters)) == 8000
    assert _states_bytes(torch.optim.SGD(parameters, lr=1.0)) == 0
    assert _states_bytes(torch.optim.SGD(parameters, lr=1.0, momentum=0.9)) == 4000
    assert _states_bytes(None) == 0


def test_errors_of_the_model_are_its_own() -> None:
    from flopwise.callbacks import find_batch_size

    def broken(*_: Any) -> Any:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        find_batch_size(net(), batch, memory_limit="64GB", step=broken)
    with pytest.raises(SpecError, match="memory_limit"):
        find_batch_size(net(), batch)
    with pytest.raises(SpecError, match="no loss"):
        find_batch_size(net(), batch, memory_limit="64GB")
