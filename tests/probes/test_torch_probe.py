"""The operations through PyTorch, against its own counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise import cli
from flopwise.errors import SpecError
from flopwise.probes.backend import AttentionShape, Bench, NothingToMeasureError
from flopwise.probes.file import Probe
from flopwise.probes.kinds import KINDS
from flopwise.probes.torch_backend import TorchBackend

pytestmark = pytest.mark.oracle


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_the_flop_are_those_that_pytorch_counts(torch: Any, tmp_path: Path) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    backend = TorchBackend(torch, "cpu", None)
    for name in ("matmul", "attention"):
        with KINDS[name].tasks(Bench(backend, quick=True, folder=tmp_path)) as tasks:
            for task in (one for one in tasks if one.unit == "FLOP/s" and one.dtype == "fp32" and one.work < 1e9):
                assert task.prepare is not None
                run = task.prepare()
                with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
                    run()
                seq = task.shape.get("seq")
                share = 1.0 if seq is None else (seq + 1) / (2 * seq)  # plain operations compute masked pairs, too
                if task.name == "attention_training":
                    share *= 3.5 / 3  # and keep the scores, which flash attention computes again: 4 products, not 5
                assert task.work == counter.get_total_flops() * share, task


def test_the_bytes_are_those_of_the_tensors(torch: Any) -> None:
    backend = TorchBackend(torch, "cpu", None)
    copied: Any = backend.memory("copy", 1 << 16)
    assert copied.func.__self__.nbytes + copied.args[0].nbytes == 1 << 16
    read: Any = backend.memory("read", 1 << 16)
    assert read.__self__.nbytes == 1 << 16
    written: Any = backend.memory("write", 1 << 16)
    assert written.func.__self__.nbytes == 1 << 16
    decode: Any = backend.attention(AttentionShape(2, 8, 4, 16, 32), "decode", "bf16")
    q, k, v = decode.args
    assert k.nbytes + v.nbytes == 2 * 2 * 4 * 16 * 32 * 2
    assert (q.shape, decode().shape) == ((2, 8, 1, 32), (2, 8, 1, 32))
    gradients: Any = backend.elementwise(512, backward=True)()
    assert [one.shape for one in gradients] == [(2, 256), (256,)]
    assert backend.small_operation(5, backward=False)()[0] == 5  # type: ignore[index]
    assert backend.small_operation(5, backward=True)()[0][0] == 1  # type: ignore[index]
    for dtype in backend.dtypes:
        assert backend.matmul(32, 16, 48, dtype)().shape == (32, 16)  # type: ignore[attr-defined]


def test_threads_are_as_before(torch: Any, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = flopwise.probe(only=["launch"], quick=True, threads=1, device=["cpu"], disk=tmp_path)
    assert found.device("cpu").threads == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "unknown device 'gpu'; usable here:"),
        ("cpu:1", "the name of the CPU is cpu"),
        ("mps", "finds no Apple GPU"),
    ],
)
def test_devices_that_are_not_there(torch: Any, name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TorchBackend(torch, name, None)


def test_cuda_that_is_missing_is_said_by_its_reason(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(SpecError, match="built without CUDA and ROCm; install a build for your GPU"):
        TorchBackend(torch, "cuda:0", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(SpecError, match="sees no GPU; look at what nvidia-smi"):
        TorchBackend(torch, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SpecError, match="no device has that number; usable here: cuda:0, cuda:1, cpu"):
        TorchBackend(torch, "cuda:7", None)


def test_a_processor_has_nothing_to_send_to(torch: Any, tmp_path: Path) -> None:
    bench = Bench(TorchBackend(torch, "cpu", None), quick=True, folder=tmp_path)
    with pytest.raises(NothingToMeasureError), KINDS["transfers"].tasks(bench):
        pass


@pytest.mark.usefixtures("torch")
def test_messages_between_real_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    assert cli.main(["probe", "--quick", "--only", "collectives", "--device", "cpu", "-o", str(file), "--json"]) == 0
    found = Probe.from_file(file)
    first, *others = found.measurements
    assert (first.name, first.failure, first.shape["ranks"] >= 2) == ("all_reduce", None, True)
    assert all((one.failure or "left out").startswith("left out") for one in others)  # a busy machine takes its time
    assert json.loads(capsys.readouterr().out)["measurements"][0]["name"] == "all_reduce"
