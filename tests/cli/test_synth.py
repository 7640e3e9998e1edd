"""`autofit synth`: its options are the sizes of the model."""

from __future__ import annotations

from dataclasses import fields

from autofit.cli.commands.synth import command
from autofit.model.sizes.inventory import read_inventory
from autofit.model.synth.random_model import SynthSpec


def test_options_are_the_spec_with_its_defaults():
    """Every size can be given, and what is not given is the spec's own default."""
    options = {option.name: option.default for option in command.params if option.name != "out"}

    assert options == {field.name: field.default for field in fields(SynthSpec)}


def test_sizes_reach_the_file(cli, tmp_path):
    """The options decide what is written."""
    path = tmp_path / "model.gguf"
    sizes = ["--layers", 3, "--experts", 4, "--used", 2, "--kv-heads", 4, "--head-dim", 32]
    done = cli("synth", path, *sizes, "--type", "q8_0", "--header-only")
    model = read_inventory(path)

    assert (done.code, done.out) == (0, "")
    assert (model.block_count, model.n_expert, model.n_expert_used) == (3, 4, 2)
    assert (model.blocks[0].n_head_kv, model.blocks[0].head_k) == (4, 32)


def test_sizes_that_do_not_go_together_are_told(cli, tmp_path):
    """All faults come at once, and nothing is written."""
    done = cli("synth", tmp_path / "x.gguf", "--kv-heads", 3, "--head-dim", 33, "--type", "q3_k")

    assert done.code == 2
    assert all(option in done.err for option in ("--heads 8", "--head-dim 33", "--type q3_k"))
    assert not (tmp_path / "x.gguf").exists()


def test_places_that_cannot_be_written_are_told(cli, tmp_path):
    """A folder that is not there ends with a message, not a traceback."""
    assert cli("synth", tmp_path / "no" / "x.gguf", "--header-only").code in (1, 2)
