"""Gene discovery: what is lifted leaves the machine code as it is at present values, and other values change it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from landscape import FACTS, genome

from evo.errors import GenomeError
from evo.fitness.cuda.target import CudaTarget
from evo.genome import Genome, candidate_id, compile_request, uncovered
from evo.mutators.base import Context, Draft, Parent
from evo.mutators.discovery import GeneDiscovery, GeneFreezing, discovered, settled_genes
from evo.mutators.forms import alternatives, narrower
from evo.mutators.lifting import freeze, lift
from evo.mutators.sites import find_sites, near, sites_of
from evo.operator import Operator
from evo.operators.kda import Kda
from evo.operators.rmsnorm import RmsNorm
from evo.operators.rmsnorm_backward import RmsNormBackward
from evo.records import Build, Status, Value
from evo.target import BlobStore

TARGET = CudaTarget("sm_90")
OPERATORS: tuple[Operator, ...] = (RmsNorm(), RmsNormBackward(), Kda())
SEEDS = [(operator, path) for operator in OPERATORS for path in operator.seeds("sm_90") if path.suffix == ".cu"]
HEADER = """/* evo
operator = "rmsnorm"
species = "lab"
{genes}[[launch]]
kernel = "rmsnorm_forward"
grid = ["M"]
block = [128]
args = ["x", "weight", "y", "eps"]
*/
"""
LAB = (
    HEADER
    + """#include "evo.h"
#define DEPTH 4
constexpr int WARP_SIZE = 32, TILE = 96, STEP = TILE / 2;  // constexpr int HIDDEN = 8;
constexpr bool FAST = true;
extern "C" __global__ void __launch_bounds__(128, 2)
    rmsnorm_forward(const DTYPE_x* x, const float* weight, DTYPE_y* y, float eps) {
    float a, b, c, d;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(weight));
    asm("sqrt.rn.f32 %0, %0;\\n\\trcp.approx.f32 %0, %0;" : "+f"(a));
    asm volatile("bar.sync 1, 128;" ::: "memory");
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#pragma unroll 2
    for (int i = 0; i < DEPTH; ++i) a += FAST ? b * i : c;
#pragma unroll
    for (int i = 0; i < TILE; i += STEP) a += d;
    y[threadIdx.x] = evo_cast<DTYPE_y>(a + eps);
}
"""
)


def lab(genes: str = "") -> Genome:
    return Genome.parse(LAB.replace("{genes}", genes), ".cu")


def build(operator: Operator, item: Genome, values: Mapping[str, Value], blobs: BlobStore) -> Build:
    """For the first case that it covers."""
    facts, cases = TARGET.nominal(), operator.cases("sm_90")
    case = next(case for case in cases if not uncovered(item, operator, case, item.defaults(), facts))
    return TARGET.build(compile_request(item, operator, case, values, target="sm_90", arch=TARGET.arch), blobs)


@pytest.mark.parametrize(("operator", "path"), SEEDS, ids=lambda item: getattr(item, "name", "")[:20])
def test_every_seed_stays_what_it_is_and_can_become_another(operator: Operator, path: Path, tmp_path: Path) -> None:
    blobs, seed = BlobStore(tmp_path), Genome.read(path)
    found = discovered(seed)
    assert found is not None
    lifted, names = found
    lifted.contract(operator)
    assert set(lifted.genes) == {*seed.genes, *names}
    before, after = (build(operator, item, item.defaults(), blobs) for item in (seed, lifted))
    assert (before.status, after.status) == (Status.OK, Status.OK), after.diagnosis
    assert after.code_hash == before.code_hash
    rare = [name for name in names if "UNROLL" not in name][-1:] + list(names)
    for name in rare[:4]:
        other = build(operator, lifted, {name: lifted.genes[name].choices[1]}, blobs)
        if other.status is Status.OK and other.code_hash != before.code_hash:
            return
    pytest.fail(f"none of {rare[:4]} changes the code of {path.name}")


def test_every_kind_of_site_is_found_and_builds(tmp_path: Path) -> None:
    seed = lab()
    kinds = [(site.kind, site.choices[0]) for site in sites_of(seed)]
    assert kinds == [
        ("constant", 4), ("constant", 96), ("constant", 1), ("bounds", 2),
        ("width", "ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"), ("instruction", "ld.global.v4.f32"),
        ("instruction", "sqrt.rn.f32"), ("instruction", "rcp.approx.f32"), ("instruction", "bar.sync"),
        ("instruction", "fence.acq_rel.gpu"), ("unroll", 2), ("unroll", "unroll"),
    ]  # fmt: skip
    found = discovered(seed)
    assert found is not None
    lifted, names = found
    assert len(names) == len(kinds) - 1, "the width and the instruction are one place"
    blobs, operator = BlobStore(tmp_path), RmsNorm()
    same = build(operator, lifted, {}, blobs)
    assert same.code_hash == build(operator, seed, {}, blobs).code_hash
    changed = {}
    for name in names:
        other = build(operator, lifted, {name: lifted.genes[name].choices[-1]}, blobs)
        assert other.status is Status.OK, (name, other.diagnosis)
        changed[name] = other.code_hash != same.code_hash
    assert {name for name, is_other in changed.items() if is_other} >= {
        "TUNE_DEPTH1", "TUNE_TILE1", "TUNE_WIDTH1", "TUNE_SQRT1", "TUNE_RCP1"
    }  # fmt: skip


def test_a_header_that_has_genes_gets_more_of_them() -> None:
    seed = lab("[genes]\nTILES = [1, 2]  # [3]\nTUNE_TILE1 = [5]\n[default]\nTILES = 2\n")
    site = next(site for site in sites_of(seed) if site.stem == "TILE")
    found = lift(seed, [site])
    assert found is not None
    lifted, names = found
    assert names == ("TUNE_TILE2",)
    assert (lifted.genes["TUNE_TILE2"].choices, lifted.defaults()["TILES"]) == ((96, 95, 97, 48, 192), 2)
    assert "TILE = TUNE_TILE2, STEP" in lifted.canonical


@pytest.mark.parametrize(
    "source",
    [
        "// constexpr int A = 4;\n/* #define BBB 8 */\n",
        'const char* t = "#define CCC 8";\n',
        'auto r = R"x(\n#define DDD 8\n)x";\n',
        "constexpr int E = 0777, F = 99999999;\n",
        "constexpr int WARP_LANES = 32;\nint x = 5;\n",
        'asm("ld.acquire.gpu.global.u32 %0, [%1];");\n',
        'asm("ld.volatile.global.v4.f32 {%0,%1,%2,%3}, [%4];");\n',
        'asm("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];");\n',
    ],
)
def test_what_is_no_choice_is_left_alone(source: str) -> None:
    assert find_sites(HEADER.replace("{genes}", "") + source, ".cu") == ()


def test_forms_keep_meaning() -> None:
    assert ".nc" not in "".join(alternatives("ld.global.v4.b32")), "a load is never made non-coherent"
    assert all(".nc." in form for form in alternatives("ld.global.nc.v4.b32"))
    assert all(form.startswith("ld.global.cg.") for form in alternatives("ld.global.cg.v4.b32"))
    assert alternatives("fence.sc.gpu") == (), "and a fence never weaker"
    assert set(alternatives("cp.async.ca.shared.global")) == {
        "cp.async.ca.shared.global.L2::64B", "cp.async.ca.shared.global.L2::128B", "cp.async.ca.shared.global.L2::256B"
    }  # fmt: skip
    assert "cp.async.ca.shared.global" in alternatives("cp.async.cg.shared.global.L2::128B")
    assert alternatives("rcp.approx.ftz.f32") == ("rcp.approx.f32", "rcp.rn.f32", "rcp.rn.ftz.f32")
    assert alternatives("rsqrt.approx.ftz.f64") == ()
    assert alternatives("mbarrier.try_wait.parity.shared::cta.b64") == ("mbarrier.test_wait.parity.shared::cta.b64",)
    assert narrower("st.global.cs.v4.b32 [%0 + 16], {%1, %2, %3, %4};")[0] == (
        "st.global.cs.v2.b32 [%0+16], {%1, %2}; st.global.cs.v2.b32 [%0+24], {%3, %4};"
    )
    assert narrower("ld.global.v4.f32 {%0, %1, %2, %3}, [%4]; bar.sync 0;") == ()
    assert near("true") == (1, 0)
    assert near("48") == (48, 47, 49, 24, 96)


def test_ptx_gets_placeholders() -> None:
    body = ".version 8.0\n.target sm_90a\n.visible .entry k(.param .u64 p) .minnctapersm 2 {\n"
    body += "  @%p1 ld.global.u32 %r1, [%rd1]; // ld.global.f32\n  bar.sync 0;\n}\n"
    header = HEADER.replace("{genes}", "").replace("rmsnorm_forward", "k")
    found = discovered(Genome.parse(header + body, ".ptx"))
    assert found is not None
    lifted, names = found
    assert names == ("TUNE_CTAS1", "TUNE_LD1", "TUNE_BAR1")
    assert "@%p1 ${TUNE_LD1} %r1, [%rd1]; // ld.global.f32" in lifted.body
    assert ".minnctapersm ${TUNE_CTAS1} {" in lifted.body
    assert set(names) <= lifted.mentions


def context(parent: Parent, *kin: Parent) -> Context:
    return Context("scale", "cpu", (parent,), FACTS, lambda name: False, lambda item, values: True, kin)


def parent_of(item: Genome, values: Mapping[str, Value], score: float) -> Parent:
    complete = item.values(values)
    return Parent(candidate_id("scale", "cpu", item, complete), item, complete, {"n256": score})


def propose(mutator: GeneDiscovery | GeneFreezing, given: Context, seed: int = 1) -> Draft | None:
    return next(iter(asyncio.run(mutator.propose(given, random.Random(seed)))), None)


def test_discovery_proposes_a_lifted_source_with_another_value() -> None:
    parent = parent_of(lab(), {}, 0.1)
    kinds = set()
    for seed in range(40):
        draft = propose(GeneDiscovery(), context(parent), seed)
        assert draft is not None
        lifted = Genome.parse(draft.source, draft.suffix)
        (changed,) = [name for name, value in draft.values.items() if value != lifted.genes[name].default]
        assert f"{changed} = {draft.values[changed]}" in draft.note
        kinds.add(changed.rstrip("0123456789"))
    assert len(kinds) >= 8, "all kinds have their turn"
    assert propose(GeneDiscovery(), context(parent)) == propose(GeneDiscovery(), context(parent))
    assert propose(GeneDiscovery(), context(Parent("x", lab(), {}, {}))) is None, "not of what failed"
    plain = genome()
    assert propose(GeneDiscovery(), context(parent_of(plain, plain.defaults(), 0.1))) is None


def test_genes_that_do_not_matter_are_frozen() -> None:
    item = genome("narrow", 'AAA = [1, 2, 3,\n  4]  # note\nBBB = { low = 0, high = 4 }\nEEE = ["some", "more"]')
    kin = [
        parent_of(item, {"AAA": a, "BBB": b, "EEE": e}, 0.2 * a)
        for a in (1, 2, 4) for b in (0, 3) for e in ("some", "more")
    ]  # fmt: skip
    best = max(kin, key=lambda one: one.scores["n256"])
    assert settled_genes(best, kin) == {"BBB": "indifferent", "EEE": "indifferent"}
    assert settled_genes(best, kin[:7]) == {}, "too few to tell"
    decided = [one for one in kin if one.values["AAA"] == 4 or one.values["BBB"]]
    assert settled_genes(best, decided)["EEE"] == "indifferent"
    draft = propose(GeneFreezing(), context(best, *kin))
    assert draft is not None
    frozen = Genome.parse(draft.source, draft.suffix)
    (name,) = [name for name, gene in frozen.genes.items() if len(gene.choices) == 1]
    assert name in ("BBB", "EEE")
    assert draft.values[name] == best.values[name]
    assert draft.values != best.values
    assert len(frozen.genes["AAA"].choices) == 4


def test_freezing_keeps_the_code() -> None:
    item = genome("narrow", 'AAA = [1, 2, 3]\nEEE = ["some", "more"]\n[default]\nAAA = 2')
    frozen = freeze(item, {"AAA": 3})
    assert frozen is not None
    assert (frozen.genes["AAA"].choices, frozen.defaults()) == ((3,), {"AAA": 3, "EEE": "some"})
    tied = genome("narrow", 'AAA = [1, 2]\nEEE = ["some", "more"]', "\"EEE == 'some' or AAA == 2\"")
    assert freeze(tied, {"EEE": "more"}) is None, "a constraint names the other choice"
    source = item.canonical.replace("y[i] =", "y[i] = EEE_INDEX +")
    indexed = Genome.parse(source, ".cpp")
    assert freeze(indexed, {"EEE": "more"}) is None, "its index would become 0"
    first = freeze(indexed, {"EEE": "some"})
    assert first is not None
    with pytest.raises(GenomeError):
        first.values({"EEE": "more"})
