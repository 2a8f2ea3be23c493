"""Fleet files that are wrong, by what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

GOOD = """\
name: platform
policies:
  providers: {aws: 60%, gcp: 40%}
  regions: [us-east-1, us-central1]
  budget_per_month: $20k
  purchase: [on_demand, spot]
  quotas: [{provider: aws, instance: p5*, most: 4}]
environments:
  nights: {start: "20:00", stop: "06:00", days: mon-fri}
workloads:
  - name: chat
    task: serve
    model: config.json
    traffic: {requests_per_s: 2}
    residency: [us-*]
    tags: [hipaa]
    constraints: {gpus: [h100]}
    volumes: {egress: 1TB}
  - {name: desks, task: develop, environment: nights, machines: {count: 1, memory: 16GB}}
"""
CHANGES = {
    "shares above": ("gcp: 40%", "gcp: 80%"),
    "shares below": ("gcp: 40%", "gcp: 10%"),
    "share negative": ("gcp: 40%", "gcp: -40%"),
    "share nan": ("gcp: 40%", "gcp: .nan"),
    "share without a region": ("[us-east-1, us-central1]", "[us-east-1]"),
    "share of a provider that is none": ("gcp: 40%", "moonbase: 40%"),
    "region": ("us-central1]", "us-centrall1]"),
    "residency": ("[us-*]", "[moon-*]"),
    "tag": ("[hipaa]", "[hippa]"),
    "model": ("model: config.json", "model: no-such-model"),
    "gpu": ("[h100]", "[h9000]"),
    "quota of no type": ("instance: p5*", "instance: q9*"),
    "quota negative": ("most: 4", "most: -4"),
    "quota of a half": ("most: 4", "most: 0.5"),
    "quota of nothing": ("provider: aws, instance: p5*, ", ""),
    "purchase": ("[on_demand, spot]", "[gift]"),
    "owned without machines": ("[on_demand, spot]", "[owned]"),
    "start alone": ('stop: "06:00", ', ""),
    "start is no time": ('"20:00"', '"25:61"'),
    "start is stop": ('"20:00"', '"06:00"'),
    "no such day": ("mon-fri", "mon-fry"),
    "no day": ("days: mon-fri", "days: []"),
    "environment": ("environment: nights", "environment: mornings"),
    "two workloads of a name": ("name: desks", "name: chat"),
    "grows with itself": ("name: desks", "name: desks, grows_with: desks"),
    "grows with nothing": ("name: desks", "name: desks, grows_with: chaat"),
    "grows in a circle": (
        "    tags: [hipaa]\n",
        "    grows_with: b\n  - {name: b, task: batch, model: config.json, traffic: {requests: 9}, grows_with: chat}\n",
    ),
    "grows twice": ("name: desks", "name: desks, grows_with: chat, growth_per_month: 3%"),
    "growth huge": ("name: desks", "name: desks, growth_per_month: 1e9"),
    "starts in no month": ("name: desks", "name: desks, starts: 2027-13"),
    "volume negative": ("egress: 1TB", "egress: -1TB"),
    "volume infinite": ("egress: 1TB", "egress: .inf"),
    "volume huge": ("egress: 1TB", "egress: 1e300"),
    "key": ("residency:", "residencey:"),
    "key of a number": ("name: platform", "5: platform"),
    "key twice": ("name: platform", "name: platform\nname: again"),
    "name missing": ("name: platform\n", ""),
    "name of 10,000 letters": ("name: desks", f"name: {'x' * 10_000}"),
    "name with an escape": ("name: desks", 'name: "\\e]0;x\\a"'),
    "name with a null": ("name: desks", 'name: "a\\0b"'),
    "name with half a letter": ("name: desks", 'name: "\\ud800"'),
    "name is a list": ("name: desks", "name: [a, b]"),
    "machines of a service": ("    tags: [hipaa]\n", "    machines: {count: 1}\n"),
    "no machines": (", machines: {count: 1, memory: 16GB}", ""),
    "null workloads": ("workloads:\n", "workloads: null\nothers:\n"),
}
QUANTITIES = ("-1", "0", ".nan", ".inf", "nan", "1e400", "abc", "''", "true", "[]", "{}", "5 parsecs")


def fleets() -> Iterator[tuple[str, bytes]]:
    """(what is wrong, the file)."""
    for label, (old, new) in CHANGES.items():
        assert old in GOOD, label
        yield label, GOOD.replace(old, new).encode()
    for quantity in QUANTITIES:
        yield f"budget {quantity}", GOOD.replace("$20k", quantity).encode()
        yield f"requests_per_s {quantity}", GOOD.replace("requests_per_s: 2", f"requests_per_s: {quantity}").encode()
        yield f"count {quantity}", GOOD.replace("count: 1", f"count: {quantity}").encode()
    yield "empty", b""
    yield "a comment", b"# nothing\n"
    yield "a list", b"- name\n"
    yield "no workloads", b"name: x\nworkloads: []\n"
    yield "workloads of text", b"name: x\nworkloads: [a, b]\n"
    yield "bomb", b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\nname: *b\n"
    yield "merge", b"x: &x {a: 1}\nname: {<<: *x}\n"
    yield "deep", b"name: " + b"[" * 100_000
    yield "deep blocks", "\n".join(" " * n + "a:" for n in range(900)).encode()
    yield "python", b"name: !!python/object/apply:os.system ['true']\nworkloads: []\n"
    yield "two documents", (GOOD + "---\n" + GOOD).encode()
    yield "binary", bytes(range(256))
    yield "large", GOOD.encode() + b"#" * 50_000_000
