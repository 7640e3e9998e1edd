"""The search: its space and problem, the surrogate model, the policy. It launches nothing."""
