"""The fake llama-server compared with the real one: the same command, lines and keys.

The fake's machine has RPC devices like the real server's, so that both get the same command.
Lines are compared by their kind: the text without digits and names.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes.machine import Device, Host, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.running import RunningServer
from real_llama_cpp import clean_environment, rpc_device

from autofit.model.synth.random_model import SynthSpec, write_model

pytestmark = pytest.mark.runtime
PLAN = ["-c", "1024", "-np", "1", "-ngl", "99", "-ncmoe", "2", "-ts", "3,2", "-ub", "128",
        "-b", "256", "-fit", "off", "-lv", "4", "-cram", "0", "-ctxcp", "0"]  # fmt: skip
PROMPT = [65 + i % 50 for i in range(300)]
# Lines of which the real server has more, or that depend on its build, device or model.
IGNORED = (
    "print_info:", "llama_model_loader: - kv", "llama_model_loader: - type", "load:   -",
    "load: control", "load: special", "load: token", "load:  -", "ggml_", "sampler chain",
    "common_param:   -", "system_info", "chat template", "get_availabl", "flash_attn",
    "using device", "common_init_: added", "fit_", "init: using",
)  # fmt: skip


class Pair:
    """The same server twice: real and fake."""

    def __init__(self, real: RunningServer, fake: RunningServer) -> None:
        self.real, self.fake = real, fake

    def both(self, method: str, path: str, body: Any = None) -> tuple[Any, Any]:
        """Return status and JSON of both responses to a request."""
        answers = []
        for server in (self.real, self.fake):
            answer = server.client.request(method, path, json=body)
            answers.append((answer.status_code, answer.json()))
        return answers[0], answers[1]

    def keys(self, method: str, path: str, body: Any = None) -> tuple[Any, Any]:
        """Return status and shape of both responses: keys and the kinds of their values."""
        real, fake = self.both(method, path, body)
        return (real[0], shape(real[1])), (fake[0], shape(fake[1]))


def shape(value: Any) -> Any:
    """Return the nested keys of a JSON value; of a list, those of its first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else list
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else (
        type(value).__name__
    )  # fmt: skip


def kinds(log: str) -> list[str]:
    """Return the kinds of line in a log, in the order of their first line."""
    found = []
    for line in log.splitlines():
        text = re.sub(r"^\d+\.\d{2}\.\d{3}\.\d{3} [IWED] ", "", line)
        if text == line or any(word in text for word in IGNORED):
            continue
        text = re.sub(r"'[^']*'|\([^)]*\)|\[[^\]]*\]", "", text)
        text = re.sub(r"(RPC|CPU|CUDA)\w*", "DEVICE", text)
        text = re.sub(r"from \S+", "from FILE", text)
        text = re.sub(r"\b(true|false|mmap|none|f16|enabled|disabled|auto)\b", "VALUE", text)
        text = re.sub(r"-?\d[\d.]*", "N", text)
        found.append(re.sub(r"\s+", " ", text).strip())
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small mixture-of-experts model with random weights."""
    path = tmp_path_factory.mktemp("contract") / "tiny.gguf"
    write_model(SynthSpec(layers=4, experts=8, used=2, embd=256, ff=256, heads=4, kv_heads=2,
                    head_dim=64, vocab=1024, ctx=4096), path)  # fmt: skip
    return path


@pytest.fixture(scope="module")
def devices(llama_cpp: Path) -> Iterator[list[str]]:
    """Start two real RPC servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(rpc_device(llama_cpp)) for _ in range(2)]


def machine_with(endpoints: list[str]) -> Machine:
    """Return a machine whose devices have the addresses of these RPC servers."""
    devices = tuple(
        Device(f"RPC{i}", "remote", "RPC", total_mib=8000, context_mib=0, endpoint=endpoint)
        for i, endpoint in enumerate(endpoints)
    )
    return Machine("contract", devices, Host(ram_mib=16000)).without_noise()


@pytest.fixture(scope="module")
def fake(devices: list[str], tmp_path_factory: pytest.TempPathFactory) -> FakeMachine:
    """Return the fake machine of the pair."""
    return FakeMachine(tmp_path_factory.mktemp("fake"), machine_with(devices))


@pytest.fixture(scope="module")
def pair(
    llama_cpp: Path,
    fake: FakeMachine,
    devices: list[str],
    model_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """Start both servers with the same command, and wait until they are ready."""
    folder = tmp_path_factory.mktemp("logs")
    words = ["--rpc", ",".join(devices), *PLAN]
    with ExitStack() as stack:
        yield Pair(
            *(
                stack.enter_context(RunningServer(program, model_file, folder / name, words))
                .wait_ready()
                for name, program in (
                    ("real", llama_cpp / "llama-server"), ("fake", fake.server))
            )
        )  # fmt: skip


def completion(**more: Any) -> dict[str, Any]:
    """Return a small greedy request."""
    return {"prompt": PROMPT, "n_predict": 4, "temperature": 0, "seed": 1, "ignore_eos": True,
            "cache_prompt": False, **more}  # fmt: skip


@pytest.mark.parametrize("path", ["/health", "/props", "/slots", "/v1/models", "/metrics", "/no"])
def test_get_endpoints_have_the_same_keys(pair: Pair, path: str):
    """GET endpoints have the same status, keys and kinds of values."""
    real, fake = pair.keys("GET", path)

    if path == "/slots":  # after requests the real server reports more about each slot
        real[1][0] = {key: real[1][0][key] for key in fake[1][0]}
    assert fake == real


def test_props_have_the_applied_settings(pair: Pair):
    """Context, slots and path are the same in both."""
    real, fake = (answer[1] for answer in pair.both("GET", "/props"))

    for props in (real, fake):
        assert props["default_generation_settings"]["n_ctx"] == 1024
    assert [fake[key] for key in ("total_slots", "model_path", "model_alias")] == [
        real[key] for key in ("total_slots", "model_path", "model_alias")
    ]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"return_tokens": True},
        {"n_probs": 3},
        {"n_probs": 2, "post_sampling_probs": True},
        {"response_fields": ["timings", "tokens_evaluated", "stop_type"]},
        {"prompt": [[65, 66, 67], [68, 69]]},
        {"prompt": ["x", 65, 66]},
    ],
    ids=["plain", "tokens", "probs", "sampled", "fields", "list", "mixed"],
)
def test_completions_have_the_same_keys(pair: Pair, more: dict[str, Any]):
    """Every form of request has the same keys in its response, including timings."""
    real, fake = pair.keys("POST", "/completion", completion(**more))

    assert fake == real


def test_token_counts_are_the_same(pair: Pair):
    """Evaluated, predicted and cached tokens are counted in the same way."""
    for more in ({}, {"n_predict": 0}, {"prompt": [65] * 1000, "n_predict": 2000}):
        answers = [a[1] for a in pair.both("POST", "/completion", completion(**more))]
        counts = [
            (a["tokens_evaluated"], a["tokens_predicted"], a["tokens_cached"], a["truncated"],
             a["stop_type"], a["timings"]["prompt_n"], a["timings"]["cache_n"])
            for a in answers
        ]  # fmt: skip
        assert counts[0] == counts[1]


def test_streams_have_the_same_events(pair: Pair):
    """The first and the last events of a stream have the same keys."""
    body = completion(stream=True, timings_per_token=True, return_progress=True)
    events = []
    for server in (pair.real, pair.fake):
        with server.client.stream("POST", "/completion", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        events.append([shape(json.loads(line[6:])) for line in lines])

    real, fake = events
    assert (fake[0], fake[-2], fake[-1]) == (real[0], real[-2], real[-1])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": []}),
        ("/completion", {"n_predict": 1}),
        ("/completion", {"prompt": [65, 999999]}),
        ("/completion", {"prompt": [65] * 3000}),
        ("/props", {}),
    ],
)
def test_errors_are_the_same(pair: Pair, path: str, body: Any):
    """Status, type and message of refused requests are the same."""
    real, fake = pair.both("POST", path, body)

    assert fake == real


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "Hi"}),
        ("/tokenize", {"content": "Hi", "with_pieces": True}),
        ("/detokenize", {"tokens": [72, 105]}),
        ("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 3}),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
    ],
)  # fmt: skip
def test_other_endpoints_have_the_same_keys(pair: Pair, path: str, body: Any):
    """Responses about tokens and templates, and of the OpenAI endpoints, have the same keys."""
    real, fake = pair.keys("POST", path, body)

    assert fake == real


def test_log_has_the_same_kinds_of_line(llama_cpp: Path, model_file: Path, tmp_path: Path):
    """Every kind of line of the fake is one of the real server's.

    The real server has only a few more kinds of line, and none of them has a size.
    """
    logs = []
    with ExitStack() as stack:
        own = [stack.enter_context(rpc_device(llama_cpp)) for _ in range(2)]
        programs = (llama_cpp / "llama-server", FakeMachine(tmp_path, machine_with(own)).server)
        for number, program in enumerate(programs):
            words = ["--rpc", ",".join(own), *PLAN]
            log = tmp_path / f"{number}.log"
            server = stack.enter_context(RunningServer(program, model_file, log, words))
            server.wait_ready().complete(PROMPT, 4)
            server.post("/completion", completion(prompt=[65] * 3000))
            assert server.stop() == 0
            logs.append(kinds(server.log()))
    real, imitated = logs

    assert [line for line in imitated if line not in real] == []
    missing = [line for line in real if line not in imitated]
    assert not [line for line in missing if "size" in line or "buffer" in line or "|" in line]
    assert len(missing) < 0.15 * len(real), missing
    order = [real.index(line) for line in imitated]
    assert sum(a > b for a, b in pairwise(order)) <= 2


@pytest.mark.parametrize(
    "words",
    [
        ["--bogus"], ["-c"], ["-c", "many"], ["-fa", "xx"], ["-ctk", "q9"], ["-np", "0"],
        ["-lm", "x"], ["-ot", "a"], ["-ot", "a=FOO"], ["-dev", "XX"], ["-ncmoe", "-1"],
        ["-sm", "x"], ["-ngl", "x"], ["-fit", "x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_faulty_arguments_have_the_same_errors(llama_cpp: Path, tmp_path: Path, words: list[str]):
    """Status and output of a refused command are the same."""
    nothing = FakeMachine(tmp_path, Machine("bare", (), Host()))
    answers = [
        subprocess.run([program, *words], capture_output=True, text=True, check=False,
                       env=clean_environment(), timeout=20)
        for program in (llama_cpp / "llama-server", nothing.server)
    ]  # fmt: skip
    real, fake = ((a.returncode, a.stdout, a.stderr.split("to show complete")[0]) for a in answers)

    assert fake == real


def test_help_is_the_same(llama_cpp: Path, fake: FakeMachine):
    """The help texts of both programs are the same."""
    texts = [
        subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        for program in (llama_cpp / "llama-server", fake.server)
    ]

    assert texts[0] == texts[1]


@pytest.mark.parametrize("fault", ["missing", "cut"])
def test_faulty_model_files_have_the_same_errors(
    llama_cpp: Path, fake: FakeMachine, model_file: Path, tmp_path: Path, fault: str
):
    """Missing and truncated files have the same status and error lines."""
    path = tmp_path / "bad.gguf"
    if fault == "cut":
        path.write_bytes(model_file.read_bytes()[:1_000_000])
    errors = []
    for name, program in (("real", llama_cpp / "llama-server"), ("fake", fake.server)):
        words = ["-fit", "off", "-lv", "4"]
        with RunningServer(program, path, tmp_path / name, words) as server:
            assert server.ended() == 1
            errors.append(re.findall(r" E (.*)", server.log()))
    real, imitated = ([re.sub(r"tensor '[^']*'", "tensor", line) for line in e] for e in errors)

    assert imitated == real
