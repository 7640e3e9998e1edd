"""The preset with all that is known about it, for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from autofit.presets.facts import PresetFacts


def write(facts: PresetFacts) -> str:
    """The preset as one JSON document."""
    document = {
        "schema": 1,
        "model": facts.model_name,
        "model_path": str(facts.model_path),
        "params": dict(facts.params),
        "argv": list(facts.argv),
        "env": dict(facts.env),
        "wrapper": list(facts.wrapper),
        "program": list(facts.command),
        "arguments": list(facts.served_arguments),
        "workload": asdict(facts.workload),
        "objective": facts.objective,
        "gain": facts.gain,
        "tie": facts.tie,
        "proven": facts.proven,
        "estimates": facts.estimates,
        "peak_mib": dict(facts.peak_mib),
        "taken_mib": dict(facts.taken_mib),
        "free_mib": dict(facts.free_mib),
        "machine": facts.environment.to_dict(),
        "build": facts.environment.build,
        "check": facts.environment.check_value,
        "date": facts.made_on.isoformat(),
        "autofit_version": facts.autofit_version,
    }
    return json.dumps(document, indent=2) + "\n"
