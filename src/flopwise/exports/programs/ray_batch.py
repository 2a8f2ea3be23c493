"""Answers requests with Ray Data: `python3 ray_batch.py batch.json`, on a Ray cluster.

Requests are a line each, as OpenAI's batch files have them: `custom_id` and a `body` with `messages`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig


def prompts(max_tokens: int) -> Any:
    """The function that turns a request into a prompt; answers have `max_tokens` tokens where a request states none."""

    def prompt(row: dict[str, Any]) -> dict[str, Any]:
        body = row["body"]
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or max_tokens
        sampling = {"max_tokens": int(limit), "temperature": body.get("temperature") or 0.0}
        return {"custom_id": row["custom_id"], "messages": body["messages"], "sampling_params": sampling}

    return prompt


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of an answer that are kept."""
    return {"custom_id": row["custom_id"], "text": row["generated_text"], "tokens": row["num_generated_tokens"]}


def main(path: str) -> None:
    """Read the job, run it on all replicas, and write a file of answers for each block."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    processor = build_processor(
        vLLMEngineProcessorConfig(**job["processor"]), preprocess=prompts(job["max_tokens"]), postprocess=answer
    )
    processor(ray.data.read_json(job["input"], lines=True)).write_json(job["output"])


if __name__ == "__main__":
    main(sys.argv[1])
