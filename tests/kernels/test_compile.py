"""Every kernel compiles for every architecture, within the budgets that its file declares.

Each variant is compiled for `ALL_VARIANTS_ON` and for one of the other architectures, which take turns. With
`--each-value`, that one takes turns as well: each variant is compiled for one architecture, if its file has others, and
those that most fits launch for `ALL_VARIANTS_ON` too. `make kernels` compiles all for all, ten minutes' work of a core.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest
from kernels.emulation import EACH_VALUE
from kernels.nvrtc import Compiled, CompileError, compile_for

from daskboost.devices.gpu.runtime.kernel_source import (
    ARCHITECTURES,
    LEAST_SM,
    KernelFile,
    Variant,
    kernel_file,
    kernel_names,
    parse,
)

TOY = """
// variants: N=32
// budget: toy registers=32 shared=4*N
extern "C" __global__ void toy(float* out) {{
    __shared__ float shared[N];
    {body}
}}
"""


ALL_VARIANTS_ON = 90
EVERY_VARIANT = "DASKBOOST_EVERY_VARIANT"
"""An environment variable that, where it is set, asks for all variants on all architectures."""
ALIKE = {89: 86}
"""Architectures whose code is an older one's: the same instructions, registers and memory. All variants take as much on
both, so that one of a file is compiled to see it, where that is compiled for the older one."""
TURNS = [sm for sm in ARCHITECTURES if sm != ALL_VARIANTS_ON and sm not in ALIKE]


def compiled_on(source: KernelFile, sm: int, each_value: bool = False) -> list[Variant]:
    """Return the variants to compile for an architecture: those whose turn it is, which comes after another for each
    file. Each round of turns begins one later than the last: values of constants recur at distances of their own.

    `each_value` : compile each variant of a file that has several for one architecture alone, but for usual ones.
    """
    variants = [variant for variant in source.variants if sm >= variant.least_sm]
    if sm in ALIKE:
        return compiled_on(source, ALIKE[sm], each_value)[:1]
    takes_turns = each_value and len(source.variants) > 1
    if os.environ.get(EVERY_VARIANT) or (sm == ALL_VARIANTS_ON and not takes_turns):
        return variants
    turns = [*TURNS, ALL_VARIANTS_ON] if takes_turns else TURNS
    turn, n = turns.index(sm) + kernel_names().index(source.name), len(turns)
    return [
        variant for place, variant in enumerate(source.variants)
        if variant in variants and (
            (place + place // n + turn) % n == 0 or (sm == ALL_VARIANTS_ON and variant in source.usual)
        )
    ]  # fmt: skip


class Built:
    """A kernel file's variants, compiled for each architecture once for all tests of the file."""

    def __init__(self, name: str, each_value: bool) -> None:
        self.source = kernel_file(name)
        self._each_value = each_value
        self._found: dict[int, dict[Variant, Compiled]] = {}

    def on(self, sm: int) -> dict[Variant, Compiled]:
        """Compile the variants that are looked at on an architecture."""
        if sm not in self._found:
            variants = compiled_on(self.source, sm, self._each_value)
            self._found[sm] = {variant: compile_for(self.source, variant, sm) for variant in variants}
        return self._found[sm]

    def ptx(self) -> dict[str, str]:
        """Return the intermediate code by what it was made of, on all architectures."""
        return {
            f"{self.source.name}.cu: {variant}, sm_{sm}": found.ptx
            for sm in ARCHITECTURES for variant, found in self.on(sm).items()
        }  # fmt: skip


@pytest.fixture(scope="module", params=kernel_names())
def built(request: pytest.FixtureRequest) -> Built:
    return Built(request.param, request.config.getoption(EACH_VALUE))


@pytest.mark.late
def test_compiles_within_its_budgets(built: Built) -> None:
    source = built.source
    cases = [(sm, variant, found) for sm in ARCHITECTURES for variant, found in built.on(sm).items()]
    for sm, variant, found in cases:
        entries, usages = source.entries(variant), found.usages
        assert sm not in ALIKE or usages == built.on(ALIKE[sm])[variant].usages
        assert usages.keys() == entries.keys()
        for entry in entries.values():
            usage, context = usages[entry.name], f"{source.name}.cu: {entry.name}, {variant}, sm_{sm}"
            assert usage.local_bytes == 0, f"{context} spills registers, or keeps an array in local memory"
            assert usage.registers <= entry.registers, context
            assert usage.shared_bytes <= entry.shared_bytes <= ARCHITECTURES[sm] << 10, context


def test_each_architecture_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the dearest file each variant is compiled twice at least, but for those of the newest architectures."""
    monkeypatch.delenv(EVERY_VARIANT, raising=False)
    source = kernel_file("histogram")
    times = Counter(variant for sm in ARCHITECTURES for variant in compiled_on(source, sm))
    assert set(times) == set(source.variants)
    assert all(compiled_on(source, sm) for sm in ARCHITECTURES)
    assert 2 * len(source.variants) * 5 // 6 <= times.total() <= 2.2 * len(source.variants)
    monkeypatch.setenv(EVERY_VARIANT, "1")
    assert len(compiled_on(source, LEAST_SM)) == sum(variant.least_sm <= LEAST_SM for variant in source.variants)


def test_each_variant_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--each-value`, every variant is compiled once, a file's only one twice, and usual ones on sm_90 anyway. Of
    the dearest file, none of the values that alternate from variant to variant is missing on an architecture."""
    monkeypatch.delenv(EVERY_VARIANT, raising=False)
    for source in map(kernel_file, kernel_names()):
        of_turns = {sm: compiled_on(source, sm, True) for sm in ARCHITECTURES if sm not in ALIKE}
        times = Counter(variant for variants in of_turns.values() for variant in variants)
        assert set(times) == set(source.variants), source.name
        assert set(source.usual) <= set(of_turns[ALL_VARIANTS_ON]), source.name
        if len(source.variants) == 1:
            assert times.total() == 2, source.name
            continue
        assert all(n == 1 or (n == 2 and variant in source.usual) for variant, n in times.items()), source.name
        assert sum(map(bool, of_turns.values())) >= min(len(source.variants), len(of_turns), 2), source.name
        if source.name == "histogram":
            alternating = {(name, value) for name in ("SMALL", "TURNED") for value in (0, 1)}
            for variants in of_turns.values():
                assert alternating <= {constant for variant in variants for constant in variant.constants}


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
    usage = compile_for(source, source.variants[0], 90).usages["toy"]
    assert usage.shared_bytes == 128
    assert usage.local_bytes >= 396
    assert 8 <= usage.registers <= 255


def test_an_error_names_the_line() -> None:
    source = parse("toy", TOY.format(body="out[0] = nothing;"))
    with pytest.raises(CompileError, match=r"toy\.cu\(6\): error: identifier \"nothing\" is undefined"):
        compile_for(source, source.variants[0], 75)


def toy_ptx(body: str) -> str:
    toy = parse("toy", TOY.format(body=body))
    return compile_for(toy, toy.variants[0], LEAST_SM).ptx


@pytest.mark.late
def test_no_multiplication_and_addition_are_fused(built: Built) -> None:
    """A fused one rounds once where the CPU rounds twice. Each `reciprocal` alone has two, which make it a division,
    and each `shifted_product` one, where the CPU's product is exact."""
    for where, ptx in built.ptx().items():
        allowed = 2 * ptx.count("rcp.approx.ftz.f32") + ptx.count("// to a whole number")
        assert ptx and ptx.count("fma.") == allowed, where


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


@pytest.mark.late
def test_shared_atomics_are_of_32_bits_and_none_of_floats(built: Built) -> None:
    for where, ptx in built.ptx().items():
        assert bad_atomics(ptx) == set(), where


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
