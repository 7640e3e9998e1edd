"""The arguments MODEL and STUDY: a path, a name, or the URL of the storage of a shared tune."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.say import say
from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.study.study_folder import Study

_LISTED = 8


class ModelType(click.ParamType):  # type: ignore[type-arg] # not generic in older clicks
    """A GGUF file, given by its path or by its name in a cache; with `is_name` by name only."""

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


def complete_studies(
    _ctx: click.Context, _option: click.Parameter, word: str
) -> list[CompletionItem]:
    """Return the names of studies that begin with some text, newest first, or else paths."""
    found = newest_studies()
    names = [CompletionItem(path.name) for path in found if path.name.startswith(word)]
    return names or [CompletionItem(word, type="file")]


study_argument: Callable[..., Any] = click.argument("study", shell_complete=complete_studies)
optional_study_argument: Callable[..., Any] = click.argument(
    "study", required=False, shell_complete=complete_studies
)


def open_study(given: str | None) -> Study:
    """Open a study for reading, or the newest one for None.

    The URL of a storage is the study of a shared tune, as it is now.

    Raises:
        UsageError: there is no such study. The hint names the newest ones.
        AutofitError: its header is damaged, unreadable or from a newer autofit.
    """
    from autofit.study.study_folder import Study  # noqa: PLC0415 - heavy, and --help must be quick

    if given is None:
        newest = newest_studies()
        if not newest:
            raise UsageError("there is no study yet", _describe_newest())
        return Study.open(newest[0])
    if "://" in given or given.partition("#")[0].endswith(".journal"):
        from autofit.fleet.gathered_study import gather_study  # noqa: PLC0415 - heavy

        return gather_study(given, lambda text: say(f"notice: {text}", err=True))
    return _open_folder(Path(given))


def _open_folder(given: Path) -> Study:
    from autofit.study.study_folder import Study  # noqa: PLC0415

    # Users also give the path of study.json.
    path = given.parent if given.name == "study.json" else given
    if not path.exists() and len(given.parts) == 1:
        path = next(
            (place / given for place in _study_folders() if (place / given).is_dir()), path
        )
    if not path.exists():
        raise UsageError(f"no such study: {given}", _describe_newest())
    return Study.open(path)


def print_damage(study: Study) -> None:
    """Print on stderr the launches of a study that cannot be read."""
    study.trials()
    for notice in study.notices:
        say(f"notice: {notice}", err=True)


def _study_folders() -> tuple[Path, ...]:
    """Return the folders in which a tune makes studies without --study."""
    from autofit.study.study_location import user_data_folder  # noqa: PLC0415

    return Path("results"), user_data_folder() / "studies"


def newest_studies() -> list[Path]:
    """Return the folders of all studies that were made without --study, newest first."""
    found: list[tuple[float, Path]] = []
    for place in _study_folders():
        try:
            heads = [*place.glob("*/study.json")]
            found += [(head.stat().st_mtime, head.parent) for head in heads]
        except OSError:
            continue
    return [path for _, path in sorted(found, reverse=True)]


def _describe_newest() -> str:
    newest = [str(path) for path in newest_studies()[:_LISTED]]
    return f"the newest: {', '.join(newest)}" if newest else "use `autofit tune MODEL`"
