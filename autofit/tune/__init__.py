"""The job `tune`: its phases, from the baseline to the proven winner; nothing for other jobs."""
