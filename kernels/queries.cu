// Gradients of ranking losses by query: `daskboost/devices/cpu/queries.py`, operation by operation.
//
// A block has a query: it sorts the rows by score, and each lane keeps up to four rows in registers, with the sums of their
// pairs. The rows that these are paired with, 32 at a time, go round the lanes of a warp together with their own sums, so
// that each pair is computed once, and no two lanes add to one sum at a time. Pairs are what the kernel takes its time for:
// memory is read and written once a row. Those of several rows of a lane are computed side by side, without a branch.
//
// Of queries that are too large for a block, which `sort_queries.cu` has sorted, many blocks have the rows of one:
//
//   sum_shares    sums of tiles, for precisions      place_rows    sorted keys -> what pairs are computed from
//   add_pairs     pairs -> sums of rows              write_rows    sums -> gradients
//   add_costs     costs of pairs -> those of positions
//
// variants: WEIGHT=0,1,2 DRAWN=0,1 BY_POSITION=0,1
// budget: fill_queries registers=96+(WEIGHT==2)*(24+8*BY_POSITION) shared=32+(WEIGHT==2)*12*WARPS
// budget: sum_shares registers=64 shared=8*WARPS
// budget: place_rows registers=64+16*(WEIGHT==2) shared=(WEIGHT==2)*20*WARPS
// budget: add_pairs registers=128 shared=0
// budget: write_rows registers=64 shared=0
// budget: add_costs registers=96 shared=0
#include "hashing.cuh"
#include "logarithm.cuh"
#include "positions.cuh"
#include "pulls.cuh"
#include "ranking.cuh"

#ifndef DRAWN
#define DRAWN 0  // whether pairs are drawn, rather than those of the first rows with all others
#endif
#ifndef BY_POSITION
#define BY_POSITION 0  // whether pairs are divided by the chances of their positions, whose costs are added up
#endif
#define THREADS 512  // of a block that has a tile
#define WARPS (THREADS / 32)
#define BLOCK_THREADS 128               // most of a block that has a query
#define BLOCKS (WEIGHT == MAP ? 4 : 5)  // of an SM at least, which bounds registers: more warps hide more of what pairs wait for

constexpr i32 OWN = 4;               // rows of a lane
constexpr double LN_2 = 0.6931471805599453;

// What the gradients of a query depend on beside scores.
struct Rules {
    double scale;  // 0 where no pair adds anything
    double factor;
    i32 drawn;
    i32 is_normalized;
};

// What is known of a row by its place.
struct alignas(16) Place {
    float score, gain, odds;
    u32 position;
};

struct PlacedRow : Row {
    u32 position;  // of BY_POSITION only
};

// Rows of a query by their places, from the highest score to the lowest.
struct Places {
    const Place* by_place;
    const double* aboves;  // of MAP only
    const double* steps;
    Positions positions;  // of BY_POSITION only

    static __device__ __forceinline__ float score_of(u64 key) { return value_of(~static_cast<u32>(key >> 32)); }

    static __device__ __forceinline__ Place of(float gain, u64 key, u64 first_key) {
        return {score_of(key), gain, exp_of(score_of(key) - score_of(first_key)), static_cast<u32>(key)};
    }

    // Whether scores differ too much for odds, see `pull_of`.
    static __device__ __forceinline__ bool is_wide(const u64* keys, i64 n) {
        return !(score_of(keys[0]) - score_of(keys[n - 1]) <= MOST_RANGE);
    }

    __device__ __forceinline__ PlacedRow at(i32 place) const {
        PlacedRow row;
        const Place own = by_place[place];
        row.score = own.score, row.gain = own.gain, row.odds = own.odds;
        if (WEIGHT == MAP) row.above = aboves[place], row.below = row.above + steps[place];
        if (WEIGHT == NDCG) row.above = row.below = steps[place];
        if (BY_POSITION) row.position = own.position;
        return row;
    }
};

// What a pair counts, whatever its scores. `a_is_first` : whether its place is the higher one.
static __device__ __forceinline__ float weight_of(const Row& a, const Row& b, bool a_is_first, float worth) {
    float weight = worth;
    if (WEIGHT != NDCG && a.gain == b.gain) weight = 0.0f;
    if (WEIGHT != ONE) weight *= static_cast<float>(change_of(a, b, (a.gain > b.gain) == a_is_first));
    if (WEIGHT == NDCG) weight *= fabsf(a.gain - b.gain);
    return weight;
}

// `worth` : 0 where there is no pair.
template <bool IS_WIDE>
static __device__ __forceinline__ Pull pull_of(const Places& places, const PlacedRow& a, const PlacedRow& b,
                                               bool a_is_first, float worth, bool by_score) {
    float weight = weight_of(a, b, a_is_first, worth);
    if (BY_POSITION) {
        const bool a_is_high = a.gain > b.gain;
        const float ratio = places.positions.ratio(RELEVANT, a_is_high ? a.position : b.position)
                            * places.positions.ratio(IRRELEVANT, a_is_high ? b.position : a.position);
        if (ratio > 0) weight *= ratio;
    }
    return pull_of<IS_WIDE>(a, b, weight, by_score);
}

// What positions are judged by of a pair; `worth` is not scaled.
static __device__ __forceinline__ double pair_cost(const PlacedRow& a, const PlacedRow& b, bool a_is_first, float worth,
                                                   bool by_score) {
    const double weight = static_cast<double>(weight_of(a, b, a_is_first, worth));
    return weight * cost_of(a.score, b.score, (a.gain > b.gain) == a_is_first, by_score);
}

// Adds the costs of the pairs of the first `top` of `n` rows, of those at positions from `from` to `to`, to these.
static __device__ __forceinline__ void add_top_costs(const Places& places, const u32* place, i32 n, i32 top, float worth,
                                                     bool by_score, i32 from, i32 to) {
    const i32 n_positions = min(n, places.positions.n);
    for (i32 row = from + threadIdx.x; row < min(to, n_positions); row += blockDim.x) {
        const i32 a = place[row];
        const PlacedRow own = places.at(a);
        double relevant = 0, irrelevant = 0;
        for (i32 other = 0; other < n_positions; ++other) {
            const i32 b = place[other];
            if (a == b || min(a, b) >= top) continue;
            const PlacedRow row_b = places.at(b);
            if (own.gain == row_b.gain) continue;
            const double cost = pair_cost(own, row_b, a < b, worth, by_score);
            if (own.gain > row_b.gain)
                relevant += cost * static_cast<double>(places.positions.ratio(IRRELEVANT, other));
            else
                irrelevant += cost * static_cast<double>(places.positions.ratio(RELEVANT, other));
        }
        places.positions.add(RELEVANT, row, relevant);
        places.positions.add(IRRELEVANT, row, irrelevant);
    }
}

// What the lane before has.
static __device__ __forceinline__ Sums passed_on(Sums own) {
    const i32 next = (threadIdx.x + 1) % LANES;
    return {__shfl_sync(ALL_LANES, own.g, next), __shfl_sync(ALL_LANES, own.h, next)};
}

// Adds the size of a pair's slope if that is negative. Sums of sizes are those of slopes, which rows have anyway, and twice
// these.
static __device__ __forceinline__ void add_back(const Row& a, const Row& b, const Pull& pull, i64& back) {
    if (!(a.gain > b.gain)) back -= pull.slope;
}

// Adds the pairs of 32 rows from `first` on with each other, of which at least one is of the first `top`. Half a round has
// all: each lane's row meets those of the 16 lanes behind it, the last of them in half of the lanes.
template <bool SHARED, bool IS_WIDE>
static __device__ __forceinline__ i64 add_inner_pairs(const Places& places, i32 n, i32 top, float worth, bool by_score,
                                                      i32 first, u64* sums) {
    const i32 lane = threadIdx.x % LANES, b = first + lane;
    const PlacedRow own = places.at(min(b, n - 1));
    Sums of_b = {0, 0}, of_a = {0, 0};
    i64 back = 0;
#pragma unroll 1
    for (i32 turn = 1; turn <= LANES / 2; ++turn) {
        of_a = passed_on(of_a);
        const i32 a = first + (lane + turn) % LANES;
        const bool is_pair = min(a, b) < top && max(a, b) < n && (turn < LANES / 2 || lane < LANES / 2);
        const PlacedRow row = places.at(min(a, n - 1));
        const Pull pull = pull_of<IS_WIDE>(places, row, own, a < b, is_pair ? worth : 0.0f, by_score);
        add_pair(pull, of_a, of_b);
        add_back(row, own, pull, back);
    }
    add_sums<SHARED>(sums, b, of_b);
    add_sums<SHARED>(sums, first + (lane + LANES / 2) % LANES, of_a);
    return of_b.g + 2 * back;
}

// Where the rows of a lane are, in the warp's tiles of 32: the last tile comes first, so that those behind some place are the
// first ones.
struct LaneTiles {
    i32 tile, stride, count;  // the warp's first tile, how far they are apart, and how many have rows

    __device__ __forceinline__ LaneTiles(i32 n, i32 tile_, i32 stride_) : tile(tile_), stride(stride_) {
        const i32 n_tiles = (n + LANES - 1) / LANES;
        count = tile < n_tiles ? min((n_tiles - tile + stride - 1) / stride, OWN) : 0;
    }

    // Below 0 where there is no tile.
    __device__ __forceinline__ i32 place_of(i32 k) const {
        return k < count ? (tile + (count - 1 - k) * stride) * LANES + static_cast<i32>(threadIdx.x) % LANES : -1;
    }

    // Tiles behind another one; `has` : whether that is one of the warp's.
    __device__ __forceinline__ i32 behind(i32 other, bool& has) const {
        has = other >= tile && (other - tile) % stride == 0 && (other - tile) / stride < count;
        return other < tile ? count : max(count - 1 - (other - tile) / stride, 0);
    }
};

// Rows of a lane.
struct LaneRows {
    LaneTiles tiles;
    bool has_first;  // whether the lane has a row of the last tile; other tiles are full
    PlacedRow rows[OWN];
    Sums sums[OWN];

    __device__ __forceinline__ LaneRows(const Places& places, i32 n, const LaneTiles& tiles_) : tiles(tiles_) {
        has_first = tiles.place_of(0) < n;
#pragma unroll
        for (i32 k = 0; k < OWN; ++k) {
            const i32 place = tiles.place_of(k);
            rows[k] = places.at(place >= 0 && place < n ? place : 0);
            sums[k] = {0, 0};
        }
    }
};

// Adds the pairs of 32 rows from `first` on, as far as these are of the first `top`, with the rows of a lane's first `COUNT`
// tiles, which lie behind. Each of the 32 rows goes round all lanes, with what it gains there. Twice what `add_back` adds.
template <i32 COUNT, bool IS_WIDE>
static __device__ __forceinline__ i64 add_turns(const Places& places, i32 top, float worth, bool by_score, i32 first,
                                                LaneRows& own, Sums& of_first) {
    const i32 lane = threadIdx.x % LANES;
    i64 back = 0;
#pragma unroll 1
    for (i32 turn = 0; turn < LANES; ++turn) {
        const i32 a = first + (lane + turn) % LANES;
        const PlacedRow row = places.at(a);
        const float of_row = a < top ? worth : 0.0f, of_last = own.has_first ? of_row : 0.0f;
#pragma unroll
        for (i32 k = 0; k < COUNT; ++k) {
            const float of_pair = k == 0 ? of_last : of_row;
            const Pull pull = pull_of<IS_WIDE>(places, row, own.rows[k], true, of_pair, by_score);
            add_pair(pull, of_first, own.sums[k]);
            add_back(row, own.rows[k], pull, back);
        }
        of_first = passed_on(of_first);
    }
    return 2 * back;
}

// Adds the pairs of the first `top` of `n` rows with the rows of a lane: to these, and to `sums` of the first rows, (g, h)
// each, of which there is a multiple of 32. The sum of the sizes of their gradients, by this lane.
template <bool SHARED, bool IS_WIDE>
static __device__ __forceinline__ i64 add_top_pairs(const Places& places, i32 n, i32 top, float worth, bool by_score,
                                                    LaneRows& own, u64* sums) {
    i64 total = 0;
    top = min(top, n);
    for (i32 first = 0; first < top; first += LANES) {
        bool is_own;
        const i32 later = own.tiles.behind(first / LANES, is_own);
        if (is_own) total += add_inner_pairs<SHARED, IS_WIDE>(places, n, top, worth, by_score, first, sums);
        Sums of_first = {0, 0};
        switch (later) {
            case 1: total += add_turns<1, IS_WIDE>(places, top, worth, by_score, first, own, of_first); break;
            case 2: total += add_turns<2, IS_WIDE>(places, top, worth, by_score, first, own, of_first); break;
            case 3: total += add_turns<3, IS_WIDE>(places, top, worth, by_score, first, own, of_first); break;
            case 4: total += add_turns<4, IS_WIDE>(places, top, worth, by_score, first, own, of_first); break;
            default: continue;
        }
        add_sums<SHARED>(sums, first + static_cast<i32>(threadIdx.x) % LANES, of_first);
    }
#pragma unroll
    for (i32 k = 0; k < OWN; ++k) total += own.sums[k].g;
    return total;
}
static_assert(OWN == 4, "add_top_pairs has as many cases");

// How pairs are drawn: of rows by query, in the order of ids.
struct Draws {
    const u32* by_label;  // rows of the query from the highest label to the lowest, of equal ones in their order
    const u32* groups;    // where the rows of a row's label begin and end among them
    const u64* ids;
    u64 key;
};

// Adds the pairs drawn for the row `row`; `place` : of rows of the query. The sum of the sizes of their gradients.
template <bool SHARED, bool IS_WIDE>
static __device__ __forceinline__ i64 add_drawn_pairs(const Places& places, const Draws& draws, const u32* place, i32 n,
                                                      i64 begin, i32 row, i32 drawn, float worth, float own_worth,
                                                      bool by_score, u64* sums) {
    const u32 first = draws.groups[2 * (begin + row)], last = draws.groups[2 * (begin + row) + 1];
    const u64 others = static_cast<u64>(n) - (last - first);
    if (others == 0) return 0;
    const u64 own_key = draw(draws.key, draws.ids[begin + row]);
    const i32 a = place[row];
    const PlacedRow own = places.at(a);
    Sums of_a = {0, 0};
    i64 total = 0;
    for (i32 i = 0; i < drawn; ++i) {
        const u32 other = static_cast<u32>((draw(own_key, i) >> 32) * others >> 32);
        const u32 row_of_b = draws.by_label[begin + (other < first ? other : other + (last - first))];
        const i32 b = place[row_of_b];
        const PlacedRow row_b = places.at(b);
        const Pull pull = pull_of<IS_WIDE>(places, own, row_b, a < b, worth, by_score);
        Sums of_b = {0, 0};
        add_pair(pull, of_a, of_b);
        add_sums<SHARED>(sums, b, of_b);
        total += pull.slope < 0 ? -pull.slope : pull.slope;
        if (BY_POSITION && max(row, static_cast<i32>(row_of_b)) < places.positions.n) {
            const double cost = pair_cost(own, row_b, a < b, own_worth, by_score);
            const bool is_high = own.gain > row_b.gain;
            const u32 own_row = static_cast<u32>(row);
            const u32 high = is_high ? own_row : row_of_b, low = is_high ? row_of_b : own_row;
            const double of_high = places.positions.ratio(RELEVANT, high), of_low = places.positions.ratio(IRRELEVANT, low);
            places.positions.add(RELEVANT, high, cost * of_low);
            places.positions.add(IRRELEVANT, low, cost * of_high);
        }
    }
    add_sums<SHARED>(sums, a, of_a);
    return total;
}

// What sums of a query are multiplied by, after they are divided by its scale.
static __device__ __forceinline__ double factor_of(const Rules& rules, i64 total) {
    double norm = 1.0;
    const double sizes = 2.0 * (static_cast<double>(total) / rules.scale);
    if (rules.is_normalized && DRAWN) norm = 1.0 / rules.drawn;
    if (rules.is_normalized && !DRAWN && sizes > 0) norm = logarithm(1.0 + sizes) / LN_2 / sizes;
    return norm * rules.factor;
}

// What sums of a query are multiplied by beside its scale.
static __device__ __forceinline__ double shrink_of(const Positions& positions, i64 n) {
    return BY_POSITION ? positions.shrink[min(n, static_cast<i64>(positions.n))] : 1.0;
}

static __device__ __forceinline__ float without_scale(float worth, double scale) {
    return static_cast<float>(static_cast<double>(worth) / scale);
}

// `which` : queries that blocks have; `order` : places of rows among all, by query. `margins`, `g`, `h` : of all rows.
// `curvature` : what second derivatives are multiplied by.
// `keys` of draws, of which the round's is that after `ended`, or the first one where that is null; `by_label`, `groups`,
// `ids` : see Draws, of DRAWN only. Threads: 32 for each 128 rows of the largest of the queries, a power of two.
// Dynamic shared memory, by the least power of two from the number of its rows on: 24 bytes; 8 more for MAP; 20 more for
// DRAWN, else 16 bytes for each of its first `top` rows, of which there is a multiple of 32, and 4 more for BY_POSITION.
// `ratios` and what follows: see Positions, of BY_POSITION only.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS) fill_queries(
    const u32* __restrict__ which, const u32* __restrict__ order, const i64* __restrict__ begins,
    const float* __restrict__ gains, const double* __restrict__ steps, const double* __restrict__ scales,
    const float* __restrict__ worths, const double* __restrict__ factors, double curvature, i32 top, i32 drawn,
    i32 is_normalized, i32 is_by_score, const u32* __restrict__ by_label, const u32* __restrict__ groups, const u64* __restrict__ ids,
    const u64* __restrict__ draw_keys, const i32* __restrict__ ended, const float* __restrict__ ratios,
    const double* __restrict__ shrink, i32 n_positions, u64* __restrict__ costs, const float* __restrict__ margins,
    float* __restrict__ g, float* __restrict__ h) {
    DYNAMIC_SHARED(u64, keys);
    __shared__ u64 total;
    __shared__ double scale;  // as what follows, rather than in a register of each lane while pairs are added
    __shared__ i32 n_again;
#if WEIGHT == MAP
    __shared__ i64 of_shares[WARPS];
    __shared__ i32 of_relevant[WARPS];
#endif
    const u32 query = which[blockIdx.x], begin = static_cast<u32>(begins[query]);  // rows have numbers of 32 bits
    const i32 n = static_cast<i32>(begins[query + 1] - begin), size = power_from(n);
    const i32 n_sums = DRAWN ? size : (min(top, n) + LANES - 1) / LANES * LANES;
    u64* const sums = keys + size;
    double* const aboves = reinterpret_cast<double*>(sums + 2 * n_sums);
    Place* const by_place = reinterpret_cast<Place*>(aboves + (WEIGHT == MAP ? size : 0));
    for (i32 i = threadIdx.x; i < size; i += blockDim.x)
        keys[i] = i < n ? key_of_row(margins[order[begin + i]], i) : ~0ull;
    for (i32 i = threadIdx.x; i < 2 * n_sums; i += blockDim.x) sums[i] = 0;
    const Positions positions = {ratios, shrink, n_positions, costs};
    const double own_shrink = shrink_of(positions, n);
    if (threadIdx.x == 0) total = 0, scale = scales[query] * own_shrink, n_again = n;
    __syncthreads();
    sort_keys(keys, size);
    const bool is_finite = is_finite_key(keys[0]) && is_finite_key(keys[n - 1]);
    if (scale == 0 || !is_finite) {
        for (i32 i = threadIdx.x; i < n; i += blockDim.x)
            g[order[begin + i]] = h[order[begin + i]] = is_finite ? 0.0f : not_a_number();
        return;
    }
    for (i32 i = threadIdx.x; i < n; i += blockDim.x)
        by_place[i] = Places::of(gains[begin + static_cast<u32>(keys[i])], keys[i], keys[0]);
#if DRAWN || BY_POSITION
    u32* const place = reinterpret_cast<u32*>(by_place + size);
    for (i32 i = threadIdx.x; i < n; i += blockDim.x) place[static_cast<u32>(keys[i])] = i;
#endif
    __syncthreads();
#if WEIGHT == MAP
    const i32 from = stretch_begin(n, threadIdx.x), to = stretch_begin(n, threadIdx.x + 1);
    Shares own = {0, 0};
    for (i32 i = from; i < to; ++i) own.add(by_place[i].gain, steps[i]);
    own = shares_before(own, of_shares, of_relevant);
    for (i32 i = from; i < to; ++i) {
        own.add(by_place[i].gain, steps[i]);
        aboves[i] = own.above(steps[i]);
    }
    __syncthreads();
#endif
    const Places places = {by_place, aboves, steps, positions};
    const bool by_score = is_by_score && (keys[0] ^ keys[n - 1]) >> 32 != 0, is_wide = Places::is_wide(keys, n);
    const float worth = worths[query] * static_cast<float>(own_shrink);
#if DRAWN
    const Draws draws = {by_label, groups, ids, draw_keys[ended == nullptr ? 0 : *ended + 1]};
    i64 own_total = 0;
    for (i32 i = threadIdx.x; i < n; i += blockDim.x)
        own_total += is_wide ? add_drawn_pairs<true, true>(places, draws, place, n, begin, i, drawn, worth,
                                                           without_scale(worth, scale), by_score, sums)
                             : add_drawn_pairs<true, false>(places, draws, place, n, begin, i, drawn, worth,
                                                            without_scale(worth, scale), by_score, sums);
#else
#if BY_POSITION
    add_top_costs(places, place, n, top, without_scale(worth, scale), by_score, 0, n);
#endif
    LaneRows own_rows(places, n, LaneTiles(n, threadIdx.x / LANES, blockDim.x / LANES));
    const i64 own_total = is_wide ? add_top_pairs<true, true>(places, n, top, worth, by_score, own_rows, sums)
                                  : add_top_pairs<true, false>(places, n, top, worth, by_score, own_rows, sums);
#endif
    const i64 of_warp = sum_of_warp(own_total);
    if (threadIdx.x % LANES == 0) add_to<true>(&total, of_warp);
    __syncthreads();
    const double factor = factor_of({scale, factors[query], drawn, is_normalized}, static_cast<i64>(total));
#if DRAWN
    for (i32 i = threadIdx.x; i < n_again; i += blockDim.x) {
        const u32 row = order[begin + static_cast<u32>(keys[i])];
        g[row] = gradient_of(static_cast<i64>(sums[2 * i]), scale, factor);
        h[row] = gradient_of(static_cast<i64>(sums[2 * i + 1]), scale, factor * curvature);
    }
#else
    const LaneTiles tiles(n_again, threadIdx.x / LANES, blockDim.x / LANES);
#pragma unroll
    for (i32 k = 0; k < OWN; ++k) {
        const i32 i = tiles.place_of(k);
        if (i < 0 || i >= n_again) continue;
        Sums found = own_rows.sums[k];
        if (i < n_sums) found.g += static_cast<i64>(sums[2 * i]), found.h += static_cast<i64>(sums[2 * i + 1]);
        const u32 row = order[begin + static_cast<u32>(keys[i])];
        g[row] = gradient_of(found.g, scale, factor);
        h[row] = gradient_of(found.h, scale, factor * curvature);
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

#define PLACE_BLOCKS (1 + (WEIGHT != MAP))  // of a multiprocessor at least: with two, some would spill registers
// Gains by place, and zeros as sums; `aboves` and `of_tiles` of MAP only; `place` of each row, of DRAWN or BY_POSITION.
extern "C" __global__ void __launch_bounds__(THREADS, PLACE_BLOCKS) place_rows(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u64* __restrict__ keys,
    const float* __restrict__ gains, const double* __restrict__ steps, const i64* __restrict__ of_tiles,
    Place* __restrict__ by_place, double* __restrict__ aboves, u32* __restrict__ place, u64* __restrict__ sums,
    u64* __restrict__ totals) {
    const Tile tile = tiles[blockIdx.x];
    const i64 from = tile.base + tile.first;
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const u32 row = static_cast<u32>(keys[from + i]);
        by_place[from + i] = Places::of(gains[begins[tile.query] + row], keys[from + i], keys[tile.base]);
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
    for (i32 i = begin; i < end; ++i) own.add(by_place[from + i].gain, steps[tile.first + i]);
    const i32 n_before = static_cast<i32>(tile.first / TILE);
    Shares before = shares_before<THREADS>(own, of_tiles, blockIdx.x, n_before, storage, of_shares, of_relevant);
    for (i32 i = begin; i < end; ++i) {
        before.add(by_place[from + i].gain, steps[tile.first + i]);
        aboves[from + i] = before.above(steps[tile.first + i]);
    }
#endif
}

// What a large query's pairs go by, the same for all of its blocks.
struct Ranking {
    bool is_finite, by_score, is_wide;

    __device__ __forceinline__ Ranking(const u64* keys, i64 n, i32 is_by_score) {
        is_finite = is_finite_key(keys[0]) && is_finite_key(keys[n - 1]);
        by_score = is_by_score && (keys[0] ^ keys[n - 1]) >> 32 != 0;
        is_wide = Places::is_wide(keys, n);
    }
};

// Blocks: PARTS of them for each tile. `place` and what follows as of `place_rows` and `fill_queries`.
#define PART_THREADS 128
#define PARTS (TILE / (4 * PART_THREADS))
extern "C" __global__ void __launch_bounds__(PART_THREADS, 4) add_pairs(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u64* __restrict__ keys,
    const Place* __restrict__ by_place, const double* __restrict__ aboves, const double* __restrict__ steps,
    const double* __restrict__ scales, const float* __restrict__ worths, i32 top, i32 drawn, i32 is_by_score,
    const u32* __restrict__ place, const u32* __restrict__ by_label, const u32* __restrict__ groups,
    const u64* __restrict__ ids, const u64* __restrict__ draw_keys, const i32* __restrict__ ended,
    const float* __restrict__ ratios, const double* __restrict__ shrink, i32 n_positions, u64* __restrict__ costs,
    u64* __restrict__ sums, u64* __restrict__ totals) {
    const Tile tile = tiles[blockIdx.x / PARTS];
    const i64 first = tile.first + blockIdx.x % PARTS * (OWN * PART_THREADS);
    const Ranking ranking(keys + tile.base, tile.n, is_by_score);
    if (first >= tile.n || scales[tile.query] == 0 || !ranking.is_finite) return;
    const Positions positions = {ratios, shrink, n_positions, costs};
    const Places places = {by_place + tile.base, aboves + (WEIGHT == MAP ? tile.base : 0), steps, positions};
    const float worth = worths[tile.query] * static_cast<float>(shrink_of(positions, tile.n));
    const i32 n = static_cast<i32>(tile.n);
    u64* const own_sums = sums + 2 * tile.base;
    i64 total = 0;
#if DRAWN
    const Draws draws = {by_label, groups, ids, draw_keys[ended == nullptr ? 0 : *ended + 1]};
    const float own_worth = without_scale(worth, scales[tile.query] * shrink_of(positions, tile.n));
    for (i32 k = 0; k < OWN; ++k) {
        const i32 row = static_cast<i32>(first) + k * PART_THREADS + static_cast<i32>(threadIdx.x);
        if (row < n)
            total += ranking.is_wide
                         ? add_drawn_pairs<false, true>(places, draws, place + tile.base, n, begins[tile.query], row, drawn,
                                                        worth, own_worth, ranking.by_score, own_sums)
                         : add_drawn_pairs<false, false>(places, draws, place + tile.base, n, begins[tile.query], row, drawn,
                                                         worth, own_worth, ranking.by_score, own_sums);
    }
#else
    LaneRows own(places, n, LaneTiles(n, static_cast<i32>((first + threadIdx.x) / LANES), PART_THREADS / LANES));
    total = ranking.is_wide ? add_top_pairs<false, true>(places, n, top, worth, ranking.by_score, own, own_sums)
                            : add_top_pairs<false, false>(places, n, top, worth, ranking.by_score, own, own_sums);
#pragma unroll
    for (i32 k = 0; k < OWN; ++k)
        if (const i32 place_k = own.tiles.place_of(k); place_k >= 0 && place_k < n) add_sums<false>(own_sums, place_k, own.sums[k]);
#endif
    total = sum_of_warp(total);
    if (threadIdx.x % LANES == 0) add_to<false>(&totals[tile.number], total);
}

// Costs of the pairs of `top`, of BY_POSITION only; arguments as of `add_pairs`. Blocks: one for each tile, whose number is
// also that of the positions that it has.
extern "C" __global__ void __launch_bounds__(THREADS, 1) add_costs(
    const Tile* __restrict__ tiles, const u64* __restrict__ keys, const Place* __restrict__ by_place,
    const double* __restrict__ aboves, const double* __restrict__ steps, const double* __restrict__ scales,
    const float* __restrict__ worths, i32 top, i32 is_by_score, const u32* __restrict__ place,
    const float* __restrict__ ratios, const double* __restrict__ shrink, i32 n_positions, u64* __restrict__ costs) {
    const Tile tile = tiles[blockIdx.x];
    const Ranking ranking(keys + tile.base, tile.n, is_by_score);
    if (scales[tile.query] == 0 || !ranking.is_finite) return;
    const Places places = {by_place + tile.base, aboves + (WEIGHT == MAP ? tile.base : 0), steps,
                           {ratios, shrink, n_positions, costs}};
    const double own_shrink = shrink_of(places.positions, tile.n);
    const float worth = worths[tile.query] * static_cast<float>(own_shrink);
    const i32 first = static_cast<i32>(tile.first);
    add_top_costs(places, place + tile.base, static_cast<i32>(tile.n), top,
                  without_scale(worth, scales[tile.query] * own_shrink), ranking.by_score, first, first + TILE);
}

// Gradients of all rows of large queries.
extern "C" __global__ void __launch_bounds__(THREADS, 1) write_rows(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u32* __restrict__ order,
    const u64* __restrict__ keys, const double* __restrict__ scales, const double* __restrict__ factors, double curvature,
    i32 drawn, i32 is_normalized, const double* __restrict__ shrink, i32 n_positions, const u64* __restrict__ sums,
    const u64* __restrict__ totals, float* __restrict__ g, float* __restrict__ h) {
    const Tile tile = tiles[blockIdx.x];
    const double scale = scales[tile.query] * shrink_of({nullptr, shrink, n_positions, nullptr}, tile.n);
    const bool is_finite = Ranking(keys + tile.base, tile.n, 0).is_finite, has_pairs = scale != 0 && is_finite;
    const i64 total = static_cast<i64>(totals[tile.number]);
    const double factor = has_pairs ? factor_of({scale, factors[tile.query], drawn, is_normalized}, total) : 0;
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const i64 place = tile.base + tile.first + i;
        const u32 row = order[begins[tile.query] + static_cast<u32>(keys[place])];
        const float otherwise = is_finite ? 0.0f : not_a_number();
        g[row] = has_pairs ? gradient_of(static_cast<i64>(sums[2 * place]), scale, factor) : otherwise;
        h[row] = has_pairs ? gradient_of(static_cast<i64>(sums[2 * place + 1]), scale, factor * curvature) : otherwise;
    }
}
