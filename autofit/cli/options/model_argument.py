"""The model of a command: a path, or the name of a model in a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from autofit.errors import UsageError


class ModelType(click.ParamType):  # type: ignore[type-arg] # not generic in older clicks
    """A GGUF file, given by its path or by its name in a cache; with `is_name` only by name."""

    name = "model"

    def __init__(self, *, is_name: bool = False) -> None:
        self._is_name = is_name

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> Path:
        """Return the model's file.

        Raises:
            UsageError: no cached model, or several, have the name.
        """
        # With -hf, what comes after `--` begins where MODEL would be.
        if isinstance(value, Path) or value.startswith("-"):
            return Path(value)
        from autofit.model.cached_models import find_model  # noqa: PLC0415 - heavy, --help is quick

        return find_model(value, is_name=self._is_name)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the names of cached models that begin with some text, and files."""
        from autofit.model.cached_models import cached_models  # noqa: PLC0415 - heavy

        names = sorted({model.name for model in cached_models() if model.repository})
        # Files come first: bash forgets all completions before them.
        files = [] if self._is_name else [CompletionItem(incomplete, type="file")]
        return [*files, *(CompletionItem(n) for n in names if n.startswith(incomplete))]


MODEL = ModelType()
hf_option = click.option(
    "-hf",
    "--hf-repo",
    "hf_model",
    type=ModelType(is_name=True),
    metavar="OWNER/NAME[:QUANT]",
    help="A model that is in a cache (`autofit models`), as for llama-server, instead of MODEL.",
)


def choose_model(
    model: Path | None, hf_model: Path | None, extra_args: tuple[str, ...]
) -> tuple[Path, tuple[str, ...]]:
    """Return the model of a command and the arguments after `--`.

    Raises:
        UsageError: no model is given, or two.
    """
    if hf_model is not None and model is not None:
        if not str(model).startswith("-"):
            raise UsageError("MODEL and -hf are both given", "give one of them")
        return hf_model, (str(model), *extra_args)
    chosen = hf_model or model
    if chosen is None or str(chosen).startswith("-"):
        raise UsageError(
            "MODEL is missing",
            "give the path of a .gguf file, or the name of a model that `autofit models` lists",
        )
    return chosen, extra_args
