"""The command of a candidate."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime.sample_programs import FORK, IK, SERVER, runtime_of

from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.trial.candidate import Candidate, LaunchPlan, ParamValue

MODEL = Path("/models/some model.gguf")
NEW = runtime_of("llama_server", SERVER)
OLD = runtime_of("llama_server", FORK)
IK_LLAMA = runtime_of("ik_llama_server", IK)
VARIABLES = runtime_of(
    "llama_server_prefetch_env",
    FORK,
    texts={"GGML_SCHED_PREFETCH_EXPERTS", "GGML_OP_OFFLOAD_MIN_BATCH", "GGML_CUDA_REGISTER_HOST"},
)


def plan(
    runtime: Runtime, candidate: Candidate, **more: object
) -> LaunchPlan | UnsupportedSetting:
    """Return the launch plan for measuring."""
    return make_launch_plan(runtime, MODEL, candidate, **{"purpose": "measure", **more})


def command(candidate: dict[str, ParamValue], runtime: Runtime = NEW, **more: object) -> list[str]:
    """Return the words of a plan without model and address."""
    made = plan(runtime, Candidate(candidate), **more)
    assert isinstance(made, LaunchPlan)
    words = list(made.argv)
    start = words.index("{port}") + 1 if "{port}" in words else words.index(str(MODEL)) + 1
    return words[start:]


def test_remote_servers_come_before_devices() -> None:
    """--rpc comes before arguments that name remote devices, since llama.cpp acts in order."""
    made = plan(NEW, Candidate({"devices": "RPC0", "override_tensor": "a=RPC0"}), rpc="h:1")
    assert isinstance(made, LaunchPlan)
    order = [made.argv.index(word) for word in ("--rpc", "--device", "--override-tensor")]
    assert order == sorted(order)


def test_overrides_come_before_n_cpu_moe() -> None:
    """The exact override comes first, since the first match counts."""
    words = command({"n_cpu_moe": 3, "override_tensor": "b=CPU"})
    assert words.index("--override-tensor") < words.index("--n-cpu-moe")


@pytest.mark.parametrize(
    ("value", "words"),
    [("off", []), ("distribute", ["--numa", "distribute"]), ("isolate", ["--numa", "isolate"])],
)
def test_a_value_of_null_leaves_its_flag_out(value: str, words: list[str]) -> None:
    """The runtime has no word for memory that is not placed."""
    assert command({"numa": value}, purpose="preset")[: len(words)] == words
    assert ("--numa" in command({"numa": value})) == bool(words)


def test_fixed_words_depend_on_the_purpose() -> None:
    """Only measuring turns caches off, and a preset has neither port nor log level."""
    params: dict[str, ParamValue] = {"context": 4096}
    assert command(params) == [
        *("--ctx-size", "4096", "--fit", "off", "--cache-ram", "0", "--ctx-checkpoints", "0"),
        *("--no-cache-prompt", "--verbosity", "4"),
    ]
    assert command(params, purpose="prove")[2:] == ["--fit", "off", "--verbosity", "4"]
    assert command(params, purpose="baseline")[2:] == ["--verbosity", "4"]
    made = plan(NEW, Candidate(params), purpose="preset")
    assert isinstance(made, LaunchPlan)
    assert list(made.argv) == [
        *NEW.command,
        *("--model", str(MODEL), "--ctx-size", "4096", "--fit", "off"),
    ]


def test_missing_flags_are_left_out() -> None:
    """Fixed words are left out if the help does not list them."""
    words = command({}, IK_LLAMA)
    assert words == ["--cache-ram", "0", "--ctx-checkpoints", "0", "--verbosity", "4"]


def test_wrapper_is_first_and_model_path_is_absolute() -> None:
    """The wrapper comes before the program, and the path of the model becomes absolute."""
    made = make_launch_plan(
        NEW, Path("m.gguf"), Candidate({}), purpose="measure", wrapper=["numactl", "-N", "0"]
    )
    assert isinstance(made, LaunchPlan)
    assert made.argv[:4] == ("numactl", "-N", "0", *NEW.command)
    assert made.argv[5] == str(Path.cwd() / "m.gguf")


@pytest.mark.parametrize(
    ("runtime", "mode", "words"),
    [
        (NEW, "none", ["--load-mode", "none"]),
        (NEW, "dio", ["--load-mode", "dio"]),
        (OLD, "none", ["--no-mmap"]),
        (OLD, "mmap", ["--mmap"]),
        (OLD, "mlock", ["--no-mmap", "--mlock"]),
        (OLD, "mmap+mlock", ["--mmap", "--mlock"]),
        (IK_LLAMA, "mmap", []),
        (IK_LLAMA, "mmap+mlock", ["--mlock"]),
    ],
)
def test_load_mode_is_spelled_for_the_build(runtime: Runtime, mode: str, words: list[str]) -> None:
    """Builds with --load-mode get it, and older builds get their own flags."""
    plain = command({}, runtime)
    said = command({"load_mode": mode}, runtime)
    assert said[: len(said) - len(plain)] == words


def test_parameters_can_be_variables() -> None:
    """A parameter without a flag becomes a variable, and the user's own variables are kept."""
    made = plan(
        VARIABLES,
        Candidate({"prefetch_slots": 4, "cuda_register_host": True, "op_offload_min_batch": 64}),
        env={"OMP_WAIT_POLICY": "passive"},
    )
    assert isinstance(made, LaunchPlan)
    assert made.env == {
        "GGML_SCHED_PREFETCH_EXPERTS": "4",
        "GGML_CUDA_REGISTER_HOST": "1",
        "GGML_OP_OFFLOAD_MIN_BATCH": "64",
        "OMP_WAIT_POLICY": "passive",
    }
    without = plan(VARIABLES, Candidate({"cuda_register_host": False}))
    assert isinstance(without, LaunchPlan)
    assert without.env == {}


@pytest.mark.parametrize(
    ("runtime", "params", "parameter", "reason"),
    [
        (NEW, {"prefetch_slots": 4}, "prefetch_slots", "unknown_flag"),
        (NEW, {"moe_cache_mib": 512}, "moe_cache_mib", "unknown_flag"),
        (NEW, {"no_such_thing": 1}, "no_such_thing", "unknown_flag"),
        (OLD, {"n_cpu_ffn": 3}, "n_cpu_ffn", "unknown_flag"),
        (OLD, {"load_mode": "dio"}, "load_mode", "bad_value"),
        (NEW, {"cache_type_k": "q6_0"}, "cache_type_k", "bad_value"),
        (VARIABLES, {"prefetch_slots": 9}, "prefetch_slots", "bad_value"),
        (NEW, {"flash_attn": "off", "cache_type_v": "q8_0"}, "flash_attn", "combination"),
        (IK_LLAMA, {"repack": True}, "repack", "combination"),
    ],
)
def test_unsupported_setting_is_reported(
    runtime: Runtime, params: dict[str, ParamValue], parameter: str, reason: str
) -> None:
    """An unsupported setting has a parameter, a reason, and an outcome without a launch."""
    problem = plan(runtime, Candidate(params))
    assert isinstance(problem, UnsupportedSetting)
    assert (problem.parameter, problem.reason) == (parameter, reason)
    assert (problem.outcome.kind, problem.outcome.stage) == ("rejected", "plan")


def test_only_a_refused_combination_is_unsupported() -> None:
    """A quantized V cache is refused only with flash attention off."""
    for params in (
        {"flash_attn": "on", "cache_type_v": "q8_0"},
        {"cache_type_v": "q8_0"},
        {"flash_attn": "off", "cache_type_k": "q8_0"},
    ):
        assert isinstance(plan(NEW, Candidate(params)), LaunchPlan)
