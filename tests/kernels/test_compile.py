"""Every kernel compiles for every architecture, within the budgets that its file declares."""

from __future__ import annotations

import json
import re

import pytest
from kernels.beside import jobs, run_python
from kernels.nvrtc import CompileError, Usage, compile_for, place_of, ptx_of

from daskboost.devices.gpu.kernel_source import ARCHITECTURES, kernel_file, kernel_names, parse

TOY = """
// variants: N=32
// budget: toy registers=32 shared=4*N
extern "C" __global__ void toy(float* out) {{
    __shared__ float shared[N];
    {body}
}}
"""


MANY_VARIANTS = 20
"""Of a file that is compiled for one architecture at a time, since all would take minutes."""


def compiled(job: str) -> dict[str, dict[str, Usage]]:
    """What `kernels/nvrtc.py` says of a file, or of a file and an architecture."""
    done = run_python("-m", "kernels.nvrtc", *job.split())
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return {
        where: {entry: Usage(*usage) for entry, usage in usages.items()}
        for where, usages in json.loads(done.stdout).items()
    }


def job_of(name: str, sm: int) -> str:
    """What of a file is compiled together."""
    return f"{name} {sm}" if len(kernel_file(name).variants) > MANY_VARIANTS else name


@pytest.mark.beside(compiled, "job")
@pytest.mark.parametrize(("name", "sm", "job"), [
    pytest.param(name, sm, job_of(name, sm), id=f"{name}-{sm}") for name in kernel_names() for sm in ARCHITECTURES
])  # fmt: skip
def test_compiles_within_its_budgets(name: str, sm: int, job: str) -> None:
    source, found = kernel_file(name), jobs.result(compiled, job)
    for variant in source.variants:
        if sm < variant.least_sm:
            continue
        entries, usages = source.entries(variant), found[place_of(variant, sm)]
        assert usages.keys() == entries.keys()
        for entry in entries.values():
            usage, context = usages[entry.name], f"{name}.cu: {entry.name}, {variant}, sm_{sm}"
            assert usage.local_bytes == 0, f"{context} spills registers, or keeps an array in local memory"
            assert usage.registers <= entry.registers, context
            assert usage.shared_bytes <= entry.shared_bytes <= ARCHITECTURES[sm] << 10, context


def test_budgets_leave_a_block_that_fits() -> None:
    """A multiprocessor has 64 Ki registers: more threads than that allows cannot be launched at all."""
    for name in kernel_names():
        for variant in kernel_file(name).variants:
            for entry in kernel_file(name).entries(variant).values():
                assert entry.most_threads * (-(-entry.registers // 8) * 8) <= 1 << 16, (name, entry.name)


def test_usage_is_read_from_the_log() -> None:
    """So that a budget cannot hold because the compiler's words have changed."""
    body = "float a[99] = {}; for (int i = 0; i < 99; ++i) a[(int)out[i]] = i; shared[threadIdx.x] = a[(int)out[99]];"
    source = parse("toy", TOY.format(body=body + "__syncthreads(); out[threadIdx.x] = shared[31 - threadIdx.x];"))
    usage = compile_for(source, source.variants[0], 90)["toy"]
    assert usage.shared_bytes == 128
    assert usage.local_bytes >= 396
    assert 8 <= usage.registers <= 255


def test_an_error_names_the_line() -> None:
    source = parse("toy", TOY.format(body="out[0] = nothing;"))
    with pytest.raises(CompileError, match=r"toy\.cu\(6\): error: identifier \"nothing\" is undefined"):
        compile_for(source, source.variants[0], 75)


@pytest.fixture(scope="module", params=kernel_names())
def ptx_of_variants(request: pytest.FixtureRequest) -> dict[str, str]:
    """A kernel file's intermediate code by variant, made once for the tests that read it."""
    source = kernel_file(request.param)
    return {f"{source.name}.cu: {variant}": ptx_of(source, variant) for variant in source.variants}


def toy_ptx(body: str) -> str:
    toy = parse("toy", TOY.format(body=body))
    return ptx_of(toy, toy.variants[0])


def test_no_multiplication_and_addition_are_fused(ptx_of_variants: dict[str, str]) -> None:
    """A fused one rounds once where the CPU rounds twice."""
    for variant, ptx in ptx_of_variants.items():
        assert "fma." not in ptx, variant


def test_a_fused_one_is_seen() -> None:
    assert "fma." in toy_ptx("out[0] = fmaf(out[1], out[2], out[3]);")


def bad_atomics(ptx: str) -> set[str]:
    """Atomics of PTX that no kernel may have: of floats, whose sums depend on their order, and of other than 32 bits
    in shared memory, where they are loops of compare and swap. What the compiler names no memory of may be shared.
    """
    found = set(re.findall(r"(?<![\w.])(?:atom|red)\.[\w.:]+", ptx))
    return {
        atomic for atomic in found
        if not re.search(r"\.[usb]32$" if ".global." not in atomic else r"\.[usb](32|64)$", atomic)
    }  # fmt: skip


def test_shared_atomics_are_of_32_bits_and_none_of_floats(ptx_of_variants: dict[str, str]) -> None:
    for variant, ptx in ptx_of_variants.items():
        assert bad_atomics(ptx) == set(), variant


_U64 = "unsigned long long"


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ("atomicAdd(shared, out[1]);", {"atom.shared.add.f32"}),
        ("atomicAdd((double*)shared, 1.0);", {"atom.shared.add.f64"}),
        (f"atomicAdd(({_U64}*)shared, ({_U64})out[1]);", {"atom.shared.add.u64"}),
        (f"atomicMax((long long*)shared, ({_U64})out[1]);", {"atom.shared.max.s64"}),
        (f"atomicCAS(({_U64}*)shared, 1ull, ({_U64})out[1]);", {"atom.shared.cas.b64"}),
        (f"atomicAdd(({_U64}*)(out[1] > 0 ? shared : out), 1ull);", {"atom.add.u64"}),
        ("atomicAdd(out, 1.0f);", {"atom.global.add.f32"}),
        (f"atomicAdd(({_U64}*)out, 1ull);", set()),
        ("atomicAdd((unsigned*)shared, (unsigned)out[1]);", set()),
        ("out[1] = __syncthreads_count(out[0] > 0);", set()),
    ],
)
def test_other_atomics_are_refused(body: str, refused: set[str]) -> None:
    ptx = toy_ptx(f"shared[threadIdx.x] = 0; __syncthreads(); {body} __syncthreads(); out[0] = shared[5];")
    assert bad_atomics(ptx) == refused
    assert refused or re.search(r"\b(atom|red)\.", ptx)
