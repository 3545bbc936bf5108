"""The public Python interface: be the mutation operator yourself.

    with evo.open("evo.db", operator="rmsnorm", target="sm_90") as desk:
        ask = desk.ask()
        told = desk.tell(ask=ask.ask, source=new_source, note="why it should be faster")
        print(desk.wait(told.candidate).status)

Nothing is evaluated here: a live run takes up what is told to it, otherwise `evo evaluate --pending` does, also on
another machine and on a copy of the archive.
"""

from __future__ import annotations

from evo.app.swarm.asked import Answer, Ask, CaseView, ParentView, Told
from evo.app.swarm.asking import Desk
from evo.app.swarm.asking import open_desk as open  # `evo.open` reads well, and is never imported by `*`
from evo.records import Author

__all__ = ["Answer", "Ask", "Author", "CaseView", "Desk", "ParentView", "Told", "open"]
