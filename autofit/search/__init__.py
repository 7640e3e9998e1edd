"""The search: its space and problem, the surrogate model and the policy, without launches."""
