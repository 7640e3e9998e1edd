"""Bytes of a model: of its blocks, and on each device under given settings."""
