"""From a header to launch plans, compile requests and coverage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from genome_samples import CPU, FULL, GPU, PTX, SIMPLE, Norm, case, edited

from evo import codec
from evo.errors import GenomeError
from evo.genome import (
    Genome,
    Uncovered,
    buffer_shapes,
    compile_request,
    objection,
    resolve_plan,
    uncovered,
)
from evo.operator import Case
from evo.plan import Argument, Launch, LaunchPlan, Scratch, TensorMap
from evo.records import CompileRequest, DeviceFacts, Values

NORM = Norm()


def plan(text: str, subject: Case | None = None, values: Values | None = None, facts: DeviceFacts = GPU) -> LaunchPlan:
    suffix = ".cpp" if facts.target == "cpu" else ".cu"
    return resolve_plan(Genome.parse(text, suffix, file="k.cu"), NORM, subject or case(), values or {}, facts)


def request(text: str, subject: Case | None = None, values: Values | None = None) -> CompileRequest:
    genome = Genome.parse(text, ".cu")
    return compile_request(genome, NORM, subject or case(), values or {}, target="sm_90", arch="sm_90a")


def test_a_simple_plan_has_every_number() -> None:
    assert plan(SIMPLE, case(300, 8192), {"PAD": 2048}) == LaunchPlan(
        launches=(
            Launch(
                kernel="norm_forward",
                grid=(300, 1, 1),
                block=(256, 1, 1),
                shared=2048,
                args=(
                    Argument("tensor", "x"),
                    Argument("tensor", "weight"),
                    Argument("tensor", "y"),
                    Argument("scalar", "i32:M", "i32", 300),
                    Argument("scalar", "eps", "f32", 1e-6),
                ),
            ),
        )
    )


def test_a_plan_with_repeats_scratch_maps_and_absent_tensors() -> None:
    resolved = plan(FULL)
    assert [launch.kernel for launch in resolved.launches] == ["partial", "scan", "scan", "scan", "finish"]
    first, *scans, last = resolved.launches
    assert (first.grid, first.block, first.cluster, first.shared) == ((264, 2, 1), (32, 4, 1), (2, 1, 1), 64 * 64)
    assert first.args == (
        Argument("map", "xmap"),
        Argument("null", "rmap"),
        Argument("scratch", "work"),
        Argument("scalar", "i64:M * N", "i64", 4096 * 4096),
        Argument("scalar", "eps", "f32", 1e-6),
        Argument("scalar", "f32:N", "f32", 4096.0),
        Argument("scalar", "seed", "i64", 5_000_000_000),
    )
    assert [(scan.grid[0], scan.pdl, scan.args[1].value) for scan in scans] == [
        (132, False, 0),
        (66, True, 1),
        (44, True, 2),
    ]
    assert last.cooperative
    assert last.args[3] == Argument("null", "rstd")
    assert resolved.scratch == (
        Scratch("work", "fp32", (2, 4096, 4096)),
        Scratch("count", "u32", (132,), align=128, zero="kept"),
    )
    assert resolved.tensor_maps == (
        TensorMap("xmap", "x", "bf16", (2048, 4096), (8192, 1), 4096, (16, 32), (1, 1), swizzle="128B", l2="256B"),
    )


def test_presence_turns_launches_and_maps_on() -> None:
    resolved = plan(FULL, case(4096, 4096, "bf16", "residual", "rstd"))
    assert resolved.launches[-1].kernel == "add_residual"
    assert resolved.launches[0].args[1] == Argument("map", "rmap")
    assert resolved.launches[-2].args[3] == Argument("tensor", "rstd")
    assert resolved.tensor_maps[1] == TensorMap(
        "rmap", "residual", "bf16", (4096, 4096), (4096, 1), 0, (8, 64), (1, 1), oob="nan"
    )


def test_a_plan_survives_json() -> None:
    resolved = plan(FULL)
    assert codec.loads(LaunchPlan, codec.dumps(resolved)) == resolved


def test_what_no_launch_uses_is_not_in_the_plan() -> None:
    resolved = plan(FULL, values={"STEPS": 0})
    assert [launch.kernel for launch in resolved.launches] == ["partial", "finish"]
    assert [scratch.name for scratch in resolved.scratch] == ["work"]


def test_buffer_shapes_of_present_tensors() -> None:
    assert buffer_shapes(NORM, case(3, 5)) == {"x": (3, 5), "weight": (5,), "y": (3, 5)}
    assert buffer_shapes(NORM, case(3, 5, "bf16", "rstd", causal=True))["rstd"] == (3,)


BOX = 'box     = [16, "TILE // 2"]'


@pytest.mark.parametrize(
    ("text", "old", "new", "key", "message"),
    [
        (SIMPLE, 'grid   = ["M"]', 'grid   = ["M - 4096"]', "launch[0].grid[0]", "grid x must be from 1"),
        (SIMPLE, 'grid   = ["M"]', 'grid   = [1, "M - 4097"]', "launch[0].grid[1]", "'M - 4097' is -1"),
        (SIMPLE, 'grid   = ["M"]', 'grid   = ["M * 524288"]', "launch[0].grid[0]", "to 2147483647"),
        (SIMPLE, 'grid   = ["M"]', 'grid   = [1, "M * 16"]', "launch[0].grid[1]", "grid y must be from 1 to 65535"),
        (SIMPLE, 'grid   = ["M"]', "grid   = [2147483647, 513]", "launch[0].grid[0]", "over 2^40 blocks"),
        (SIMPLE, 'grid   = ["M"]', 'grid   = ["M * M * M * M * M * M"]', "launch[0].grid[0]", "beyond 64 bits"),
        (SIMPLE, 'grid   = ["M"]', 'grid   = ["M // (M - 4096)"]', "launch[0].grid[0]", "divides by zero"),
        (SIMPLE, 'grid   = ["M"]', 'grid   = ["LOAD"]', "launch[0].grid[0]", "the result is the text"),
        (SIMPLE, 'grid   = ["M"]', 'grid   = ["K"]', "launch[0].grid[0]", "unknown name 'K'"),
        (SIMPLE, 'block  = ["THREADS"]', 'block  = ["THREADS", 5]', "launch[0].block[0]", "over 1024 threads a block"),
        (SIMPLE, 'block  = ["THREADS"]', "block  = [1, 1, 65]", "launch[0].block[2]", "block z must be from 1 to 64"),
        (SIMPLE, 'block  = ["THREADS"]', "block  = [32]\ncluster = [3]", "launch[0].cluster[0]", "3 does not divide"),
        (SIMPLE, 'block  = ["THREADS"]', "block  = [32]\ncluster = [8, 4]", "launch[0].cluster[0]", "16 blocks"),
        (SIMPLE, 'shared = "PAD"', 'shared = "PAD - 1"', "launch[0].shared", "cannot be this size (got -1)"),
        (SIMPLE, '"i32:M"', '"i32:M * 524288"', "launch[0].args[3]", "does not fit i32 (got 2147483648)"),
        (SIMPLE, '"eps"', '"i32:eps"', "launch[0].args[4]", "eps does not fit i32 (got 1e-06)"),
        (SIMPLE, '"eps"', '"i32:seed"', "launch[0].args[4]", "seed does not fit i32 (got 5000000000)"),
        (FULL, 'repeat = "STEPS"', 'repeat = "STEPS * 4096"', "launch[1].repeat", "at most 4096 launches (got 12288)"),
        (FULL, 'repeat = "STEPS"', 'repeat = "-STEPS"', "launch[1].repeat", "at most 4096 launches (got -3)"),
        (FULL, '["SPLIT", "M", "N"]', '["SPLIT", "M", "M * N"]', "scratch.work", "scratch needs 549755813888 bytes"),
        (FULL, '["SPLIT", "M", "N"]', '["SPLIT", "M - 4096"]', "scratch.work.shape[1]", "extent must be from 1"),
        (FULL, "align = 128", "align = 96", "scratch.count.align", "a power of two (got 96)"),
        (FULL, 'offset  = "N"', 'offset  = "2 * N"', "tensor_maps.xmap", "reaches from element 8192 to 16781311"),
        (FULL, 'offset  = "N"', 'offset  = "-N"', "tensor_maps.xmap", "reaches from element -4096"),
        (FULL, 'offset  = "N"', "offset  = 4", "tensor_maps.xmap", "a multiple of 16 bytes (got 8)"),
        (FULL, '"2 * N", 1]', '"2 * N - 4", 1]', "tensor_maps.xmap", "a multiple of 16 bytes below 2^40"),
        (FULL, '"2 * N", 1]', '"N", 2]', "tensor_maps.xmap", "innermost stride must be 1 element"),
        (
            FULL,
            'box     = [16, "TILE // 2"]',
            "box     = [16, 65]",
            "tensor_maps.xmap",
            "multiple of 16 bytes (got 130)",
        ),
        (FULL, BOX, "box     = [16, 128]", "tensor_maps.xmap", "at most 128 bytes a row"),
        (FULL, BOX, "box     = [257, 8]", "tensor_maps.xmap.box[0]", "from 1 to 256"),
        (FULL, 'l2      = "256B"', 'interleave = "16B"', "tensor_maps.xmap", "three axes"),
    ],
)
def test_what_cannot_be_launched(text: str, old: str, new: str, key: str, message: str) -> None:
    with pytest.raises(GenomeError) as caught:
        plan(edited(text, old, new))
    error = caught.value
    assert error.key == key
    assert message in str(error)
    assert error.fix
    assert str(error).startswith("k.cu:")
    assert error.line > 1


def test_an_error_in_a_let_names_the_let_where_it_is_used() -> None:
    broken = edited(SIMPLE, 'ROW_BYTES = "N * itemsize_x"', 'ROW_BYTES = "N // (N - 4096)"')
    assert plan(broken).launches  # no launch uses it
    used = edited(broken, 'shared = "PAD"', 'shared = "PAD + ROW_BYTES"')
    with pytest.raises(GenomeError, match=r"let\.ROW_BYTES: 4096 // 0 divides by zero"):
        plan(used)


def test_total_launches_are_bounded_over_all_entries() -> None:
    two = FULL.replace('repeat = "STEPS"', 'repeat = "4094"')
    with pytest.raises(GenomeError, match="at most 4096 launches"):
        plan(two, case(4096, 4096, "bf16", "residual"))
    assert len(plan(two).launches) == 4096


def test_no_launch_at_all_is_uncovered() -> None:
    text = edited(SIMPLE, 'grid   = ["M"]', 'grid   = ["M"]\nwhen = "M < 10"')
    genome = Genome.parse(text, ".cu")
    assert uncovered(genome, NORM, case(), {}, GPU) == "no launch has a `when` that holds"
    with pytest.raises(Uncovered, match="nothing is launched"):
        plan(text)


CPU_TEXT = edited(SIMPLE, 'block  = ["THREADS"]\nshared = "PAD"', 'block  = ["THREADS * 8"]')


def test_cpu_grid_counts_items() -> None:
    launch = plan(edited(CPU_TEXT, 'grid   = ["M"]', 'grid   = ["M * 1048576 * 1048576"]'), facts=CPU).launches[0]
    assert (launch.grid, launch.block) == ((2**52, 1, 1), (2048, 1, 1))


@pytest.mark.parametrize(
    ("new", "key", "message"),
    [
        ("shared = 16", "launch[0].shared", "no meaning on the CPU target (got 16)"),
        ("cluster = [2]", "launch[0].cluster[0]", "no meaning on the CPU target (got 2)"),
        ("pdl = true", "launch[0].pdl", "no meaning on the CPU target"),
    ],
)
def test_cpu_knows_no_gpu_features(new: str, key: str, message: str) -> None:
    with pytest.raises(GenomeError) as caught:
        plan(edited(CPU_TEXT, 'kernel = "norm_forward"', f'kernel = "norm_forward"\n{new}'), facts=CPU)
    assert caught.value.key == key
    assert message in str(caught.value)


def test_objection_is_about_genes_and_device_only() -> None:
    genome = Genome.parse(SIMPLE, ".cu")
    assert objection(genome, {}, GPU) == ""
    small = replace(GPU, smem_block=20_000)
    assert objection(genome, {"THREADS": 256, "PAD": 4096}, small) == (
        "constraint 'THREADS * 64 + PAD <= SMEM_BLOCK' does not hold: PAD = 4096, SMEM_BLOCK = 20000, THREADS = 256"
    )
    assert objection(genome, {"THREADS": 1024}, GPU) == ""  # too many for a short row, but that is about cases


def test_objection_follows_lets() -> None:
    text = edited(FULL, 'ROWS    = "ceildiv(M, SPLIT)"', 'WIDE = "SPLIT * 100"\nROWS    = "ceildiv(M, SPLIT)"')
    genome = Genome.parse(edited(text, '"SPLIT <= SMS"', '"WIDE <= SMS"'), ".cu")
    assert objection(genome, {"SPLIT": 1}, GPU) == ""
    assert "WIDE = 200" in objection(genome, {"SPLIT": 2}, GPU)


@pytest.mark.parametrize(
    ("subject", "values", "reason"),
    [
        (case(), {}, ""),
        (case(4096, 1028), {}, "constraint 'N % 8 == 0' does not hold: N = 1028"),
        (case(4096, 1024, "fp16"), {}, ""),
        (case(4096, 1024, "fp16"), {"KEEP": "shared"}, "does not hold: KEEP = 'shared', dtype_x = 'fp16'"),
        (case(7, 1024), {}, "cannot be evaluated: 1024 // 0 divides by zero"),
    ],
)
def test_uncovered_by_constraints(subject: Case, values: Values, reason: str) -> None:
    found = uncovered(Genome.parse(FULL, ".cu"), NORM, subject, values, GPU)
    assert reason in found
    assert bool(found) is bool(reason)


def test_uncovered_without_an_optional_tensor_that_is_needed() -> None:
    text = edited(FULL, '"xmap", "rmap?"', '"xmap", "rmap"')
    genome = Genome.parse(text, ".cu")
    assert uncovered(genome, NORM, case(), {}, GPU) == "kernel partial needs the optional tensor 'residual'"
    assert uncovered(genome, NORM, case(4096, 4096, "bf16", "residual"), {}, GPU) == ""
    with pytest.raises(Uncovered, match=r'write "rmap\?" to pass null'):
        plan(text)


def test_an_unknown_name_in_a_constraint_is_never_just_uncovered() -> None:
    genome = Genome.parse(edited(FULL, '"N % 8 == 0"', '"K % 8 == 0"'), ".cu")
    with pytest.raises(GenomeError, match="unknown name 'K'"):
        uncovered(genome, NORM, case(), {}, GPU)


def test_defines_are_those_that_the_source_mentions() -> None:
    made = request(SIMPLE, case(4096, 8192, "fp16"), {"LOAD": "ld.global.nc.L1::no_allocate.L2::128B.v4.b32"})
    assert made.defines == (
        ("DIM_N", "8192"),
        ("DTYPE_x", "evo_fp16"),
        ("DTYPE_y", "evo_fp16"),
        ("LOAD", '"ld.global.nc.L1::no_allocate.L2::128B.v4.b32"'),
        ("LOAD_INDEX", "1"),
        ("THREADS", "256"),
    )
    assert (made.target, made.arch, made.suffix, made.kernels) == ("sm_90", "sm_90a", ".cu", ("norm_forward",))


def test_the_source_keeps_its_line_numbers_without_the_header() -> None:
    made = request(SIMPLE).source
    assert made.count("\n") == SIMPLE.count("\n")
    assert made.split("\n").index('#include "evo.h"') == SIMPLE.split("\n").index('#include "evo.h"')
    assert "/* evo" not in made
    assert made.startswith("// SPDX")


def test_launch_only_genes_and_dimensions_change_no_request() -> None:
    assert request(SIMPLE, case(4096), {"PAD": 1024}) == request(SIMPLE, case(17), {"PAD": 0})
    assert request(SIMPLE, case(4096, 8192)) != request(SIMPLE, case(4096, 4096))
    assert request(SIMPLE, case(), {"THREADS": 64}) != request(SIMPLE, case())
    assert request(FULL, case(4096), {"STEPS": 0}) == request(FULL, case(17), {"STEPS": 3})


def test_a_kernel_that_the_source_may_compile_out_is_not_asked_for() -> None:
    assert request(FULL).kernels == ("partial", "scan", "finish")
    assert request(FULL, case(4096, 4096, "bf16", "residual")).kernels == (
        "partial", "scan", "finish", "add_residual",
    )  # fmt: skip
    unguarded = FULL.replace("#if HAS_residual", "#if 1")
    assert request(unguarded).kernels[-1] == "add_residual"


def test_every_kind_of_macro() -> None:
    body = "int v[] = {NEG, HAS_residual, FLAG_causal, sizeof(DTYPE_residual), TEXT_INDEX, DIM_M, TWO}, t = TEXT;"
    text = edited(SIMPLE, "[let]", '[let]\nTWO = "2"')
    text = edited(text, "[genes]", '[genes]\nNEG = [-5]\nTEXT = ["a", ""]')
    made = request(text + body, case(8, 4096, "bf16", causal=True), {"TEXT": ""}).defines
    found = dict(made)
    assert (found["NEG"], found["TEXT"], found["TEXT_INDEX"]) == ("(-5)", '""', "1")
    assert (found["HAS_residual"], found["FLAG_causal"], found["DTYPE_residual"]) == ("0", "1", "evo_bf16")
    assert "DIM_M" not in found  # not static
    assert "TWO" not in found


def test_build_options_follow_genes() -> None:
    assert request(FULL).options.maxrregcount == 168
    assert request(FULL, values={"KEEP": "shared"}).options.maxrregcount == 0
    bad = edited(FULL, "where(KEEP == 'registers', 168, 0)", "SPLIT * 128")
    with pytest.raises(GenomeError, match=r"build\.maxrregcount: must be from 0 .* \(got 256\)"):
        request(bad)


def test_ptx_is_substituted() -> None:
    genome = Genome.parse(PTX, ".ptx")
    genome.contract(NORM)
    made = compile_request(genome, NORM, case(), {"LOAD": "ld.global.nc"}, target="sm_90", arch="sm_90a")
    assert "ld.global.nc.bf16 %r1, [%r2];  // load 1\n    add.s32 %r1, %r1, -4;" in made.source
    assert "mul.lo.s32 %r1, %r1, 4096;" in made.source
    assert "${" not in made.source
    assert made.defines == ()


def test_ptx_unknown_placeholder() -> None:
    genome = Genome.parse(PTX.replace("${COUNT}", "${COUNTS}"), ".ptx", file="k.ptx")
    with pytest.raises(GenomeError, match=r"k\.ptx:20: unknown placeholder .*\n  did you mean \$\{COUNT\}"):
        compile_request(genome, NORM, case(), {}, target="sm_90", arch="sm_90a")


def test_a_request_for_another_architecture_or_target() -> None:
    genome = Genome.parse(SIMPLE, ".cu")
    with pytest.raises(GenomeError, match=r"arch: this genome is for sm_90a, sm_100a \(got 'sm_120a'\)"):
        compile_request(genome, NORM, case(), {}, target="sm_120", arch="sm_120a")
    with pytest.raises(GenomeError, match="a .cu file cannot run on target cpu"):
        compile_request(Genome.parse(FULL, ".cu"), NORM, case(), {}, target="cpu", arch="native")
