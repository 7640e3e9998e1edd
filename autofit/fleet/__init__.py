"""Work that several machines share through an Optuna storage, and nothing about that work."""
