// The best split of every node of sparse rows, found in their entries: no histograms, and thus nothing to clear, to subtract
// or to read where wide data have far more cells than entries.
//
// Entries lie in the order of their slots, cut into tiles. A block brings a tile's entries into the order of (node, slot)
// and adds them up (entry_tile.cuh); behind the last entry of each bin there is a candidate. Bins without an entry of the
// node have none: their splits are those of the bin before, or, before the first one, the mirror image of that which
// divides present from missing, and ties go to the lower bin and to missing values on the right in any case. Monotone
// constraints hold the last bin to no direction, which `Gains::settle` sees to.
//
//   sum_slices       sums by node of a slice: of a feature whose entries no tile holds
//   add_slices       those of the slices before it, and of all
//   best_in_tiles    a block takes tiles one after the other, and keeps the best of each node
//   best_of_blocks   the best of them
//
// As in split.cu, rough gains tell which candidates have their exact gains computed: those within MARGIN of the largest so
// far, among which is every candidate within MARGIN of the largest of all. With EXACT, of penalties and limits, all have exact
// gains, rounded to floats to find the largest, and again those that may be it (entry_gain.cuh).
//
// variants: SMALL=0,1 EXACT=0,1
// budget: sum_slices registers=56 shared=0
// budget: add_slices registers=40 shared=0
// budget: best_in_tiles registers=80+EXACT*48 shared=16*THREADS/32+16
// budget: best_of_blocks registers=64 shared=0
#include "entry_gain.cuh"
#include "entry_tile.cuh"

// `slices` : numbers of their tiles. `before` : shape (rows of slices, nodes, 2), of which a block fills its row. Grid:
// slices. Dynamic shared memory: 8 bytes x nodes, but of small data none.
extern "C" __global__ void __launch_bounds__(THREADS) sum_slices(
    const u32* entry_rows, const EntryTile* tiles, const i32* slices, const RowState* states, i32 n, i64* before) {
    DYNAMIC_SHARED(u32, sums);
    const EntryTile& tile = tiles[slices[blockIdx.x]];
    const i64 end = tile.end;
    i64* own = before + 2 * tile.row * n;
    for (i32 i = threadIdx.x; i < 2 * n; i += THREADS) {
        if (SMALL) own[i] = 0;
        else sums[i] = 0;
    }
    __syncthreads();
    RowState found[ITEMS];
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        const i64 entry = tile.begin + k * THREADS + threadIdx.x;
        found[k] = {0, -1};
        if (entry < end) found[k] = states[entry_rows[entry]];
    }
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        if (found[k].segment < 0) continue;
#if SMALL
        u64* const to = reinterpret_cast<u64*>(own) + 2 * found[k].segment;
        atomicAdd(to, static_cast<u64>(static_cast<i64>(g_of(found[k].pair))));
        atomicAdd(to + 1, static_cast<u64>(h_of(found[k].pair)));
#else
        u32* const to = sums + 2 * found[k].segment;
        atomicAdd(to, static_cast<u32>(g_of(found[k].pair)));
        atomicAdd(to + 1, static_cast<u32>(h_of(found[k].pair)));
#endif
    }
    if (SMALL) return;
    __syncthreads();
    for (i32 i = threadIdx.x; i < 2 * n; i += THREADS) own[i] = static_cast<i32>(sums[i]);
}

// `spans` : shape (features, 2), the first row of each feature's slices and the row behind the last, which gets the sums of
// all. Grid: blocks of sums of each feature.
extern "C" __global__ void __launch_bounds__(THREADS) add_slices(const i64* spans, i32 n_spans, i32 n, i64* before) {
    const i64 first = spans[2 * (blockIdx.x % n_spans)], last = spans[2 * (blockIdx.x % n_spans) + 1];
    const i32 i = blockIdx.x / n_spans * THREADS + threadIdx.x;
    if (i >= 2 * n) return;
    i64 sum = 0;
    for (i64 row = first; row < last; ++row) {
        const i64 own = before[2 * row * n + i];
        before[2 * row * n + i] = sum;
        sum += own;
    }
    before[2 * last * n + i] = sum;
}

// What the candidates of a tile share.
struct Searched {
    Tiled in;
    const EntryTile& tile;
    i32 first_slot;  // of a slice that begins within a bin
    i32 n;
    const i64* before;
    const i64* slot_offsets;
    const u8* allowed;
    i64 list_stride;

    __device__ __forceinline__ bool is_allowed(i32 node, i32 feature) const {
        return allowed[node * list_stride + tile.first + feature] != 0;
    }
};

static __device__ __forceinline__ Sums2 sums_before(const Tiled& in, i32 entry) {
    return entry > 0 ? in.sums[entry - 1] : Sums2{0, 0};
}

// Of an entry, or, from TILE on, of a node at the end of a slice's first bin: it may have entries there in earlier slices
// only.
static __device__ __forceinline__ Candidate candidate_at(const Searched& of, i32 index) {
    const Tiled& in = of.in;
    const bool is_entry = index < TILE;
    const i32 node = is_entry ? in.nodes[index] : index - TILE, slot = is_entry ? in.slots[index] : of.first_slot;
    i32 begin, end, last;  // of the segment; up to the candidate's bin
    if (is_entry) {
        begin = in.starts[in.segments[index]];
        end = in.starts[in.segments[index] + 1];
        last = index + 1;
    } else {
        begin = last = in.node_starts[node];
        end = in.node_starts[node + 1];
        while (last < end && in.slots[last] == slot) ++last;
    }
    const Sums2 low = sums_before(in, begin), high = sums_before(in, end), here = sums_before(in, last);
    const i32 feature = static_cast<i32>(of.tile.first) + (is_entry ? in.features[index] : 0);
    Candidate found = {node, feature, slot - static_cast<i32>(of.slot_offsets[feature]),
                       {here.g - low.g, here.h - low.h}, {high.g - low.g, high.h - low.h}};
    if (of.tile.row >= 0) {
        const i64* before = of.before + 2 * (of.tile.row * of.n + node);
        const i64* all = of.before + 2 * (of.tile.total * of.n + node);
        found.left = {found.left.g + before[0], found.left.h + before[1]};
        found.present = {all[0], all[1]};
    }
    return found;
}

// Raises the tops of the nodes of a warp's lanes, which mostly are the same; -1 is none.
static __device__ __forceinline__ void raise_tops(u32* tops, i32 node, float top) {
    if (__all_sync(ALL_LANES, node == __shfl_sync(ALL_LANES, node, 0))) {
        top = max_of_warp(top);
        if (threadIdx.x % WARP != 0) return;
    }
    if (node >= 0 && top > 0.0f) atomicMax(tops + node, __float_as_uint(top));
}

// Whether there is a split behind an entry: its bin does not go on.
static __device__ __forceinline__ bool is_candidate(const Searched& of, i32 i, i32 n_entries, i32 next_slot) {
    const Tiled& in = of.in;
    if (i >= n_entries || !of.is_allowed(in.nodes[i], in.features[i])) return false;
    const bool is_last = i + 1 == n_entries || in.segments[i + 1] != in.segments[i];
    return in.slots[i] != (is_last ? next_slot : in.slots[i + 1]);
}

// The least top of a node's candidates whose exact gain is looked at: among them are all that tie for the best.
static __device__ __forceinline__ double enough_of(const Tiled& in, i32 node) {
    return __uint_as_float(in.tops[node]) * (EXACT ? 1.0 : 1.0 - MARGIN);
}

// The largest tops of the tile's candidates go to `tops`, then those that come near are listed, and counted.
static __device__ __forceinline__ void list_candidates(const Searched& of, i32 n_entries, i32 next_slot, bool has_first,
                                                       const u64* own, const Gains& gains, i32* n_listed) {
    const Tiled& in = of.in;
    float tops[ITEMS];
#pragma unroll(EXACT ? 1 : ITEMS)
    for (i32 k = 0; k < ITEMS; ++k) {
        const i32 i = own_entry(k), node = i < n_entries ? in.nodes[i] : -1;
        float top = NO_SPLIT;
        if (is_candidate(of, i, n_entries, next_slot)) top = gains.top(candidate_at(of, i));
        raise_tops(in.tops, node, top);
#pragma unroll
        for (i32 other = 0; other < ITEMS; ++other)  // in registers, whether the loop around is unrolled or not
            if (other == k) tops[other] = top;
    }
    for (i32 node = threadIdx.x; has_first && node < of.n; node += THREADS) {
        if (own[node] == 0 || !of.is_allowed(node, 0)) continue;
        const float top = gains.top(candidate_at(of, TILE + node));
        if (top > 0.0f) atomicMax(in.tops + node, __float_as_uint(top));
    }
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < ITEMS; ++k) {
        if (!(tops[k] > 0.0f)) continue;
        if (tops[k] >= enough_of(in, in.nodes[own_entry(k)])) in.listed[atomicAdd(n_listed, 1)] = static_cast<u16>(own_entry(k));
    }
    for (i32 node = threadIdx.x; has_first && node < of.n; node += THREADS) {
        if (own[node] == 0 || !of.is_allowed(node, 0)) continue;
        const float top = gains.top(candidate_at(of, TILE + node));
        if (top > 0.0f && top >= enough_of(in, node)) in.listed[atomicAdd(n_listed, 1)] = static_cast<u16>(TILE + node);
    }
    __syncthreads();
}

// `entry_rows`, `entry_slots` : in the order of slots, then of rows; `entry_features` : counted from their tile's first.
// `totals` : sums of g and h, shape (nodes, 2). `own` : 0 for a node that is not there. `allowed` : shape (features,), or one such
// list for each node, `list_stride` apart. `units` : what a quantum of g and of h is worth. `bounds` : limits of the leaf value, shape (nodes, 2). Those
// from `alpha` to `is_plain` are used with EXACT only. `found` : shape (blocks, nodes). Any grid. Dynamic shared memory:
// `entry_tile_bytes`.
extern "C" __global__ void __launch_bounds__(THREADS, EXACT ? 2 : 3) best_in_tiles(
    const u32* entry_rows, const i32* entry_slots, const u16* entry_features, const EntryTile* tiles, i32 n_tiles,
    const RowState* states, i32 n,
    const u64* own, const i64* totals, const u8* allowed, i32 list_stride, const double* units, const i64* slot_offsets,
    const i64* before, double lambda, double least_h, double alpha, double max_step, const double* bounds, const i32* monotone,
    const i32* n_bins, i32 is_plain, Best* found) {
    DYNAMIC_SHARED(u8, memory);
    __shared__ Sums2 of_warps[WARPS];
    __shared__ i32 n_listed;
    const Tiled in(memory, n);
    Best* const best = found + static_cast<i64>(blockIdx.x) * n;
    for (i32 node = threadIdx.x; node < n; node += THREADS) {
        in.tops[node] = 0;
        best[node] = NOTHING;
    }
    const double unit_g = units[0], unit_h = units[1];
#if EXACT
    const Gains gains = {totals, unit_g, unit_h, {lambda, alpha, max_step, least_h}, bounds, monotone, n_bins, is_plain != 0};
#else
    const Gains gains = {totals, unit_g, unit_h, {lambda, 0.0, 0.0, least_h}, RoughTree(lambda, least_h, unit_g, unit_h),
                         least_quanta(least_h, unit_h)};
#endif
    const i64 n_all = tiles[n_tiles - 1].end;
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const i32 last = static_cast<i32>(static_cast<i64>(n_tiles) * (blockIdx.x + 1) / gridDim.x);
    for (i32 number = static_cast<i32>(static_cast<i64>(n_tiles) * blockIdx.x / gridDim.x); number < last; ++number) {
        const EntryTile& tile = tiles[number];
        const i32 first_slot = entry_slots[tile.begin], next_slot = tile.end < n_all ? entry_slots[tile.end] : -1;
        const bool has_first = tile.begin > 0 && first_slot == entry_slots[tile.begin - 1] && first_slot != next_slot;
        const Searched of = {in, tile, first_slot, n, before, slot_offsets, allowed, list_stride};
        if (threadIdx.x == 0) n_listed = 0;
        const i32 n_entries = sort_by_node(tile, entry_rows, entry_slots, entry_features, states, n, in);
        add_up(in.sums, n_entries, of_warps);
        find_segments(n_entries, in);
        list_candidates(of, n_entries, next_slot, has_first, own, gains, &n_listed);
        // A node's candidates are one warp's, and its lanes' one after the other.
        for (i32 start = 0; start < n_listed; start += WARP) {
            const i32 index = start + lane < n_listed ? in.listed[start + lane] : -1;
            const i32 node = index < 0 ? -1 : index < TILE ? in.nodes[index] : index - TILE;
            Best mine = NOTHING;
            if (node >= 0 && node % WARPS == warp) {
                const Candidate candidate = candidate_at(of, index);
                mine = gains.best(candidate);
                gains.settle(candidate, mine);
            }
            for (u32 rest = __ballot_sync(ALL_LANES, mine.feature >= 0); rest != 0; rest &= rest - 1) {
                if (static_cast<u32>(lane) == __ffs(rest) - 1u && mine.is_better_than(best[node])) best[node] = mine;
                __syncwarp();
            }
        }
        __syncthreads();
    }
}

// `found` : as above. `results` : shape (nodes, RESULTS). Grid: a warp per node.
extern "C" __global__ void __launch_bounds__(THREADS) best_of_blocks(const Best* found, i32 n_blocks, i32 n, const u64* own,
                                                                     i64* results) {
    const i32 node = static_cast<i32>(blockIdx.x) * WARPS + static_cast<i32>(threadIdx.x / WARP);
    if (node >= n || own[node] == 0) return;
    Best best = NOTHING;
    for (i32 block = threadIdx.x % WARP; block < n_blocks; block += WARP) {
        const Best other = found[static_cast<i64>(block) * n + node];
        if (other.feature >= 0 && (best.feature < 0 || other.is_better_than(best))) best = other;
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const Best other = {
            __shfl_xor_sync(ALL_LANES, best.gain, step), __shfl_xor_sync(ALL_LANES, best.g, step),
            __shfl_xor_sync(ALL_LANES, best.h, step), __shfl_xor_sync(ALL_LANES, best.feature, step),
            __shfl_xor_sync(ALL_LANES, best.place, step)};
        if (other.feature >= 0 && (best.feature < 0 || other.is_better_than(best))) best = other;
    }
    if (threadIdx.x % WARP != 0) return;
    if (!(best.gain > 0.0)) best = NOTHING;
    i64* result = results + static_cast<i64>(node) * RESULTS;
    result[0] = __double_as_longlong(best.gain);
    result[1] = best.feature;
    result[2] = best.place % SIDE;
    result[3] = best.place / SIDE;
    result[4] = best.g;
    result[5] = best.h;
}
