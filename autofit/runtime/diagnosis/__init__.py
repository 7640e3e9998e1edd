"""The outcome of a launch, from its log, its exit status and what was seen from outside."""
