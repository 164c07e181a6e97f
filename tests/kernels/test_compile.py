"""Every kernel compiles for every architecture, within the budgets that its file declares."""

from __future__ import annotations

import pytest
from kernels.nvrtc import CompileError, compile_for, ptx_of

from daskboost.devices.gpu.kernel_source import ARCHITECTURES, kernel_file, kernel_names, parse

TOY = """
// variants: N=32
// budget: toy registers=32 shared=4*N
extern "C" __global__ void toy(float* out) {{
    __shared__ float shared[N];
    {body}
}}
"""


@pytest.mark.parametrize("sm", ARCHITECTURES)
@pytest.mark.parametrize("name", kernel_names())
def test_compiles_within_its_budgets(name: str, sm: int) -> None:
    source = kernel_file(name)
    for variant in source.variants:
        if sm < variant.least_sm:
            continue
        entries, usages = source.entries(variant), compile_for(source, variant, sm)
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


@pytest.mark.parametrize("name", kernel_names())
def test_no_multiplication_and_addition_are_fused(name: str) -> None:
    """A fused one rounds once where the CPU rounds twice."""
    for variant in kernel_file(name).variants:
        assert "fma." not in ptx_of(kernel_file(name), variant)
    toy = parse("toy", TOY.format(body="out[0] = fmaf(out[1], out[2], out[3]);"))
    assert "fma." in ptx_of(toy, toy.variants[0])
