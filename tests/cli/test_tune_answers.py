"""A tune in which a KV type reduces the quality of answers too much."""

from __future__ import annotations

import json

from fakes.machine import RuntimeTraits
from tune_machine import TuneMachine

POOR = RuntimeTraits(kv_text_change={"q8_0": 0.3}, kv_logprob_error={"q8_0": 0.25})


def test_a_poor_kv_type_is_excluded_from_the_search(cli, tmp_path):
    """No candidate with it is proven or raced; the search continues with wider types."""
    machine = TuneMachine(tmp_path, 2700.0)
    machine.change(runtime=POOR)
    # With this context q8_0 leaves room for one more layer's experts.
    machine.workload.write_text(machine.workload.read_text().replace("2048", "32768"))
    study = tmp_path / "study"
    done = cli(*machine.words(study, max_launches=10, budget="120s"), "--json")
    result = json.loads(done.out)
    trials = [json.loads(path.read_text()) for path in sorted(study.glob("trials/????.json"))]
    asked = [t for t in trials if (t["role"], t["subject"]) == ("answers", "finalist")]
    narrow = [t["number"] for t in trials if t["params"].get("cache_type_k") == "q8_0"]

    assert done.code == 0, done.err
    assert [t["params"]["cache_type_k"] for t in asked] == ["q8_0"]
    assert max(narrow) == asked[0]["number"]
    assert "no candidate with KV q8_0 is recommended" in result["notes"]
    assert "the search continues without KV q8_0" in result["notes"]
    (score,) = result["kv_scores"]
    assert (score["cache_type_k"], score["verdict"], score["holds"]) == ("q8_0", "poor", False)
    assert result["answers"]["verdict"] == "equal"
    assert result["winner"]["params"].get("cache_type_k", "f16") == "f16"
    assert result["gain"]["low"] is not None
