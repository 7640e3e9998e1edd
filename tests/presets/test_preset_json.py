"""Presets as JSON documents."""

from __future__ import annotations

import json

from presets.preset_sample import ARGUMENTS, make_preset

from autofit.presets.formats.registry import write_preset

ADDRESS = ("--host", "127.0.0.1", "--port", "8080")


def test_a_document_has_command_result_and_machine():
    """It has params, argv, variables, estimates, memory, machine and check value."""
    document = json.loads(write_preset("json", make_preset(env={"A": "1"})))

    assert document["argv"] == ["/opt/llama.cpp/llama-server", *ARGUMENTS, *ADDRESS]
    assert document["params"] == {"n_gpu_layers": 49, "n_cpu_moe": 20}
    assert document["env"] == {"A": "1"}
    assert document["estimates"]["tg_per_s"]["n"] == 5
    assert document["machine"]["cpu"] == "AMD Ryzen 9 7950X"
    assert document["free_mib"] == {"CUDA0": 900.0, "host": None}
    assert document["taken_mib"] == {"CUDA0": 9100.0, "host": 4000.0}
    assert document["check"] == make_preset().environment.check_value
