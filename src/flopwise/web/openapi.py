"""The OpenAPI document, made from the declarations of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

import flopwise
from flopwise.web.problems import KINDS, MEDIA_TYPE
from flopwise.web.questions import FACTS, LEFT_OUT, MOST, OPTIONS_LEFT_OUT, WRITERS, Noun, declaration, kind_of

FILES_TYPE = "application/vnd.flopwise.files+json"
ROOT = "/api/v1"
FILE_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$"
MOST_FILES = 8
Json = dict[str, Any]


def document(nouns: Mapping[str, Noun]) -> Json:
    """The whole document."""
    paths: Json = {}
    for noun in nouns.values():
        path: Json = {"post": _post(noun)}
        if not noun.wants_files:
            path["get"] = _get(noun)
        paths[f"{ROOT}/{noun.name}"] = path
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flopwise",
            "version": flopwise.__version__,
            "description": "Questions of the command line by HTTP: each noun is a command, its keys are the command's "
            "options, and its answer is the document that --json prints. Quantities take units (`80GB`, `2T`, "
            f"`500ms`). Left out: {'; '.join(f'{name} ({why})' for name, why in LEFT_OUT.items())}. Options left out: "
            f"{', '.join(OPTIONS_LEFT_OUT)}.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": {**paths, **_job_paths(nouns)},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Of `flopwise web`."}},
            "schemas": {"Problem": _problem_schema(), "Job": _job_schema(), "Files": _files_schema()},
            "responses": {name: _problem_response(name) for name in KINDS},
        },
    }


def _get(noun: Noun) -> Json:
    """The operation with options in the query."""
    answers = _answers(noun, "not-acceptable")
    if noun.name in FACTS:
        answers["304"] = {"description": "Nothing changed since the ETag that If-None-Match names."}
    return {
        "operationId": f"{noun.name}_by_query",
        "summary": noun.summary,
        "parameters": [_query(key, param) for key, param in noun.parameters.items()],
        "responses": answers,
    }


def _query(key: str, param: click.Parameter) -> Json:
    found: Json = {
        "name": key,
        "in": "query",
        "required": param.required,
        "description": _help(param),
        "schema": value_schema(key, param),
    }
    if "array" in found["schema"].get("type", ()):
        found |= {"style": "form", "explode": True}
    return found


def _post(noun: Noun) -> Json:
    """The operation with options in a body of JSON, and files beside them."""
    lines = {line: noun.example(line) for line in getattr(noun.command, "examples", ())}
    shown = {line: example for line, example in lines.items() if example is not None}
    examples = {
        f"example-{n}": {"summary": line, "value": example} for n, (line, example) in enumerate(shown.items(), 1)
    }
    content: Json = {"schema": question_schema(noun)}
    if examples:
        content["examples"] = examples
    return {
        "operationId": noun.name,
        "summary": noun.summary,
        "description": (noun.command.help or "").replace("\b", ""),
        "parameters": [
            {
                "name": "Prefer",
                "in": "header",
                "required": False,
                "description": "respond-async: a job answers, with progress by server-sent events.",
                "schema": {"type": "string"},
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {
            **_answers(noun, "not-acceptable", "slow-body", "too-large", "wrong-type", "too-many-jobs"),
            "202": {
                "description": "A job was started.",
                "headers": {"Location": {"schema": {"type": "string"}, "description": "The job."}},
                "content": _json(_ref("schemas", "Job")),
            },
        },
    }


def question_schema(noun: Noun) -> Json:
    """JSON Schema of the body of a question."""
    keys = {key: value_schema(key, param) | {"description": _help(param)} for key, param in noun.parameters.items()}
    files = {
        "type": "object",
        "description": "Files by name: an option that takes a file takes one of these names.",
        "propertyNames": {"pattern": FILE_NAME},
        "additionalProperties": {"type": ["string", "object"]},
        "maxProperties": MOST_FILES,
    }
    needed = [key for key, param in noun.parameters.items() if param.required]
    properties = {**keys, "files": files}
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": needed}


def value_schema(key: str, param: click.Parameter) -> Json:
    """The schema of a parameter."""
    if isinstance(param, click.Option) and param.is_flag:
        return {"type": "boolean", **({"default": True} if param.default is True else {})}
    kind = kind_of(param)
    one: Json = {} if kind is None else dict(kind.schema)
    if not one:
        one = {"type": ["string", "number"]}
    if "minLength" in one and kind is not None and one.get("type") == "string":
        one["type"] = ["string", "number"]  # names that are numbers: `7`, and percentiles of times
    if key in MOST:
        one["x-most"] = MOST[key]
    option = declaration(param)
    if isinstance(param, click.Option) and param.multiple:
        return {"type": "array", "items": one, "maxItems": 100}
    default = param.default if isinstance(param.default, str | int | float) else None  # click has a mark for "none"
    metavar = {} if option is None or kind is None or kind.choices else {"x-takes": option.metavar or kind.metavar}
    return one | metavar | ({} if default is None else {"default": default})


def _help(param: click.Parameter) -> str:
    """The text of a parameter."""
    option = declaration(param)
    return (param.name or "").upper() if option is None else option.help


def _answers(noun: Noun, *kinds: str) -> Json:
    """The answers that a question may have."""
    text: Json = {"application/json": {"schema": {"type": ["object", "array"]}}}
    if noun.name in WRITERS:
        text[FILES_TYPE] = {"schema": _ref("schemas", "Files")}
        text["application/zip"] = {"schema": {"type": "string", "contentMediaType": "application/zip"}}
    found: Json = {
        "200": {"description": f"The document of `flopwise {' '.join(noun.words)} --json`.", "content": text}
    }
    by_status: dict[int, list[str]] = {}
    for kind in ("bad-input", "unauthorized", "forbidden", "infeasible", "defect", "busy", "too-long", *kinds):
        by_status.setdefault(KINDS[kind].status, []).append(kind)
    for status, names in by_status.items():
        found[str(status)] = _ref("responses", names[0])
    return found


def _job_paths(nouns: Mapping[str, Noun]) -> Json:
    one = {"name": "job", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"}}
    job = _json(_ref("schemas", "Job"))
    failures = {"401": _ref("responses", "unauthorized"), "403": _ref("responses", "forbidden")}
    missing = {**failures, "404": _ref("responses", "unknown")}
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    results = _answers(next(iter(nouns.values())))
    results["200"] = {"description": "The answer.", "content": {"application/json": {}}}
    listed = {
        "description": "Jobs, the latest first.",
        "content": _json({"type": "array", "items": _ref("schemas", "Job")}),
    }
    progress = (
        "Progress as server-sent events: `progress`, then `end`, each with the job; of a plan that is searched "
        "`ranked`, with its plans before the rest of the answer is there."
    )
    ended = {**results, **missing, "409": {"description": "It has not ended yet.", "content": job}}
    return {
        f"{ROOT}/jobs": {
            "get": _operation("jobs", "Jobs that are running or ended recently.", {"200": listed, **failures}),
        },
        f"{ROOT}/jobs/{{job}}": {
            "parameters": [one],
            "get": _operation(
                "job", "State of a job.", {"200": {"description": "The job.", "content": job}, **missing}
            ),
            "delete": _operation(
                "cancel", "Stop a job and delete it.", {"204": {"description": "Stopped."}, **missing}
            ),
        },
        f"{ROOT}/jobs/{{job}}/events": {
            "parameters": [one],
            "get": _operation(
                "events", progress, {"200": {"description": "Events until the job ends.", "content": stream}, **missing}
            ),
        },
        f"{ROOT}/jobs/{{job}}/result": {
            "parameters": [one],
            "get": _operation("result", "Answer of a finished job, as its noun would give it.", ended),
        },
    }


def _operation(name: str, summary: str, responses: Json) -> Json:
    return {"operationId": name, "summary": summary, "responses": responses}


def _ref(kind: str, name: str) -> Json:
    """A reference to one of the document's components of a kind (`schemas`, `responses`)."""
    return {"$ref": f"#/components/{kind}/{name}"}


def _json(schema: Json) -> Json:
    """Content of JSON."""
    return {"application/json": {"schema": schema}}


def _problem_schema() -> Json:
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"enum": [f"urn:flopwise:problem:{name}" for name in KINDS]},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "The message of the command line."},
            "reasons": {"type": "array", "items": {"type": "string"}},
            "document": {"description": "What the command line prints in this case, such as the nearest misses."},
            "files": _ref("schemas", "Files"),
        },
    }


def _job_schema() -> Json:
    number = {"type": ["number", "null"]}
    return {
        "type": "object",
        "required": ["id", "noun", "state", "progress"],
        "properties": {
            "id": {"type": "string"},
            "noun": {"type": "string"},
            "state": {"enum": ["running", "done", "failed"]},
            "progress": {
                "type": ["object", "null"],
                "properties": {"what": {"type": "string"}, "done": number, "total": number, "note": {"type": "string"}},
            },
        },
    }


def _files_schema() -> Json:
    return {
        "type": "object",
        "description": "The text of each file, by its path.",
        "additionalProperties": {"type": "string"},
    }


def _problem_response(name: str) -> Json:
    kind = KINDS[name]
    alike = [other for other in KINDS.values() if other.status == kind.status]
    return {
        "description": " Or: ".join(other.when for other in alike),
        "content": {MEDIA_TYPE: {"schema": _ref("schemas", "Problem")}},
    }
