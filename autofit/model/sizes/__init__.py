"""The bytes of a model by block, and on each device with given settings."""
