"""Prints what autofit itself adds to a launch: all that is not the server's own time.

The same fake server is started, asked the same requests and stopped by a driver that does
nothing else, and by a tune's runner, which also guards the process, watches its memory, reads
its log, judges, and writes the trial to disk. Both take turns; the difference is the overhead.

Run it as `python benchmarks/bench_overhead.py [--launches N] [--output FILE]`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from fakes.machine import Device, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model
from real_llama_cpp import clean_environment, free_port
from trial.purpose_sample import purpose_of

from autofit.runtime.server.request_plan import RequestPlan, plan_measurement
from autofit.session.budget import Budget
from autofit.session.build_task import build_task
from autofit.session.runner import TrialRunner
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import make_launcher, search_header
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", context=4096, parallel=1, requests=(Request(512, 33),))
MODEL = build_model(ModelShape(layers=12, experts=16, used=2, embd=1024, ff=512, vocab=512))
PARAMS = {"n_gpu_layers": 99, "n_cpu_moe": 6, "context": 4096}
EFFORT = plan_measurement(WORKLOAD, 512, repeats=2)
LIMIT_S = 0.3


class _Bare:
    """The least that starts, asks and stops a server."""

    def __init__(self, argv: tuple[str, ...], log_path: Path) -> None:
        self.argv, self.log_path = argv, log_path

    def run(self, request_plan: RequestPlan) -> None:
        """One launch."""
        port = free_port()
        with self.log_path.open("wb") as log:
            server = subprocess.Popen(
                [word.replace("{port}", str(port)) for word in self.argv],
                stdout=log, stderr=log, env=clean_environment(),
            )  # fmt: skip
        while not self._is_ready(port):
            time.sleep(0.002)
        for request in request_plan.requests:
            body = {"prompt": [*range(3, 3 + request.prompt_tokens)], "stream": True,
                    "n_predict": request.predicted_tokens, "cache_prompt": False}  # fmt: skip
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request(
                "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
            )
            connection.getresponse().read()
            connection.close()
        server.terminate()
        server.wait()

    @staticmethod
    def _is_ready(port: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()


def _runner(folder: Path) -> TrialRunner:
    fake = FakeMachine(folder, Machine("overhead", (Device("CUDA0"),)))
    options = TaskOptions(model=fake.write_model(MODEL), runtime=str(fake.server), workload="demo")
    task = build_task(options)
    study = Study.create(folder / "study", search_header(task, options, seed=1, argv=[]))
    return TrialRunner(
        study, make_launcher(task), Budget(time.monotonic), lambda _: None, time.time
    )


def _seconds(call: object, *arguments: object, **options: object) -> float:
    began_s = time.perf_counter()
    call(*arguments, **options)  # type: ignore[operator]
    return time.perf_counter() - began_s


def measure(launches: int) -> tuple[list[float], list[float]]:
    """Seconds of each launch, by the bare driver and by a tune's runner."""
    bare_s, tuned_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        runner = _runner(Path(folder))
        candidate = Candidate(PARAMS)
        plan = runner.launching.plan(candidate, is_verbatim=False, as_served=False)
        bare = _Bare(plan.argv, Path(folder) / "bare.log")
        for number in range(launches + 1):
            one = _seconds(bare.run, EFFORT)
            other = _seconds(
                runner.run,
                purpose_of("confirm", round=number),
                candidate,
                EFFORT,
                layout="balanced",
            )
            if number:  # the first of each warms caches up
                bare_s.append(one)
                tuned_s.append(other)
        assert all(trial.is_completed for trial in runner.trials)
        runner.study.close()
    return bare_s, tuned_s


TABLE = """\
# What autofit adds to a launch

Made by `benchmarks/bench_overhead.py`: {launches} launches of a fake server by a driver
that only starts, asks and stops it, and as many by a tune's runner, taking turns. The runner
also guards the process, watches memory, reads the log, judges, and writes the trial to disk.
Loading, measuring and waiting for memory are in both. The target is {limit_s} s.

| | median | middle half |
| --- | --- | --- |
| the server alone | {bare:.3f} s | {bare_low:.3f} to {bare_high:.3f} s |
| in a tune | {tuned:.3f} s | {tuned_low:.3f} to {tuned_high:.3f} s |
| **added** | **{added:.3f} s** | {added_low:.3f} to {added_high:.3f} s |
"""


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    bare_s, tuned_s = measure(options.launches)
    added_s = [tuned - bare for bare, tuned in zip(bare_s, tuned_s, strict=True)]
    cells = {}
    for name, values in (("bare", bare_s), ("tuned", tuned_s), ("added", added_s)):
        low, _, high = quantiles(values, n=4)
        cells |= {name: median(values), f"{name}_low": low, f"{name}_high": high}
    text = TABLE.format(launches=options.launches, limit_s=LIMIT_S, **cells)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
