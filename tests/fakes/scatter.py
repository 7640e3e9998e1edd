"""Noise of measurements: between launches, within them, drifting, in bursts, at the first."""

from __future__ import annotations

import math
import random
import zlib

from fakes.machine import Machine


class Scatter:
    """The noise of one launch; the same arguments give the same noise."""

    def __init__(
        self, machine: Machine, seed: int, launch: int, params: str, free_mib: float
    ) -> None:
        noise = machine.noise
        self.noise = noise
        digest = zlib.crc32(f"{machine.name}/{seed}/{launch}/{params}".encode())
        self.rng = random.Random(digest)
        phase = zlib.crc32(f"{machine.name}/{seed}".encode()) % 628 / 100.0
        swing = math.sin(2.0 * math.pi * launch / max(1, noise.drift_launches) + phase)
        drift = 1.0 + noise.drift_share * swing
        at_edge = noise.edge_launch if free_mib < max(1.0, machine.quirks.edge_mib) else 0.0
        self.prompt = drift * self._factor(noise.launch_prompt)
        self.decode = drift * self._factor(noise.launch_decode) * (
            1.0 + abs(self.rng.gauss(0.0, at_edge))
        )  # fmt: skip

    def _factor(self, sigma: float) -> float:
        return math.exp(self.rng.gauss(0.0, sigma)) if sigma else 1.0

    def _burst(self) -> float:
        noise = self.noise
        if noise.burst_probability and self.rng.random() < noise.burst_probability:
            return 1.0 + noise.burst_share * self.rng.random()
        return 1.0

    def prompt_s(self, seconds: float, order: int) -> float:
        """A prompt's time as measured; `order` counts this launch's requests from 0."""
        noise = self.noise
        measured = seconds * self.prompt * self._factor(noise.within_prompt) * self._burst()
        if order == 0:
            measured = measured * (1.0 + noise.first_prompt_share) + noise.first_prompt_s
        return measured

    def predicted_s(self, seconds: float) -> float:
        """A generation's time as measured."""
        return seconds * self.decode * self._factor(self.noise.within_decode) * self._burst()
