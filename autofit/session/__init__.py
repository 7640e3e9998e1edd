"""Parts of a run that all jobs share: task, runner, budget, rounds, events; no job's phases."""
