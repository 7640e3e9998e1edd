"""The search space, the fit boundary, the sampler, and the Optuna study."""
