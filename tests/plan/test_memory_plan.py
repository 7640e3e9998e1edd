"""A memory plan recommends the layout with the most on devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.task_sample import task
from tune_machine import TuneMachine

from autofit.errors import UsageError
from autofit.plan.memory_plan import FIXED, HOST_ONLY, base_candidate, make_plan
from autofit.search.space_file import read_workload


@pytest.fixture(scope="module")
def about(tmp_path_factory):
    """The task of a model on two cards that it does not fit."""
    machine = TuneMachine(tmp_path_factory.mktemp("plan"), 2600.0, 2300.0)
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space="moe")


def test_fewest_host_layers_are_recommended(about):
    """Of the layouts that fit, the one with the most experts on devices is recommended."""
    plan = make_plan(about, None)

    fitting = [layout for layout in plan.layouts if layout.fits]
    fewest = min(layout.host_expert_layers for layout in fitting)
    assert plan.recommended in fitting
    assert plan.recommended.host_expert_layers == fewest
    assert plan.layouts[0].estimate.estimator == "arithmetic"


def test_nothing_is_recommended_if_nothing_fits(about):
    """The first layout is shown instead, with the missing memory."""
    small = tuple(replace(device, usable_mib=50.0) for device in about.devices)
    plan = make_plan(replace(about, devices=small), None)
    document = plan.to_dict()

    assert plan.recommended is None
    assert document["recommended"] is None
    assert document["devices"] == document["layouts"][0]["devices"]


def test_without_a_device_system_ram_decides(about):
    """Everything is in system RAM, and its free memory limits fit and context."""
    roomy = make_plan(replace(about, devices=()), None)
    tight = make_plan(replace(about, devices=(), host_available_mib=100.0), None)

    (layout,) = roomy.layouts
    assert (layout.name, layout.estimate.devices) == (HOST_ONLY, ())
    assert roomy.recommended is layout
    assert tight.recommended is None
    assert tight.max_context["f16"] == 0
    needed = layout.estimate.host.total_mib
    assert not make_plan(
        replace(about, devices=(), host_available_mib=needed - 1), None
    ).recommended
    assert make_plan(replace(about, devices=(), host_available_mib=needed), None).recommended


def test_combination_that_the_runtime_refuses_is_an_error(about):
    """It is found before any layout is planned."""
    pinned = replace(about.space, pinned={"flash_attn": "off", "cache_type_v": "q8_0"}, axes=())

    with pytest.raises(UsageError, match="flash"):
        make_plan(replace(about, space=pinned), None)


def test_pinned_placement_is_the_only_layout(about):
    """All other settings have the first values of the space."""
    space = about.space.pin({"n_gpu_layers": 13, "n_cpu_moe": 9})
    fixed = replace(about, space=space)
    plan = make_plan(fixed, None)

    assert [layout.name for layout in plan.layouts] == [FIXED]
    assert plan.layouts[0].candidate == base_candidate(fixed)
    assert plan.layouts[0].host_expert_layers == 9


def test_arguments_are_those_of_a_launch(about):
    """They name every parameter of the layout."""
    layout = make_plan(about, None).recommended

    for flag, name in (("--n-gpu-layers", "n_gpu_layers"), ("--ubatch-size", "ubatch")):
        assert layout.args[layout.args.index(flag) + 1] == str(layout.candidate.params[name])


@pytest.mark.parametrize(
    ("words", "mentioned"),
    [
        (("--cache-ram", "4096"), ["4096 MiB of system RAM"]),
        (("-cram", "-1"), ["without a limit"]),
        (("--cache-ram", "0", "--ctx-checkpoints", "0"), []),
        (("--ctx-checkpoints", "8", "--mmproj", "p.gguf"), ["8 checkpoints", "--mmproj p.gguf"]),
    ],
)
def test_memory_that_is_not_counted_has_a_notice(about, words, mentioned):
    """Options after `--` with memory of their own are named."""
    notices = make_plan(replace(about, extra_args=words), None).notices

    added = notices[len(make_plan(about, None).notices) :]
    assert len(added) == len(mentioned)
    assert all(text in notice for text, notice in zip(mentioned, added, strict=True))


def test_the_order_of_unequal_links_is_shown_if_something_is_in_system_ram(about):
    """The device with the fast link comes first in layouts of their own, once."""
    first, second = about.devices
    slow = replace(first, usable_mib=1500.0, link_gb_s=3.0)
    fast = replace(second, usable_mib=1500.0, link_gb_s=24.0)
    unequal, equal = (
        [layout.name for layout in make_plan(replace(about, devices=devices), None).layouts]
        for devices in ((slow, fast), (replace(slow, link_gb_s=24.0), fast))
    )

    assert {f"capacity:{fast.name},{slow.name}", f"balanced:{fast.name},{slow.name}"} <= set(
        unequal
    )
    assert len(set(unequal)) == len(unequal)
    assert not [name for name in equal if "," in name]


def test_roomy_devices_show_divided_layers_and_no_order(about):
    """With room for the whole model its layers can be divided, and no order of links matters."""
    links = (3.0, 24.0)
    roomy = tuple(
        replace(device, usable_mib=20000.0, total_mib=20000.0, link_gb_s=link)
        for device, link in zip(about.devices, links, strict=True)
    )
    layouts = {
        layout.name: layout for layout in make_plan(replace(about, devices=roomy), None).layouts
    }

    assert layouts["tensor"].fits
    assert not [name for name in layouts if "," in name]
