// Finds races of emulated CUDA kernels: g++ tells of every access (-fsanitize=thread, whose functions these are; its
// own library is not linked), the emulation of what orders them.
//
// A race is a pair of accesses to one byte by different threads, one of them a write and not both atomic, that nothing
// orders. Within a block __syncthreads orders; within a warp __syncwarp does too, among the lanes of its mask. Nothing
// else: shuffles, votes and matches wait for lanes but order no memory (CUDA C++ Programming Guide: "These intrinsics
// do not imply a memory barrier"). So has it compute-sanitizer's racecheck, which reports writes of a warp's lanes with
// only shuffles between them. As there, of two writes only those of different values are reported: equal ones "have no
// impact on program execution" (its severity INFO, not shown unless asked for).
//
// Beyond racecheck, arrays that a kernel may write to are checked as shared memory is, with nothing that orders threads
// of different blocks; but they may be read beside atomics, to see whether one is worth its time, as what is read may
// be old. Threads run in some order; what is found does not depend on it, but for the values.
#define RACE_DETECTOR
#include "race_detector.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

extern "C" __attribute__((visibility("hidden"))) const unsigned char __ehdr_start[];  // where this library begins

namespace {

enum Kind : uint32_t { READ, WRITE, ATOMIC };

struct Access {
    uint32_t place;   // in the code, from the library's begin on
    uint32_t epoch;   // of the block: the next begins where all its threads meet
    uint32_t time;    // of the thread: the next begins where it meets lanes of its warp
    uint32_t thread;
};

// Of the accesses of a kind the last, and the last by others before it: where any is not ordered before an access, one
// of these is not (lanes that meet being all of their warp).
struct Recent { Access last, same_warp, other_warp, other_block; };

struct Cell {  // of some bytes
    Access write;
    Recent reads, atomics;
};

struct Region {
    uintptr_t begin, end;
    uint32_t grain;  // bytes of a cell
    std::vector<Cell> cells;

    Cell& cell(uintptr_t address) { return cells[(address - begin) / grain]; }
    size_t n_cells() const { return (end - begin) / grain + 1; }

    // Cells of an earlier launch stay: their epochs are past.
    void use(const void* memory, size_t bytes, uint32_t most_grain) {
        begin = reinterpret_cast<uintptr_t>(memory), end = begin + bytes, grain = most_grain;
        while (begin % grain) grain /= 2;
        if (cells.size() < n_cells()) cells.resize(n_cells());
    }

    void refine() {
        const std::vector<Cell> coarse(std::move(cells));
        grain /= 2;
        cells.resize(std::max(n_cells(), coarse.size()));
        for (size_t i = 0; i < n_cells(); ++i) cells[i] = coarse[i / 2];
    }
};

struct Finding {
    Kind kinds[2];
    Access accesses[2];
    uint32_t block;
    bool is_of_two_blocks;
    uintptr_t address;
};

// A write over that of another thread, until its value can be seen.
struct Overwritten {
    Finding finding;
    uint32_t bytes;
    unsigned char values[8];
};

constexpr uint32_t WARP = 32, MOST_THREADS = 1024, FIXED = 0, DYNAMIC = 1, ARRAYS = 2;
constexpr size_t MOST_FINDINGS = 16, STACK_BYTES = 1 << 17;

std::vector<Region> regions(ARRAYS);
size_t n_regions;  // none between launches, where g++'s calls from begin and end of the process find nothing set up
uint32_t block, epoch, epoch_of_launch, epoch_of_block;
uint32_t times[MOST_THREADS][WARP];  // a thread's own, and until when it comes after its warp's other lanes
uint32_t thread;
bool is_atomic;
std::vector<Finding> found;
std::vector<Overwritten> overwritten;

bool is_unordered(const Access& before, bool is_shared) {
    if (before.epoch < epoch_of_block) return !is_shared && before.epoch >= epoch_of_launch;
    if (before.epoch < epoch || before.thread == thread) return false;
    return before.thread / WARP != thread / WARP || times[thread][before.thread % WARP] < before.time;
}

const Access* unordered(const Recent& recent, bool is_shared) {
    for (const Access* before : {&recent.last, &recent.same_warp, &recent.other_warp, &recent.other_block})
        if (is_unordered(*before, is_shared)) return before;
    return nullptr;
}

void note(Recent& recent, const Access& now) {
    const Access& last = recent.last;
    if (last.epoch < epoch_of_block) recent.other_block = last;
    else if (last.thread != now.thread)
        (last.thread / WARP == now.thread / WARP ? recent.same_warp : recent.other_warp) = last;
    recent.last = now;
}

void report(const Finding& finding) {
    const auto is_same = [&](const Finding& other) {
        bool is = true;
        for (int i : {0, 1})
            is = is && finding.kinds[i] == other.kinds[i] && finding.accesses[i].place == other.accesses[i].place;
        return is;
    };
    if (found.size() < MOST_FINDINGS && std::none_of(found.begin(), found.end(), is_same)) found.push_back(finding);
}

void see_what_was_written() {
    for (const Overwritten& old : overwritten)
        if (std::memcmp(old.values, reinterpret_cast<void*>(old.finding.address), old.bytes)) report(old.finding);
    overwritten.clear();
}

void check(Cell& cell, uintptr_t address, uint32_t bytes, bool is_shared, Kind kind, const Access& now) {
    const auto finding = [&](Kind before_kind, const Access& before) {
        return Finding{{before_kind, kind}, {before, now}, block, before.epoch < epoch_of_block, address};
    };
    if (is_unordered(cell.write, is_shared)) {
        if (kind == WRITE) {
            overwritten.push_back({finding(WRITE, cell.write), bytes, {}});
            std::memcpy(overwritten.back().values, reinterpret_cast<void*>(address), bytes);
        } else {
            report(finding(WRITE, cell.write));
        }
    }
    if (kind == WRITE || (kind == ATOMIC && is_shared))
        if (const Access* read = unordered(cell.reads, is_shared)) report(finding(READ, *read));
    if (kind == WRITE || (kind == READ && is_shared))
        if (const Access* atomic = unordered(cell.atomics, is_shared)) report(finding(ATOMIC, *atomic));
    if (kind == WRITE) cell.write = now;
    else note(kind == READ ? cell.reads : cell.atomics, now);
}

size_t region_of(uintptr_t address) {
    size_t i = 0;
    while (i < n_regions && address - regions[i].begin >= regions[i].end - regions[i].begin) ++i;
    return i;
}

void access(const void* at, size_t bytes, Kind kind, const void* return_address) {
    const auto address = reinterpret_cast<uintptr_t>(at);
    if (n_regions == 0) return;
    if (!overwritten.empty()) see_what_was_written();
    if (address - reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < STACK_BYTES) return;
    if (is_atomic && kind == READ) return;  // the write that follows stands for both
    const size_t number = region_of(address);
    if (number == n_regions) return;
    Region& region = regions[number];
    const uintptr_t end = std::min(address + bytes, region.end);
    while ((address | end) & (region.grain - 1)) region.refine();
    const auto code = static_cast<const unsigned char*>(return_address) - 1 - __ehdr_start;
    const Access now = {static_cast<uint32_t>(code), epoch, times[thread][thread % WARP] + 1, thread};
    for (uintptr_t i = address; i < end; i += region.grain)
        check(region.cell(i), i, region.grain, number < ARRAYS, is_atomic ? ATOMIC : kind, now);
}

}  // namespace

namespace races {

void begin_launch() {
    epoch_of_launch = ++epoch, n_regions = ARRAYS;
    found.clear();
}

void add_array(const void* begin, size_t bytes, size_t alignment) {
    if (regions.size() == n_regions) regions.emplace_back();
    regions[n_regions++].use(begin, bytes, static_cast<uint32_t>(std::min<size_t>(alignment, 8)));
}

void begin_block(unsigned number, const void* fixed, size_t fixed_bytes, const void* dynamic, size_t dynamic_bytes) {
    block = number, epoch_of_block = ++epoch;
    regions[FIXED].use(fixed, fixed_bytes, regions[FIXED].grain ? regions[FIXED].grain : 8);
    regions[DYNAMIC].use(dynamic, dynamic_bytes, regions[DYNAMIC].grain ? regions[DYNAMIC].grain : 8);
}

void go_on_as(unsigned rank) {
    thread = rank;
}

void block_has_met() {
    ++epoch;
}

void lanes_have_met(unsigned first, unsigned mask) {
    uint32_t joined[WARP] = {};
    for (uint32_t i = 0; i < WARP; ++i) {
        if (!(mask >> i & 1)) continue;
        ++times[first + i][i];
        for (uint32_t j = 0; j < WARP; ++j) joined[j] = std::max(joined[j], times[first + i][j]);
    }
    for (uint32_t i = 0; i < WARP; ++i)
        if (mask >> i & 1) std::copy(joined, joined + WARP, times[first + i]);
}

void begin_atomic() {
    is_atomic = true;
}

void end_atomic() {
    is_atomic = false;
}

void end_launch(void (*tell)(const char* findings)) {
    see_what_was_written();
    n_regions = 0;
    std::string findings;
    for (const Finding& finding : found) {
        const auto add = [&](uintptr_t number) { findings += std::to_string(number) + ' '; };
        for (int i : {0, 1})
            add(finding.kinds[i]), add(finding.accesses[i].place), add(finding.accesses[i].thread);
        add(finding.block), add(finding.is_of_two_blocks);
        add(finding.address), add(finding.address - reinterpret_cast<uintptr_t>(__ehdr_start));
        findings.back() = '\n';
    }
    if (!findings.empty()) tell(findings.c_str());
}

}  // namespace races

// What g++ calls before each access.
#define READS_AND_WRITES(name, bytes)                                                                         \
    void __tsan_read##name(void* at) { access(at, bytes, READ, __builtin_return_address(0)); }                \
    void __tsan_write##name(void* at) { access(at, bytes, WRITE, __builtin_return_address(0)); }

extern "C" {
READS_AND_WRITES(1, 1)
READS_AND_WRITES(2, 2)
READS_AND_WRITES(4, 4)
READS_AND_WRITES(8, 8)
READS_AND_WRITES(16, 16)
void __tsan_unaligned_read2(void* at) { access(at, 2, READ, __builtin_return_address(0)); }
void __tsan_unaligned_read4(void* at) { access(at, 4, READ, __builtin_return_address(0)); }
void __tsan_unaligned_read8(void* at) { access(at, 8, READ, __builtin_return_address(0)); }
void __tsan_unaligned_read16(void* at) { access(at, 16, READ, __builtin_return_address(0)); }
void __tsan_unaligned_write2(void* at) { access(at, 2, WRITE, __builtin_return_address(0)); }
void __tsan_unaligned_write4(void* at) { access(at, 4, WRITE, __builtin_return_address(0)); }
void __tsan_unaligned_write8(void* at) { access(at, 8, WRITE, __builtin_return_address(0)); }
void __tsan_unaligned_write16(void* at) { access(at, 16, WRITE, __builtin_return_address(0)); }
void __tsan_read_range(void* at, size_t bytes) { access(at, bytes, READ, __builtin_return_address(0)); }
void __tsan_write_range(void* at, size_t bytes) { access(at, bytes, WRITE, __builtin_return_address(0)); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_init() {}
}
