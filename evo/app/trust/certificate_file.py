"""Certificate files: sealed by a digest of their contents, read back and looked through."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evo import codec
from evo.certificate import SCHEMA, Certificate, CertifiedCase, Measurement, Summary, canonical, content_digest
from evo.errors import RunError, UsageError
from evo.fitness.statistics import sessions_interval
from evo.genome import Genome, make_candidate
from evo.records import Status

CLOSE = 1e-9  # relative: what is worked out again from the same numbers
AGAIN = "get the file again from where it was made"


def source_hash(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def seal(certificate: Certificate) -> Certificate:
    return replace(certificate, digest=content_digest(codec.plain(certificate)))


def certificate_text(certificate: Certificate) -> str:
    """Canonical JSON, one line."""
    return canonical(codec.plain(certificate)).decode("utf-8", "surrogatepass") + "\n"


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Raises `RunError` where it cannot be written."""
    try:
        path.write_text(certificate_text(certificate), encoding="utf-8", errors="surrogatepass")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}", fix="name another file with --out") from None


def read_certificate(path: Path) -> Certificate:
    """Raises `UsageError`: no file, no certificate, of another schema, altered, incomplete, or at odds with itself."""
    data = _plain(path)
    if not isinstance(data, dict) or "schema" not in data:
        raise UsageError(f"{path} is no certificate", fix="`evo certify` writes certificates")
    if data["schema"] != SCHEMA:
        raise UsageError(
            f"{path} has schema {data['schema']!r}, this evo reads {SCHEMA!r}",
            fix="use the evo that wrote it, or newer",
        )
    digest = content_digest(data)
    if data.get("digest") != digest:
        raise UsageError(
            f"{path} was altered: its content has digest {digest[:16]}..., it says {str(data.get('digest'))[:16]}...",
            fix=AGAIN,
        )
    try:
        certificate = codec.loads(Certificate, json.dumps(data))
    except ValueError as error:
        raise UsageError(f"{path} is incomplete: {_first(error)}", fix=AGAIN) from None
    problem = contradiction(certificate)
    if problem:
        raise UsageError(f"{path} contradicts itself: {problem}", fix="do not trust it; certify the kernel anew")
    return certificate


def contradiction(certificate: Certificate) -> str:
    """ "" where source, identity, intervals and summary follow from what is in it: anybody can make a digest."""
    mine = certificate.candidate
    if source_hash(mine.source) != mine.source_hash:
        return "the source is not that of its hash"
    try:
        genome = Genome.parse(mine.source, mine.suffix)
        known = make_candidate(certificate.operator, certificate.target, genome, mine.values)
    except UsageError as error:
        return f"the source is no genome: {error.what}"
    if known.id != mine.id:
        return "source and gene values are not those of the candidate's id"
    for case in certificate.cases:
        if (case.status == Status.OK) != (case.measurement is not None):
            return f"case {case.case} is {case.status} and has {'a' if case.measurement else 'no'} measurement"
        if case.measurement and not follows(case.measurement):
            return f"the numbers of case {case.case} do not follow from its samples"
    if summarise(certificate.cases) != certificate.summary:
        return "the summary does not follow from the cases"
    return ""


def follows(claimed: Measurement) -> bool:
    """Whether the numbers are those of the samples."""
    if not all(one > 0 and other > 0 for session in claimed.samples for one, other in session):
        return False
    pairs = [pair for session in claimed.samples for pair in session]
    if not pairs or len(pairs) != claimed.pairs:
        return False
    interval = sessions_interval(claimed.samples, level=claimed.level)
    computed = (*medians(pairs), interval.ratio, interval.low, interval.high)
    given = (claimed.time_us, claimed.opponent_us, claimed.ratio, claimed.low, claimed.high)
    return all(math.isclose(a, b, rel_tol=CLOSE) for a, b in zip(computed, given, strict=True))


def _plain(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", fix="name a certificate") from None
    except ValueError:  # not JSON, or not even text
        raise UsageError(f"{path} is not JSON", fix="`evo certify` writes certificates") from None


def _first(error: ValueError) -> str:
    """The first field at fault, from pydantic's own account."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors()
    place = ".".join(map(str, problems[0]["loc"]))
    return f"{place}: {problems[0]['msg']}"


def summarise(cases: Sequence[CertifiedCase]) -> Summary:
    """Counts and ratios of the tune cases."""
    tune = [case for case in cases if case.group == "tune"]
    done = [case.measurement for case in tune if case.measurement]
    ratios = [item.ratio for item in done]
    count = {status: sum(case.status == status for case in tune) for status in (Status.UNCOVERED, "not_measured")}
    uncovered, skipped = count[Status.UNCOVERED], count["not_measured"]
    return Summary(
        len(tune), len(done), uncovered, len(tune) - len(done) - uncovered - skipped, skipped,
        sum(item.high < 1 for item in done), math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 0.0,
        min(ratios, default=0.0), max(ratios, default=0.0),
    )  # fmt: skip


def medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)
