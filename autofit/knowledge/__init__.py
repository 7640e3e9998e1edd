"""Machine knowledge: launches of finished studies, kept as the prior of later searches here.

The search uses it in `search.past_studies`. Memory calibration is in `memory.calibration`.
"""
