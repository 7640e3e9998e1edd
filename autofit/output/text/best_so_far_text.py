"""The best candidate so far of a tune that has no winner, on screen and in reports."""

from __future__ import annotations

import shlex
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from autofit.output.text.conclusion import Conclusion, make_conclusion
from autofit.output.text.console import print_facts
from autofit.output.text.last_screen import headroom_texts, print_figures, print_head
from autofit.output.text.result_table import metric_table
from autofit.output.text.trial_row import OWN_PARAMS, brief_params
from autofit.session.best_so_far import BestSoFar, find_best_so_far
from autofit.session.runner import resume_command
from autofit.study.study_folder import Study
from autofit.text_format import as_fast, headroom, one_line, param, shown_path


def study_conclusion(study: Study) -> Conclusion:
    """Return the conclusion of a study. Without a winner it begins with the best so far."""
    best = find_best_so_far(study)
    if study.result is None:
        found = Conclusion(f"Not finished: continue with `{one_line(resume_command(study))}`")
    else:
        found = make_conclusion(study.result)
    if best is None:
        return found
    facts = [("launch", f"#{best.trial.number}"), ("certainty", ", ".join(_marks(best)))]
    if best.measurement is not None:
        facts.append(("headroom at the peak", headroom(best.measurement.free_mib)))
    return replace(
        found,
        headline=_headline(best),
        facts=(*facts, *_links(study), *found.facts),
        settings=tuple(
            (one_line(name), one_line(param(value)))
            for name, value in best.trial.candidate.params.items()
        ),
        metrics=metric_table(best.baseline_estimates, best.estimates),
        warnings=(found.headline, *found.warnings),
    )


def print_best_so_far(study: Study, console: Console, *, says_how_to_go_on: bool = True) -> bool:
    """Print the best so far of a tune without a winner, or return False if there is none."""
    best = find_best_so_far(study)
    if best is None:
        return False
    print_head(study.header, _headline(best), console)
    free_mib = best.measurement.free_mib if best.measurement else {}
    console.print(Text(", ".join((*_marks(best), *headroom_texts(free_mib))), style="yellow"))
    sides = {_baseline_name(best): best.baseline_estimates, "best so far": best.estimates}
    if best.is_baseline:
        del sides["best so far"]
    print_figures(sides, console)
    settings = brief_params(best.trial.candidate.params) or "the runtime's own"
    console.print()
    links = _links(study)[0 if says_how_to_go_on else 1 :]
    print_facts(console, [("settings", settings), *links])
    return True


def _headline(best: BestSoFar) -> str:
    if best.is_baseline:
        return f"Best so far: the {_baseline_name(best)}; nothing faster was measured"
    if best.gain is None:
        return f"Best so far: launch #{best.trial.number}; the baseline was not measured"
    speed = as_fast(best.gain.median, best.gain.low, best.gain.high)
    rounds = f"after {best.gain.n} round{'s' * (best.gain.n != 1)}"
    return f"Best so far: {speed} {rounds if best.gain.n else 'in single launches'}"


def _marks(best: BestSoFar) -> list[str]:
    """Return whether the candidate is confirmed and proven."""
    proof = "proven at full context" if best.is_proven else "NOT proven at full context"
    if best.is_baseline:
        return [proof]
    return ["confirmed in rounds" if best.is_confirmed else "NOT confirmed in rounds", proof]


def _baseline_name(best: BestSoFar) -> str:
    is_own = OWN_PARAMS.issuperset(best.baseline.candidate.params)
    return "own settings" if is_own else "baseline"


def _links(study: Study) -> list[tuple[str, str]]:
    path = shlex.quote(shown_path(study.path))
    return [
        ("continue", one_line(resume_command(study))),
        ("use it", f"autofit export {path} --unproven --format shell -o FILE"),
        ("more", f"autofit show {path}"),
    ]
