"""The server: nouns, jobs, the OpenAPI document and the pages; listening, and serving until interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import re
import socket
import time
import zipfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from mimetypes import guess_type
from pathlib import Path
from socket import AddressFamily
from typing import Any, NoReturn

import click
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from flopwise.errors import FlopwiseError
from flopwise.report.pages import PICTURES
from flopwise.values import dataclass
from flopwise.web.guard import Access, Guard
from flopwise.web.jobs import AnswerJob, Jobs, events
from flopwise.web.openapi import FILE_NAME, FILES_TYPE, MOST_FILES, ROOT, document
from flopwise.web.pool import BusyError, Listener, LostError, Pool, Reply, TimeLimitError
from flopwise.web.problems import MEDIA_TYPE, ProblemError
from flopwise.web.questions import FACTS, LIVE, WRITERS, Noun, Question, nouns
from flopwise.web.warm_up import SIMULATION, SimulatorWarmUp

STATIC = Path(__file__).parent / "static"
PAGES = ("plan", "estimate", "serve", "fleet", "runs", "catalog")
"""Pages, by their paths; the first is the start page."""
MODULES = "<!-- modules -->"
"""Where a page names what it loads."""
LONGEST_LINK = 60_000
"""Characters of a packed file up to which it is part of a link: programs that pass on a link cut a longer one."""
NO_LIMIT, LIMIT = 'data-longest-link=""', f'data-longest-link="{LONGEST_LINK}"'
"""The place of the limit in the page, and the same with it."""
MOST_CONNECTIONS = 256
IDLE_S = 15


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request."""

    body_bytes: int = 16 * 2**20
    body_s: float = 30.0
    question_s: float = 60.0
    job_s: float = 900.0
    processes: int = max(1, min(os.cpu_count() or 1, 4))
    waiting: int = 64
    kept_bytes: int = 64 * 2**20
    kept_s: float = 600.0


class Answers:
    """Replies of questions without files, kept for a while: an answer depends on its question and the facts."""

    def __init__(self, limits: Limits) -> None:
        self._kept: OrderedDict[tuple[str, ...], tuple[float, Reply]] = OrderedDict()
        self._limits, self._bytes = limits, 0

    def find(self, question: Question) -> Reply | None:
        """The reply to the same question, unless it is too old."""
        since, reply = self._kept.get(question.argv, (0.0, None))
        if reply is None or question.files or time.monotonic() - since > self._limits.kept_s:
            return None
        self._kept.move_to_end(question.argv)
        return reply

    def keep(self, question: Question, reply: Reply) -> None:
        """Keep a reply that is not too large; the ones not asked for the longest go."""
        if question.files or question.noun in LIVE or reply.files or reply.code not in (0, 1):
            return
        if question.argv in self._kept:
            self._bytes -= len(self._kept.pop(question.argv)[1].document)
        self._kept[question.argv] = (time.monotonic(), reply)
        self._bytes += len(reply.document)
        while self._bytes > self._limits.kept_bytes:
            self._bytes -= len(self._kept.popitem(last=False)[1][1].document)


class Api:
    """The endpoints."""

    def __init__(self, group: click.Group, limits: Limits) -> None:
        self.limits, self.nouns, self.jobs = limits, nouns(group), Jobs()
        self.pool, self.answers, self.warm_up = (
            Pool(limits.processes, limits.waiting),
            Answers(limits),
            SimulatorWarmUp(),
        )
        self.is_opened = asyncio.Event()
        """Set once somebody opened a page."""
        self._openapi = json.dumps(document(self.nouns)).encode()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Processes start beside the first requests, and end with the server."""
        starting = asyncio.create_task(self._prepare())
        yield
        starting.cancel()
        await self.jobs.close()
        await self.warm_up.close()
        await self.pool.close()

    async def _prepare(self) -> None:
        """Start the processes and warm them up; for who looks at pages the simulator, too, which takes longest."""
        await self.pool.start()
        await self.is_opened.wait()
        self.warm_up.begin()
        await self.warm_up.end()
        await self.pool.warm_up([SIMULATION])

    def routes(self) -> list[Route]:
        """The paths of the API."""
        return [
            Route(f"{ROOT}/openapi.json", self.openapi),
            Route(f"{ROOT}/jobs", self.list_jobs),
            Route(f"{ROOT}/jobs/{{job}}", self.job, methods=["GET", "DELETE"]),
            Route(f"{ROOT}/jobs/{{job}}/events", self.events),
            Route(f"{ROOT}/jobs/{{job}}/result", self.result),
            *(
                Route(f"{ROOT}/{noun.name}", self._endpoint(noun), methods=["POST"] + ["GET"] * (not noun.wants_files))
                for noun in self.nouns.values()
            ),
        ]

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document."""
        return _with_etag(request, Response(self._openapi, media_type="application/json"))

    def _endpoint(self, noun: Noun) -> Callable[[Request], Any]:
        async def ask(request: Request) -> Response:
            accept = _wanted_form(request, noun)
            if request.method == "POST":
                values = await _body(request, self.limits)
                question = _question(noun, values, accept)
                if "respond-async" in request.headers.get("prefer", ""):
                    return self._start(question, accept)
            else:
                question = _question(noun, _query(request, noun), accept)
            answer = asyncio.create_task(self._answer(question, accept, self.limits.question_s))
            response = await _unless_gone(request, answer)
            return _with_etag(request, response) if noun.name in FACTS else response

        return ask

    async def _answer(
        self, question: Question, accept: str, limit_s: float, listener: Listener | None = None
    ) -> Response:
        """The response to a question. Raises: ProblemError."""
        reply = self.answers.find(question)
        if reply is None:
            try:
                reply = await self.pool.ask(question, limit_s, listener)
            except BusyError:
                raise ProblemError("busy", "too many questions are waiting; ask again in a moment") from None
            except TimeLimitError:
                how = "ask it as a job (`Prefer: respond-async`)" if listener is None else "use the command line"
                raise ProblemError("too-long", f"the question takes more than {limit_s:g} s here; {how}") from None
            except LostError:
                raise ProblemError("defect", "the process that computed it ended; it may need more memory") from None
            self.answers.keep(question, reply)
        return _response(question, reply, accept)

    def _start(self, question: Question, accept: str) -> Response:
        job = self.jobs.start(
            question.noun, lambda listener: self._answer(question, accept, self.limits.job_s, listener)
        )
        headers = {"Location": f"{ROOT}/jobs/{job.id}", "Preference-Applied": "respond-async"}
        return JSONResponse(job.document(), 202, headers)

    async def list_jobs(self, _: Request) -> Response:
        """Jobs that run or ended lately."""
        return JSONResponse(self.jobs.documents())

    def _job(self, request: Request) -> AnswerJob:
        return self.jobs.find(request.path_params["job"])

    async def job(self, request: Request) -> Response:
        """The state of a job; DELETE stops it."""
        job = self._job(request)
        if request.method == "DELETE":
            await self.jobs.stop(job)
            return Response(status_code=204)
        return JSONResponse(job.document())

    async def events(self, request: Request) -> Response:
        """Progress of a job."""
        return StreamingResponse(events(self._job(request)), media_type="text/event-stream")

    async def result(self, request: Request) -> Response:
        """The answer of a job that ended."""
        job = self._job(request)
        if job.task is None or job.state == "running":
            return JSONResponse(job.document(), 409)
        return await job.task


def create_app(group: click.Group, access: Access, limits: Limits | None = None) -> Starlette:
    """The application: the commands of `group` as an API, and the pages."""
    api, files = Api(group, limits or Limits()), PageFiles()

    async def page(request: Request) -> Response:
        api.is_opened.set()
        return files.page(request.url.path.strip("/"))

    async def start(_: Request) -> Response:
        return RedirectResponse(f"/{PAGES[0]}")

    return Starlette(
        routes=[
            *api.routes(),
            Route("/", start),
            *(Route(f"/{name}", page) for name in PAGES),
            Route("/static/{path:path}", files.answer),
        ],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={ProblemError: _problem, HTTPException: _http_problem, Exception: _defect},
        lifespan=api.lifespan,
    )


class PageFiles:
    """Files of the pages, kept in memory and read again where one changed; asked again each time, answered with 304."""

    def __init__(self) -> None:
        """Read the files of `STATIC` and the styles of pictures; no other file can be requested."""
        self._paths = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}
        self._paths[PICTURES.name] = PICTURES
        self._kept: dict[Path, tuple[tuple[int, int], bytes, str]] = {}

    def _file(self, path: Path) -> tuple[bytes, str]:
        """The bytes of a file, and its ETag."""
        now = path.stat()
        state = (now.st_mtime_ns, now.st_size)
        if path not in self._kept or self._kept[path][0] != state:
            content = path.read_bytes()
            self._kept[path] = (state, content, _tag(content))
        return self._kept[path][1:]

    async def answer(self, request: Request) -> Response:
        """One file."""
        path = self._paths.get(request.path_params["path"])
        if path is None:
            raise HTTPException(404)
        content, tag = self._file(path)
        kind = guess_type(path.name)[0] or "application/octet-stream"
        return _with_etag(request, Response(content, media_type=kind), tag)

    def page(self, name: str) -> Response:
        """A page: the browser is told to load all its modules at once, not as they name each other."""
        text = self._file(STATIC / "index.html")[0].decode()
        links = "\n".join(f'<link rel="modulepreload" href="/static/{one}">' for one in self._modules(f"{name}.js"))
        filled = text.replace(MODULES, links).replace(NO_LIMIT, LIMIT)
        return Response(filled, 200, {"Cache-Control": "no-cache"}, "text/html")

    def _modules(self, name: str) -> list[str]:
        """A module and those that it imports, each once."""
        found = [name]
        for one in found:
            folder = one.rpartition("/")[0]
            named = re.findall(r'^import [^;]*"\./([\w./]+)";', self._file(self._paths[one])[0].decode(), re.MULTILINE)
            paths = [f"{folder}/{path}" if folder else path for path in named]
            found += [path for path in dict.fromkeys(paths) if path not in found]
        return found


async def _problem(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, ProblemError)
    return Response(problem.body(), problem.status, problem.headers, MEDIA_TYPE)


async def _http_problem(request: Request, failure: Exception) -> Response:
    """The response to what Starlette itself refuses: unknown paths and methods."""
    assert isinstance(failure, HTTPException)
    given = f"{request.method} {request.url.path[:200]}"
    if failure.status_code == 405:
        problem = ProblemError("wrong-method", f"{given}: {failure.detail}")
    else:
        pages = ", ".join(f"/{name}" for name in PAGES)
        problem = ProblemError("unknown", f"{given} is not there; pages: {pages}; the API: {ROOT}/openapi.json")
    return Response(problem.body(), problem.status, failure.headers, MEDIA_TYPE)


async def _defect(request: Request, failure: Exception) -> Response:
    return await _problem(request, ProblemError("defect", f"{type(failure).__name__}; please report it"))


def _wanted_form(request: Request, noun: Noun) -> str:
    """The wanted form of the answer: JSON, or the files that the noun writes. Raises: ProblemError."""
    accept = request.headers.get("accept", "")
    for form in ("application/zip", FILES_TYPE):
        if form in accept:
            if noun.name not in WRITERS:
                raise ProblemError(
                    "not-acceptable", f"{noun.name} writes no files; those that do: {', '.join(WRITERS)}"
                )
            return form
    return ""


def _question(noun: Noun, values: Mapping[str, Any], accept: str) -> Question:
    """The question, with a folder for files where they are wanted. Raises: ProblemError."""
    rest = dict(values)
    files = _files(rest.pop("files", None))
    try:
        question = noun.question(rest, files)
    except FlopwiseError as error:
        raise ProblemError("bad-input", str(error)) from None
    writes = accept or (noun.name == "export" and "list" not in rest)
    folder = (f"{WRITERS[noun.name]}=results",) if writes else ()
    return Question(question.noun, (*question.argv, *folder), question.files)


def _files(given: object) -> dict[str, str]:
    """The files of a question by name. Raises: ProblemError."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MOST_FILES:
        raise ProblemError("bad-input", f"files: expected at most {MOST_FILES} files by name")
    found = {}
    for name, text in given.items():
        if not re.fullmatch(FILE_NAME, name):
            raise ProblemError(
                "bad-input", f"files: {name[:60]!r} is not a file name of letters, digits, `.`, `-`, `_`"
            )
        if not isinstance(text, str | dict):
            raise ProblemError("bad-input", f"files: {name}: expected the text of the file")
        found[name] = text if isinstance(text, str) else json.dumps(text)
    return found


def _query(request: Request, noun: Noun) -> dict[str, Any]:
    """The options of a query; one that may be given several times is a list."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys(request.query_params):
        several = request.query_params.getlist(key)
        param = noun.parameters.get(key.replace("-", "_"))
        if len(several) > 1 or getattr(param, "multiple", False):
            found[key] = several
        else:
            found[key] = several[0]
    return found


async def _body(request: Request, limits: Limits) -> dict[str, Any]:
    """The body of a question. Raises: ProblemError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ProblemError("wrong-type", "send the question as application/json")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ProblemError("wrong-type", "send the question as it is, not compressed")
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                body += part
                if len(body) > limits.body_bytes:
                    raise ProblemError("too-large", f"the question is larger than {limits.body_bytes:,} bytes")
    except TimeoutError:
        raise ProblemError("slow-body", f"the question did not arrive within {limits.body_s:g} s") from None
    except ClientDisconnect:
        raise ProblemError("slow-body", "the question was not sent completely") from None
    try:
        document = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ProblemError("bad-input", f"the question is not JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise ProblemError("bad-input", "expected a JSON object: options by name")
    return document


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


async def _unless_gone(request: Request, answer: asyncio.Task[Response]) -> Response:
    """The answer; it is stopped where the client goes away before it is there."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.create_task(gone())
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            await asyncio.wait([answer])
            raise ProblemError("slow-body", "the client has gone away")
        return await answer
    finally:
        leaving.cancel()
        answer.cancel()


def _response(question: Question, reply: Reply, accept: str) -> Response:
    """The response that a reply of the command line is. Raises: ProblemError."""
    document = reply.document
    if reply.code == 2:
        raise ProblemError("bad-input", reply.message)
    if reply.code == 1:
        detail = reply.message or "there is no feasible answer; see `document`"
        files = {"files": reply.files} if accept == FILES_TYPE else {}
        body = json.loads(document or "null")
        raise ProblemError("infeasible", detail, reasons=list(reply.reasons), document=body, **files)
    if reply.code:
        raise ProblemError("defect", reply.message or f"the question ended with {reply.code}")
    if accept == "application/zip":
        name = f'attachment; filename="flopwise-{question.noun}.zip"'
        return Response(_zip(reply.files), 200, {"Content-Disposition": name}, accept)
    if accept:
        return JSONResponse(reply.files, media_type=accept)
    notes = "; ".join(reply.notes).encode("ascii", "replace").decode()[:2_000]  # as a header can hold it
    headers = {"Flopwise-Note": notes} if notes else {}
    return Response(document, 200, headers, "application/json")


def _zip(files: Mapping[str, str]) -> bytes:
    """The files as one archive, the same for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _tag(content: bytes) -> str:
    """The ETag of what is answered."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _with_etag(request: Request, response: Response, tag: str | None = None) -> Response:
    """The response with its ETag; without its body where the client has it."""
    if response.status_code != 200:
        return response
    tag = tag or _tag(bytes(response.body))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    given = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag in given or "*" in given:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises: OSError: names the address."""
    family = AddressFamily.AF_INET6 if ":" in host else AddressFamily.AF_INET
    try:
        bound = socket.create_server((host.strip("[]"), port), family=family, backlog=128)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"{host}:{port}") from None
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio leaves sockets that it is given as they are
    return bound


def server_of(application: Starlette) -> uvicorn.Server:
    """The server of an application; requests are not logged, since their addresses are questions."""
    config = uvicorn.Config(
        application, log_level="warning", access_log=False, server_header=False, lifespan="on",
        limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=3,
        proxy_headers=False, ws="none",
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(bound: socket.socket, group: click.Group, access: Access) -> None:
    """Serve until interrupted."""
    server_of(create_app(group, access)).run(sockets=[bound])
