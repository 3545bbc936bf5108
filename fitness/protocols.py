"""What a protocol's name promises, for the clock, the layout and the floors. How it is done is the target's affair.

A protocol says what is cold, what lies inside the bracket and what comes before it. Times under different protocols are
different quantities: they are never compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evo.errors import UsageError
from evo.operator import Operator
from evo.target import Target


@dataclass(frozen=True, slots=True)
class Protocol:
    """`cold`: inputs come from memory. `rotates`: through as many slots as it takes for that. `repeats`: calls within a
    sample write the same outputs, so that none may read what another wrote. `steady`: the clock must hold still.

    `pairs_max` bounds a race; `resolved` is the relative half-width at which search has seen enough.
    """

    name: str
    cold: bool = True
    rotates: bool = False
    repeats: bool = False
    steady: bool = True
    pairs_max: int = 1 << 30
    resolved: float = 0.004


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("rotation", rotates=True),
        Protocol("isolated-cold"),
        Protocol("warm", cold=False, repeats=True, resolved=0.01),
        # Eight stretches of 250 ms a side are 2 s. Who slows the chip down pays for it here, so nothing is void.
        Protocol("sustained", rotates=True, repeats=True, steady=False, pairs_max=8, resolved=0.01),
        Protocol("triton", repeats=True, pairs_max=16),
        # As long a load without a pause, under which the chip's power limit moves its clock: nothing is void, either.
        Protocol("flashkda", cold=False, repeats=True, steady=False, pairs_max=16, resolved=0.01),
    )
}


def promises(name: str) -> Protocol:
    """Of a third party's protocol nothing is assumed: inputs may be warm, calls may repeat."""
    return PROTOCOLS.get(name) or Protocol(name, cold=False, repeats=True)


def offered(name: str, names: Sequence[str], where: str) -> str:
    """`name`, or the first of `names` for "". Raises `UsageError` for one that is not offered."""
    if name and name not in names:
        raise UsageError(f"{where} has no protocol {name!r}", fix=f"there is: {', '.join(names)}")
    return name or names[0]


def must_not_repeat(protocol: str, target: Target, operator: Operator) -> None:
    """Raises `UsageError` where calls repeat on the same buffers and the operator changes its inputs."""
    changed = [tensor.name for tensor in operator.tensors if tensor.role == "inout"]
    if promises(protocol).repeats and changed:
        usable = [name for name in target.protocols if not promises(name).repeats]
        raise UsageError(
            f"protocol {protocol!r} repeats calls on the same buffers, and {operator.name!r} changes its "
            f"{', '.join(changed)}", fix=f"use {' or '.join(usable)}" if usable else "time it on another target",
        )  # fmt: skip
