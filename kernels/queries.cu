// Gradients of ranking losses by query: `daskboost/devices/cpu/queries.py`, operation by operation.
//
// A block has a query: it sorts the rows by score, and each lane keeps up to four rows in registers, with the sums of their
// pairs. The rows that these are paired with, 32 at a time, go round the lanes of a warp together with their own sums, so
// that each pair is computed once, and no two lanes add to one sum at a time. Pairs are what the kernel takes its time for,
// some 22 instructions each: memory is read and written once a row. Those of several rows of a lane are computed side by
// side, without a branch.
//
// Of queries that are too large for a block, which `sort_queries.cu` has sorted, many blocks have the rows of one:
//
//   sum_shares    sums of tiles, for precisions      place_rows    sorted keys -> what pairs are computed from
//   add_pairs     pairs -> sums of rows              write_rows    sums -> gradients
//   add_costs     costs of pairs -> those of positions
//
// variants: WEIGHT=0,1,2 DRAWN=0,1 BY_POSITION=0,1
// budget: fill_queries registers=80+48*BY_POSITION+16*(WEIGHT==2)*(BY_POSITION==0) shared=16+(WEIGHT==2)*12*WARPS
// budget: sum_shares registers=64 shared=8*WARPS
// budget: place_rows registers=64+16*(WEIGHT==2) shared=(WEIGHT==2)*20*WARPS
// budget: add_pairs registers=128 shared=16+(DRAWN==0)*1024*PART_WARPS
// budget: write_rows registers=64 shared=0
// budget: add_costs registers=96 shared=0
#include "hashing.cuh"
#include "logarithm.cuh"
#ifndef DRAWN
#define DRAWN 0  // whether pairs are drawn, rather than those of the first rows with all others
#endif
#include "ranked_pairs.cuh"
#include "short_keys.cuh"

#define THREADS 512  // of a block that has a tile
#define WARPS (THREADS / 32)
#define BLOCK_THREADS 128  // most of a block that has a query
#define BLOCKS (BY_POSITION ? 4 : WEIGHT == MAP ? 5 : DRAWN ? 6 : 7)  // of an SM at least, which bounds registers
#define PART_THREADS 128  // of a block that has a quarter of a tile
#define PART_WARPS (PART_THREADS / 32)
#define PART_BITS 2  // of their number
#define PARTS (TILE / (4 * PART_THREADS))

constexpr float PER_LN_2 = 1.4426950408889634f;
static_assert(1 << PART_BITS == PART_WARPS, "tiles of a warp lie as far apart as a block has warps");
#if DRAWN || BY_POSITION
using Sum = u64;  // of a row's pairs, in shared memory
#else
using Sum = u32;
#endif

// What the gradients of a query depend on beside sums.
struct Rules {
    double worth;  // what pairs count, over the scale of sums
    double factor;
    i32 drawn;
    i32 is_normalized;
};

// What is known of a place beside what it counts.
static __device__ __forceinline__ Place place_of(float score, float gain, float difference, bool is_wide, float change) {
    return {score, gain, is_wide ? 1.0f : exp_of(difference), change};
}

static __device__ __forceinline__ i32 padded(i32 n) { return (n + LANES - 1) / LANES * LANES; }

// What a place counts in pairs of the same gains, see `Places`, where that goes by average precision.
struct Precisions {
    float as_first, as_second;

    __device__ __forceinline__ Precisions(double above, double step, float gain) {
        const float higher = static_cast<float>(above), lower = static_cast<float>(above + step);
        as_first = gain > 0 ? higher : lower, as_second = gain > 0 ? lower : higher;
    }
};

// How pairs are drawn: of rows by query, in the order of ids.
struct Draws {
    const u32* by_label;  // rows of the query from the highest label to the lowest, of equal ones in their order
    const u32* groups;    // where the rows of a row's label begin and end among them
    const u64* ids;
    u64 key;
};

// Adds the pairs drawn for the row `row` to `sums` of places; `place` : of rows of the query. The sum of the sizes of their
// gradients. `worth` : what pairs count in costs.
template <bool SHARED, bool IS_WIDE>
static __device__ __forceinline__ i64 add_drawn_pairs(const Places& places, const How& how, const Draws& draws, const u32* place,
                                                      i64 begin, i32 row, i32 drawn, float worth, u64* sums) {
    const u32 first = draws.groups[2 * (begin + row)], last = draws.groups[2 * (begin + row) + 1];
    const u64 others = static_cast<u64>(places.n) - (last - first);
    if (others == 0) return 0;
    const u64 own_key = draw(draws.key, draws.ids[begin + row]);
    const i32 own = place[row];
    i64 g = 0, h = 0, sizes = 0;
    for (i32 i = 0; i < drawn; ++i) {
        const u32 drawn_row = static_cast<u32>((draw(own_key, i) >> 32) * others >> 32);
        const u32 other_row = draws.by_label[begin + (drawn_row < first ? drawn_row : drawn_row + (last - first))];
        const i32 other = place[other_row], a = min(own, other), b = max(own, other);
        const u32 position_a = places.position(a, places.n), position_b = places.position(b, places.n);
        const Place of_a = places.first(a, how), of_b = places.second(b, how);
        const Pulled pair = pulled<IS_WIDE>(places, how, of_a.gain, of_b.gain, change_of(of_a, of_b),
                                            of_a.score - of_b.score, of_a.odds * of_b.odds, position_a, position_b);
        const i64 slope = signed_of(pair.slope - SLOPE_SHIFT), curve = static_cast<i64>(pair.curve - CURVE_SHIFT);
        const i64 of_other = own < other ? slope : -slope;
        add_to<SHARED>(sums + 2 * other, of_other);
        add_to<SHARED>(sums + 2 * other + 1, curve);
        g -= of_other, h += curve;
        sizes += slope < 0 ? -slope : slope;
        if (BY_POSITION && max(position_a, position_b) < static_cast<u32>(places.positions.n)) {
            const double cost = pair_cost(places, a, b, worth, how.by_score);
            const u32 high = pair.first_is_high ? position_a : position_b, low = pair.first_is_high ? position_b : position_a;
            const double of_high = places.positions.ratio(RELEVANT, high), of_low = places.positions.ratio(IRRELEVANT, low);
            places.positions.add(RELEVANT, high, cost * of_low);
            places.positions.add(IRRELEVANT, low, cost * of_high);
        }
    }
    add_to<SHARED>(sums + 2 * own, g);
    add_to<SHARED>(sums + 2 * own + 1, h);
    return sizes;
}

// What sums of a query are multiplied by; `total` : of the sizes of its pairs' gradients.
static __device__ __forceinline__ double factor_of(const Rules& rules, i64 total) {
    double norm = 1.0;
    const double sizes = 2.0 * (static_cast<double>(total) * rules.worth);
    if (rules.is_normalized && DRAWN) norm = 1.0 / rules.drawn;
    if (rules.is_normalized && !DRAWN && sizes > 0) {
        const float most = static_cast<float>(sizes < 0x1p-100 ? 0x1p-100 : sizes > 0x1p100 ? 0x1p100 : sizes);
        norm = static_cast<double>(short_logarithm_of_one_plus(most) * PER_LN_2 * reciprocal(most));
    }
    return norm * rules.factor * rules.worth;
}

// What sums of a query are multiplied by beside its scale.
static __device__ __forceinline__ float shrink_of(const Positions& positions, i64 n) {
    return BY_POSITION ? static_cast<float>(positions.shrink[min(n, static_cast<i64>(positions.n))]) : 1.0f;
}

// `which` : queries that blocks have; `order` : places of rows among all, by query. `margins`, `g`, `h` : of all rows.
// `spreads` : by how much gains differ at most, 0 where no pair adds anything. `curvature` : what second derivatives are
// multiplied by.
// `keys` of draws, of which the round's is that after `ended`, or the first one where that is null; `by_label`, `groups`,
// `ids` : see Draws, of DRAWN only. Threads: 32 for each 128 rows of the largest of the queries, a power of two.
// Dynamic shared memory: 1,024 bytes for each warp; by the least power of two from 32 and the number of rows on 28 bytes, 4 more
// for DRAWN or BY_POSITION; by the multiple of 32 from the number of rows that are first ones of pairs on 24 bytes, 8 more
// for DRAWN or BY_POSITION.
// `ratios` and what follows: see Positions, of BY_POSITION only.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS) fill_queries(
    const u32* __restrict__ which, const u32* __restrict__ order, const i64* __restrict__ begins,
    const float* __restrict__ gains, const double* __restrict__ steps, const double* __restrict__ spreads,
    const float* __restrict__ worths, const double* __restrict__ factors, double curvature, i32 top, i32 drawn,
    i32 is_normalized, i32 is_by_score, const u32* __restrict__ by_label, const u32* __restrict__ groups, const u64* __restrict__ ids,
    const u64* __restrict__ draw_keys, const i32* __restrict__ ended, const float* __restrict__ ratios,
    const double* __restrict__ shrink, i32 n_positions, u64* __restrict__ costs, const float* __restrict__ margins,
    float* __restrict__ g, float* __restrict__ h) {
    DYNAMIC_SHARED(Place, tiles);
    __shared__ u64 total;
#if WEIGHT == MAP
    __shared__ i64 of_shares[WARPS];
    __shared__ i32 of_relevant[WARPS];
#endif
    const u32 query = which[blockIdx.x], begin = static_cast<u32>(begins[query]);  // rows have numbers of 32 bits
    const i32 n = static_cast<i32>(begins[query + 1] - begin), size = max(power_from(n), LANES);
    const i32 n_own = DRAWN ? n : min(top, n), n_sums = padded(n_own), n_firsts = min(n_sums, n);
    Place* const seconds = tiles + 2 * blockDim.x;
    Place* const firsts = seconds + size;
    Sum* const sums = reinterpret_cast<Sum*>(firsts + n_sums);
    u32* const rows = reinterpret_cast<u32*>(sums + 2 * n_sums);
    float* const scores = reinterpret_cast<float*>(rows + size);
    float* const own_gains = scores + size;
    i32 is_wrong = 0;
    u32 own_places[LANE_KEYS];
    float own_scores[LANE_KEYS], gains_of_own[LANE_KEYS];
#pragma unroll
    for (i32 k = 0; k < LANE_KEYS; ++k) {
        const u32 i = threadIdx.x + k * blockDim.x, row = begin + min(i, static_cast<u32>(n) - 1);
        own_places[k] = order[row], gains_of_own[k] = gains[row];
    }
#pragma unroll
    for (i32 k = 0; k < LANE_KEYS; ++k) own_scores[k] = margins[own_places[k]];
#pragma unroll
    for (i32 k = 0; k < LANE_KEYS; ++k) {
        const i32 i = threadIdx.x + k * blockDim.x;
        if (i < size) scores[i] = own_scores[k], own_gains[i] = gains_of_own[k];
        if (own_scores[k] - own_scores[k] != 0) is_wrong = 1;
    }
    for (i32 i = threadIdx.x; i < 2 * n_sums; i += blockDim.x) sums[i] = 0;
    if (threadIdx.x == 0) total = 0;
    const double spread = spreads[query];
    if (__syncthreads_or(is_wrong) || spread == 0) {
        for (i32 i = threadIdx.x; i < n; i += blockDim.x) is_wrong |= !(scores[i] - scores[i] == 0);
        const float otherwise = __syncthreads_or(is_wrong) ? not_a_number() : 0.0f;
        for (i32 i = threadIdx.x; i < n; i += blockDim.x) g[order[begin + i]] = h[order[begin + i]] = otherwise;
        return;
    }
    sort_rows(scores, n, size, rows);
    const float highest = scores[rows[0]], lowest = scores[rows[n - 1]];
    How how = {1.0f, is_by_score && highest != lowest, !(highest - lowest <= MOST_RANGE)};
    LaneRows<Sum> own_rows(LaneTiles(n, threadIdx.x / LANES, 31 - __clz(blockDim.x / LANES)));
#pragma unroll
    for (i32 k = 0; k < OWN; ++k) {
        const i32 own_place = own_rows.tiles.place_of(k), i = within(own_place, n);
        const u32 row = rows[i];
        const float score = scores[row], gain = own_gains[row];
        const float change = WEIGHT == NDCG ? static_cast<float>(steps[i]) : 0.0f;
        own_rows.rows[k] = place_of(score, gain, score - highest, how.is_wide, change);
        if (i != own_place) continue;
        seconds[i] = own_rows.rows[k];
        if (i < n_firsts) firsts[i] = place_of(score, gain, highest - score, how.is_wide, change);
    }
#if DRAWN || BY_POSITION
    u32* const place = reinterpret_cast<u32*>(own_gains + size);
    for (i32 i = threadIdx.x; i < n; i += blockDim.x) place[rows[i]] = i;
#endif
    __syncthreads();
#if WEIGHT == MAP
    const i32 from = stretch_begin(n, threadIdx.x), to = stretch_begin(n, threadIdx.x + 1);
    Shares own = {0, 0};
    for (i32 i = from; i < to; ++i) own.add(seconds[i].gain, steps[i]);
    own = shares_before(own, of_shares, of_relevant);
    for (i32 i = from; i < to; ++i) {
        const float gain = seconds[i].gain;
        own.add(gain, steps[i]);
        const Precisions found(own.above(steps[i]), steps[i], gain);
        seconds[i].change = found.as_second;
        if (i < n_firsts) firsts[i].change = found.as_first;
    }
    __syncthreads();
#pragma unroll
    for (i32 k = 0; k < OWN; ++k) own_rows.rows[k].change = seconds[within(own_rows.tiles.place_of(k), n)].change;
#endif
    const Positions positions = {ratios, shrink, n_positions, costs};
    const Places places = {firsts, seconds, rows, 1, n, n_own, positions};
    const u32 bound = largest_of_warp(bound_of(places, how, steps, threadIdx.x % LANES, LANES));  // by each warp
#if BY_POSITION && !DRAWN
    add_top_costs(places, place, worths[query], how.by_score, 0, n);
#endif
    how.scale = scale_of(bound, spread, pair_bits(n, DRAWN ? drawn : n_own)) * shrink_of(positions, n);
#if DRAWN
    const Draws draws = {by_label, groups, ids, draw_keys[ended == nullptr ? 0 : *ended + 1]};
    const float worth = worths[query];
    i64 sizes = 0;
    for (i32 i = threadIdx.x; i < n; i += blockDim.x)
        sizes += how.is_wide ? add_drawn_pairs<true, true>(places, how, draws, place, begin, i, drawn, worth, sums)
                             : add_drawn_pairs<true, false>(places, how, draws, place, begin, i, drawn, worth, sums);
#else
    own_rows.prepare(places, how);
    Place* const tile = tiles + threadIdx.x / LANES * (2 * LANES);
    const i64 sizes = how.is_wide ? add_top_pairs<true, true>(places, how, own_rows, sums, tile)
                                  : add_top_pairs<true, false>(places, how, own_rows, sums, tile);
#endif
    const i64 of_warp = sum_of_warp(sizes);
    if (threadIdx.x % LANES == 0) add_to<true>(&total, of_warp);
    __syncthreads();
    const Rules rules = {static_cast<double>(worths[query]) * static_cast<double>(reciprocal(how.scale)), factors[query], drawn,
                         is_normalized};
    const double factor = factor_of(rules, static_cast<i64>(total));
    const float of_g = static_cast<float>(factor), of_h = static_cast<float>(factor * curvature * 0.25);
#if DRAWN
    for (i32 i = threadIdx.x; i < n; i += blockDim.x) {
        const u32 row = order[begin + rows[i]];
        g[row] = static_cast<float>(static_cast<i64>(sums[2 * i])) * of_g;
        h[row] = static_cast<float>(sums[2 * i + 1]) * of_h;
    }
#else
#pragma unroll
    for (i32 k = 0; k < OWN; ++k) {
        const i32 i = own_rows.tiles.place_of(k);
        if (i < 0 || i >= n) continue;
        Sum of_row = own_rows.g[k], bends = own_rows.h[k];
        if (i < n_sums) of_row += sums[2 * i], bends += sums[2 * i + 1];
        const u32 row = order[begin + rows[i]];
        g[row] = static_cast<float>(sizeof(Sum) == sizeof(u32) ? static_cast<i32>(of_row) : static_cast<i64>(of_row)) * of_g;
        h[row] = static_cast<float>(bends) * of_h;
    }
#endif
}

// Queries that are too large for a block. `tiles` : see Tile of ranking.cuh; a block has one of them. `keys` and all other arrays that are
// not of the queries or of all rows: by place, those of a query from a multiple of 32 on.

// Relevant rows of each tile, and their shares; `of_tiles` : shape (tiles, 2).
extern "C" __global__ void __launch_bounds__(THREADS) sum_shares(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u64* __restrict__ keys,
    const float* __restrict__ gains, const double* __restrict__ steps, i64* __restrict__ of_tiles) {
    __shared__ i64 storage[WARPS];
    const Tile tile = tiles[blockIdx.x];
    Shares own = {0, 0};
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const i64 place = tile.first + i;
        own.add(gains[begins[tile.query] + static_cast<u32>(keys[tile.base + place])], steps[place]);
    }
    write_shares<THREADS>(own, of_tiles, blockIdx.x, storage);
}

// The difference of the highest and the lowest score and what follows, the same for all blocks of a query.
struct Ranking {
    float highest;
    bool is_finite, by_score, is_wide;

    __device__ __forceinline__ Ranking(const u64* keys, i64 n, i32 is_by_score) {
        highest = score_of(keys[0]);
        is_finite = is_finite_key(keys[0]) && is_finite_key(keys[n - 1]);
        by_score = is_by_score && (keys[0] ^ keys[n - 1]) >> 32 != 0;
        is_wide = !(highest - score_of(keys[n - 1]) <= MOST_RANGE);
    }
};

#define PLACE_BLOCKS (1 + (WEIGHT != MAP))  // of a multiprocessor at least: with two, some would spill registers
// What is known of places, and zeros as sums; `of_tiles` of MAP only; `place` of each row, of DRAWN or BY_POSITION.
extern "C" __global__ void __launch_bounds__(THREADS, PLACE_BLOCKS) place_rows(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u64* __restrict__ keys,
    const float* __restrict__ gains, const double* __restrict__ steps, const i64* __restrict__ of_tiles,
    Place* __restrict__ firsts, Place* __restrict__ seconds, u32* __restrict__ place, u64* __restrict__ sums,
    u64* __restrict__ totals) {
    const Tile tile = tiles[blockIdx.x];
    const i64 from = tile.base + tile.first;
    const Ranking ranking(keys + tile.base, tile.n, 0);
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const u32 row = static_cast<u32>(keys[from + i]);
        const float score = score_of(keys[from + i]), gain = gains[begins[tile.query] + row];
        const float change = WEIGHT == NDCG ? static_cast<float>(steps[tile.first + i]) : 0.0f;
        firsts[from + i] = place_of(score, gain, ranking.highest - score, ranking.is_wide, change);
        seconds[from + i] = place_of(score, gain, score - ranking.highest, ranking.is_wide, change);
        if (DRAWN || BY_POSITION) place[tile.base + row] = static_cast<u32>(tile.first + i);
        sums[2 * (from + i)] = sums[2 * (from + i) + 1] = 0;
    }
    if (tile.first == 0 && threadIdx.x == 0) totals[tile.number] = 0;
#if WEIGHT == MAP
    __shared__ i64 of_shares[WARPS];
    __shared__ i64 storage[WARPS];
    __shared__ i32 of_relevant[WARPS];
    __syncthreads();
    const i32 begin = stretch_begin(tile.size(), threadIdx.x), end = stretch_begin(tile.size(), threadIdx.x + 1);
    Shares own = {0, 0};
    for (i32 i = begin; i < end; ++i) own.add(seconds[from + i].gain, steps[tile.first + i]);
    const i32 n_before = static_cast<i32>(tile.first / TILE);
    Shares before = shares_before<THREADS>(own, of_tiles, blockIdx.x, n_before, storage, of_shares, of_relevant);
    for (i32 i = begin; i < end; ++i) {
        const double step = steps[tile.first + i];
        const float gain = seconds[from + i].gain;
        before.add(gain, step);
        const Precisions found(before.above(step), step, gain);
        firsts[from + i].change = found.as_first, seconds[from + i].change = found.as_second;
    }
#endif
}

// A large query's places.
static __device__ __forceinline__ Places places_of(const Tile& tile, const u64* keys, const Place* firsts, const Place* seconds,
                                                   i32 top, const Positions& positions) {
    const i32 n = static_cast<i32>(tile.n);
    const u32* const rows = reinterpret_cast<const u32*>(keys + tile.base);  // the low half of a key
    return {firsts + tile.base, seconds + tile.base, rows, 2, n, DRAWN ? n : min(top, n), positions};
}

// Blocks: PARTS of them for each tile. `scales` : of sums, by large query, written here. `place` and what follows as of
// `place_rows` and `fill_queries`.
extern "C" __global__ void __launch_bounds__(PART_THREADS, 4) add_pairs(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u64* __restrict__ keys,
    const Place* __restrict__ firsts, const Place* __restrict__ seconds, const double* __restrict__ steps,
    const double* __restrict__ spreads, const float* __restrict__ worths, i32 top, i32 drawn, i32 is_by_score,
    const u32* __restrict__ place, const u32* __restrict__ by_label, const u32* __restrict__ groups,
    const u64* __restrict__ ids, const u64* __restrict__ draw_keys, const i32* __restrict__ ended,
    const float* __restrict__ ratios, const double* __restrict__ shrink, i32 n_positions, u64* __restrict__ costs,
    u64* __restrict__ sums, u64* __restrict__ totals, float* __restrict__ scales) {
    __shared__ u32 bound;
#if !DRAWN
    __shared__ Place staged[2 * PART_THREADS];
#endif
    const Tile tile = tiles[blockIdx.x / PARTS];
    const i64 first = tile.first + blockIdx.x % PARTS * (OWN * PART_THREADS);
    const Ranking ranking(keys + tile.base, tile.n, is_by_score);
    if (first >= tile.n || spreads[tile.query] == 0 || !ranking.is_finite) return;
    const Positions positions = {ratios, shrink, n_positions, costs};
    const Places places = places_of(tile, keys, firsts, seconds, top, positions);
    How how = {1.0f, ranking.by_score, ranking.is_wide};
    if (threadIdx.x == 0) bound = 0;
    __syncthreads();
    const u32 of_warp = largest_of_warp(bound_of(places, how, steps, threadIdx.x, PART_THREADS));
    if (threadIdx.x % LANES == 0) atomicMax(&bound, of_warp);
    __syncthreads();
    how.scale = scale_of(bound, spreads[tile.query], pair_bits(tile.n, DRAWN ? drawn : places.top)) * shrink_of(positions, tile.n);
    if (first == 0 && threadIdx.x == 0) scales[tile.number] = how.scale;
    u64* const own_sums = sums + 2 * tile.base;
    i64 sizes = 0;
#if DRAWN
    const Draws draws = {by_label, groups, ids, draw_keys[ended == nullptr ? 0 : *ended + 1]};
    const float worth = worths[tile.query];
    for (i32 k = 0; k < OWN; ++k) {
        const i32 row = static_cast<i32>(first) + k * PART_THREADS + static_cast<i32>(threadIdx.x);
        if (row < places.n)
            sizes += how.is_wide ? add_drawn_pairs<false, true>(places, how, draws, place + tile.base, begins[tile.query], row,
                                                                drawn, worth, own_sums)
                                 : add_drawn_pairs<false, false>(places, how, draws, place + tile.base, begins[tile.query], row,
                                                                 drawn, worth, own_sums);
    }
#else
    LaneRows<u64> own(LaneTiles(places.n, static_cast<i32>((first + threadIdx.x) / LANES), PART_BITS));
#pragma unroll
    for (i32 k = 0; k < OWN; ++k) own.rows[k] = places.seconds[within(own.tiles.place_of(k), places.n)];
    own.prepare(places, how);
    Place* const own_tile = staged + threadIdx.x / LANES * (2 * LANES);
    sizes = how.is_wide ? add_top_pairs<false, true>(places, how, own, own_sums, own_tile)
                        : add_top_pairs<false, false>(places, how, own, own_sums, own_tile);
#pragma unroll
    for (i32 k = 0; k < OWN; ++k) {
        const i32 own_place = own.tiles.place_of(k);
        if (own_place < 0 || own_place >= places.n) continue;
        add_to<false>(own_sums + 2 * own_place, static_cast<i64>(own.g[k]));
        add_to<false>(own_sums + 2 * own_place + 1, static_cast<i64>(own.h[k]));
    }
#endif
    sizes = sum_of_warp(sizes);
    if (threadIdx.x % LANES == 0) add_to<false>(&totals[tile.number], sizes);
}

// Costs of the pairs of `top`, of BY_POSITION only; arguments as of `add_pairs`. Blocks: one for each tile, whose number is
// also that of the positions that it has.
extern "C" __global__ void __launch_bounds__(THREADS, 1) add_costs(
    const Tile* __restrict__ tiles, const u64* __restrict__ keys, const Place* __restrict__ firsts,
    const Place* __restrict__ seconds, const double* __restrict__ spreads, const float* __restrict__ worths, i32 top,
    i32 is_by_score, const u32* __restrict__ place, const float* __restrict__ ratios, const double* __restrict__ shrink,
    i32 n_positions, u64* __restrict__ costs) {
    const Tile tile = tiles[blockIdx.x];
    const Ranking ranking(keys + tile.base, tile.n, is_by_score);
    if (spreads[tile.query] == 0 || !ranking.is_finite) return;
    const Places places = places_of(tile, keys, firsts, seconds, top, {ratios, shrink, n_positions, costs});
    const i32 first = static_cast<i32>(tile.first);
    add_top_costs(places, place + tile.base, worths[tile.query], ranking.by_score, first, first + TILE);
}

// Gradients of all rows of large queries.
extern "C" __global__ void __launch_bounds__(THREADS, 1) write_rows(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u32* __restrict__ order,
    const u64* __restrict__ keys, const double* __restrict__ spreads, const float* __restrict__ worths,
    const double* __restrict__ factors, double curvature, i32 drawn, i32 is_normalized, const u64* __restrict__ sums,
    const u64* __restrict__ totals, const float* __restrict__ scales, float* __restrict__ g, float* __restrict__ h) {
    const Tile tile = tiles[blockIdx.x];
    const bool is_finite = Ranking(keys + tile.base, tile.n, 0).is_finite, has_pairs = spreads[tile.query] != 0 && is_finite;
    double factor = 0;
    if (has_pairs) {
        const Rules rules = {static_cast<double>(worths[tile.query]) * static_cast<double>(reciprocal(scales[tile.number])),
                             factors[tile.query], drawn, is_normalized};
        factor = factor_of(rules, static_cast<i64>(totals[tile.number]));
    }
    const float of_g = static_cast<float>(factor), of_h = static_cast<float>(factor * curvature * 0.25);
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const i64 place = tile.base + tile.first + i;
        const u32 row = order[begins[tile.query] + static_cast<u32>(keys[place])];
        const float otherwise = is_finite ? 0.0f : not_a_number();
        g[row] = has_pairs ? static_cast<float>(static_cast<i64>(sums[2 * place])) * of_g : otherwise;
        h[row] = has_pairs ? static_cast<float>(static_cast<i64>(sums[2 * place + 1])) * of_h : otherwise;
    }
}
