"""The usual start of the fake server in tests: the model on one card, half of it in system RAM."""

from __future__ import annotations

from collections.abc import Callable

from fakes.running import RunningServer

ONE_CARD = ["-dev", "CUDA0", "-ncmoe", "16", "-c", "4096", "-np", "1", "-fit", "off", "-lv", "4"]
Start = Callable[..., RunningServer]
