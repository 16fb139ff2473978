"""/v1/embeddings, and /v1/score: how alike two texts are, by their embeddings."""

import base64
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from mindbatch.dataset.openai_request import EMBEDDINGS
from mindbatch.engine.request import result_body
from mindbatch.io.fault_lines import shown
from mindbatch.run.openai_response import embeddings as embedding_list
from mindbatch.run.result_rows import FinishedRow
from mindbatch.server.completions import json_response, one_prompt_each
from mindbatch.server.generation import OnlineRequest
from mindbatch.server.records import new_id
from mindbatch.server.requests import bad_request, json_body, refuse_unknown, while_connected
from mindbatch.server.service import Service

_FORMATS = ("float", "base64")


async def embeddings(request: Request) -> Response:
    """Vectors of length 1; `encoding_format` base64 is their float32 numbers, the lowest byte first."""
    service: Service = request.app.state.service
    body = await json_body(request)
    if (form := body.pop("encoding_format", None) or "float") not in _FORMATS:
        raise bad_request(f"encoding_format={shown(form)}: must be float or base64", "encoding_format")
    answer = await while_connected(request, _embedded(service, body))
    if form == "base64":
        for item in answer["data"]:
            data = np.asarray(item["embedding"], "<f4").tobytes()
            item["embedding"] = base64.b64encode(data).decode()
    return json_response(answer)


async def score(request: Request) -> Response:
    """Cosines of text_1, or of each of as many as text_2 has, with each of text_2."""
    service: Service = request.app.state.service
    body = await json_body(request)
    refuse_unknown(body, ("model", "text_1", "text_2"))
    first, second = (_texts(body, name) for name in ("text_1", "text_2"))
    if len(first) not in (1, len(second)):
        raise bad_request(f"text_1: has {len(first)} texts and text_2 {len(second)}; one, or as many")
    asked = {"input": [*first, *second], "model": body.get("model")}
    answer = await while_connected(request, _embedded(service, asked))
    vectors = np.asarray([item["embedding"] for item in answer["data"]], np.float64)
    cosines = (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1)
    scores = [
        {"index": index, "object": "score", "score": cosine} for index, cosine in enumerate(cosines.tolist())
    ]
    return json_response({**answer, "id": new_id("score-"), "created": service.started, "data": scores})


async def _embedded(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    rows = await service.rows(EMBEDDINGS, one_prompt_each(body, "input"))
    asked = OnlineRequest(service, rows)
    outputs = await asked.outputs()
    results = [
        FinishedRow(row.key, row, result_body(output)) for row, output in zip(rows, outputs, strict=True)
    ]
    return embedding_list(results, asked.options)


def _texts(body: dict[str, Any], name: str) -> list[str]:
    value = body.get(name)
    texts: list[Any] = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise bad_request(f"{name}={shown(value)}: must be a text or a list of texts", name)
    return texts
