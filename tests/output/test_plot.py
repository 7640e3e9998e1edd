"""The plots of a report, and their captions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from output.report_sample import (
    KINDS,
    MARKUP,
    comparison,
    cpu_only,
    probe,
    three_devices,
    whole,
    with_memory,
)
from output.tune_sample import HOSTILE
from study.study_sample import WORKLOAD, measurement, trial

from autofit.output.report.html_report import plots
from autofit.output.report.plots.device_plots import memory_parts
from autofit.output.report.plots.figure import NoPlot, Plot, lines
from autofit.output.report.plots.launch_plots import starts_s
from autofit.output.report.plots.plot_data import PlotData
from autofit.output.report.plots.rate_plots import pareto_front
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory
from autofit.trial.outcome import Crashed, OutOfMemory, Spilled, TimedOut
from autofit.trial.trial import Trial

SPEED, MAP, MEMORY, LAYERS, ROUNDS, RATES, DEPTH, TIME = (
    "Seconds per request against host expert layers",
    "Seconds per request by host expert layers and ubatch",
    "Memory at the peak, by device",
    "Layers over devices",
    "Rounds",
    "Prompt processing against generation",
    "Speed against depth",
    "Launches over time",
)


def drawn(study: Study) -> tuple[dict[str, Plot], dict[str, NoPlot]]:
    """Return the plots of a study by title, and those left out."""
    head = study.header
    made, left_out = plots(PlotData(study.trials(), head.workload, head.objective, study.result))
    return {plot.title: plot for plot in made}, {plot.title: plot for plot in left_out}


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> dict[str, Plot]:
    """The plots of a whole tune."""
    made, left_out = drawn(whole(tmp_path_factory.mktemp("plots") / "study"))
    assert left_out == {}
    return made


def traces(plot: Plot) -> dict[str, dict]:
    """Return the traces of a plot by name."""
    return {trace.get("name", ""): trace for trace in json.loads(plot.to_json())["data"]}


def test_whole_tune_has_every_plot_with_caption_and_units(full):
    """Each plot has a caption, and its axes have titles."""
    assert list(full) == [SPEED, MAP, MEMORY, LAYERS, ROUNDS, RATES, DEPTH, TIME]
    for plot in full.values():
        assert plot.alternative.endswith(".")
        layout = json.loads(plot.to_json())["layout"]
        axes = [value for name, value in layout.items() if name[1:5] == "axis"]
        assert sum(bool(axis["title"]["text"]) for axis in axes) >= 1
        assert not plot.rows or all(len(row) == len(plot.head) for row in plot.rows)


def test_speed_marks_failures_boundary_and_cliff(full):
    """Failures have a strip of their own; boundary and cliff are drawn and in the caption."""
    plot = full[SPEED]
    failed = traces(plot)["out of memory"]
    layout = json.loads(plot.to_json())["layout"]

    assert sorted(failed["x"]) == [16, 16, 18]
    assert failed["yaxis"] == "y2"
    assert traces(plot)["baseline"]["y"][0] == pytest.approx(8.5, abs=0.1)
    assert "Baseline, layers placed by the runtime: 8" in plot.alternative
    assert any(shape.get("yref") == "y2" for shape in layout["shapes"])
    assert layout["annotations"][0]["text"] == "cliff: tg x 0.84"
    assert (
        "Fit boundary of balanced, KV f16, ubatch 2048: 20 fit, 19 do not (both sides launched)"
        in (plot.alternative)
    )


def test_launch_that_tested_only_the_fit_has_no_speed(tmp_path):
    """Such a launch is in the strip of the failures, not on the curve."""
    study = whole(tmp_path / "study")
    measured = measurement(30.0)
    warmup = tuple(replace(sample, is_warmup=True) for sample in measured.samples[:1])
    loaded = replace(
        trial(99, phase="boundary", measured=with_memory(replace(measured, samples=warmup))),
        candidate=study.trials()[3].candidate.with_params(n_cpu_moe=14),
        fidelity="load",
    )
    trials = [*study.trials(), loaded]
    data = PlotData(trials, study.header.workload, study.header.objective, study.result)
    plot = next(plot for plot in plots(data)[0] if plot.title == SPEED)

    shown = traces(plot)
    assert (shown["completed"]["x"], shown["completed"]["yaxis"]) == ([14], "y2")
    assert all(14 not in trace.get("x", ()) for n, trace in shown.items() if n != "completed")
    assert "#99 tested only the fit." in plot.alternative


def test_launch_with_all_experts_on_the_device_is_drawn_at_zero(tmp_path):
    """Without a param for host layers their number is zero, not unknown."""
    study = whole(tmp_path / "study")
    fast = trial(99, measured=with_memory(measurement(90.0)))
    params = {"devices": "CUDA0", "n_gpu_layers": 49, "ubatch": 512}
    trials = [*study.trials(), replace(fast, candidate=Candidate(params))]
    made = plots(PlotData(trials, study.header.workload, study.header.objective, study.result))[0]
    speed, by_ubatch = (plot for plot in made if plot.title in (SPEED, MAP))

    assert "the best single launch is #99" in speed.alternative
    assert "with 0 to 30 host expert layers" in speed.alternative
    assert any(row[:2] == ("512", "0") for row in by_ubatch.rows)


def test_map_shades_what_failures_rule_out(full):
    """The region grows with ubatch, because memory does."""
    shapes = json.loads(full[MAP].to_json())["layout"]["shapes"]

    assert [shape["x1"] for shape in shapes] == [16.5, 18.5]
    assert ("512", "16", "out of memory") in full[MAP].rows
    assert len(full[MAP].rows) == 10


def test_map_shades_nothing_if_host_memory_is_full(tmp_path):
    """With fewer layers in system RAM a launch may fit, so there is only a cross."""
    study = whole(tmp_path / "study")
    killed = OutOfMemory("load", "SIGKILL (-9)", where="host")
    trials = [
        replace(one, outcome=killed) if isinstance(one.outcome, OutOfMemory) else one
        for one in study.trials()
    ]
    made = plots(PlotData(trials, study.header.workload, study.header.objective, study.result))[0]
    by_ubatch = next(plot for plot in made if plot.title == MAP)

    assert "shapes" not in json.loads(by_ubatch.to_json())["layout"]
    assert "shaded" not in by_ubatch.alternative
    assert ("512", "16", "out of memory") in by_ubatch.rows


def with_launches(study: Study, *more: Trial) -> dict[str, Plot]:
    """Return the plots of a study with more launches, by title."""
    head = study.header
    data = PlotData([*study.trials(), *more], head.workload, head.objective, study.result)
    return {plot.title: plot for plot in plots(data)[0]}


def test_each_outcome_is_drawn_and_counted_as_itself(tmp_path):
    """Spilled, crashed and timed-out launches are not drawn or counted as out of memory."""
    study = whole(tmp_path / "study")
    like = study.trials()[3].candidate
    outcomes = (
        Spilled("generate", "used memory stays at the ceiling", device="CUDA0"),
        Crashed("prompt", "GGML_ASSERT failed"),
        TimedOut("load", "no answer", limit_s=60.0),
    )
    more = [
        replace(trial(90 + n, outcome), candidate=like.with_params(n_cpu_moe=8 + n))
        for n, outcome in enumerate(outcomes)
    ]
    made = with_launches(study, *more)

    for title in (SPEED, MAP):
        drawn_at = {name: trace["x"] for name, trace in traces(made[title]).items()}
        assert sorted(drawn_at["out of memory"]) == [16, 16, 18]
        assert [drawn_at[n] for n in ("spilled", "crashed", "timed out")] == [[8], [9], [10]]
        assert "3 out of memory" in made[title].alternative
        assert "1 spilled" in made[title].alternative
    assert {("512", "8", "spilled"), ("512", "9", "crashed")} <= set(made[MAP].rows)
    # A spilled launch needs more memory than there is; a crashed one proves nothing about it.
    assert [s["x1"] for s in json.loads(made[MAP].to_json())["layout"]["shapes"]] == [16.5, 18.5]


def test_slow_outlier_does_not_flatten_the_speeds(tmp_path):
    """It is drawn at the end of the axis, and the caption has its value."""
    study = whole(tmp_path / "study")
    like = study.trials()[3].candidate
    slow = trial(99, measured=with_memory(measurement(1.0)))
    made = with_launches(study, replace(slow, candidate=like.with_params(n_cpu_moe=22)))

    low, high = json.loads(made[SPEED].to_json())["layout"]["yaxis"]["range"]
    shown = traces(made[SPEED])
    assert 4 < low < 5.25
    assert 8.5 < high < 10
    assert (shown["off the scale"]["x"], shown["off the scale"]["y"]) == ([22], [high])
    assert "Off the scale: #99 with 154." in made[SPEED].alternative
    assert traces(made[MAP])["ran"]["marker"]["cmax"] < 10


def test_caption_of_layers_has_devices_and_places_of_experts(tmp_path):
    """It lists slices over three devices, with experts in system RAM in whole and in part."""
    caption = drawn(three_devices(tmp_path / "study"))[0][LAYERS].alternative

    assert (
        "CUDA0 has layers 0 to 19, with the experts of 0 to 5 in system RAM, with the experts of "
        "7 partly in system RAM; CUDA1 has layers 20 to 36, with the experts of 20 to 23 in "
        "system RAM; RPC0 has layers 37 to 47, with the experts of 40 in system RAM"
    ) in caption


def test_device_without_a_counter_has_what_the_runtime_reports(tmp_path):
    """A remote device has its buffers; memory that nothing counts is unknown, not 0."""
    plot = drawn(three_devices(tmp_path / "study"))[0][MEMORY]
    row = next(row for row in plot.rows if row[0] == "RPC0")

    assert row[2:] == ("6,000 MiB", "700 MiB", "300 MiB", "unknown", "unknown")
    others = "Used by other programs and not drawn: 700 MiB on CUDA0, 5,000 MiB on CUDA1."
    assert others in plot.alternative


def test_memory_of_a_device_is_that_of_the_server():
    """Pools are the memory taken since the start without the buffers, and never below 0."""
    measured = Measurement(
        peak_mib={"CUDA0": 11000.0, "host": 500.0},
        free_mib={"CUDA0": 900.0, "host": None},
        reported={
            "CUDA0": ReportedMemory(8000.0, 800.0, 600.0),
            "Host": ReportedMemory(7000.0, 0.0, 32.0),
        },
        readings=(MemoryReading(0.0, {"CUDA0": 1000.0}, {}),),
    )

    parts = memory_parts(measured)

    assert parts["CUDA0"]["pools and other"] == 600.0
    assert sum(parts["CUDA0"].values()) == 11000.0 - 1000.0 + 900.0
    assert parts["host"]["pools and other"] == 0.0
    assert parts["host"]["free"] is None


def test_rounds_are_paired_and_in_a_table(full):
    """Each round has a value of baseline and winner."""
    plot = full[ROUNDS]

    assert plot.head == ("contender", "round 1", "round 2", "round 3", "round 4")
    assert [row[0] for row in plot.rows] == ["baseline", "winner"]
    assert traces(plot)["winner"]["x"] == [1, 2, 3, 4]
    assert "1.42x as fast (95% interval" in plot.alternative


def test_depth_goes_to_the_full_context(full):
    """The prompt of the proof is the deepest point of the winner."""
    assert full[DEPTH].rows[-1] == ("8,000", "", "", "36", "952")


def test_no_point_of_the_front_is_beaten():
    """The line has every launch that no other beats in both rates."""
    points = [(trial(n), pp, tg) for n, (pp, tg) in enumerate([(1, 9), (5, 5), (4, 4), (6, 1)])]

    assert [(pp, tg) for _, pp, tg in pareto_front(points)] == [(1, 9), (5, 5), (6, 1)]


def test_a_plot_that_fails_leaves_the_others(tmp_path):
    """Its title and fault are among the plots that are left out."""
    study = whole(tmp_path / "study")
    result = {**study.result, "boundary": 5, "gain": "large"}
    made, left_out = plots(PlotData(study.trials(), WORKLOAD, "request_s", result))

    assert {plot.title for plot in made} >= {MEMORY, RATES, TIME}
    assert {plot.title for plot in left_out} == {"Speed plot", "Rounds plot"}
    assert all("Error" in plot.reason for plot in left_out)


def test_long_pauses_are_left_out_of_the_time_line():
    """A study that was resumed the next day is drawn without the night."""
    first = trial(1)
    later = replace(trial(2), started_at=first.started_at + 90_000.0)
    starts, paused_s = starts_s([first, later])

    assert starts == pytest.approx([0.0, first.seconds])
    assert paused_s == pytest.approx(90_000.0 - first.seconds)


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_clock_that_is_set_moves_no_launch_of_the_time_line(step_s):
    """Launches stay in their order, one after the other."""
    first = trial(1)
    later = [
        replace(trial(n), started_at=first.started_at + step_s + n * first.seconds) for n in (2, 3)
    ]
    starts, _ = starts_s([first, *later])

    assert starts[0] == 0.0
    assert starts[1] >= first.seconds
    assert starts[2] >= starts[1] + later[0].seconds


def test_study_on_the_cpu_has_no_plots_of_devices(tmp_path):
    """Without experts to place, plots of placement are left out, each with its reason."""
    made, left_out = drawn(cpu_only(tmp_path / "study"))

    assert list(made) == [MEMORY, RATES, DEPTH, TIME]
    assert set(left_out) == {SPEED, MAP, LAYERS, ROUNDS}
    assert all(plot.reason for plot in left_out.values())
    assert [row[0] for row in made[MEMORY].rows] == ["host", "host"]


@pytest.mark.parametrize("kind", ["empty", "all_failed", "one_trial"])
def test_studies_with_little_data_draw_little(tmp_path, kind):
    """Each of the eight plots is drawn or has a reason."""
    made, left_out = drawn(KINDS[kind](tmp_path / kind))

    assert len(made) + len(left_out) == 8
    assert (kind == "empty") == (not made)


def test_json_of_a_plot_has_no_markup(tmp_path):
    """No name, evidence or purpose can end a script or become a tag."""
    made, _ = drawn(KINDS["hostile"](tmp_path / "study"))

    for plot in made.values():
        text = plot.to_json()
        assert "<" not in text
        shown = json.dumps(json.loads(text), ensure_ascii=False)
        assert "<img" not in shown
        assert "<script" not in shown
        assert "</script" not in shown
    assert "&lt;script&gt;" in json.dumps(json.loads(made[SPEED].to_json()))


def test_hover_labels_break_lines_and_end():
    """A long evidence has a few lines, each escaped on its own."""
    shown = lines("#1 <b>", (HOSTILE + MARKUP) * 10, "x" * 500)

    pieces = shown.split("<br>")
    assert pieces[0] == "#1 &lt;b&gt;"
    assert len(pieces) == 1 + 4 + 4
    assert "<" not in "".join(pieces)


def test_best_launch_of_a_rate_is_the_largest():
    """With a rate as objective, the plot names the launch with the largest value."""
    trials = [trial(n, n_cpu_moe=n, measured=measurement(10.0 * n)) for n in (1, 2, 3)]
    made, _ = plots(PlotData(trials, WORKLOAD, "tg", None))

    assert made[0].title == "Generated tokens per second against host expert layers"
    assert "the best single launch is #3 with 30 at 3" in made[0].alternative


def test_sides_of_a_comparison_are_separate(tmp_path):
    """The same settings on two builds are two sides in rounds, memory and depth."""
    made, _ = drawn(comparison(tmp_path / "study"))

    assert [row[0] for row in made[ROUNDS].rows] == ["A", "B"]
    assert {row[1] for row in made[MEMORY].rows} == {"A #6", "B #7"}
    assert made[DEPTH].rows[0] == ("1,024", "30", "1,000", "35", "1,000")


def test_plot_without_speeds_shows_the_boundary(tmp_path):
    """Launches that tested only the fit are drawn on both sides of the boundary."""
    plot = next(iter(drawn(probe(tmp_path / "study"))[0].values()))

    assert plot.title == "Host expert layers that fit, and that do not"
    assert traces(plot)["completed"]["x"] == [20]
    assert traces(plot)["out of memory"]["x"] == [19]
    assert json.loads(plot.to_json())["layout"]["yaxis2"]["ticktext"] == ["balanced, KV f16"]


def test_plots_of_a_dense_model_name_feed_forwards(tmp_path):
    """If feed-forwards are in system RAM, titles and axes say so."""
    params = {"devices": "CUDA0", "n_gpu_layers": 49, "n_cpu_ffn": 3}
    dense = replace(trial(1, measured=with_memory(measurement())), candidate=Candidate(params))
    made, _ = plots(PlotData([dense], WORKLOAD, "request_s", None))
    plot, layers = made[0], next(plot for plot in made if plot.title == LAYERS)

    assert plot.title == "Seconds per request against host layers"
    axis = json.loads(plot.to_json())["layout"]["xaxis"]["title"]["text"]
    assert axis == "host layers (feed-forwards in system RAM)"
    assert "with the feed-forwards of 0 to 2 in system RAM" in layers.alternative
