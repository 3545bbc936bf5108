"""`warm`: the same slot again and again, whatever the cache holds of it. For kernels whose inputs were just written.

Inputs that fit the L2 are hot, so a time may be shorter than memory could deliver them: it says nothing about
bandwidth. Measured as `rotation` is, by the slope between two graphs. Since every call writes the same output, evo
spoils it at the head of both brackets, which the slope cancels.
"""

from __future__ import annotations

from evo.fitness.cuda.protocols.rotation import Rotation


class Warm(Rotation):
    protocol = "warm"

    def _disturb(self) -> None:
        self._clockwork.spoil(self._calls[0])
