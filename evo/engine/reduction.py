"""A winner as its ancestor and edits, and the winner without what does not pay."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from evo.errors import GenomeError
from evo.genome import Genome
from evo.records import Candidate, Values


@dataclass(frozen=True, slots=True)
class Edit:
    """One difference: a gene's value, or a hunk of lines, named by its place in the ancestor."""

    kind: Literal["gene", "hunk"]
    name: str  # the gene, or "lines 10-12"
    before: str  # the ancestor's value or lines
    after: str


@dataclass(frozen=True, slots=True)
class Worth:
    """What an edit is worth: the time without it over the time with it, in the case where it matters most.

    `why` says that it is needed instead (what goes wrong without it), "" when it was measured.
    """

    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    case: str = ""
    why: str = ""

    @property
    def pays(self) -> bool:
        return bool(self.why) or self.low > 1.0


@dataclass(frozen=True, slots=True)
class Weighed:
    edit: Edit
    worth: Worth
    kept: bool


@dataclass(frozen=True, slots=True)
class Variant:
    source: str
    values: Values


Weigh = Callable[[Variant, Variant], Worth]  # (with the edit, without it)


class Reduction:
    """The edits from an ancestor to a winner; any subset of them makes a variant."""

    def __init__(self, ancestor: Candidate, winner: Candidate) -> None:
        self._winner = winner
        self._values = {
            name: (ancestor.values[name], value)
            for name, value in winner.values.items()
            if name in ancestor.values and ancestor.values[name] != value
        }
        self._old, self._new = ancestor.source.splitlines(True), winner.source.splitlines(True)
        self._blocks = difflib.SequenceMatcher(None, self._old, self._new, autojunk=False).get_opcodes()
        self._hunks: dict[Edit, int] = {}
        genes = [Edit("gene", name, str(old), str(new)) for name, (old, new) in self._values.items()]
        for number, (tag, i, j, a, b) in enumerate(self._blocks):
            if tag != "equal":
                where = f"lines {i + 1}-{max(j, i + 1)}"
                self._hunks[Edit("hunk", where, "".join(self._old[i:j]), "".join(self._new[a:b]))] = number
        self.edits: tuple[Edit, ...] = (*genes, *self._hunks)

    def variant(self, kept: Sequence[Edit]) -> Variant:
        """The winner with these edits only."""
        held = {self._hunks[edit] for edit in kept if edit.kind == "hunk"}
        lines: list[str] = []
        for number, (tag, i, j, a, b) in enumerate(self._blocks):
            lines += self._new[a:b] if tag == "equal" or number in held else self._old[i:j]
        genes = {edit.name for edit in kept if edit.kind == "gene"}
        values = {
            name: self._values[name][0] if name in self._values and name not in genes else value
            for name, value in self._winner.values.items()
        }
        return Variant("".join(lines), values)

    def run(self, weigh: Weigh, say: Callable[[str], None] = lambda message: None) -> list[Weighed]:
        """Takes edits back one after another, genes first; one that does not pay stays out.

        Each is weighed against what is left at that time.
        """
        kept, weighed = list(self.edits), []
        for edit in self.edits:
            rest = [each for each in kept if each != edit]
            worth = self._weigh(weigh, kept, rest)
            say(f"{edit.kind} {edit.name}: {worth.why or f'{worth.ratio:.4f}'}")
            if not worth.pays:
                kept = rest
            weighed.append(Weighed(edit, worth, worth.pays))
        return weighed

    def _weigh(self, weigh: Weigh, kept: Sequence[Edit], rest: Sequence[Edit]) -> Worth:
        now, without = self.variant(kept), self.variant(rest)
        try:
            genome = Genome.parse(without.source, self._winner.suffix)
            values = {name: value for name, value in without.values.items() if name in genome.genes}
            genome.values(values)
        except GenomeError as error:
            return Worth(why=f"no genome without it: {error.reason}")
        return weigh(now, Variant(without.source, values))
