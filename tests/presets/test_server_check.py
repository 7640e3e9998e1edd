"""The real router reads an ini preset as it was written."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from presets.preset_sample import RESERVED, make_preset, real_help

from autofit.errors import UsageError
from autofit.presets.command_options import parse_options
from autofit.presets.formats.ini import refused_keys, section_name, section_options
from autofit.presets.formats.registry import write_preset
from autofit.presets.read_preset import read_preset
from autofit.presets.verify.server_check import differences

pytestmark = pytest.mark.runtime


@contextmanager
def _router(program: Path, folder: Path, text: str) -> Iterator[httpx.Client]:
    """Start a router on a Unix socket, so that no other program can take its port."""
    preset, log = folder / "preset.ini", folder / "router.log"
    preset.write_text(text, encoding="utf-8")
    address = folder / "router.sock"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "--models-preset", preset, "--no-models-autoload", "--host", address],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
            cwd=folder,
        )
    try:
        deadline = time.monotonic() + 30
        while not _answers(address):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        transport = httpx.HTTPTransport(uds=str(address))
        with httpx.Client(transport=transport, base_url="http://router") as client:
            yield client
    finally:
        process.terminate()
        process.wait(timeout=20)


def _answers(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(address)) == 0


def _models(client: httpx.Client) -> dict[str, list[str]]:
    """Return the arguments of each model, without the program."""
    return {
        model["id"]: model["status"]["args"][1:] for model in client.get("/models").json()["data"]
    }


def _random_arguments(rng: random.Random) -> list[str]:
    """Return settings as a tune might write them, with options that users add."""
    blocks = rng.randint(1, 60)
    choices = [
        ["--n-gpu-layers", str(blocks)],
        ["-ngl", rng.choice(["auto", "all", "0"])],
        ["--n-cpu-moe", str(rng.randint(0, blocks))],
        ["--cpu-moe"],
        ["--n-cpu-ffn", str(rng.randint(0, 8))],
        ["-ot", rf"blk\.({rng.randint(0, 9)}|{rng.randint(10, 19)})\.ffn_.*_exps=CPU"],
        ["--override-tensor", r"\.ffn_up_exps\.weight$=CPU,blk\.0\.attn_q=CPU"],
        ["--tensor-split", ",".join(str(rng.randint(0, 30)) for _ in range(3))],
        ["--device", "none"],
        ["--ctx-size", str(rng.randint(1, 1 << 20))],
        ["--ctx_size", "4096"],
        ["-np", str(rng.randint(1, 9))],
        ["-b", str(rng.randint(1, 8192))],
        ["--ubatch-size", str(rng.randint(1, 8192))],
        ["--cache-type-k", rng.choice(["f16", "q8_0", "q4_0"])],
        ["-ctv", rng.choice(["f16", "q8_0", "q4_0"])],
        ["--flash-attn", rng.choice(["on", "off", "auto"])],
        ["--load-mode", rng.choice(["none", "mmap", "dio"])],
        ["--threads", str(rng.randint(-1, 64))],
        ["-tb", str(rng.randint(1, 64))],
        [rng.choice(["--kv-unified", "-no-kvu", "--no-kv-unified"])],
        [rng.choice(["--no-kv-offload", "-kvo"])],
        [rng.choice(["--no-repack", "--repack", "-nr"])],
        [rng.choice(["--no-op-offload", "--op-offload"])],
        [rng.choice(["--warmup", "--no-warmup"])],
        ["--no-host"],
        ["--swa-full"],
        ["--fit", "off"],
        ["--cache-ram", "-1"],
        ["--lora", "adapter one.gguf,/tmp/two.gguf"],
        ["--mmproj", rng.choice(["proj ä.gguf", 'C:\\models\\"x".gguf', "/m/it's.gguf"])],
        ["--chat-template-kwargs", '{"enable_thinking": false, "x": "[a] = b"}'],
        ["--temp", "0.6"],
        ["--spec-type", "draft-mtp"],
    ]
    return [word for words in rng.sample(choices, rng.randint(1, 14)) for word in words]


def test_the_router_reads_200_random_sections_as_written(llama_cpp, tmp_path):
    """The router shows each of 200 sections as the options that it was written from."""
    rng = random.Random(11)
    help_text = real_help(llama_cpp)
    presets = {
        f"model {number} ü": make_preset(
            model_name=f"model {number} ü",
            model_path=Path(f"/models/größe {number}.gguf"),
            arguments=tuple(_random_arguments(rng)),
            help=help_text,
        )
        for number in range(200)
    }

    with _router(
        llama_cpp / "llama-server",
        tmp_path,
        "\n".join(write_preset("ini", preset) for preset in presets.values()),
    ) as client:
        shown = _models(client)

    assert set(shown) == set(presets)
    for name, preset in presets.items():
        assert differences(section_options(preset), shown[name], help_text, RESERVED) == []
        model = shown[name].index("--model") + 1
        assert shown[name][model] == str(preset.model_path)


def test_a_section_is_read_as_the_router_reads_it(llama_cpp, tmp_path):
    """The same keys, switches and defaults give the same options in autofit and the router."""
    help_text = real_help(llama_cpp)
    text = (
        "[*]\nmodels-max = 1\nparallel = 2\nflash-attn = 1\nLLAMA_ARG_N_CPU_MOE = 4\n"
        "[a]\nmodel = /m/a.gguf\nno-warmup = false\nno-host = false\nkv-offload = 0\nngl = 9\n"
        "[b]\nmodel = /m/b.gguf\nno-warmup = 1\nno-host = on\nswa-full = off\nnp = 1\n"
        "ot = a=CPU\nncmoe = 2\nLLAMA_ARG_CTX_SIZE = 9\n"
    )
    (tmp_path / "mine.ini").write_text(text)

    with _router(llama_cpp / "llama-server", tmp_path, text) as client:
        shown = _models(client)

    assert set(shown) == {"a", "b"}
    for name, arguments in shown.items():
        server = read_preset(str(tmp_path / "mine.ini"), section=name).server
        _, *read = server.full_argv(help_text, "llama-server")
        options = [o for o in parse_options(read, help_text) if o.flag.spellings[0] != "-m"]
        assert differences(options, arguments, help_text, RESERVED) == []


ACCEPTED = [
    "ctx-size = 512\n[a]\nmodel = /m/a.gguf\n",
    "[a]\nmodel = /m/a.gguf\nctx-size = 1024\nc = 2048\n",
    "[a]\nmodel = /m/a.gguf\nLLAMA_ARG_CTX_SIZE = 1\nctx-size = 2\nc = 3\n",
    "[*]\nctx-size = 1024\nfa = on\n[a]\nmodel = /m/a.gguf\nc = 2048\nflash-attn = off\n",
    "[a]\nmodel = /m/a.gguf\nctx-size = 1\n[b]\nmodel=/m/b.gguf\n[a]\nmodel = /m/c.gguf\n",
    "[*]\nngl = 1\n[a]\nmodel = /m/a.gguf\n[*]\nc = 5\n",
    '[a]\nmodel = "/m/a b.gguf"\n',
    "[a]\nmodel = /m/a#b.gguf\nsamplers = top_k;top_p ; comment\n",
    "[a] ; note\r\nmodel = /m/a.gguf\t# note\n  ; note\r\n\t\rngl=99\r\n",
    "[a]\nmodel = /m/a.gguf\njinja = OFF\nwarmup = False\nkvu = 0\nswa-full = no\n",
    "[a]\nmodel = /m/a.gguf\nno-warmup = 0\nno-jinja = no\nno-kv-unified = on\n",
    "[a]\nmodel = /m/a.gguf\nno-warmup = 1\nwarmup = 1\n",
    "[*]\nstop-timeout = 2\nmodels-max = 1\n[a]\nmodel = /m/a.gguf\nload-on-startup = 0\n",
    "[default]\nmodel = /m/a.gguf\nhf = user/repo:Q4_0\nngl = all\n",
    "[a]\nmodel = /m/a.gguf\ncpu-moe = 1\nncmoe = 5\nn-cpu-moe = 3\not = a=CPU\n",
]
REFUSED = [
    "[a]\n  model = /m/a.gguf\n",
    " [a]\nmodel = /m/a.gguf\n",
    "\ufeff[a]\nmodel = /m/a.gguf\n",
    "[a]\nmodel: /m/a.gguf\n",
    "[a]\nmodel = /m/a.gguf\njinja\n",
    "[a]\nmodel = /m/a.gguf\nctx size = 5\n",
    "[a]\nmodel = /m/a.gguf\n--ctx-size = 5\n",
    "[a]b]\nmodel = /m/a.gguf\n",
    '[a]\nmodel = /m/a.gguf\nchat-template-kwargs = {\\\n"a":1}\n',
    "[a]\nmodel = /m/a.gguf\nmmap = 1\n",
    "[a]\nModel = /m/a.gguf\n",
    "[*]\nctx_size = 5\n[a]\nmodel = /m/a.gguf\n",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_file_is_read_as_the_router_reads_it(llama_cpp, tmp_path, text):
    """Repeated sections and keys, quotes, comments and odd values count as for the router."""
    help_text = real_help(llama_cpp)
    (tmp_path / "mine.ini").write_text(text)

    with _router(llama_cpp / "llama-server", tmp_path, text) as client:
        shown = _models(client)

    shown = {name: words for name, words in shown.items() if "--model" in words}
    assert shown
    for name, arguments in shown.items():
        server = read_preset(str(tmp_path / "mine.ini"), section=name).server
        _, *read = server.full_argv(help_text, "llama-server")
        options = [o for o in parse_options(read, help_text) if o.flag.spellings[0] != "-m"]
        assert differences(options, arguments, help_text, RESERVED) == []
        assert server.model == arguments[arguments.index("--model") + 1]
        assert refused_keys((key for key, _ in server.options), help_text) == {}


@pytest.mark.parametrize("text", REFUSED)
def test_a_file_that_the_router_refuses(llama_cpp, tmp_path, text):
    """A text that the router refuses is refused, or has a key that it does not know."""
    path = tmp_path / "mine.ini"
    path.write_text(text)

    ended = subprocess.run(
        [llama_cpp / "llama-server", "--models-preset", path, "--port", "1"],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip

    assert b"failed to initialize router models" in ended.stderr
    try:
        preset = read_preset(str(path))
    except UsageError:
        return
    assert refused_keys(preset.server.router_keys, real_help(llama_cpp))


def test_other_options_are_differences(llama_cpp):
    """Changed, missing and added options are listed."""
    help_text = real_help(llama_cpp)
    expected = parse_options(["-c", "4096", "--no-warmup", "-ot", "a=CPU"], help_text)
    shown = ["--ctx-size", "8192", "--warmup", "--port", "0", "--metrics"]

    assert sorted(differences(expected, shown, help_text, RESERVED)) == [
        "added: --metrics",
        "added: --warmup",
        "added: -c 8192",
        "missing: --warmup off",
        "missing: -c 4096",
        "missing: -ot a=CPU",
    ]


@pytest.mark.parametrize(
    "name", ["plain", "a;b # c", "[x]", "*", "repo/model:q4_k", "é \"x\" 'y'", "default", "a\\b"]
)
def test_the_router_shows_a_section_by_its_name(llama_cpp, tmp_path, name):
    """The router lists a model of any name by the name of its section."""
    preset = make_preset(model_name=name, help=real_help(llama_cpp))

    with _router(llama_cpp / "llama-server", tmp_path, write_preset("ini", preset)) as client:
        assert list(_models(client)) == [section_name(preset)]
