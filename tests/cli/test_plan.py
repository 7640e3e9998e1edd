"""`autofit plan`: memory on devices, which need not exist, without a launch."""

from __future__ import annotations

import json
import os
import shlex

import jsonschema
import pytest
from expert_machine import ExpertMachine
from fakes.running import RunningServer
from model_headers import MODELS
from tune_machine import MODEL, TuneMachine

from autofit.model.synth.random_model import SynthSpec, write_model

_MIB = {"type": "number", "minimum": 0}
_DEVICE = {
    "name": {"type": "string"},
    "free_mib": _MIB,
    "headroom_mib": _MIB,
    "layers": {"type": ["array", "null"], "items": {"type": "integer"}},
    "output": {"type": "boolean"},
    "host_expert_layers": {"type": "integer", "minimum": 0},
    **dict.fromkeys(("weights_mib", "kv_mib", "compute_mib", "other_mib", "total_mib"), _MIB),
    **dict.fromkeys(("prefetch_mib", "expert_cache_mib"), _MIB),
    "fits": {"type": "boolean"},
}
_HOST = dict.fromkeys(("weights_mib", "repack_mib", "kv_mib", "compute_mib"), _MIB)


def _closed(properties: dict) -> dict:
    return {"type": "object", "required": list(properties), "properties": properties}


_PARTS = {
    "params": {"type": "object"},
    "args": {"type": "array", "items": {"type": "string"}},
    "devices": {"type": "array", "items": _closed(_DEVICE)},
    "host": _closed(_HOST),
}
PLAN = _closed({
    "layouts": {"type": "array", "minItems": 1, "items": _closed({
        "name": {"type": "string"}, "same_as": {"type": ["string", "null"]},
        "env": {"type": "object"}, "fits": {"type": "boolean"},
        **_PARTS,
    })},
    "recommended": {"type": ["string", "null"]},
    "verdict": {"type": "string", "minLength": 1},
    "exchange": _closed({
        "expert_layer_mib": _MIB,
        "context_1k_mib": {"type": "object", "additionalProperties": _MIB},
        "ubatch_512_mib": _MIB,
    }),
    "max_context": {"type": "object", "additionalProperties": {"type": "integer"}},
    "estimator": {"enum": ["runtime", "arithmetic"]},
    **_PARTS,
})  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """A machine with two cards, too small for the model."""
    return TuneMachine(tmp_path_factory.mktemp("plan"), 2600.0, 2300.0)


@pytest.fixture
def plan(cli, machine):
    """Return a function that plans with --json and returns the checked document."""

    def of(*words: object, model: object = None, code: int | None = 0) -> dict:
        done = cli("plan", model or machine.model, *words, "--json")
        assert code in (done.code, None), done.err
        document = json.loads(done.out)
        jsonschema.validate(document, PLAN)
        return document

    return of


def test_every_layout_is_planned(plan, machine):
    """Each layout places every layer, and the recommended one is repeated at the top level."""
    document = plan("--runtime", machine.server)

    names = [layout["name"] for layout in document["layouts"]]
    assert {"balanced", "capacity", "first_device", "single:CUDA0", "single:CUDA1"} <= set(names)
    for layout in document["layouts"]:
        blocks = [row["layers"] for row in layout["devices"] if row["layers"]]
        placed = sorted(i for first, last in blocks for i in range(first, last + 1))
        parts = 2 if layout["name"] == "tensor" else 1
        assert placed == sorted([*range(12)] * parts)
        assert sum(row["output"] for row in layout["devices"]) == parts
        assert layout["fits"] == all(row["fits"] for row in layout["devices"])
    (best,) = [
        layout for layout in document["layouts"] if layout["name"] == document["recommended"]
    ]
    for key in ("devices", "host", "params", "args"):
        assert document[key] == best[key]
    assert document["estimator"] == "runtime"
    assert machine.launches == 0


def test_rows_add_up(plan, machine):
    """A device's total is the sum of its parts, and all experts are placed."""
    document = plan("--runtime", machine.server)

    for layout in document["layouts"]:
        parts = ("weights_mib", "kv_mib", "compute_mib", "other_mib")
        for row in layout["devices"]:
            assert row["total_mib"] == pytest.approx(sum(row[part] for part in parts))
            assert row["fits"] == (row["total_mib"] + row["headroom_mib"] <= row["free_mib"])
        weights = sum(row["weights_mib"] for row in layout["devices"])
        weights += layout["host"]["weights_mib"]
        assert weights == pytest.approx(MODEL.total_bytes / 2**20, rel=0.02)


def test_the_recommended_arguments_start_a_server(plan, machine, tmp_path):
    """A server with the arguments of the plan runs, a full ubatch included."""
    words = plan("--runtime", machine.server)["args"]

    with RunningServer(machine.server, machine.model, tmp_path / "log", words) as server:
        server.wait_ready(60).complete([*range(3, 1027)], 4)
        server.stop()


def test_a_machine_that_does_not_exist_can_be_planned(cli, tmp_path, monkeypatch):
    """Neither runtime nor device must exist, and the header of a model is enough."""
    monkeypatch.setenv("PATH", str(tmp_path))
    model = MODELS["qwen3moe"]().write(tmp_path / "model.gguf")
    done = cli("plan", model, "--dialect", "ik_llama_server", "--device", "CUDA0=24000", "--json")

    assert done.code == 0, done.err
    document = json.loads(done.out)
    jsonschema.validate(document, PLAN)
    assert document["estimator"] == "arithmetic"
    assert [row["free_mib"] for row in document["devices"]] == [24000]


def test_less_memory_moves_experts_to_the_host(plan, machine):
    """Less memory of the same device leaves the experts of more layers on the host."""
    large, small = (
        plan("--runtime", machine.server, "--space", machine.space, "--device", f"CUDA0={mib}")[
            "devices"
        ][0]
        for mib in (2500, 1600)
    )

    assert small["host_expert_layers"] > large["host_expert_layers"]
    assert small["total_mib"] <= 1600


def test_a_users_placement_is_planned_unchanged(plan, machine):
    """With the layers set there is one layout, which fits or not."""
    words = ("--runtime", machine.server, "--device", "CUDA0=2300")
    good = plan(*words, "--set", "n_gpu_layers=99", "--set", "n_cpu_moe=8")
    bad = plan(*words, "--set", "n_gpu_layers=99", "--set", "n_cpu_moe=0", code=3)

    assert [layout["name"] for layout in good["layouts"]] == ["set"]
    assert good["devices"][0]["host_expert_layers"] == 8
    assert good["params"]["n_cpu_moe"] == 8
    assert (bad["recommended"], bad["devices"][0]["fits"]) == (None, False)


def test_a_model_that_fits_nowhere_ends_with_3(cli, machine):
    """The tables are still printed, with a hint."""
    done = cli("plan", machine.model, "--runtime", machine.server, "--device", "CUDA0=100")

    assert done.code == 3
    assert "no layout fits" in done.err
    assert "hint: " in done.err
    assert "CUDA0" in done.out


def test_a_plan_is_shown_as_tables(cli, machine):
    """Without --json, stdout has tables, exchange rates and arguments to paste."""
    done = cli("plan", machine.model, "--runtime", machine.server)

    assert done.code == 0
    assert "experts of one layer: 216 MiB" in done.out
    assert "largest context that fits" in done.out
    _, _, rest = done.out.partition("\narguments for ")
    assert "--n-gpu-layers" in shlex.split(rest.splitlines()[1])


def test_more_context_costs_its_exchange_rate(plan, machine):
    """The exchange rate of context is the difference between two plans."""
    words = ("--runtime", machine.server, "--set", "n_gpu_layers=99", "--set", "n_cpu_moe=12",
             "--set", "cache_type=f16")  # fmt: skip
    short, long = (plan(*words, "--context", tokens) for tokens in (8192, 16384))

    taken = [sum(row["total_mib"] for row in document["devices"]) for document in (short, long)]
    price = short["exchange"]["context_1k_mib"]["f16"]
    assert taken[1] - taken[0] == pytest.approx(8.192 * price, rel=0.1)
    assert short["max_context"]["q8_0"] >= short["max_context"]["f16"] >= 8192


@pytest.mark.parametrize(
    ("kind", "pin", "expected"),
    [
        ("env", "prefetch_slots=3", ("prefetch", 216)),
        ("cache", "moe_cache_mib=400", ("expert cache", 400)),
    ],
)
def test_expert_caches_and_slots_are_planned(cli, tmp_path, kind, pin, expected):
    """Their memory is listed by name, fewer layers fit, and variables are printed."""
    machine = ExpertMachine(tmp_path, kind)
    what, mib = expected
    key = f"{what.replace(' ', '_')}_mib"
    words = (machine.model, "--runtime", machine.server, "--dialect", machine.dialect)
    table = cli("plan", *words, "--set", pin).out
    on, off = (
        json.loads(cli("plan", *words, *more, "--json").out)["devices"][0]
        for more in (("--set", pin), ())
    )

    assert f"of other: {what} {mib} MiB on CUDA0;" in table
    assert ("variables: GGML_SCHED_PREFETCH_EXPERTS=3" in table) == (kind == "env")
    assert (on[key], off[key]) == (mib, 0.0)
    # More layers on the host are more pages of it that the card reaches.
    assert on["other_mib"] - off["other_mib"] == pytest.approx(mib, abs=2)
    assert on["host_expert_layers"] > off["host_expert_layers"]


def test_without_a_device_all_is_planned_for_system_ram(cli, tmp_path, llama_cpp):
    """A machine without an accelerator gets one layout that fits its memory."""
    model = MODELS["qwen3moe"]().write(tmp_path / "model.gguf")
    done = cli("plan", model, "--runtime", llama_cpp, "--json")

    assert done.code == 0, done.err
    document = json.loads(done.out)
    jsonschema.validate(document, PLAN)
    (layout,) = document["layouts"]
    assert document["recommended"] == layout["name"] == "host"
    assert document["devices"] == []
    assert document["host"]["kv_mib"] > 0
    assert document["host"]["weights_mib"] + document["host"]["repack_mib"] > 0
    assert document["exchange"]["context_1k_mib"]["f16"] > 0
    shown = cli("plan", model, "--runtime", llama_cpp)
    assert "free; estimated" in shown.out


def test_a_model_larger_than_system_ram_does_not_fit_it(cli, tmp_path, llama_cpp):
    """Without a device, context beyond all memory ends with 3 and names system RAM."""
    spec = SynthSpec(layers=64, heads=64, kv_heads=64, head_dim=128, ctx=4194304,
                     header_only=True)  # fmt: skip
    write_model(spec, tmp_path / "model.gguf")
    done = cli("plan", tmp_path / "model.gguf", "--runtime", llama_cpp, "--context", 4194304)

    assert done.code == 3
    assert "no layout fits system RAM" in done.err
    assert "too much" in done.out


@pytest.mark.parametrize("pin", ["n_cpu_moe=8", "n_gpu_layers=5"])
def test_a_pinned_placement_stays_on_the_devices_named(plan, machine, pin):
    """If one of two cards is named, the plan and its arguments use only that one."""
    document = plan("--runtime", machine.server, "--device", "CUDA1=2300", "--set", pin)

    assert [row["name"] for row in document["devices"]] == ["CUDA1"]
    words = document["args"]
    assert words[words.index("--device") + 1] == "CUDA1"
    name, _, value = pin.partition("=")
    expected = {"n_gpu_layers": 13, name: int(value)}
    assert {key: document["params"][key] for key in expected} == expected


@pytest.mark.parametrize("count", [9, 11, 12])
def test_a_pinned_number_of_host_layers_has_slices(plan, machine, count):
    """Several devices share the layers by their room, and the arguments have the exact split."""
    document = plan("--runtime", machine.server, "--set", f"n_cpu_moe={count}")

    words = document["args"]
    split = [int(part) for part in words[words.index("--tensor-split") + 1].split(",")]
    assert len(split) == 2
    assert sum(split) == document["params"]["n_gpu_layers"] == 13
    assert document["recommended"] == "set"
    assert sum(row["host_expert_layers"] for row in document["devices"]) == count
    given = plan(
        *("--runtime", machine.server, "--set", f"n_cpu_moe={count}"),
        *("--set", "tensor_split=7,6"), code=None,
    )  # fmt: skip
    assert given["params"]["tensor_split"] == "7,6"


def test_a_device_that_looks_misspelt_gets_a_notice(plan, machine):
    """The plan is for the named device, with a notice about the likely one."""
    words = ("--runtime", machine.server, "--device", "CUDA00=2300")

    notices = plan(*words, code=None)["notices"]

    assert notices == ["there is no device 'CUDA00', but CUDA0 exists: did you mean that?"]
    assert plan("--runtime", machine.server, "--device", "CUDA7=2600")["notices"] == []


def test_room_is_for_at_most_the_layers_in_system_ram(plan, machine):
    """With two layers on the host and much memory, two have room; a cut layout has none."""
    words = ("--runtime", machine.server, "--device", "CUDA0=90000")
    (notice,) = plan(*words, "--set", "n_cpu_moe=2")["notices"]
    assert "room for 2 more expert layers" in notice
    tight = plan("--runtime", machine.server)
    assert any(row["host_expert_layers"] for row in tight["devices"])
    assert tight["notices"] == []


def test_a_narrower_cache_with_less_context_is_explained(cli, tmp_path):
    """With one layer on a card, an f16 copy of its cache costs more than q8_0 saves."""
    spec = SynthSpec(layers=6, experts=8, used=2, header_only=True)
    write_model(spec, tmp_path / "model.gguf")
    done = cli("plan", tmp_path / "model.gguf", "--device", "ROCm0=700", "--device", "ROCm1=700",
               "--dialect", "llama_server")  # fmt: skip

    assert "converts a narrower cache to f16" in done.out


def test_a_path_of_raw_bytes_is_planned(cli, machine, tmp_path):
    """A name that is not Unicode is printed unchanged."""
    path = tmp_path / os.fsdecode(b"m\xff.gguf")
    MODELS["qwen3moe"]().write(tmp_path / "model.gguf").rename(path)
    done = cli("plan", path, "--device", "CUDA0=24000", "--runtime", machine.server, "--json")

    assert done.code == 0, done.err
    jsonschema.validate(json.loads(done.out), PLAN)


def test_equal_cards_are_planned_once(cli, plan, tmp_path):
    """Eight equal cards have one table for single cards, and the last sentence has numbers."""
    spec = SynthSpec(arch="gpt-oss", layers=4, vocab=600, header_only=True)
    write_model(spec, tmp_path / "m.gguf")
    words = [word for i in range(8) for word in ("--device", f"CUDA{i}=12288")]
    document = plan("--dialect", "llama_server", *words, model=tmp_path / "m.gguf")
    done = cli("plan", tmp_path / "m.gguf", "--dialect", "llama_server", *words)

    single = {one["name"]: one["same_as"] for one in document["layouts"] if ":" in one["name"]}
    assert len(single) == 8
    assert len({same_as or name for name, same_as in single.items()}) == 1
    shown = [one["name"] for one in document["layouts"] if one["same_as"] is None]
    titles = [line for line in done.out.splitlines() if line.startswith((*shown, "single:"))]
    assert len(titles) == len(shown)
    assert document["verdict"] == done.out.strip().splitlines()[-1]
    assert all(word in document["verdict"] for word in ("MiB", "tokens"))


def test_headroom_stays_free(plan, machine):
    """Every device that fits keeps the headroom; more headroom leaves more layers on the host."""
    words = ("--runtime", machine.server, "--space", machine.space, "--device", "CUDA0")
    small, large = (plan(*words, "--headroom", size) for size in ("0", "500MiB"))
    usual = plan(*words)["devices"][0]

    assert 0 < usual["headroom_mib"] < 128
    for document, headroom_mib in ((small, 0), (large, 500)):
        (row,) = document["devices"]
        assert row["headroom_mib"] == headroom_mib
        assert row["free_mib"] - row["total_mib"] >= headroom_mib
    assert small["devices"][0]["free_mib"] == large["devices"][0]["free_mib"]
    assert small["host"]["weights_mib"] < large["host"]["weights_mib"]
