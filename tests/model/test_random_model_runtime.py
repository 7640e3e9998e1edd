"""Models of random weights in the real llama-server."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import time

import httpx
import pytest
from real_llama_cpp import clean_environment, free_port

from autofit.model.synth.architectures import ARCHITECTURES
from autofit.model.synth.random_model import WEIGHT_TYPES, SynthSpec, write_model

pytestmark = pytest.mark.runtime

SMALL = SynthSpec(layers=2, experts=8, used=2, embd=256, ff=256, heads=4, vocab=2000, ctx=2048)
TEXT = "The quick brown fox — naïve, 漢字, emoji \U0001f9ea,\ttabs\nand \x01 control"
SPECS = {
    **{type_: dataclasses.replace(SMALL, type=type_, embd_type=type_) for type_ in WEIGHT_TYPES},
    **{
        arch: dataclasses.replace(SMALL, arch=arch, layers=4)
        for arch in ARCHITECTURES
        if arch != SMALL.arch
    },
    "dense": dataclasses.replace(SMALL, experts=0),
    "smallest_vocab": dataclasses.replace(SMALL, vocab=257),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_server_loads_it_and_answers_in_ascii(name, llama_cpp, tmp_path):
    """Any text is tokenized without loss; answers are printable, with finite probabilities."""
    write_model(SPECS[name], tmp_path / "m.gguf")
    port = free_port()
    argv = [str(llama_cpp / "llama-server"), "-m", str(tmp_path / "m.gguf"), "-fit", "off"]
    argv += ["--port", str(port), "-c", "1024", "-np", "1", "-t", "1", "--no-warmup"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=clean_environment(), stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_ready(client, process)
            tokens = client.post("/tokenize", json={"content": TEXT}).json()["tokens"]
            assert len(TEXT) / 3 < len(tokens) <= len(TEXT.encode())
            request = {"prompt": tokens, "n_predict": 24, "temperature": 0, "n_probs": 5}
            answer = client.post("/completion", json=request | {"ignore_eos": True}).json()
            chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 8}
            reply = client.post("/v1/chat/completions", json=chat)
    finally:
        process.kill()
        process.wait(10)
    assert answer["tokens_predicted"] == 24
    assert len(answer["content"]) >= 24
    assert answer["content"].isascii()
    assert answer["content"].isprintable()
    odds = [top["logprob"] for top in answer["completion_probabilities"][0]["top_logprobs"]]
    assert all(map(math.isfinite, odds))
    assert odds[0] > odds[-1], "some tokens are likelier than others"
    assert reply.status_code == 200


def wait_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    for _ in range(600):
        assert process.poll() is None, "the server has ended"
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("the server did not answer")
