"""The fake llama-server answers requests, with the timings of the simulation."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fakes.machine import Machine, RuntimeTraits
from fakes.machine_fixtures import FakeMachine
from fakes.one_card import ONE_CARD, Start
from fakes.physics import Simulation
from fakes.running import RunningServer


def test_timings_are_those_of_the_simulation(start: Start, machine: Machine, model):
    """A request's timings equal what the physics says in-process, without noise."""
    server = start().wait_ready()
    prompt = [97 + i % 20 for i in range(2000)]
    timings = server.complete(prompt, 32)["timings"]
    params = {"devices": "CUDA0", "n_cpu_moe": 16, "context": 4096, "parallel": 1}
    sample = Simulation(machine, model).truth(params, [(2000, 32)]).samples[0]

    assert (timings["prompt_n"], timings["predicted_n"], timings["cache_n"]) == (2000, 32, 0)
    assert timings["prompt_ms"] == pytest.approx(1e3 * sample.prompt_s, abs=0.01)
    assert timings["predicted_per_second"] == pytest.approx(sample.tg_per_s, rel=1e-3)


def test_a_request_of_the_wrong_kind_is_an_error(start: Start):
    """A body with values of the wrong type is answered with 400."""
    server = start().wait_ready()

    assert server.post("/completion", {"prompt": 7}).status_code == 400
    assert server.post("/completion", {"prompt": "x", "n_predict": "many"}).status_code == 400


def test_time_can_really_pass(fake: FakeMachine, model_file: Path, tmp_path: Path):
    """With a time scale of 1 a stream's first token comes when the timings say."""
    with RunningServer(fake.server, model_file, tmp_path / "slow.log", ONE_CARD,
                       env={"FAKE_TIME_SCALE": "1"}) as server:  # fmt: skip
        server.wait_ready()
        began = time.monotonic()
        timings = server.complete([65] * 600, 8)["timings"]
        waited = 1e3 * (time.monotonic() - began)

    assert waited >= timings["prompt_ms"]


def test_greedy_text_does_not_depend_on_where_layers_lie(start: Start):
    """The same prompt gives the same tokens whatever the offload and the batches."""
    prompt = [65, 66, 67] * 30
    texts = set()
    for words in (ONE_CARD, ["-ncmoe", "20", "-ts", "10,15", "-ub", "64", *ONE_CARD[4:]]):
        server = start(*words).wait_ready()
        texts.add(server.complete(prompt, 40)["content"])
        server.stop()

    assert len(texts) == 1
    assert len(texts.pop()) > 20


def test_a_narrow_kv_type_can_change_some_tokens(tmp_path: Path, machine: Machine, model):
    """If the machine says so, q4_0 answers differ a little from f16's, and q8_0's do not."""
    traits = RuntimeTraits(kv_text_change={"q4_0": 0.1}, kv_logprob_error={"q4_0": 0.02})
    fake = FakeMachine(tmp_path, replace(machine, runtime=traits))
    path = fake.write_model(model)
    tokens = {}
    for kind in ("f16", "q8_0", "q4_0"):
        words = [*ONE_CARD, "-ctk", kind, "-ctv", kind]
        with RunningServer(fake.server, path, tmp_path / f"{kind}.log", words) as server:
            answer = server.wait_ready().complete([65] * 50, 200, return_tokens=True)
            tokens[kind] = answer["tokens"]

    changed = sum(a != b for a, b in zip(tokens["f16"], tokens["q4_0"], strict=True))
    assert tokens["f16"] == tokens["q8_0"]
    assert 2 < changed < 60


def test_a_repeated_prompt_is_cached(start: Start):
    """An identical prompt reprocesses one token, unless the request or the flag forbids it."""
    server = start().wait_ready()
    ask = {"prompt": [65] * 100, "n_predict": 4}
    first, second = (server.post("/completion", ask).json()["timings"] for _ in range(2))
    forbidden = server.post("/completion", {**ask, "cache_prompt": False}).json()["timings"]

    assert (first["cache_n"], second["cache_n"], second["prompt_n"]) == (0, 99, 1)
    assert forbidden["cache_n"] == 0


def test_generation_ends_at_the_context(start: Start):
    """Asked for more than fits, a slot generates until its context is full."""
    server = start().wait_ready()
    answer = server.complete([65] * 4000, -1)

    assert answer["tokens_predicted"] == 96
    assert (answer["truncated"], answer["stop_type"]) == (True, "limit")


def test_a_prompt_beyond_the_context_is_refused(start: Start):
    """The error names both numbers, and the server lives on."""
    server = start().wait_ready()
    answer = server.post("/completion", {"prompt": [65] * 5000, "n_predict": 1})

    assert answer.status_code == 400
    assert answer.json()["error"]["n_ctx"] == 4096
    assert server.health() == 200


def test_a_stream_carries_tokens_then_the_result(start: Start):
    """Each token is an event; the last event has the timings and no text."""
    server = start().wait_ready()
    body = {"prompt": "hello", "n_predict": 5, "stream": True, "ignore_eos": True}
    with server.client.stream("POST", "/completion", json=body) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line]

    assert [event["stop"] for event in events] == [False] * 5 + [True]
    assert events[-1]["timings"]["predicted_n"] == 5


def test_clients_that_go_away_do_no_harm(start: Start):
    """A client that closes in the middle of a stream leaves a server that still answers."""
    server = start().wait_ready()
    body = {"prompt": "x", "n_predict": 200, "stream": True, "ignore_eos": True}
    with httpx.Client() as client, client.stream(
        "POST", server.url + "/completion", json=body
    ) as answer:  # fmt: skip
        next(answer.iter_lines())

    assert server.complete("y", 3)["tokens_predicted"] == 3
    assert os.path.exists(f"/proc/{server.process.pid}")  # noqa: PTH110  # a process, not a file
