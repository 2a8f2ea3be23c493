"""What the OpenAPI document allows is answered, and never with a defect: drawn by schemathesis."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from flopwise.cli.app import app
from flopwise.web.guard import Access
from flopwise.web.openapi import document
from flopwise.web.questions import nouns
from flopwise.web.server import Limits, create_app, listen, server_of

SCHEMA = schemathesis.openapi.from_dict(document(nouns(app))).exclude(
    method="GET", path_regex="/(plan|simulate|train|serve|compare|memory)$"
)  # the same questions as by POST, and slow to draw


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listen("127.0.0.1", 0) as bound:
        server = server_of(create_app(app, Access.of("127.0.0.1", None), Limits(question_s=1)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


@SCHEMA.parametrize()  # type: ignore[untyped-decorator]  # whose modules mypy does not read
@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_every_operation_answers(case: schemathesis.Case[Any], address: str) -> None:
    answer = case.call(base_url=address, timeout=60)
    if answer.status_code == 503:  # a question may be too long, and says so
        assert answer.json()["type"] in ("urn:flopwise:problem:too-long", "urn:flopwise:problem:busy")
        return
    case.validate_response(answer, checks=[not_a_server_error, content_type_conformance, response_schema_conformance])
