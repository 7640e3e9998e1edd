"""Predict the memory of a model on each device without a launch."""
