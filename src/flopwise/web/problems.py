"""What is answered instead of an answer: problem details (RFC 9457), with the messages of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flopwise.values import dataclass

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One kind of problem: its status, its title, and when it is answered."""

    status: int
    title: str
    when: str


KINDS = {
    "bad-input": ProblemKind(400, "bad input", "An invalid key or value, or a fact that is not known."),
    "unauthorized": ProblemKind(
        401, "no valid token", "The server was started with a token, and the request does not carry it."
    ),
    "forbidden": ProblemKind(
        403, "foreign host or origin", "The request names another host, or comes from a page of another origin."
    ),
    "unknown": ProblemKind(404, "not found", "No such noun, job or page."),
    "not-acceptable": ProblemKind(406, "no such format", "Files are requested from a noun that writes none."),
    "wrong-method": ProblemKind(405, "wrong method", "The path does not take this method."),
    "slow-body": ProblemKind(408, "the body arrived too slowly", "The request's body did not arrive in time."),
    "too-large": ProblemKind(413, "too large", "The request's body is larger than the server takes."),
    "wrong-type": ProblemKind(415, "not JSON", "The body is not of the type application/json, or is compressed."),
    "infeasible": ProblemKind(
        422,
        "no feasible answer",
        "A well-formed question without a feasible answer: `reasons` say why; `document` is what the command line "
        "prints, such as the nearest misses.",
    ),
    "too-many-jobs": ProblemKind(429, "too many jobs", "The server has its maximum of running and waiting jobs."),
    "defect": ProblemKind(500, "a defect of flopwise", "A bug; please report it."),
    "busy": ProblemKind(503, "busy", "Too many questions are waiting; ask again in a moment."),
    "too-long": ProblemKind(
        503,
        "takes too long",
        "The question takes longer than the server allows; ask it as a job, or on the command line.",
    ),
}
"""Kinds of problems, by the last part of their `type`."""


class ProblemError(Exception):
    """A request that is answered with a problem; `more` are further members of its details."""

    def __init__(self, kind: str, detail: str, **more: Any) -> None:
        """`detail` says what was given and what to do."""
        self.kind, self.detail, self.more = kind, detail, more
        super().__init__(detail)

    @property
    def status(self) -> int:
        """Its status of HTTP."""
        return KINDS[self.kind].status

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        return {"Retry-After": "2"} if self.status in (429, 503) else {}

    def body(self) -> bytes:
        """Its details."""
        return json.dumps(details(self.kind, self.detail, self.more)).encode()


def details(kind: str, detail: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a problem."""
    found = KINDS[kind]
    return {
        "type": f"urn:flopwise:problem:{kind}", "title": found.title, "status": found.status, "detail": detail, **more
    }  # fmt: skip
