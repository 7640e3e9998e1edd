"""What a tune does when a KV type costs too much of the answers' quality."""

from __future__ import annotations

import json

from fakes.machine import RuntimeTraits
from tune_machine import TuneMachine

POOR = RuntimeTraits(kv_text_change={"q8_0": 0.3}, kv_logprob_error={"q8_0": 0.25})


def test_a_kv_type_that_was_found_poor_is_not_recommended_with_other_layers(cli, tmp_path):
    """Other candidates with it are not asked or proven; what is wider meets the baseline."""
    machine = TuneMachine(tmp_path, 2700.0)
    machine.change(runtime=POOR)
    # With this context q8_0 leaves room for one more layer's experts.
    machine.workload.write_text(machine.workload.read_text().replace("2048", "32768"))
    study = tmp_path / "study"
    done = cli(*machine.words(study, max_launches=10, budget="120s"), "--json")
    result = json.loads(done.out)
    trials = [json.loads(path.read_text()) for path in sorted(study.glob("trials/????.json"))]
    asked = [t for t in trials if t["purpose"] == "answers of the winner"]
    narrow = [t["number"] for t in trials
              if t["phase"] == "prove" and t["params"].get("cache_type_k") == "q8_0"]  # fmt: skip

    assert done.code == 0, done.err
    assert asked[0]["params"]["cache_type_k"] == "q8_0"
    assert max(narrow) == asked[0]["number"]
    assert sum("no candidate with KV q8_0 is recommended" in n for n in result["notes"]) == 1
    assert result["winner"]["params"].get("cache_type_k", "f16") == "f16"
    assert result["gain"]["low"] is not None
