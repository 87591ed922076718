"""A server that answers as vLLM does, with known tokens, delays and counters, and fails as it is told to.

    python fake_server.py --port 8000 --model m [flags of vLLM, of which --speculative-config is read]

It stands for vLLM where a test must know the truth. Each prompt has one answer: ids that follow from its
text. Without speculation each step brings one token, with it DRAFTED_STEPS in turn; it takes STEP_SECONDS.
FAULTS (JSON, by the method in --speculative-config, "off" without) says what goes wrong, see `KNOWN_FAULTS`;
in a block it does so after NUM_GOOD_REQUESTS. PROMPT_LEN is how many tokens each prompt has.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from aiohttp import web

VERSION = "0.0-fake"
KV_CACHE_TOKENS = 4096
KV_CACHE_USAGE = 0.25
# Tokens that a step brings with speculation: one and what was accepted.
DRAFTED_STEPS = (1, 4, 1, 2)
NUM_DRAFTED = 3
TOP_LOGPROBS = (-0.50, -0.75)
KNOWN_FAULTS = (
    "dies at start",
    "hangs at start",
    "dies in a block",
    "hangs in a block",
    "errors",
    "some errors",
    "errors in probes",
    "no metrics",
    "no ids",
    "usage at the end",
    "ends early",
    "ignores signals",
    "other answers",
)


@dataclass
class Server:
    """What the server knows of itself."""

    model: str
    method: str
    fault: str
    step_seconds: float
    prompt_len: int
    num_requests: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    by_position: Counter[int] = field(default_factory=Counter)


def answer_ids(prompt: str, max_tokens: int) -> list[int]:
    """What the model answers: no loop, another one for each prompt."""
    seed = zlib.crc32(prompt.encode())
    return [(seed + index * index) % 1000 for index in range(max_tokens)]


def text_of(token_ids: list[int]) -> str:
    return "".join(f" t{token}" for token in token_ids)


def steps_of(server: Server, token_ids: list[int]) -> list[list[int]]:
    """The tokens that each step brings."""
    steps, sizes = [], cycle((1,) if server.method == "off" else DRAFTED_STEPS)
    left = list(token_ids)
    while left:
        size = next(sizes)
        steps.append(left[:size])
        left = left[size:]
    return steps


async def events(
    server: Server, prompt: str, body: dict[str, Any], is_chat: bool
) -> AsyncIterator[dict[str, Any]]:
    """The chunks of one stream, each after its step."""
    options = body.get("stream_options", {})
    with_ids = body.get("return_token_ids") and server.fault not in ("no ids", "usage at the end")
    with_usage = options.get("continuous_usage_stats") and server.fault != "usage at the end"
    token_ids = answer_ids(prompt, body["max_tokens"])
    if server.fault == "other answers" and len(token_ids) > 3:
        token_ids[3:] = answer_ids(prompt + " otherwise", len(token_ids) - 3)
    num_sent = 0

    def chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"prompt_tokens": server.prompt_len, "completion_tokens": num_sent}
        return {"choices": choices} | ({"usage": usage} if with_usage or not choices else {})

    if is_chat:
        first = chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        yield first | ({"prompt_token_ids": list(range(server.prompt_len))} if with_ids else {})
    for step in steps_of(server, token_ids):
        await asyncio.sleep(server.step_seconds)
        num_sent += len(step)
        count_step(server, step)
        is_last = num_sent == len(token_ids)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if is_last else None}
        choice |= {"delta": {"content": text_of(step)}} if is_chat else {"text": text_of(step)}
        yield chunk([choice | ({"token_ids": step} if with_ids else {})])
    if options.get("include_usage"):
        yield chunk([])


def count_step(server: Server, step: list[int]) -> None:
    counters = server.counters
    counters["generation_tokens"] += len(step)
    counters["steps"] += 1
    if server.method != "off":
        counters["drafts"] += 1
        counters["draft_tokens"] += NUM_DRAFTED
        counters["accepted_tokens"] += len(step) - 1
        for position in range(len(step) - 1):
            server.by_position[position] += 1


async def complete(request: web.Request) -> web.StreamResponse:
    server: Server = request.app["server"]
    server.num_requests += 1
    body = await request.json()
    is_chat = "messages" in body
    prompt = json.dumps(body["messages"]) if is_chat else str(body["prompt"])
    # The first few are of the warm-up.
    is_late = server.num_requests > int(os.environ.get("NUM_GOOD_REQUESTS", "0"))
    if is_late and server.fault == "dies in a block":
        print("the engine is dead", flush=True)
        os._exit(3)
    if is_late and server.fault == "hangs in a block":
        await asyncio.sleep(3600)
    if server.fault == "errors" or (server.fault == "some errors" and server.num_requests % 4 == 3):
        return web.json_response({"error": {"message": "out of order"}}, status=500)
    if not body.get("stream"):
        if server.fault == "errors in probes":
            return web.json_response({"error": {"message": "out of order"}}, status=503)
        return web.json_response(whole_answer(server, prompt, body))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async for event in events(server, prompt, body, is_chat):
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    if server.fault != "ends early":
        await response.write(b"data: [DONE]\n\n")
    return response


def whole_answer(server: Server, prompt: str, body: dict[str, Any]) -> dict[str, Any]:
    token_ids = answer_ids(prompt, body["max_tokens"])
    choice: dict[str, Any] = {"token_ids": token_ids, "prompt_token_ids": list(range(server.prompt_len))}
    if "logprobs" in body:
        top = {f"token_id:{index}": value for index, value in enumerate(TOP_LOGPROBS)}
        choice["logprobs"] = {"top_logprobs": [top]}
    return {"choices": [choice]}


async def metrics(request: web.Request) -> web.Response:
    server: Server = request.app["server"]
    if server.fault == "no metrics":
        raise web.HTTPNotFound
    labels = f'engine="0",model_name="{server.model}"'
    names = {"generation_tokens": "generation_tokens_total"}
    if server.method != "off":
        drafting = ("drafts", "draft_tokens", "accepted_tokens")
        names |= {name: f"spec_decode_num_{name}_total" for name in drafting}
    lines = [f"vllm:{shown}{{{labels}}} {server.counters[name]}" for name, shown in names.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {count}'
        for position, count in server.by_position.items()
    ]
    lines.append(f"vllm:num_preemptions_total{{{labels}}} 0")
    lines.append(f"vllm:kv_cache_usage_perc{{{labels}}} {KV_CACHE_USAGE}")
    lines.append(f'vllm:cache_config_info{{block_size="16",kv_cache_size_tokens="{KV_CACHE_TOKENS}"}} 1')
    return web.Response(text="\n".join(lines) + "\n")


async def drafter_metrics(request: web.Request) -> web.Response:
    steps = request.app["server"].counters["steps"]
    return web.Response(
        text=f"ngram_spec_steps_total {steps}\nngram_spec_drafter_seconds_total {steps * 1e-4}\n"
    )


def application(server: Server) -> web.Application:
    app = web.Application()
    app["server"] = server

    async def ok(_request: web.Request) -> web.Response:
        return web.Response()

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": server.model}]})

    app.add_routes(
        [
            web.get("/health", ok),
            web.get("/version", version),
            web.get("/v1/models", models),
            web.get("/metrics", metrics),
            web.post("/v1/completions", complete),
            web.post("/v1/chat/completions", complete),
        ]
    )
    return app


async def serve(server: Server, port: int, metrics_port: int | None) -> None:
    runner = web.AppRunner(application(server))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    if metrics_port is not None:
        drafter = web.Application()
        drafter["server"] = server
        drafter.add_routes([web.get("/metrics", drafter_metrics)])
        drafter_runner = web.AppRunner(drafter)
        await drafter_runner.setup()
        await web.TCPSite(drafter_runner, "127.0.0.1", metrics_port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--speculative-config", type=json.loads, default={})
    options, _ = parser.parse_known_args()
    method = options.speculative_config.get("method", "off")
    fault = json.loads(os.environ.get("FAULTS", "{}")).get(method, "")
    assert not fault or fault in KNOWN_FAULTS, fault
    print(f"fake server for {method}, {fault or 'without a fault'}", flush=True)
    # As vLLM: processes of its own, which do not end with it by themselves.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", __file__])
    if fault == "dies at start":
        print("RuntimeError: no room for the model", flush=True)
        sys.exit(7)
    if fault == "hangs at start":
        asyncio.run(asyncio.sleep(3600))
    if fault == "ignores signals":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step_seconds = float(os.environ.get("STEP_SECONDS", "0.002"))
    prompt_len = int(os.environ.get("PROMPT_LEN", "5"))
    server = Server(options.model, method, fault, step_seconds, prompt_len)
    asyncio.run(serve(server, options.port, options.speculative_config.get("metrics_port")))


if __name__ == "__main__":
    main()
