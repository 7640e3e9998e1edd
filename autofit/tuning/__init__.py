"""The phases of a tune; confirmation, quality, comparison, sweeps."""
