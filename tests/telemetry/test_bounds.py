"""Each bound is told from series of its kind that a real Prometheus holds; a healthy hour raises no alarm."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
from played import BOUNDS, Level, Player, healthy, openmetrics, page
from servers import prometheus, until, web_server

from flopwise.errors import SpecError
from flopwise.telemetry.diagnosis import BOUNDS as NAMES
from flopwise.telemetry.diagnosis import RULES, Diagnosis
from flopwise.telemetry.expected import Expected
from flopwise.telemetry.history import Window
from flopwise.telemetry.prometheus import PrometheusSource
from flopwise.telemetry.readings import SourceLostError, WatchReading
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import Watcher, WatchStatus

HOUR_S = 3600


@pytest.fixture(scope="module")
def recorded() -> Iterator[str]:
    """A server with a quarter of an hour of every bound, with and without profiling counters, and healthy hours."""
    now = int(time.time())
    short = [Player(level, name.replace(" ", "-")) for name, level in BOUNDS.items()]
    short += [
        Player(level, f"{name.replace(' ', '-')}-default", default_counters=True) for name, level in BOUNDS.items()
    ]
    short.append(
        Player(lambda _: Level(util=98, sm=0.25, tensor=0.06, dram=0.12, copy=9, power=210, nvlink=2e9), "launches")
    )
    hour = [Player(healthy, "healthy"), Player(healthy, "healthy-default", default_counters=True)]
    hour.append(Player(lambda t: BOUNDS["communication"](t) if t > 1800 else healthy(t), "turns"))
    first, second = openmetrics(short, now - 900, 900, 5), openmetrics(hour, now - HOUR_S, HOUR_S, 15)
    with prometheus(recorded=merged(first, second)) as (url, _):
        yield url


def merged(*texts: str) -> str:
    """OpenMetrics texts as one: a family stands once."""
    families: dict[str, list[str]] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                rows = families.setdefault(line, [])
            elif not line.startswith("#"):
                rows.append(line)
    return "".join("\n".join([head, *rows]) + "\n" for head, rows in families.items()) + "# EOF\n"


def statuses(url: str, workload: str, back_s: float, **options: object) -> list[WatchStatus]:
    """Every status of the series of a workload, played as fast as it goes."""
    spec = WatchSpec(prometheus=url, match=(f"workload={workload}",), **options)  # type: ignore[arg-type]
    source = PrometheusSource(url, spec.match, 15.0, back_s)
    watcher = Watcher(source, Expected.of(spec, None, None), spec)
    try:
        return list(watcher.looks())
    finally:
        watcher.close()


@pytest.mark.parametrize("bound", NAMES)
def test_each_bound_is_told_by_profiling_counters(recorded: str, bound: str) -> None:
    last = statuses(recorded, bound.replace(" ", "-"), 900)[-1]
    found = last.diagnosis
    assert (found.bound, found.certain) == (bound, True), found
    assert found.evidence
    assert found.lever
    assert found.missing == ""
    assert found.healthy == (bound in ("compute", "memory bandwidth"))


@pytest.mark.parametrize("bound", NAMES)
def test_default_counters_tell_the_same_and_say_what_they_lack(recorded: str, bound: str) -> None:
    found = statuses(recorded, f"{bound.replace(' ', '-')}-default", 900)[-1].diagnosis
    assert found.bound == bound, found
    if bound in ("compute", "memory bandwidth", "communication", "throttling"):
        assert not found.certain
        assert "PIPE_TENSOR_ACTIVE" in found.missing
        assert "prometheus-scrape" in found.missing


def test_small_kernels_are_the_hosts_however_busy_devices_look(recorded: str) -> None:
    found = statuses(recorded, "launches", 900)[-1].diagnosis
    assert found.bound == "host"
    assert "they are small and run one after another" in found.summary


@pytest.mark.parametrize("workload", ["healthy", "healthy-default"])
def test_a_healthy_hour_raises_no_alarm_and_one_diagnosis(recorded: str, workload: str) -> None:
    """With a start, checkpoints and an evaluation in it, and every usual limit."""
    run = statuses(recorded, workload, HOUR_S, min_tokens_per_s=17_000, budget=400, price=98, started=HOUR_S)
    assert len(run) >= 230
    assert [change.limit.name for one in run for change in one.changes] == []
    begun = [one for one in run if one.at_s > run[0].at_s + 600]
    assert {one.diagnosis.bound for one in begun} == {"compute"}
    assert all(one.diagnosis.healthy for one in begun)


def test_a_run_that_turns_bad_is_told_once_it_lasts(recorded: str) -> None:
    run = statuses(recorded, "turns", HOUR_S)
    bounds = [one.diagnosis.bound for one in run if one.at_s > run[0].at_s + 600]
    changes = [b for a, b in pairwise(bounds) if a != b]
    assert bounds[0] == "compute"
    assert changes == ["communication"]
    turned = next(one.at_s for one in run if one.diagnosis.bound == "communication") - run[0].at_s
    assert 1800 + 120 < turned < 1800 + 600


def _window(**device: float) -> Window:
    """Two devices that do the same for five minutes."""
    devices = {"0": device, "1": device}
    return Window([WatchReading(at_s=10.0 * n, devices=devices) for n in range(31)])


def test_a_power_limit_is_no_throttling_and_heat_is() -> None:
    """Bits of NVML's clock event reasons: 0x4 the power limit, which devices at work reach; 0x40 hardware, by heat."""
    busy = {"busy_frac": 0.98, "sm_active_frac": 0.9, "tensor_active_frac": 0.6, "memory_active_frac": 0.3}
    at_limit = Diagnosis.of(_window(**busy, throttle_bits=4.0), serves=False, at_plan=None)
    hot = Diagnosis.of(_window(**busy, throttle_bits=float(0x44)), serves=False, at_plan=None)
    assert (at_limit.bound, hot.bound) == ("compute", "throttling")


def test_the_busier_kind_of_link_says_that_links_are_busy() -> None:
    waits = {"busy_frac": 0.98, "sm_active_frac": 0.8, "tensor_active_frac": 0.2, "memory_active_frac": 0.3}
    limits = {"nvlink_limit_bytes_per_s": 900e9, "pcie_limit_bytes_per_s": 128e9}
    for moved in ({"nvlink_bytes_per_s": 300e9, "pcie_bytes_per_s": 1e9},
                  {"nvlink_bytes_per_s": 1e9, "pcie_bytes_per_s": 60e9}):  # fmt: skip
        found = Diagnosis.of(_window(**waits, **limits, **moved), serves=False, at_plan=None)
        assert (found.bound, found.certain) == ("communication", True), moved


def test_rules_say_where_their_thresholds_come_from_and_every_bound_has_one_that_is_certain() -> None:
    assert all(condition.source for rule in RULES for condition in rule.conditions)
    assert {rule.bound for rule in RULES if rule.certain} >= set(NAMES)


def test_an_exporter_that_is_scraped_live_is_read_by_the_command() -> None:
    """Seven jobs behind one server: one look at each as people do it."""
    players = {name.replace(" ", "-"): Player(level, name.replace(" ", "-")) for name, level in BOUNDS.items()}
    begin = time.monotonic()
    last = dict.fromkeys(players, begin)

    def text(path: str) -> str:
        name, now = path.strip("/"), time.monotonic()
        step, last[name] = now - last[name], now
        return page(players[name], now - begin, step)

    with web_server(text) as exporter:
        jobs = ", ".join(
            f"{{job_name: {name}, metrics_path: /{name}, honor_labels: true, "
            f"static_configs: [{{targets: ['{exporter.address}']}}]}}"
            for name in players
        )
        config = f"{{global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}, scrape_configs: [{jobs}]}}"
        with prometheus(config) as (url, _):

            def bound(name: str) -> dict[str, object]:
                command = [sys.executable, "-m", "flopwise", "watch", "--prometheus", url, "--once", "--json",
                           "--match", f"workload={name}", "--interval", "1s"]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                return dict(json.loads(done.stdout)["diagnosis"]) if done.returncode in (0, 1) else {}

            def tells(name: str, wanted: str) -> bool:
                return bound(name).get("bound") == wanted

            time.sleep(14.0)  # half a cycle of what loads its data in bursts
            for name in players:
                wanted = name.replace("-", " ")
                if name != "data-loading":  # its share of a cycle decides
                    assert until(partial(tells, name, wanted)), (name, bound(name))
            assert bound("compute")["certain"] is False
            assert "only" in str(bound("compute")["missing"]), "a few seconds are read"


def test_a_server_that_is_not_there_or_knows_nothing_is_said() -> None:
    with pytest.raises(SpecError, match="does not answer"):
        statuses("http://127.0.0.1:9", "x", 60)
    with prometheus() as (url, _), pytest.raises(SpecError, match="no known series"):
        statuses(url, "x", 60)
    for wrong in ("localhost:9090", "ftp://host/", "http://"):
        with pytest.raises(SpecError, match="give the server's address"):
            PrometheusSource(wrong, (), 5, 60)
    with pytest.raises(SpecError, match="LABEL=VALUE"):
        PrometheusSource("http://h", ("workload",), 5, 60)


def test_a_server_that_goes_away_is_told_and_its_return_clears_it() -> None:
    """Between two looks the server ends; the alert comes after a minute by the watch's clock."""
    player, clock = Player(BOUNDS["compute"], "job"), [time.time()]
    recorded_text = openmetrics([player], clock[0] - 300, 300, 15)
    with prometheus(recorded=recorded_text) as (url, end):
        spec = WatchSpec(prometheus=url)
        watcher = Watcher(
            PrometheusSource(url, (), 15.0, 300.0), Expected.of(spec, None, None), spec, now=lambda: clock[0]
        )
        assert not watcher.look().source_lost
        end()
        first = watcher.look()
        assert "does not answer" in first.source_lost
        assert first.diagnosis.bound == "compute", "what was known stays"
        assert not first.firing
        clock[0] += 61
        assert [c.limit.name for c in watcher.look().changes] == ["SourceLost"]
        clock[0] += 60
        assert [c.limit.name for c in watcher.look().changes] == [], "once an episode"


@pytest.mark.parametrize("body", [b"", b'{"data": {"result": [{"metric": {"a": "b"}, "values": [[1, "x"]]}]}}'])
def test_half_an_answer_is_a_server_that_is_away(body: bytes) -> None:
    """The first says that more bytes follow than come."""

    class Half(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) or 100))
            self.end_headers()
            self.wfile.write(body or b"{")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Half) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        source = PrometheusSource(f"http://127.0.0.1:{server.server_port}", [], interval_s=5.0, history_s=60.0)
        with pytest.raises(SourceLostError, match="does not answer"):
            source.readings()
        thread.join()
