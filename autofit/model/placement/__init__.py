"""Layouts that are worth a launch: divisions of layers and experts over devices by size."""
