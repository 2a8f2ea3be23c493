"""Answers as pictures: what is drawn is what the answer says."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import flopwise
from flopwise.errors import SpecError
from flopwise.pictures import BarPicture, PointPicture
from flopwise.results import Result
from flopwise.units import GIB

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture
def axes() -> Any:
    import matplotlib.pyplot as plt

    figure, found = plt.subplots()
    yield found
    plt.close(figure)


def _answers() -> dict[str, Result]:
    return {
        "train": flopwise.train("gpt2", gpu="8xh100", seq=1024, fsdp=True),
        "serve": flopwise.serve("gpt2", gpu="l4"),
        "memory": flopwise.memory("gpt2", gpu="l4", context="1k", concurrency=4),
        "fit": flopwise.fit("gpt2", gpu="l4"),
        "io": flopwise.io("resnet50", gpu="a100"),
        "roofline": flopwise.roofline("gpt2", gpu="h100", batch=4, seq=512),
        "autoscale": flopwise.autoscale("gpt2", gpu="l4", rate=2, requests=50),
        "batch": flopwise.batch("Llama-3.2-1B", 10_000, gpu="l4", provider="aws"),
        "serve_sweep": flopwise.serve_sweep("gpt2", "tp", gpu="l4"),
        "sweep": flopwise.sweep(
            {"task": "pretrain", "data": {"tokens": "1M"}, "sweep": {"model": ["gpt2"], "gpus": ["l4"]}}
        ),
        "simulate": flopwise.simulate("gpt2", gpu="l4", rate=2, requests=50),
        "compare": flopwise.compare("Llama-3.1-8B", tokens_per_month="500M", way="api"),
        "prices": flopwise.prices(),
        "plan": flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="l4"),
    }


def test_every_answer_can_be_drawn(axes: Any) -> None:
    for name, answer in _answers().items():
        axes.clear()
        assert answer.plot(axes) is axes, name
        assert axes.get_title(loc="left").replace("\n", " ") == answer.verdict, name
        assert axes.get_xlabel(), name
        axes.figure.canvas.draw()  # a dollar in a verdict is no formula


def test_lists_of_facts_can_be_drawn(axes: Any) -> None:
    lists = (flopwise.gpus(), flopwise.instances(gpu="l4"), flopwise.models("llama"), flopwise.largest_models("l4"))
    for rows in lists:
        axes.clear()
        assert rows.plot(axes) is axes
        assert axes.get_title(loc="left") == rows.title
        assert "None" not in repr(rows)
    (fastest,) = flopwise.gpus("h100")
    axes.clear()
    flopwise.gpus("h100").plot(axes)
    (line,) = axes.lines
    assert [*line.get_xdata()] == [fastest.hbm_bytes_per_s / 1e9]
    assert [*line.get_ydata()] == [fastest.peak["bf16"] / 1e12]
    offers = flopwise.instances(gpu="l4")
    axes.clear()
    offers.plot(axes)
    least = min(p / o.count for o in offers for p in (o.on_demand_usd_per_hour, o.spot_usd_per_hour) if p is not None)
    assert axes.patches[0].get_width() == least
    with pytest.raises(SpecError, match="nothing to plot"):
        flopwise.gpus(min_memory="100TB").plot()


def test_bars_are_the_items_and_the_limit_what_may_be_used(axes: Any) -> None:
    answer = flopwise.memory("gpt2", gpu="l4", context="1k", concurrency=4)
    answer.plot(axes)
    drawn = dict(
        zip([t.get_text() for t in axes.get_yticklabels()], [b.get_width() for b in axes.patches], strict=True)
    )
    assert drawn.pop("total") == pytest.approx(answer.per_gpu_bytes / GIB)
    assert drawn == pytest.approx({name: nbytes / GIB for name, nbytes in answer.items if nbytes})
    assert answer.usable_bytes is not None
    assert axes.lines[0].get_xdata()[0] == pytest.approx(answer.usable_bytes / GIB)


def test_the_front_is_what_no_plan_beats_in_cost_and_time() -> None:
    answer = flopwise.plan("gpt2", task="pretrain", tokens="1B", max_gpus=8)
    picture = answer.picture()
    assert isinstance(picture, PointPicture)
    front, every = picture.series["nothing is cheaper and faster"], picture.series["plans"]
    beaten = [a for a in every if any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in every)]
    assert sorted(front) == sorted(set(every) - set(beaten))
    assert len(front) > 1


def test_work_lies_below_the_roof_at_the_share_that_it_reaches() -> None:
    answer = flopwise.roofline("gpt2", gpu="h100", batch=4, seq=512)
    picture = answer.picture()
    assert isinstance(picture, PointPicture)
    ((across, up),) = picture.series[answer.what]
    roof = picture.series["datasheet"]
    assert across == answer.intensity_flops_per_byte
    assert up / max(y for _, y in roof) == pytest.approx(answer.utilisation_frac)
    assert roof[1][0] == answer.ridge_flops_per_byte


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(SpecError, match="pip install matplotlib"):
        flopwise.serve("gpt2", gpu="l4").plot()
    with pytest.raises(SpecError, match="both operations and bytes"):
        flopwise.roofline(flops=1e15, gpu="h100").plot()


def test_a_figure_of_its_own_has_room_for_every_bar() -> None:
    import matplotlib.pyplot as plt

    few, many = (BarPicture(title="$5 of $9", unit="GiB", rows=[(f"${i}", i + 1.0) for i in range(n)]) for n in (2, 30))
    assert few.height < many.height

    class Drawn(Result):
        def picture(self) -> BarPicture:
            return many

    figure = Drawn().plot().figure
    figure.canvas.draw()
    assert figure.get_suptitle() == "$5 of $9"
    plt.close(figure)
