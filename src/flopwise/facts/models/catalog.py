"""The catalog of known models (`data/models.jsonl`), and the one door to all of them: `ModelCatalog.model`.

A line of the catalog holds `name`, `hf_id`, `source`, `date`, `confidence`, `parameters`, `active_parameters`, `notes`,
`checkpoint_format` where the weights are not published in 16 bits, `fp8_linear` where they are in 8 bits beside experts
in mxfp4, `sees` where the checkpoint has a vision tower that is left out, `tower_parameters`, the size of what is left
out (a tower for sound, too), and either `config`, in Hugging Face's layout with the fields that matter, or `kind` and
`published`, for networks known by published figures. `FOLDER/models.jsonl` of your own adds and overrides lines.
`model_aliases.json` has other names of them, `model_series.json` models that were tuned from them, by name or series
(with what differs, as the `context`, beside `of`), and `model_publishers.json` organisations of the hub whose models
have the architecture that their names say.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from flopwise.data import DATA
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.architecture import Attend, Model, ModelKind, Published
from flopwise.facts.models.config import model_from_config, named_format
from flopwise.facts.models.fields import DEFAULTS_FILE, SHIPPED_DEFAULTS, ClassDefaults
from flopwise.facts.models.sizes import ROUNDED, VOCAB, size_of, typical_config
from flopwise.facts.tables import read_json_object
from flopwise.values import replace

MODELS_FILE, ALIASES_FILE, SERIES_FILE = "models.jsonl", "model_aliases.json", "model_series.json"
PUBLISHERS_FILE = "model_publishers.json"
FILES = (MODELS_FILE, ALIASES_FILE, DEFAULTS_FILE)
Record = Mapping[str, Any]
_VARIANTS = (  # this and others as texts: names that are exact need none of them, and compiling takes milliseconds
    r"(?i)[-_ ]*"
    r"(\((text|text tower|uncased|lm part|(non-)?reasoning|high|low|mlperf)\)|instruct|chat|base|hf|it|pt|thinking"
    r"|preview|sft|dpo|latest|v1\.0|:(free|nitro)|-cloud)$"
)
_TUNED = r"(?i)[-_](instruct|chat|it|thinking)(?=[-_])"
"""What a tuned model has within its name: Mixtral-8x22B-Instruct-v0.1."""
_POINTS = r"(?<=\d)_(?=\d)"
"""A point as file names have it: InternVL3_5."""
_ACTIVE = r"(?i)-A\d+(\.\d+)?[BM]$"
_SIZES = r"(?i)[- ]\d+(\.\d+)?[BMT](-A\d+(\.\d+)?[BM])?$"
_FORMATS = (
    r"(?i)[-_.: ]+(gguf|ggml|safetensors|mlx|awq|gptq|gptqmodel|mtp|qat|bnb|fp8|fp4|nvfp4|nvfp4a16|mxfp4|int4|int8|bf16"
    r"|f16|fp16|\d([.]\d+)?bit|dwq|dynamic|block|kv|quantized|unsloth|auto-?round|exl[23]|\d([.]\d+)?bpw|w\d+a\d+|g\d+|\d+g"
    r"|(ud[-_])?i?q\d+(_[a-z0-9]+)*|tq\d_0)$"
)
_TAG = r"(?i)(?P<family>[^:/]+):(?P<size>(\d+x)?\d+(\.\d+)?[bm])(-(instruct|chat|text|it|\d{4}))*"
"""A tag of Ollama's library, without what `stem` takes away: its size, and the variant or month after it."""
_BEDROCK = r"(?i)(([a-z]+)\.)?(?P<vendor>[a-z0-9]+)\.(?P<name>[^/:]+?)(-v0:(?P<minor>\d)|(-v?\d+)?:\d+)"
"""An id of Amazon Bedrock: region, vendor, name, and version of the name (v0:2) or of the offer (v1:0)."""
_BETWEEN = re.compile(r"(?<=\d)[\W_]+(?=\d)")
_NUMBERS = r"\d+(?:\.\d+)?"
_OTHER = re.compile(r"[^a-z0-9.+-]|(?<!\d)[.-]|[.-](?!\d)")
_TEXT, _COUNT, _OBJECT = (str, "a text"), (int, "a positive whole number"), (dict, "an object")
_FIELDS: dict[str, tuple[type, str]] = {
    "name": _TEXT, "hf_id": _TEXT, "source": _TEXT, "date": _TEXT, "confidence": _TEXT, "parameters": _COUNT,
    "active_parameters": _COUNT, "config": _OBJECT, "kind": _TEXT, "published": _OBJECT, "notes": _TEXT,
    "checkpoint_format": (str, "a weight format"), "sees": (bool, "true or false"),
    "tower_parameters": _COUNT, "fp8_linear": (bool, "true or false"),
}  # fmt: skip


def _local_config(spec: str) -> Path | None:
    """The configuration file that a path means, or None where nothing stands there."""
    try:
        path = Path(spec).expanduser()
        if path.is_dir():
            inside = path / "config.json"
            if not inside.is_file():
                raise SpecError(f"{spec}: the folder has no config.json")
            return inside
        return path if path.is_file() else None
    except (OSError, RuntimeError):
        return None


class _Index:
    """The records of a catalog, found by folded names."""

    def __init__(
        self,
        records: list[Record],
        aliases: Mapping[str, str],
        series: Mapping[str, str | Record],
        publishers: Iterable[str] = (),
    ) -> None:
        self.records, self.series = records, series
        self.publishers = frozenset(map(_key, publishers))  # organisations whose models are what their names say
        self.exact: dict[str, Record] = {}
        for record in records:
            hf_id = record.get("hf_id")
            for name in (record["name"], *((hf_id, hf_id.split("/")[-1]) if hf_id else ())):
                self.exact.setdefault(_key(name), record)
        for alias, name in aliases.items():
            target = self.exact.get(_key(name))
            if target is not None:
                self.exact.setdefault(_key(alias), _with_choice(alias, target))

    @cached_property
    def short(self) -> dict[str, Record]:
        """Records by their names without endings such as `-Instruct`, the first of a kind winning."""
        out: dict[str, Record] = {}
        for record in self.records:
            out.setdefault(_key(stem(record["name"])), record)
        for record in self.records:
            if record.get("hf_id"):
                out.setdefault(_key(stem(record["hf_id"].split("/")[-1])), record)
        return out

    @cached_property
    def _patterns(self) -> list[tuple[str, str, str, Record]]:
        """The series with the folded names before and after the star, and what each was tuned from."""
        bases = ({"of": base} if isinstance(base, str) else base for base in self.series.values())
        return [
            (pattern, _key(pattern.partition("*")[0]), _key(pattern.partition("*")[2]), base)
            for pattern, base in zip(self.series, bases, strict=True)
        ]

    @cached_property
    def by_sizeless_name(self) -> dict[str, Record]:
        """Records by their names without sizes, or without the active one, of which there is one each."""
        by_name: dict[str, list[Record]] = {}
        for record in self.records:
            name = stem(record["name"])
            shorter = {_key(re.sub(_ACTIVE, "", name)), _key(re.sub(_SIZES, "", name))} - {_key(name), ""}
            for key in shorter:
                by_name.setdefault(key, []).append(record)
        return {key: records[0] for key, records in by_name.items() if len(records) == 1}

    def find(self, name: str) -> Record | None:
        """The record of that name, of that name without its endings, or whose own name without endings is that.

        Or the only one that differs by what the name leaves out: a size (SmolLM3), the active one (Qwen3-30B).
        """
        if (key := _key(name)) and (record := self.exact.get(key)) is not None:
            return record
        plain = stem(name)
        for spelling in dict.fromkeys((name, plain, re.sub(_TUNED, "", plain), re.sub(_POINTS, ".", plain))):
            key = _key(spelling)
            record = self.exact.get(key) or (self.short.get(key) if spelling != name or plain == name else None)
            if record is not None and key:
                return record
        only = self.by_sizeless_name.get(_key(plain))
        return None if only is None else _with_choice(name, only)

    def same_architecture(self, name: str) -> Record | None:
        """The record of the network that a model of that name was tuned from, with a note that says so.

        Series are rules: `Tulu-2-*` is `Llama-2-*`, whatever size stands for the star. What a series says besides,
        as the context that `Yi-*-200K` was tuned to, stands in place of what the record says.
        """
        for spelling in (name, stem(name)):
            wanted = _key(spelling)
            for pattern, before, after, base in self._patterns:
                if "*" in pattern:
                    size = wanted[len(before) : len(wanted) - len(after)]
                    fits = wanted.startswith(before) and wanted.endswith(after) and size
                    card = self.find(base["of"].replace("*", size)) if fits else None
                else:
                    card = self.find(base["of"]) if wanted == before else None
                if card is not None:
                    text = f"{name}: the architecture of {card['name']}, which it was tuned from"
                    notes = "; ".join(filter(None, (card.get("notes"), text)))
                    return {**card, **base, "notes": notes}
        return None


def _with_choice(alias: str, record: Record) -> Record:
    """The record that an alias stands for, with a note where the alias leaves the version open (llama-70b)."""
    open_numbers = Counter(re.findall(_NUMBERS, record["name"])) - Counter(re.findall(_NUMBERS, alias))
    if not open_numbers:
        return record
    note = f"{alias} is read as {record['name']}"
    return {**record, "notes": "; ".join(filter(None, (record.get("notes"), note)))}


def _key(name: str) -> str:
    """The form in which names are compared: lower case, separators gone but between digits (OPT-1.3b, OPT-13b)."""
    return _OTHER.sub("", _BETWEEN.sub(lambda m: "." if m[0] == "." else "-", name.lower()))


def stem(name: str) -> str:
    """A name without suffixes of variants and quantised files: `-Instruct`, `-hf`, `(text)`, `-Q4_K_M.gguf`, `-AWQ`."""
    while (shorter := re.sub(_VARIANTS, "", re.sub(_FORMATS, "", name))) != name and shorter:
        name = shorter
    return name


def _find(spec: str, index: _Index) -> Record | None:
    """The record that `spec` names; a hub id within its organisation, of known publishers, or of re-packed weights."""
    if "/" not in spec:
        organisation, _, tail = spec.partition("_")  # google_gemma-3-27b-it
        known = index.find(spec) or index.same_architecture(spec) or _of_tag(spec, index) or _of_bedrock(spec, index)
        return known or (_find(f"{organisation}/{tail}", index) if _key(organisation) in index.publishers else None)
    exact = index.exact.get(_key(spec))
    organisation, _, tail = spec.rpartition("/")
    if exact is not None or not _key(tail):
        return exact
    plain = tail == re.sub(_FORMATS, "", tail)
    if _key(organisation) in index.publishers or not (plain or Path(spec).exists()):
        return _find(tail, index)
    near = index.find(tail)
    same = near is not None and bool(near.get("hf_id")) and _key(near["hf_id"].split("/")[0]) == _key(organisation)
    return near if same and "/" not in organisation else None


def _of_tag(spec: str, index: _Index) -> Record | None:
    """The record that a tag of Ollama's library means: of that size, or the family's default if it has that size."""
    match = re.fullmatch(_TAG, stem(spec)) if ":" in spec else None
    if match is None:
        return None
    family, tag = match["family"], match["size"]
    sized = f"{family}:{tag}"
    default = index.find(family) or index.same_architecture(family)
    size, stated = size_of(tag), default.get("parameters") if default else None
    of_that_size = size and stated and abs(size / stated - 1) <= ROUNDED
    return index.find(sized) or index.same_architecture(sized) or (default if of_that_size else None)


def _of_bedrock(spec: str, index: _Index) -> Record | None:
    """The record that an id of Amazon Bedrock means: `us.meta.llama3-3-70b-instruct-v1:0`, `deepseek.r1-v1:0`."""
    match = re.fullmatch(_BEDROCK, spec) if ":" in spec else None
    if match is None:
        return None
    name = match["name"] + (f"-v0.{match['minor']}" if match["minor"] else "")
    name = re.sub(r"(?<=\d)-(?=\d-)", ".", name)  # llama3-3-70b
    spellings = name, f"{match['vendor']}-{name}"
    return next((r for s in spellings if (r := index.find(s) or index.same_architecture(s)) is not None), None)


def model_of_record(record: Record, classes: ClassDefaults = SHIPPED_DEFAULTS) -> Model:
    """The model that a line of the catalog describes."""
    notes = (record["notes"],) if record.get("notes") else ()
    origin: Any = {name: record.get(name) or "" for name in ("source", "date", "confidence")}
    config = record.get("config")
    model = _figures_only(record) if config is None else model_from_config(config, name=record["name"], classes=classes)
    return replace(
        model,
        hf_id=record.get("hf_id"),
        **origin,
        sees=record.get("sees", False),
        tower_parameters=record.get("tower_parameters", 0),
        fp8_linear=record.get("fp8_linear", False),
        checkpoint_format=record.get("checkpoint_format") or model.checkpoint_format,
        max_position=record.get("context") or model.max_position,
        notes=(*model.notes, *notes),
    )


def _stored_as(spec: str, model: Model) -> str | None:
    """The format that the name tells, else the published one; llama.cpp's files of an MXFP4 model keep its experts."""
    named, own = named_format(spec), model.checkpoint_format
    return own if named is None or (own == "mxfp4" and re.match(r"(UD-)?I?Q\d_", named)) else named


def _figures_only(record: Record) -> Model:
    """A network known by published figures only."""
    figures = record.get("published") or {}
    kind: Any = record.get("kind")
    names = ("parameters", "forward_flops_per_sample", "training_flops_per_sample", "sample_bytes")
    published = Published(sample=figures.get("sample") or "one sample", **{name: figures.get(name) for name in names})
    if kind not in get_args(ModelKind):
        raise SpecError(f"{record['name']}: 'kind' is {kind!r}; allowed: {', '.join(get_args(ModelKind))}")
    return Model(name=record["name"], model_type="published", kind=kind, stacks=(), published=published)


def _records(text: str, where: str) -> list[Record]:
    """The lines of a catalog, checked. Raises SpecError naming file, line and key."""
    records: list[Record] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise SpecError(f"{where}, line {number}: not valid JSON; one object a line is needed") from problem
            _check(record, f"{where}, line {number}")
            records.append(record)
    return records


def _check(record: Any, place: str) -> None:
    """Refuse a line that is not a model. Raises SpecError naming place and key."""
    if not isinstance(record, dict) or not isinstance(record.get("name"), str) or not _key(record["name"]):
        raise SpecError(f"{place}: an object with a 'name' is needed")
    for key, value in record.items():
        if key not in _FIELDS:
            raise SpecError(f"{place}: unknown key {key[:40]!r}; known: {', '.join(_FIELDS)}")
        kind, noun = _FIELDS[key]
        if value is not None and (type(value) is not kind or (type(value) is int and value <= 0)):
            raise SpecError(f"{place}: {key!r} is {str(value)[:60]!r}; {noun} is needed")
    if record.get("config") is None and record.get("published") is None:
        raise SpecError(f"{place}: 'config' (Hugging Face layout) or 'published' (figures) is needed")
    for key, value in (record.get("published") or {}).items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        if value is not None and not (number if key != "sample" else isinstance(value, str)):
            raise SpecError(f"{place}: published: {key[:40]!r} is {str(value)[:60]!r}; a positive number is needed")


class ModelCatalog:
    """The known models: the shipped lines, with those of a folder of your own before them, so that they win."""

    def __init__(self, own: Path | None = None) -> None:
        """Nothing is read before it is needed; `own`: a folder that may hold `FILES`."""
        files = {name: own / name for name in FILES if own is not None and (own / name).is_file()}
        self._models, self._aliases = files.get(MODELS_FILE), files.get(ALIASES_FILE)
        self._classes = ClassDefaults(files[DEFAULTS_FILE]) if DEFAULTS_FILE in files else SHIPPED_DEFAULTS
        self._known: dict[str, Model] = {}  # of records: a fleet asks for the same ones in each of its searches

    @cached_property
    def _index(self) -> _Index:
        # the shipped lines are checked by the tests
        records: list[Record] = json.loads("[" + ",".join(_shipped_lines()) + "]")
        aliases: dict[str, str] = json.loads((DATA / ALIASES_FILE).read_text(encoding="utf-8"))
        if self._models is not None:
            try:
                text = self._models.read_bytes().decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as problem:
                raise SpecError(f"{self._models}: cannot be read as text ({problem})") from problem
            mine = _records(text, str(self._models))
            taken = {_key(r["name"]) for r in mine}
            records = [*mine, *(r for r in records if _key(r["name"]) not in taken)]
        if self._aliases is not None:
            own = read_json_object(self._aliases)
            for alias, name in own.items():
                if not isinstance(name, str):
                    raise SpecError(f"{self._aliases}, {alias}: got {str(name)[:60]!r}; the name of a model is needed")
            aliases = own | {alias: name for alias, name in aliases.items() if alias not in own}
        series: dict[str, str | Record] = json.loads((DATA / SERIES_FILE).read_text(encoding="utf-8"))
        publishers: list[str] = json.loads((DATA / PUBLISHERS_FILE).read_text(encoding="utf-8"))
        return _Index(records, aliases, series, publishers)

    def check(self) -> None:
        """Read the files of your own, if there are any. Raises SpecError naming file and line."""
        if self._models is not None or self._aliases is not None:
            _ = self._index
        self._classes.check()

    def _record(self, spec: str) -> Record | None:
        plain = self._models is None and self._aliases is None
        return (_shipped_record(spec) if plain else None) or _find(spec, self._index)

    @property
    def names(self) -> list[str]:
        """Names of the models, in their order."""
        return [r["name"] for r in self._index.records]

    def rows(self, passes: Callable[[str, str], bool] | None = None) -> list[dict[str, Any]]:
        """One row a model; where `passes` is given, of the models whose name and hub id ("": none) it returns True for.

        Keys: name, hf_id, model_type, kind, parameters, active_parameters, layers, width, heads, kv_heads, context,
        source, date, confidence, notes; None where unknown or not meant.
        """
        records = self._index.records
        if passes is not None:
            records = [record for record in records if passes(record["name"], record.get("hf_id") or "")]
        return [_row(record, model_of_record(record, self._classes)) for record in records]

    def model(self, spec: str, *, assume_family: str | None = None, offline: bool = False) -> Model:
        """The model that `spec` names: a catalog name, a folder, a `config.json`, a size such as `7B`, or a hub id.

        Raises: UnknownNameError: no model of that name; the nearest are listed.
                SpecError: a configuration that cannot be read or cannot be right.
        """
        if not isinstance(spec, str) or not spec.strip() or "\0" in spec:
            raise SpecError(
                "a model is needed: a catalog name (flopwise models), a hub id, a folder, a config.json, or a size (7B)"
            )
        spec = spec.strip()
        if spec in self._known:
            return self._known[spec]
        record = self._record(spec)
        if record is not None:
            model = model_of_record(record, self._classes)
            model = replace(model, checkpoint_format=_stored_as(spec, model))
            self._known[spec] = model
            return model
        local = _local_config(spec)
        if local is not None:
            name = local.parent.name if local.name == "config.json" else local.stem
            return self._from_config(read_json_object(local), name or spec, assume_family)
        size = size_of(spec)
        if size is not None:
            return typical_model(spec, size)
        if (published := hub_config(spec, offline=offline)) is not None:
            model = self._from_config(published, spec, assume_family)
            return replace(model, hf_id=spec, source="config.json of the Hugging Face hub", confidence="high")
        if spec.endswith(".json") or spec.startswith((".", "/", "~")):
            raise SpecError(f"{spec}: no such file or folder")
        hint = "A hub id (organisation/model), a folder, a config.json or a size such as 7B can be given, too"
        raise UnknownNameError("model", spec, self.names, hint)

    def _from_config(self, config: Mapping[str, Any], name: str, assume_family: str | None) -> Model:
        return model_from_config(config, name=name, assume_family=assume_family, classes=self._classes)


SHIPPED = ModelCatalog()


def load_model(spec: str, *, assume_family: str | None = None, offline: bool = False) -> Model:
    """The model that `spec` names in the shipped catalog, or otherwise: see `ModelCatalog.model`.

    Raises: as that does.
    """
    return SHIPPED.model(spec, assume_family=assume_family, offline=offline)


def _shipped_lines() -> list[str]:
    return (DATA / MODELS_FILE).read_text(encoding="utf-8").splitlines()


def _shipped_record(name: str) -> Record | None:
    """The shipped record of exactly that name, of which alone the line is parsed; None where there is none."""
    mark = f'{{"name": {json.dumps(name)}, '
    for line in _shipped_lines():
        if line.startswith(mark):
            record: Record = json.loads(line)
            return record
    return None


def _row(record: Record, model: Model) -> dict[str, Any]:
    stack = model.stacks[0] if model.stacks else None
    items = [i for layer in stack.kinds for i in layer.items] if stack else []
    attend = next((i for i in items if isinstance(i, Attend) and not i.name.startswith("indexer")), None)
    return {
        **{name: getattr(model, name) for name in ("name", "hf_id", "model_type", "kind")},
        "parameters": record.get("parameters"),
        "active_parameters": record.get("active_parameters") or record.get("parameters"),
        "layers": stack and stack.num_layers, "width": stack and stack.width,
        "heads": attend and attend.heads, "kv_heads": attend and attend.kv_heads, "context": model.max_position,
        **{name: getattr(model, name) for name in ("source", "date", "confidence")},
        "notes": record.get("notes") or "",
    }  # fmt: skip


TYPICAL = "typical architecture for the size"
"""The source of a model of which nothing but its size is known."""


def typical_model(spec: str, size: float) -> Model:
    """The model of `typical_config`, with a note that says it is a typical architecture, not a particular one."""
    config = typical_config(size)
    model = model_from_config(config, name=spec.strip())
    note = (
        f"{spec.strip()} is a size, not a model: a typical Llama-like decoder is assumed "
        f"({config['num_hidden_layers']} layers of width {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads, {config['num_key_value_heads']} key-value heads, vocabulary {VOCAB:,})"
    )
    return replace(model, source=TYPICAL, confidence="low", notes=(*model.notes, note))


HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
PATIENCE_S = 4
"""How long the hub may take to answer."""
WHOLE_S = 12.0
"""How long all of it may take: a hub that sends byte by byte answers in time each time."""
TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "requests", "urllib3"})
"""Libraries that the hub's client has been built on; their errors are no `OSError` throughout."""
_TRUE = ("1", "true", "yes", "on")


@contextmanager
def _quiet() -> Iterator[None]:
    """The client says nothing of its own: no retries, no progress bars."""
    import logging  # noqa: PLC0415 - a third of this module's start-up

    # Only a model by its hub id needs the library; the same below.
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars  # noqa: PLC0415

    log, shown = logging.getLogger("huggingface_hub"), not are_progress_bars_disabled()
    before = log.level
    log.setLevel(logging.ERROR)
    disable_progress_bars()
    try:
        yield
    finally:
        log.setLevel(before)
        if shown:
            enable_progress_bars()


def hub_config(model_id: str, *, offline: bool = False) -> dict[str, Any] | None:
    """The configuration of `model_id`; a cached copy is used unchanged, and with `offline` only that.

    None: not of the form `organisation/model`.

    Raises: SpecError: not cached and offline, no network, no such model, a gated model, or no `config.json`.
    """
    if not HUB_ID.match(model_id) or ".." in model_id or "--" in model_id or len(model_id) > 96:
        return None
    from huggingface_hub import errors, try_to_load_from_cache  # noqa: PLC0415 - a slow client

    here_only = offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE
    instead = "give a catalog name (flopwise models), a folder or a config.json instead"
    why = {
        errors.GatedRepoError: "a gated model; accept its licence on the hub and set HF_TOKEN, or",
        errors.RepositoryNotFoundError: "no such model on the hub, or a private one (set HF_TOKEN);",
        errors.LocalEntryNotFoundError: "the hub cannot be reached, and its config.json is not cached;",
        errors.EntryNotFoundError: "the model has no config.json;",
    }
    try:
        cached = try_to_load_from_cache(model_id, "config.json")
        path = cached if isinstance(cached, str) else None if here_only else _in_time(lambda: _download(model_id))
    except errors.HFValidationError as problem:
        raise SpecError(f"{model_id}: not a valid hub id ({str(problem)[:120]})") from problem
    except Exception as problem:  # transports raise classes of their own; what is not theirs goes on
        reason = next((text for kind, text in why.items() if isinstance(problem, kind)), None)
        if reason is not None:
            raise SpecError(f"{model_id}: {reason} {instead}") from problem
        library = type(problem).__module__.split(".", maxsplit=1)[0]
        if not isinstance(problem, OSError | errors.HfHubHTTPError) and library not in TRANSPORTS:
            raise
        raise SpecError(f"{model_id}: the hub cannot be reached ({type(problem).__name__}); {instead}") from problem
    if path is None:
        raise SpecError(f"{model_id}: its config.json is not in the hub's cache, and offline mode is on; {instead}")
    return read_json_object(Path(path))


def _in_time(call: Callable[[], str]) -> str:
    """The result of `call`, within WHOLE_S; its exceptions. Raises TimeoutError: it takes longer."""
    import threading  # noqa: PLC0415 - as the client

    ended: list[str | BaseException] = []

    def work() -> None:
        try:
            ended.append(call())
        except BaseException as problem:  # noqa: BLE001 - raised where it is waited for
            ended.append(problem)

    worker = threading.Thread(target=work, daemon=True)  # one that hangs does not keep the process
    worker.start()
    worker.join(WHOLE_S)
    match ended:
        case [str(path)]:
            return path
        case [BaseException() as problem]:
            raise problem
    raise TimeoutError(f"no answer in {WHOLE_S:g} s")


def _download(model_id: str) -> str:
    """Fetch the configuration; the path of its file."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url  # noqa: PLC0415 - a slow client

    get_hf_file_metadata(hf_hub_url(model_id, "config.json"), timeout=PATIENCE_S)  # asks once, where a download insists
    with _quiet():
        return hf_hub_download(model_id, "config.json", etag_timeout=PATIENCE_S)
