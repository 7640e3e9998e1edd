"""The report as Markdown: for a terminal, a pull request, a CI summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from autofit.output.text.best_so_far_text import study_conclusion
from autofit.output.text.conclusion import Conclusion
from autofit.output.text.result_table import ResultTable
from autofit.output.text.study_text import TRIAL_HEAD, header_facts, launch_cells
from autofit.output.text.trial_row import grouped_notes, trial_rows
from autofit.study.study_folder import Study
from autofit.text_format import one_line

# The characters that Markdown interprets; it leaves a `_` within a word.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def markdown_report(study: Study, *, preset: str = "") -> str:
    """Return the report of a study; `preset` is the text of the winner's preset."""
    found = study_conclusion(study)
    rows, common = trial_rows(study.trials(), study.header.workload)
    title = escape(study.header.model_name)
    parts = [f"# {title}: launch settings", f"**{escape(found.headline)}**"]
    parts += _conclusion_parts(found)
    if found.command:
        parts += ["## Command", code(found.command, "sh")]
    if preset:
        parts += ["## Preset", code(preset.rstrip("\n"), "ini")]
    parts += ["## Measured on", facts(header_facts(study.header))]
    if rows:
        parts += ["## Launches", table(TRIAL_HEAD, map(launch_cells, rows))]
        if common:
            parts.append(f"The same in all launches with settings: {escape(common)}")
        parts.append("`autofit show STUDY --command N` prints the command of a launch.")
    failures = [(f"launch {r.number}", r.evidence) for r in rows if r.evidence]
    if failures:
        parts += ["## Evidence", facts(failures)]
    notices = [*found.notes, *grouped_notes(rows), *study.notices]
    if notices:
        parts += ["## Notices", "\n".join(f"- {escape(notice)}" for notice in notices)]
    return "\n\n".join(parts) + "\n"


def _conclusion_parts(found: Conclusion) -> list[str]:
    listed = (*found.facts, *found.expert_facts, *found.effort)
    parts = ["\n".join(f"- {escape(text)}" for text in found.warnings)] if found.warnings else []
    parts += [facts(listed)] if listed else []
    settings = ResultTable("settings", ("parameter", "value"), found.settings)
    for one in (found.metrics, settings, *found.tables, found.spent):
        if one.rows:
            parts += [f"## {one.heading}", table(one.head, one.rows)]
    return parts


def escape(text: str) -> str:
    """Return a text on one line that Markdown shows unchanged."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def code(text: str, language: str) -> str:
    """Return a block of code that its own content cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(one_line(line) for line in text.split("\n"))
    return f"{fence}{language}\n{lines}\n{fence}"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and texts as a list."""
    return "\n".join(f"- {escape(name)}: {escape(text)}" for name, text in pairs)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table with a head."""
    lines = [head, ["---"] * len(head), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
