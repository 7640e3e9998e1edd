"""Find, prove and recommend the best settings for one model on one machine."""
