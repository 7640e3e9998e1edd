"""`autofit synth`: write a model of random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from autofit.model.synth.random_model import WEIGHT_TYPES, SynthSpec, write_model
from autofit.units import MIB

_HELP = {
    "layers": "Transformer blocks.",
    "experts": "Experts per block; 0 makes a dense model.",
    "used": "Experts used per token.",
    "embd": "Embedding length.",
    "ff": "Feed-forward length of an expert.",
    "heads": "Attention heads.",
    "kv_heads": "KV heads.",
    "head_dim": "Length of a head.",
    "vocab": "Tokens of the vocabulary.",
    "ctx": "Training context.",
    "type": "Type of the weights.",
    "embd_type": "Type of the embedding and the output.",
    "seed": "Seed of the random weights.",
    "header_only": "Write no weights, only a hole of their size. Enough to predict memory.",
}


def _size_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of the specification, with its default."""
    for field in reversed(fields(SynthSpec)):
        option = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            default=field.default,
            is_flag=field.default is False,
            show_default=field.default is not False,
            help=_HELP[field.name],
        )
        function = option(function)
    return function


@click.command("synth", epilog=f"Types: {', '.join(WEIGHT_TYPES)}.")
@click.argument("out", type=click.Path(path_type=Path))
@_size_options
def command(out: Path, **sizes: Any) -> None:  # noqa: ANN401 - click's keyword arguments
    """Write a GGUF of random weights to OUT: qwen3moe, or qwen3 without experts.

    Its answers have no meaning, but it needs as much memory and time as a real model of the
    same size.
    """
    write_model(SynthSpec(**sizes), out)
    click.echo(f"{out}: {out.stat().st_size / MIB:,.0f} MiB", err=True)
