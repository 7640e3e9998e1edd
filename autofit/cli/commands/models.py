"""`autofit models`: list the models in the caches of llama.cpp and Hugging Face."""

from __future__ import annotations

import json
import sys

import click

from autofit.cli.say import say


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(*, as_json: bool) -> None:
    """List the GGUF models that llama-server -hf and hf download have put into their caches.

    Each line has the name, the size and the file. The commands that take MODEL take the name, too.
    """
    from autofit.model.cached_models import cached_models, model_lines

    models = cached_models()
    if as_json:
        rows = [
            {
                "name": model.name,
                "file": str(model.path),
                "size_mib": round(model.size_mib, 1),
                "complete": model.is_complete,
            }
            for model in models
        ]
        click.echo(json.dumps({"models": rows}))
        return
    for line in model_lines(models):
        say(line)
    if not models:
        say(
            "no cached model: `llama-server -hf OWNER/NAME:QUANT` or `hf download` makes one",
            file=sys.stderr,
        )
