"""Text for the console: studies, plans, comparisons, events."""
