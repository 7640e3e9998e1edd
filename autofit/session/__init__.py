"""Run trials: the task, the runner, budget, events and rounds."""
