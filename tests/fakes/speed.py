"""All times of one launch; see `prompt_speed` and `token_speed`."""

from __future__ import annotations

from fakes.prompt_speed import PromptSpeed
from fakes.token_speed import TokenSpeed


class Speed(PromptSpeed, TokenSpeed):
    """Times of prompts and of generation."""
