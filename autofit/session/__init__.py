"""Runs of trials, shared by all jobs: task, runner, budget, rounds, events; no job's phases."""
