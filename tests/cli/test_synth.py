"""`autofit synth`: its options are the sizes of a model."""

from __future__ import annotations

from dataclasses import fields

from autofit.cli.commands.synth import command
from autofit.model.sizes.inventory import read_inventory
from autofit.model.synth.random_model import SynthSpec


def test_options_have_the_defaults_of_the_specification():
    """Every size is an option with the default of the specification."""
    options = {option.name: option.default for option in command.params if option.name != "out"}

    assert options == {field.name: field.default for field in fields(SynthSpec)}


def test_sizes_reach_the_file(cli, tmp_path):
    """The written model has the sizes of the options."""
    path = tmp_path / "model.gguf"
    sizes = ["--layers", 3, "--experts", 4, "--used", 2, "--kv-heads", 4, "--head-dim", 32]
    done = cli("synth", path, *sizes, "--type", "q8_0", "--header-only")
    model = read_inventory(path)

    assert (done.code, done.out) == (0, "")
    assert (model.block_count, model.n_expert, model.n_expert_used) == (3, 4, 2)
    assert (model.blocks[0].n_head_kv, model.blocks[0].head_k) == (4, 32)


def test_contradictory_sizes_are_refused(cli, tmp_path):
    """All faults are reported together, and nothing is written."""
    done = cli("synth", tmp_path / "x.gguf", "--kv-heads", 3, "--head-dim", 33, "--type", "q3_k")

    assert done.code == 2
    assert all(option in done.err for option in ("--heads 8", "--head-dim 33", "--type q3_k"))
    assert not (tmp_path / "x.gguf").exists()


def test_unwritable_targets_are_refused(cli, tmp_path):
    """A missing folder ends with a message, not with a traceback."""
    assert cli("synth", tmp_path / "no" / "x.gguf", "--header-only").code in (1, 2)
