"""Plans with separate servers for prompts: both pools, the router and what watches them, by hand and by their tools."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import msgspec
import pytest
import yaml
from engine_arguments import engine_args
from export_samples import sample_deployment, sample_export
from hypothesis import given
from hypothesis import strategies as st
from tools import interpreter
from validators import kubernetes, shell

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.kubernetes_service import routing
from flopwise.exports.pools import machines_needed, places
from flopwise.exports.server import serving_command
from flopwise.exports.targets import TARGETS, exported_plan

SAMPLES = {"vllm": "serve-pools", "sglang": "serve-pools-sglang"}
READY_S = 60


def laid_out(deployment: Deployment, **layout: int) -> Deployment:
    """The same with another layout, and as many machines of 8 devices as it needs."""
    job, chosen = deployment.serving, deployment.candidate
    assert job is not None
    whole: dict[str, Any] = {**chosen.layout, **layout}
    gpus = whole["replicas"] * (whole["tp"] * whole["pp"] * whole["dp"] + whole["prefill_gpus"])
    machines = -(-gpus // 8)
    candidate = msgspec.structs.replace(chosen, layout=whole, num_instances=machines, num_gpus=8 * machines)
    degrees = {name: whole[name] for name in ("tp", "pp", "dp", "ep")}
    techniques = replace(job.techniques, prefill_gpus=whole["prefill_gpus"])
    moved = replace(job, layout=replace(job.layout, **degrees), techniques=techniques)
    return replace(deployment, candidate=candidate, serving=moved)


def words_of(deployment: Deployment, pool: str) -> list[str]:
    """The words of a server of one pool."""
    (servers,) = (one for one in deployment.pools if one.pool == pool)
    return [*serving_command(servers).args]


def option(words: list[str], name: str) -> str:
    """The value of an option."""
    return words[words.index(name) + 1]


@pytest.mark.parametrize("sample", SAMPLES.values())
def test_the_pools_have_the_devices_of_the_plan(sample: str) -> None:
    deployment = sample_deployment(sample)
    layout, (prefill, decode) = deployment.candidate.layout, deployment.pools
    assert (prefill.pool, decode.pool) == ("prefill", "decode")
    assert decode.replicas == layout["replicas"]
    each = layout["tp"] * layout["pp"]  # servers for prompts have no attention replicas
    assert prefill.replicas == layout["replicas"] * layout["prefill_gpus"] // each
    devices = sum(one.replicas * one.gpus_per_replica for one in deployment.pools)
    assert devices == layout["replicas"] * (each * layout["dp"] + layout["prefill_gpus"])


def test_servers_for_prompts_have_no_attention_replicas() -> None:
    spread = laid_out(sample_deployment("serve-pools"), tp=1, dp=4, ep=4, replicas=1, prefill_gpus=4)
    prefill, decode = words_of(spread, "prefill"), words_of(spread, "decode")
    assert option(decode, "--data-parallel-size") == "4"
    assert "--enable-expert-parallel" in decode
    assert not {"--data-parallel-size", "--enable-expert-parallel"} & set(prefill)
    assert spread.pools[0].replicas == 4


def test_vllm_moves_caches_with_nixl() -> None:
    deployment = sample_deployment("serve-pools")
    for pool, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        config = json.loads(option(words_of(deployment, pool), "--kv-transfer-config"))
        assert config == {"kv_connector": "NixlConnector", "kv_role": role}
    scripts = sample_export("vllm", "serve-pools").files
    shown = scripts["serve-decode.sh"].replace("exec vllm", "env; echo vllm")
    machine = {"PATH": "/usr/bin:/bin", "SLOT": "1", "ADDRESS": "10.0.0.2"}
    done = subprocess.run(["bash", "-c", shown], env=machine, capture_output=True, text=True, check=True)  # noqa: S607
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if re.match(r"\w+=", line))
    assert variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.2"
    assert variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5601"
    assert variables["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert done.stdout.splitlines()[-1].endswith("--port 8001")
    del machine["ADDRESS"]
    assert subprocess.run(["bash", "-c", shown], env=machine, capture_output=True, check=False).returncode  # noqa: S607


def test_each_attention_replica_has_a_port_of_the_connector() -> None:
    spread = laid_out(sample_deployment("serve-pools"), tp=1, dp=2, ep=1, replicas=2, prefill_gpus=2)
    text = exported_plan("vllm", spread).files["serve-decode.sh"]
    assert 'VLLM_NIXL_SIDE_CHANNEL_PORT="$((5600 + slot * 2))"' in text


def test_sglang_has_a_mode_a_backend_and_where_caches_are_asked_for() -> None:
    deployment = sample_deployment("serve-pools-sglang")
    prefill, decode = words_of(deployment, "prefill"), words_of(deployment, "decode")
    for words, mode in ((prefill, "prefill"), (decode, "decode")):
        assert option(words, "--disaggregation-mode") == mode
        assert option(words, "--disaggregation-transfer-backend") == "nixl"
        engine_args("sglang", words[3:])
    assert option(prefill, "--disaggregation-bootstrap-port") == "8998"
    assert "--disaggregation-bootstrap-port" not in decode
    script = sample_export("sglang", "serve-pools-sglang").files["serve-prefill.sh"]
    assert '--disaggregation-bootstrap-port "$((8998 + slot))"' in script


@pytest.mark.parametrize("engine", SAMPLES)
def test_the_router_knows_every_server_once(engine: str) -> None:
    deployment = sample_deployment(SAMPLES[engine], machines="a, b, c")
    made = exported_plan(engine, deployment)
    listed = made.files["route.sh"].split("servers=(\n")[1].split("\n)")[0].split("\n")
    found = Counter(line.split()[0] for line in listed)
    assert found == {f"--{one.pool}": one.replicas for one in deployment.pools}
    urls = [line.split()[1] for line in listed]
    assert len(set(urls)) == len(urls)
    first = 8000 if engine == "vllm" else 30000
    assert set(urls) == {f"http://{host}:{first + slot}" for host in "abc" for slot in (0, 1)}
    if engine == "sglang":  # with the port that each is asked for caches at
        ports = {line.split()[1].rpartition(":")[2]: line.split()[2] for line in listed if "prefill" in line}
        assert ports == {"30000": "8998", "30001": "8999"}
    for text in made.files.values():
        shell(text)


@pytest.mark.parametrize("engine", SAMPLES)
def test_the_router_takes_its_options(engine: str) -> None:
    words = [*routing(sample_deployment(SAMPLES[engine])).args]
    start = next(at for at, word in enumerate(words) if word.startswith("--"))
    discovering = pod_of("kubernetes", SAMPLES[engine], "router")["containers"][0]["command"]
    for args in (words, discovering):
        engine_args(f"{engine}-router", args[start:])
    assert option(words, "--decode-policy") == "power_of_two"


@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2)
)
def test_no_two_servers_share_a_device_or_a_port(tp: int, dp: int, replicas: int, pool: int, more: int) -> None:
    deployment = laid_out(
        sample_deployment("serve-pools"), tp=tp, dp=dp, ep=1, replicas=replicas, prefill_gpus=pool * tp * dp
    )
    deployment = replace(
        deployment, candidate=msgspec.structs.replace(
            deployment.candidate, num_instances=deployment.candidate.num_instances + more,
            num_gpus=deployment.candidate.num_gpus + 8 * more,
        ),
    )  # fmt: skip
    each = {one.pool: one.gpus_per_replica for one in deployment.pools}
    devices, ports = list[int](), list[tuple[int, int]]()
    for place in places(deployment):
        first = 8 * place.machine + place.slot * min(each[place.pool], 8)
        devices += range(first, first + each[place.pool])
        ports += [(place.machine, place.slot)]
        # the connector's ports: as many as the server has attention replicas
        taken = dp if place.pool == "decode" else 1
        ports += [(place.machine, 5600 + place.slot * taken + rank) for rank in range(taken)]
    assert len(set(devices)) == len(devices) == sum(one.replicas * each[one.pool] for one in deployment.pools)
    if max(each.values()) <= 8:
        assert len(set(ports)) == len(ports)
    assert max(devices) < 8 * machines_needed(deployment)
    assert machines_needed(deployment) <= deployment.candidate.num_instances  # powers of two leave no gaps


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pp": 2, "tp": 2, "prefill_gpus": 4}, "no caches to pipelines"),
        ({"tp": 3, "replicas": 3, "prefill_gpus": 3}, "take 3 machines of 8 devices, and the plan has 2"),
    ],
)
def test_what_pools_cannot_do_is_refused_with_the_way_out(changes: dict[str, int], reason: str) -> None:
    deployment = laid_out(sample_deployment("serve-pools"), **changes)
    if "has 2" in reason:
        chosen = msgspec.structs.replace(deployment.candidate, num_instances=2, num_gpus=16)
        deployment = replace(deployment, candidate=chosen)
    for target in ("vllm", "kubernetes"):
        with pytest.raises(InfeasibleError) as refused:
            exported_plan(target, deployment)
        assert any(reason in text for text in refused.value.reasons), refused.value.reasons


def test_caches_with_scales_of_each_token_are_not_sent() -> None:
    deployment = sample_deployment("serve-pools")
    assert deployment.serving is not None
    job = replace(deployment.serving, kv_dtype=replace(deployment.serving.kv_dtype, name="int8"))
    with pytest.raises(InfeasibleError) as refused:
        exported_plan("vllm", replace(deployment, serving=job))
    assert any("does not send caches in int8" in text for text in refused.value.reasons)


ONE_KIND = ("skypilot", "kserve", "ray-serve", "hpa", "keda", "prompt-cache")


@pytest.mark.parametrize("target", ONE_KIND)
def test_targets_with_one_kind_of_server_say_why_not(target: str) -> None:
    with pytest.raises(InfeasibleError) as refused:
        sample_export(target, "serve-pools")
    assert any("two pools of servers and a router" in text for text in refused.value.reasons)


def test_the_rest_expresses_pools() -> None:
    """No target forgets the servers for prompts: it writes both pools, has no servers in its files, or refuses."""
    elsewhere = {"sglang", "tensorrt-llm", "llamacpp", "tgi", "leaderworkerset", "terraform-gcp", "terraform-azure"}
    online = {name for name, target in TARGETS.items() if "serve" in target.tasks}
    for target in online - set(ONE_KIND) - elsewhere:
        text = "".join(sample_export(target, "serve-pools").files.values())
        if "vllm serve" in text or "- serve\n" in text or "ScaledObject" in text:
            assert "prefill" in text, target


def objects_of(target: str, sample: str) -> list[dict[str, Any]]:
    """The objects of an export, as the API server takes them."""
    made = sample_export(target, sample, namespace="chat").files
    return [one for path, text in made.items() if path.endswith(".yaml") for one in kubernetes(text)]


def pod_of(target: str, sample: str, pool: str, field: str = "spec") -> dict[str, Any]:
    """The spec, or the metadata, of the pods of a pool."""
    for one in objects_of(target, sample):
        name = one["metadata"]["name"]
        if one["kind"] == "Deployment" and name.endswith(f"-{pool}"):
            return dict(one["spec"]["template"][field])
    raise AssertionError(pool)


@pytest.mark.parametrize("engine", SAMPLES)
def test_kubernetes_has_a_deployment_a_pool_and_a_router(engine: str) -> None:
    deployment, objects = sample_deployment(SAMPLES[engine]), objects_of("kubernetes", SAMPLES[engine])
    found = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Deployment"}
    assert set(found) == {f"{deployment.name}-{pool}" for pool in ("prefill", "decode", "router")}
    for servers in deployment.pools:
        spec = found[f"{deployment.name}-{servers.pool}"]["spec"]
        assert spec["replicas"] == servers.replicas
        (main,) = spec["template"]["spec"]["containers"]
        assert main["resources"]["limits"]["nvidia.com/gpu"] == servers.gpus_per_replica
        labels = spec["template"]["metadata"]["labels"]
        words = found[f"{deployment.name}-router"]["spec"]["template"]["spec"]["containers"][0]["command"]
        at = words.index(f"--{servers.pool}-selector") + 1
        assert dict(word.split("=") for word in words[at : at + 2]).items() <= labels.items()
        assert option(words, "--service-discovery-port") == str(main["ports"][0]["containerPort"])
    (service,) = (one for one in objects if one["kind"] == "Service")
    labels = found[f"{deployment.name}-router"]["spec"]["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == deployment.name
    assert service["spec"]["selector"].items() <= labels.items()
    for servers in deployment.pools:  # and no server answers clients
        of_pool = found[f"{deployment.name}-{servers.pool}"]["spec"]["template"]["metadata"]["labels"]
        assert not service["spec"]["selector"].items() <= of_pool.items()
    budgets = [one for one in objects if one["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == 2
    (role,) = (one for one in objects if one["kind"] == "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


def test_pods_tell_the_other_pool_where_they_are() -> None:
    (main,) = pod_of("kubernetes", "serve-pools", "prefill")["containers"]
    values = {one["name"]: one for one in main["env"]}
    assert values["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert values["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"] == "5600"
    for pool, port in (("prefill", "8998"), ("decode", None)):
        notes = pod_of("kubernetes", "serve-pools-sglang", pool, "metadata")["annotations"]
        assert notes.get("sglang.ai/bootstrap-port") == port


def test_pools_over_several_machines_are_sets_whose_leaders_the_router_finds() -> None:
    deployment = laid_out(sample_deployment("serve-pools"), tp=8, dp=2, replicas=1, prefill_gpus=16)
    made = exported_plan("leaderworkerset", deployment).files["leaderworkerset.yaml"]
    objects = kubernetes(made)
    sets = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "LeaderWorkerSet"}
    assert {name: (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) for name, spec in sets.items()} == {
        "long-prompts-prefill": (2, 1), "long-prompts-decode": (1, 2),
    }  # fmt: skip
    (router,) = (one for one in objects if one["kind"] == "Deployment")
    words = router["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words.count("leaderworkerset.sigs.k8s.io/worker-index=0") == 2


def test_the_route_of_a_gateway_ends_at_the_router() -> None:
    (route,) = objects_of("gateway", "serve-pools")
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "long-prompts", "port": 8000}]


def test_hours_scale_both_pools() -> None:
    made = yaml.safe_load_all(sample_export("schedules", "serve-pools").files["keda.yaml"])
    assert [one["spec"]["scaleTargetRef"]["name"] for one in made] == ["long-prompts-prefill", "long-prompts-decode"]


def test_each_quantity_is_read_from_the_pool_that_has_it() -> None:
    """A request is counted by both servers that it meets: totals would count it twice."""
    rules = yaml.safe_load(sample_export("prometheus", "serve-pools").files["rules.yaml"])["groups"][0]["rules"]
    expr = {one.get("record", "").removeprefix("flopwise:"): one["expr"] for one in rules}
    for record, pool in (
        ("requests_per_second", "decode"), ("output_tokens_per_second", "decode"), ("time_per_token_seconds", "decode"),
    ):  # fmt: skip
        assert set(re.findall(r'pool="(\w+)"', expr[record])) == {pool}, record
    assert re.findall(r'(\w+)_total{[^}]*pool="(\w+)"', expr["tokens_per_second"]) == [
        ("prompt_tokens", "prefill"), ("generation_tokens", "decode"),
    ]  # fmt: skip
    assert re.findall(r'pool="(\w+)"', expr["time_to_first_token_seconds"]) == ["prefill", "decode"]  # one after other
    assert "pool=" not in expr["requests_waiting"]
    sglang = yaml.safe_load(sample_export("prometheus", "serve-pools-sglang").files["rules.yaml"])["groups"][0]["rules"]
    first = [one["expr"] for one in sglang if one.get("record") == "flopwise:time_to_first_token_seconds"]
    assert all(re.findall(r'pool="(\w+)"', text) == ["decode"] for text in first)  # which waits for the cache


def test_series_say_their_pool() -> None:
    deployment = sample_deployment("serve-pools", machines="a,b,c")
    rows = yaml.safe_load(exported_plan("prometheus-scrape", deployment).files["targets/engine.yaml"])
    found = {row["labels"]["pool"]: row["targets"] for row in rows}
    assert found == {"decode": ["a:8000", "a:8001", "b:8000"], "prefill": ["b:8001", "c:8000", "c:8001"]}
    monitors = [one for one in objects_of("prometheus-operator", "serve-pools") if one["kind"] == "PodMonitor"]
    ((endpoint,), chosen) = (monitors[0]["spec"]["podMetricsEndpoints"], monitors[0]["spec"]["selector"])
    assert {
        "sourceLabels": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"], "targetLabel": "pool",
    } in endpoint["relabelings"]  # fmt: skip
    assert chosen["matchExpressions"][0]["values"] == ["prefill", "decode"]  # and not the router
    panels = json.loads(sample_export("grafana", "serve-pools").files["dashboard.json"])["panels"]
    queries = [one["expr"] for panel in panels for one in panel["targets"]]
    for pool in ("prefill", "decode"):
        assert f'sum by (pool) (vllm:num_requests_waiting{{workload="long-prompts",pool="{pool}"}})' in queries


# --- the routers themselves, before servers that answer at once


class Answering(BaseHTTPRequestHandler):
    """A server of either engine: healthy, and with an answer that names a cache."""

    seen: ClassVar[list[tuple[int, str, dict[str, Any]]]] = []

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Every page."""
        self._answer({"status": "ok", "model_path": "m", "data": [{"id": "m"}]})

    def do_POST(self) -> None:
        """A request."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((int(self.connection.getsockname()[1]), self.path, asked))
        choice = {"text": "yes", "index": 0, "finish_reason": "length"}
        self._answer({"id": "x", "object": "text_completion", "choices": [choice],
                      "kv_transfer_params": {"remote_engine_id": "e"}, "usage": {}})  # fmt: skip


@contextmanager
def answering(count: int) -> Iterator[list[int]]:
    """Ports of so many servers."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Answering) for _ in range(count)]
    for server in servers:
        Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield [server.server_address[1] for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def router(engine: str, script: str, folder: Path) -> Iterator[int]:
    """The port of the exported script's router, once it is ready."""
    programs, port = interpreter("routers").parent, free_port()
    (folder / "route.sh").write_text(script.replace("29000", str(free_port())).replace("0.0.0.0", "127.0.0.1"))  # noqa: S104
    env = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin", "PORT": str(port)}
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            ["bash", "route.sh"], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True,  # noqa: S607
        )  # fmt: skip
        try:
            deadline = time.monotonic() + READY_S
            while asked(port, "GET", "/readiness")[0] != 200:
                log.seek(0)
                assert process.poll() is None, (engine, log.read()[-3000:])
                assert time.monotonic() < deadline, log.read()[-3000:]
                time.sleep(0.2)
            yield port
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def asked(port: int, method: str, path: str, body: str = "") -> tuple[int, str]:
    """Status and text of a page; 0 where nobody listens."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as line:
        try:
            line.request(method, path, body, {"content-type": "application/json"})
            answer = line.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""


@pytest.mark.exports
@pytest.mark.parametrize("engine", SAMPLES)
def test_the_exported_router_sends_a_request_through_both_pools(engine: str, tmp_path: Path) -> None:
    """The real router, from the exported script with other addresses: a prompt to one pool, its cache to the other."""
    deployment = sample_deployment(SAMPLES[engine], machines="a,b,c")
    script = exported_plan(engine, deployment).files["route.sh"]
    hosts = re.findall(r"--(prefill|decode) (http://[abc]:\d+)", script)
    with answering(len(hosts)) as ports:
        for (_, url), port in zip(hosts, ports, strict=True):
            script = re.sub(rf"{re.escape(url)}\b", f"http://127.0.0.1:{port}", script)
        pool_of = dict(zip(ports, (pool for pool, _ in hosts), strict=True))
        with router(engine, script, tmp_path) as port:
            Answering.seen.clear()
            body = json.dumps({"model": "m", "prompt": "a", "max_tokens": 5})
            status, text = asked(port, "POST", "/v1/completions", body)
    assert (status, json.loads(text)["choices"][0]["text"]) == (200, "yes")
    met = {pool_of[port]: request for port, path, request in Answering.seen if path == "/v1/completions"}
    assert set(met) == {"prefill", "decode"}
    if engine == "vllm":
        assert met["prefill"]["max_tokens"] == 1
        assert met["prefill"]["kv_transfer_params"]["do_remote_decode"] is True
        assert met["decode"]["kv_transfer_params"] == {"remote_engine_id": "e"}
    else:
        assert met["decode"]["bootstrap_port"] in {8998, 8999}
        assert met["prefill"]["bootstrap_room"] == met["decode"]["bootstrap_room"]
