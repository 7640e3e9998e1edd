"""Texts for the console: studies, plans, comparisons, events. No measuring, no decisions."""
