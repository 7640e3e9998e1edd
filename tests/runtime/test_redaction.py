"""Secrets in commands and variables are hidden, and what a runtime needs stays."""

from __future__ import annotations

import shlex
import string

import pytest
from fakes.machine_fixtures import _FAKES
from hypothesis import given
from hypothesis import strategies as st

from autofit.process.secret_filter import SecretFilter
from autofit.runtime.command.redaction import (
    hidden_values,
    hide_values,
    launch_secrets,
    redact_arguments,
    redact_command,
    redact_text,
    redact_variables,
    redact_wrapper,
)
from autofit.runtime.discovery.help_text import parse_help
from autofit.trial.candidate import Candidate, LaunchPlan

HELP = parse_help((_FAKES / "help/llama-server-b11434.txt").read_text())
LETTERS = string.ascii_letters + string.digits + "+/_=.-!$&*'\" "
# It does not begin with a dash, and is no number and no path.
SECRETS = st.text(LETTERS, min_size=6, max_size=40).map(lambda text: f"zq{text}xk")
URL_PARTS = st.text(string.ascii_letters + string.digits + "._~%-", min_size=8).map(
    "zq{}xk".format
)

ARGUMENTS = [
    ["--api_key", "{}"],
    ["--api-key={}"],
    ["--hf-token", "{}"],
    ["-hft", "{}"],
    ["--auth-token", "{}"],
    ["--password={}"],
    ["--magic", "{}"],
    ["--magic={}"],
    ["{}"],
]
VARIABLES = ["AWS_SECRET_ACCESS_KEY", "MY_PASSWD", "CREDENTIALS", "HF_TOKEN", "CUDA_AUTH", "NOTE"]


@given(SECRETS, st.sampled_from(ARGUMENTS))
def test_no_argument_has_a_secret(secret, words):
    """Values of flags that name a secret or that the help does not list are hidden."""
    line = ["--threads", "4", *(word.format(secret) for word in words), "--port", "80"]
    for shown in (redact_arguments(line, HELP), redact_command(["x", "--", *line], HELP)):
        assert secret not in " ".join(shown)
        assert shown[-4 - len(words) : -2 - len(words)] == ("--threads", "4")
        assert shown[-2:] == ("--port", "80")


@given(URL_PARTS, URL_PARTS, st.sampled_from(["-mu", "--model-url", "--proxy", "--chat-template"]))
def test_no_address_has_a_secret(password, query, flag):
    """User, password and query of an address are hidden, also where the value is needed."""
    address = f"https://me:{password}@example.org/m.gguf?sig={query}"
    for words in ([flag, address], [f"{flag}={address}"]):
        shown = " ".join(
            (*redact_arguments(words, HELP), *redact_command(words), *redact_wrapper(words))
        )
        assert password not in shown
        assert query not in shown
    assert password not in redact_text(f"srv {flag} {address}")
    assert redact_variables({"HTTPS_PROXY": f"http://me:{password}@host:3128"}) == {
        "HTTPS_PROXY": "http://***@host:3128"
    }


@given(SECRETS, st.sampled_from(VARIABLES))
def test_no_variable_has_a_secret(secret, name):
    """Variables are hidden as themselves, before a program, in a text and as an option."""
    assert redact_variables({name: secret}) == {name: "***"}
    setting = f"{name}={secret}"
    assert redact_wrapper(["env", setting, "numactl", "-N", "0"])[1:] == (
        f"{name}=***", "numactl", "-N", "0",
    )  # fmt: skip
    text = f"{name}={shlex.quote(secret)} llama-server --threads 4"
    assert redact_text(text) == f"{name}=*** llama-server --threads 4"
    assert redact_command(["tune", "--env", setting, "--baseline", text]) == (
        "tune", "--env", f"{name}=***", "--baseline", f"{name}=*** llama-server --threads 4",
    )  # fmt: skip


@given(SECRETS)
def test_the_secrets_of_a_launch_are_hidden_in_texts(secret):
    """A log and a traceback have them in any place."""
    plan = LaunchPlan(Candidate({}), ("srv", secret), {"A": secret}, shown_argv=("srv", "***"))
    assert secret in launch_secrets(plan, {})
    assert secret in launch_secrets(LaunchPlan(Candidate({}), ()), {"MY_TOKEN": secret})
    found = hidden_values(["a", f"--x={secret}"], ["a", "--x=***"])
    assert hide_values(f"<{secret}>", found) == "<***>"


@pytest.mark.parametrize(
    "words",
    [
        ["--threads", "4", "-ngl", "99", "--temp", "0.7", "--tensor-split", "1,2.5"],
        ["--chat-template-kwargs", '{"thinking": false}', "-ot", r"blk\.(1|2)\.ffn=CPU"],
        ["--api-key-file", "/etc/llama/keys", "--no-mmap", "--cache-type-k", "q8_0"],
        ["--unknown", "4", "--other", "on", "--range", "0-7", "--size=16GiB"],
    ],
    ids=lambda words: words[0],
)
def test_needed_values_stay(words):
    """Numbers, switches, paths of key files, and values of listed flags are no secrets."""
    assert redact_arguments(words, HELP) == tuple(words)


def test_needed_variables_stay(tmp_path):
    """Settings of runtimes and their libraries, numbers and paths stay."""
    env = {
        "CUDA_VISIBLE_DEVICES": "GPU-1a2b,GPU-3c4d",
        "GGML_CUDA_NO_PINNED": "1",
        "LD_LIBRARY_PATH": "/opt/not/here:/lib",
        "OTHER": f"{tmp_path}:/usr",
        "LEVEL": "4",
    }
    assert redact_variables(env) == env


@given(
    st.lists(st.text("abc", max_size=8).map(str.encode), max_size=12),
    st.lists(st.text("abc", min_size=2, max_size=6), max_size=3),
)
def test_a_stream_has_no_secret_however_it_is_cut(parts, secrets):
    """The parts of a stream are as the whole stream with stars."""
    filtered = SecretFilter(secrets)
    got = b"".join(map(filtered.feed, parts)) + filtered.end()

    for secret in secrets:
        assert secret.encode() not in got
    if not any(secret.encode() in b"".join(parts) for secret in secrets):
        assert got == b"".join(parts)
