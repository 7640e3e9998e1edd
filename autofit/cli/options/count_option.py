"""An option for a whole number, such as `--rounds N`."""

from __future__ import annotations

from typing import Any

import click


class CountOption(click.Option):
    """An option for a whole number. Its help leaves out the range, which an error names."""

    def __init__(self, *args: Any, **attributes: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **{"metavar": "N", **attributes})

    def get_help_extra(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's, since 8.2
        """Return the additions to the help without the range."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra
