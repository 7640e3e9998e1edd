"""Secrets that a user gives: the server gets them, and nothing that autofit writes has them."""

from __future__ import annotations

import json
import secrets
import sys

import pytest
from autofit_program import AutofitProgram
from tune_machine import TuneMachine

pytestmark = pytest.mark.timeout(240)

# Records how it was started, prints it into the server's log, and leaves out unknown flags.
WRAPPER = """\
import json, os, sys
argv = sys.argv[2:]
with open(sys.argv[1], "a") as file:
    print(json.dumps([argv, dict(os.environ)]), file=file)
print("started with", argv, dict(os.environ), flush=True)
for flag in ("--auth-token", "--magic"):
    while flag in argv:
        del argv[argv.index(flag):argv.index(flag) + 2]
argv = [word for word in argv if not word.startswith("--session-cookie=")]
os.execv(argv[0], argv)
"""


class Secrets:
    """Random secrets, each planted in one place."""

    def __init__(self) -> None:
        self.planted: dict[str, str] = {}

    def __getitem__(self, place: str) -> str:
        return self.planted.setdefault(place, f"s3{secrets.token_urlsafe(12)}")

    def found_in(self, data: bytes) -> list[str]:
        """Return the places whose secrets are in some bytes."""
        return [place for place, secret in self.planted.items() if secret.encode() in data]


def test_no_secret_is_written_or_printed(tmp_path):
    """A tune, its study, logs, presets, reports and exports have none, and the server has all."""
    machine, program = TuneMachine(tmp_path, 3000.0), AutofitProgram(tmp_path)
    secret, study = Secrets(), tmp_path / "study"
    record, wrapper = tmp_path / "outside" / "started", tmp_path / "outside" / "wrapper.py"
    record.parent.mkdir()
    wrapper.write_text(WRAPPER)
    compose = tmp_path / "outside" / "compose.yaml"
    compose.write_text(
        f"""\
services:
  llm:
    image: ghcr.io/ggml-org/llama.cpp:server
    command: --model {machine.model} --api_key {secret["api_key"]} --hf-token {secret["hf"]}
      -mu https://me:{secret["model url"]}@example.org/m.gguf?sig={secret["query"]}
      --magic {secret["unknown flag"]}
    environment:
      MY_PASSWD: {secret["MY_PASSWD"]}
      HTTPS_PROXY: http://me:{secret["proxy"]}@proxy.example.org:3128
      CREDENTIALS: {secret["CREDENTIALS"]}
"""
    )
    words = [
        *machine.words(study, max_launches=1),
        "--no-answers",
        *("--baseline", compose),
        *("--env", f"AWS_SECRET_ACCESS_KEY={secret['AWS']}"),
        *("--env", f"NOTE={secret['other variable']}"),
        *("--wrapper", f"env A_TOKEN={secret['wrapper']} {sys.executable} {wrapper} {record}"),
        "--json",
    ]
    arguments = [
        *("--auth-token", secret["auth token"], f"--session-cookie={secret['cookie']}"),
        *("--chat-template-kwargs", '{"thinking": false}'),
    ]
    inherited = {"OPENAI_API_KEY": secret["inherited"]}
    seen = []

    def run(*given: object, code: int = 0) -> str:
        done = program.run(*given, **inherited)
        assert done.code == code, done.err
        seen.append(f"{done.out}\n{done.err}")
        return done.out

    dry = run(*words, "--dry-run", "--", *arguments)
    result = json.loads(run(*words, "--", *arguments))
    run(*words, "--resume", "--", *arguments)
    run("show", study, "--command", "1")
    for name in ("systemd", "compose"):
        image = ["--image", "example.org/llama"] * (name == "compose")
        run("export", study, "--format", name, "-o", tmp_path / f"out.{name}", *image)
    run("import", compose, "-o", tmp_path / "own.sh")
    run("plan", machine.model, "--runtime", machine.server, "--dialect", "llama_server",
        "--space", machine.space, "--env", f"MY_PASSWD={secret['MY_PASSWD']}", "--json",
        "--", *arguments)  # fmt: skip

    # Only those that are left out of launches are not for the server.
    is_left_out = {"api_key", "hf", "model url", "query", "unknown flag"}
    launched = secret.found_in(record.read_bytes())
    assert {*secret.planted} - {*launched} <= is_left_out
    assert "unknown flag" in launched
    for text in (dry, *seen):
        assert secret.found_in(text.encode()) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    own = [path for path in files if not path.is_relative_to(record.parent)]
    assert study / "trials/0001.log" in own
    assert {path: found for path in own if (found := secret.found_in(path.read_bytes()))} == {}
    assert b"started with" in (study / "trials/0001.log").read_bytes()
    winner = result["winner"]
    assert winner["argv"][-2:] == ["--chat-template-kwargs", '{"thinking": false}']
    assert winner["env"]["HTTPS_PROXY"] == "http://***@proxy.example.org:3128"
