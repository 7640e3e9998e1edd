"""The parser of launch commands: parameters, other words, secrets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.sample_programs import FORK, IK, SERVER, runtime_of

from autofit.errors import UsageError
from autofit.runtime.command.argv_reader import parse_command
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.trial.candidate import Candidate, LaunchPlan, ParamValue

MODEL = Path("/models/some model.gguf")
NEW = runtime_of("llama_server", SERVER)
OLD = runtime_of("llama_server", FORK)
IK_LLAMA = runtime_of("ik_llama_server", IK)
SLOTS = runtime_of(
    "llama_server_prefetch_slots",
    SERVER,
    more_help="--prefetch-experts-slots N              slots\n",
)
VARIABLES = runtime_of(
    "llama_server_prefetch_env",
    FORK,
    texts={"GGML_SCHED_PREFETCH_EXPERTS", "GGML_OP_OFFLOAD_MIN_BATCH", "GGML_CUDA_REGISTER_HOST"},
)
RUNTIMES = [NEW, OLD, IK_LLAMA, SLOTS, VARIABLES]
EXAMPLES = {
    "devices": st.lists(st.sampled_from(["CUDA0", "CUDA1", "RPC0"]), min_size=1, unique=True),
    "tensor_split": st.lists(st.integers(0, 99).map(str), min_size=1, max_size=4),
    "override_tensor": st.lists(
        st.sampled_from([r"blk\.(1|2)\.ffn_.*_exps=CPU", r"output\.weight=CUDA0", "a b=CPU"]),
        min_size=1,
        unique=True,
    ),
}


def values(runtime: Runtime, name: str) -> st.SearchStrategy[ParamValue]:
    """Return values of a parameter that this runtime accepts."""
    if name in EXAMPLES:
        return EXAMPLES[name].map(",".join)
    listed = runtime.values(name)
    kind = runtime.dialect.parameters[name].type
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.sampled_from([int(v) for v in listed]) if listed else st.integers(-2, 99999)
    # `0` and `1` are other words for `off` and `on`, and are read back as those.
    texts = [value for value in listed if value not in ("0", "1")]
    return st.sampled_from(texts or ["4x", "8x"])


@st.composite
def launches(draw: st.DrawFn) -> tuple[Runtime, Candidate]:
    """Draw a runtime and a candidate that it supports."""
    runtime = draw(st.sampled_from(RUNTIMES))
    names = draw(st.lists(st.sampled_from(runtime.parameters), unique=True))
    params = {name: draw(values(runtime, name)) for name in names}
    candidate = Candidate(params)
    while isinstance(problem := plan(runtime, candidate), UnsupportedSetting):
        candidate = candidate.with_params(**{problem.parameter: None})
    return runtime, candidate


def plan(
    runtime: Runtime, candidate: Candidate, **more: object
) -> LaunchPlan | UnsupportedSetting:
    """Return the launch plan for measuring."""
    return make_launch_plan(runtime, MODEL, candidate, **{"purpose": "measure", **more})


def is_default(runtime: Runtime, name: str, value: ParamValue) -> bool:
    """Return whether a value needs no words, because it is the runtime's default."""
    made = plan(runtime, Candidate({name: value}))
    empty = plan(runtime, Candidate({}))
    return isinstance(made, LaunchPlan) and made.argv == empty.argv and made.env == empty.env


@given(launches(), st.sampled_from([[], ["--mmproj", "a b.gguf", "-md", "draft.gguf", "--jinja"]]))
def test_written_command_is_parsed_back(
    launch: tuple[Runtime, Candidate], extra: list[str]
) -> None:
    """Parameters are parsed back with their types, and the user's words come last, unchanged."""
    runtime, candidate = launch
    made = plan(runtime, candidate, rpc="h:1,h:2", extra_args=extra)
    assert isinstance(made, LaunchPlan)
    assert list(made.argv[len(made.argv) - len(extra) :]) == extra
    back = parse_command(made.argv, runtime.dialect, runtime.help, made.env)
    written = {n: v for n, v in candidate.params.items() if not is_default(runtime, n, v)}
    assert dict(back.params) == written
    assert (back.model, back.rpc) == (str(MODEL), "h:1,h:2")
    assert list(back.rest[len(back.rest) - len(extra) :]) == extra
    assert back.program == runtime.command


@settings(max_examples=60)
@given(launches(), st.randoms(use_true_random=False))
def test_all_spellings_are_parsed(launch: tuple[Runtime, Candidate], random: object) -> None:
    """Short and long flags, underscores and equals signs have the same result."""
    runtime, candidate = launch
    made = plan(runtime, candidate)
    assert isinstance(made, LaunchPlan)
    words: list[str] = list(runtime.command)
    rest = iter(made.argv[len(runtime.command) :])
    for word in rest:
        listed = runtime.help.get(word)
        value = [next(rest)] if listed is None or listed.takes_value else []
        other = random.choice(listed.synonyms(word)) if listed else word
        if other.startswith("--") and random.random() < 0.3:
            other = "--" + other[2:].replace("-", "_")
        if other.startswith("--") and value and random.random() < 0.3:
            words.append(f"{other}={value[0]}")
        else:
            words += [other, *value]
    plain = parse_command(made.argv, runtime.dialect, runtime.help, made.env)
    respelled = parse_command(words, runtime.dialect, runtime.help, made.env)
    assert respelled.params == plain.params
    assert respelled.model == plain.model


USER_COMMAND = (
    "numactl --cpunodebind=0 /opt/llama.cpp/llama-server -m m.gguf -ngl all -c 32768 -fa on "
    r"--n_cpu_moe 20 -ot blk\.1\.=CPU --override-tensor=output=CUDA0 -ctk q8_0 --no-mmap "
    "--host 0.0.0.0 --port 9000 --cpu-moe --temp 0.7 --chat-template -c -np 2 --strange 1 -t 8"
)


def test_command_of_a_user_is_parsed() -> None:
    """A wrapper, short and old spellings and repeated overrides are parsed, the rest is kept."""
    back = parse_command(USER_COMMAND.split(), NEW.dialect, NEW.help)
    assert back.program == ("numactl", "--cpunodebind=0", "/opt/llama.cpp/llama-server")
    assert back.params == {
        "n_gpu_layers": "all",
        "context": 32768,
        "flash_attn": "on",
        "n_cpu_moe": 20,
        "override_tensor": r"blk\.1\.=CPU,output=CUDA0",
        "cache_type_k": "q8_0",
        "load_mode": "none",
        "parallel": 2,
        "threads": 8,
    }
    assert back.model == "m.gguf"
    assert " ".join(back.rest) == "--cpu-moe --temp 0.7 --chat-template -c --strange 1"


@pytest.mark.parametrize(
    ("words", "params"),
    [
        ("--mlock", {"load_mode": "mmap+mlock"}),
        ("--no-mmap --mlock", {"load_mode": "mlock"}),
        ("--mlock --no-mmap", {"load_mode": "mlock"}),
        ("--mmap", {"load_mode": "mmap"}),
        ("-nkvo", {"kv_offload": False}),
        ("-nr --no-op-offload", {"repack": False, "op_offload": False}),
        ("-kvu", {"kv_unified": True}),
        ("-no-kvu", {"kv_unified": False}),
        ("-c 1 -c 2", {"context": 2}),
    ],
)
def test_switches_are_combined(words: str, params: dict[str, ParamValue]) -> None:
    """Several switches can be one setting, in any order."""
    argv = ["llama-server", *words.split()]
    assert parse_command(argv, OLD.dialect, OLD.help).params == params


def test_flags_take_precedence_over_variables() -> None:
    """llama.cpp's variables set parameters without a flag, and other variables are returned."""
    env = {"LLAMA_ARG_CTX_SIZE": "1", "LLAMA_ARG_UBATCH": "256", "HOME": "/root"}
    back = parse_command(["llama-server", "-c", "2"], NEW.dialect, NEW.help, env)
    assert back.params == {"context": 2, "ubatch": 256}
    assert back.env == {"HOME": "/root"}


def test_missing_value_is_an_error() -> None:
    """A flag without its value is an error with its name."""
    with pytest.raises(UsageError, match="-c: a value is missing"):
        parse_command(["llama-server", "-c"], NEW.dialect, NEW.help)


def test_embedded_command_is_parsed() -> None:
    """In `python -m autofit.runtime.embedded -m model` the first -m belongs to Python."""
    embedded = runtime_of("embedded", SERVER)
    argv = ["/usr/bin/python3", "-m", "autofit.runtime.embedded", "-m", "a.gguf", "-c", "512"]
    back = parse_command(argv, embedded.dialect, embedded.help)
    assert (back.model, back.params) == ("a.gguf", {"context": 512})
    assert back.program == tuple(argv[:3])


def test_keys_and_addresses_are_returned_without_values():
    """Access keys and addresses are removed, and only their flags are returned."""
    words = "llama-server --api-key sk-1 -hft=x --hf-token hf_1 --port 9 -lv 5 --log-disable -c 4"
    env = {
        "LLAMA_API_KEY": "sk-2",
        "MY_SECRET": "x",
        "LLAMA_ARG_PORT": "8",
        "LLAMA_ARG_MODEL": "m",
    }

    back = parse_command(words.split(), NEW.dialect, NEW.help, env)

    assert back.left_out == (
        *("--api-key", "--hf-token", "-lv", "--log-disable"),
        *("LLAMA_API_KEY", "MY_SECRET"),
    )
    assert back.address == ("--port", "LLAMA_ARG_PORT")
    assert (back.params, back.model, back.env) == ({"context": 4}, "m", {})
    assert not {"sk-1", "hf_1"} & set(back.rest)


def test_key_of_an_unlisted_flag_is_removed():
    """The value of --api-key is removed even if the help does not list the flag."""
    back = parse_command(["llama-server", "--api-key", "sk-1", "-c", "4"], IK_LLAMA.dialect,
                        replace(IK_LLAMA.help, flags={}))  # fmt: skip

    assert back.left_out == ("--api-key",)
    assert "sk-1" not in back.rest


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *((word, "on") for word in ("on", "true", "enabled", "1")),
        *((word, "off") for word in ("off", "false", "disabled", "0")),
        *((word, "auto") for word in ("auto", "-1")),
        ("ON", "ON"),  # llama-server compares the case, too
    ],
)
def test_synonyms_of_on_and_off_are_parsed(written, value) -> None:
    """Flags and variables accept the same words as llama.cpp's own parser."""
    flag = parse_command(["llama-server", "-fa", written], NEW.dialect, NEW.help)
    variable = parse_command(
        ["llama-server"], NEW.dialect, NEW.help, {"LLAMA_ARG_FLASH_ATTN": written}
    )

    assert flag.params == variable.params == {"flash_attn": value}


@pytest.mark.parametrize(
    ("words", "env", "params", "rpc"),
    [
        ("--rpc a:1 --rpc b:2", {}, {}, "a:1,b:2"),
        ("--rpc b:2,a:1", {"LLAMA_ARG_RPC": "a:1,c:3"}, {}, "a:1,c:3,b:2"),
        ("-ncmoe 5 --n-cpu-moe 3", {}, {"n_cpu_moe": 5}, ""),
        ("-ncmoe 3", {"LLAMA_ARG_N_CPU_MOE": "9"}, {"n_cpu_moe": 9}, ""),
        (
            "-ot b=CPU",
            {"LLAMA_ARG_OVERRIDE_TENSOR": "a=CPU"},
            {"override_tensor": "a=CPU,b=CPU"},
            "",
        ),
        ("-c 2 -c 1", {"LLAMA_ARG_CTX_SIZE": "9"}, {"context": 1}, ""),
    ],
)
def test_repeated_flags_are_combined(words, env, params, rpc) -> None:
    """Remote servers and overrides are joined, and of other flags the last one counts."""
    back = parse_command(["llama-server", *words.split()], NEW.dialect, NEW.help, env)

    assert (back.params, back.rpc) == (params, rpc)


@pytest.mark.parametrize("words", ["-fa", "--flash-attn --jinja", "-fa -ngl 9"])
def test_flag_without_a_value_means_on(words) -> None:
    """A flag without a value means `on` if the build is unknown, and otherwise is an error."""
    argv = ["llama-server", *words.split()]

    back = parse_command(argv, NEW.dialect, NEW.help, allows_bare=True)
    with pytest.raises(UsageError, match=words.split()[0]) as caught:
        parse_command(argv, NEW.dialect, NEW.help)

    assert back.params["flash_attn"] == "on"
    assert back.rest == (("--jinja",) if "--jinja" in words else ())
    assert "on, off, auto" in caught.value.hint
