// Gradients of YetiRank by query: `daskboost/devices/cpu/yetirank.py`, operation by operation.
//
// Pairs are neighbors in orders of noisy scores. A block has a query: for one order after the other it sorts the rows in
// shared memory, where each thread then adds the pairs of its places to sums of the rows. Of queries that are too large for
// a block, many blocks have the rows of one; for each order, with the launches of `sort_queries.cu` between the first two:
//
//   draw_scores   scores -> noisy scores              sum_tiles        sums of tiles, of what lies above places
//   look_down     these sums -> what pairs count      add_neighbors    pairs -> sums of rows
//
// and write_sums, sums -> gradients, at the end.
//
// variants: WEIGHT=1,2,3,4
// budget: fill_orders registers=96 shared=16+12*WARPS
// budget: draw_scores registers=64 shared=0
// budget: sum_tiles registers=64 shared=8*WARPS
// budget: look_down registers=64 shared=20*WARPS
// budget: add_neighbors registers=80 shared=0
// budget: write_sums registers=64 shared=0
#include "hashing.cuh"
#include "logarithm.cuh"
#include "pulls.cuh"
#include "ranking.cuh"

#define THREADS 512  // most of a block
#define WARPS (THREADS / 32)

constexpr bool LOOKS = WEIGHT != NDCG;                    // whether what a pair counts depends on the rows above
constexpr bool HAS_ABOVES = WEIGHT == MAP || WEIGHT == ERR;
constexpr double FADE = 0x1p-25;                          // unit of the sums of -log(1 - label)

// What is added to scores.
struct Noise {
    const u64* ids;  // of rows by query
    const u64* keys;
    const i32* ended;  // rounds that have ended before, less 1; null where the first key is the round's
    i32 is_gumbel;
    double power;

    __device__ __forceinline__ float add_to(float score, i64 row, i32 number) const {
        const u64 key = keys[ended == nullptr ? 0 : *ended + 1];
        const double u = (static_cast<double>(draw(draw(key, ids[row]), number) >> 32) + 0.5) * 0x1p-32;
        const double noise = is_gumbel ? -logarithm(-logarithm(u)) : logarithm(u / (1.0 - u));
        return static_cast<float>(static_cast<double>(score) + power * noise);
    }
};

// Rows of a query by their places in a noisy order.
struct Places {
    const u64* keys;
    const float* scores;  // without noise, by row; by place among all rows where there is an `order`
    const u32* order;     // null, or places of the query's rows among all
    const float* gains;   // by row
    const double* aboves;
    const double* steps;
    i32 first, second;    // places of the first relevant rows, of MRR

    __device__ __forceinline__ u32 row_at(i32 place) const { return static_cast<u32>(keys[place]); }

    __device__ __forceinline__ Row at(i32 place) const {
        const u32 own = row_at(place);
        Row row;
        row.score = scores[order == nullptr ? own : order[own]];
        row.gain = gains[own];
        row.above = row.below = WEIGHT == NDCG ? steps[place] : 0.0;
        if (HAS_ABOVES) row.above = aboves[place];
        if (WEIGHT == MAP) row.below = row.above + steps[place];
        if (WEIGHT == MRR) row.above = steps[min(place, second)], row.below = steps[min(place, first)];
        return row;
    }
};

// Adds the pairs of place `a` with those that follow it to `sums` of rows, (g, h) each.
template <bool SHARED>
static __device__ __forceinline__ void add_pairs_of(const Places& places, i32 n, i32 top, i32 neighbors, float worth, i32 a,
                                                    u64* sums) {
    if (a >= n || (top > 0 && a >= top)) return;
    const Row own = places.at(a);
    const double* const steps = places.steps;
    Sums of_a = {0, 0};
    double between = 0, looks = 1;  // expected reciprocal rank, and the chance to look on, of the places between both
    for (i32 b = a + 1; b < n && b - a <= neighbors; ++b) {
        const Row other = places.at(b);
        if (own.gain != other.gain) {
            const double change = WEIGHT == ERR ? own.above * (steps[a] - between - looks * steps[b])
                                                : change_of(own, other, own.gain > other.gain);
            const float weight = worth * static_cast<float>(change) * fabsf(own.gain - other.gain);
            Sums of_b = {0, 0};
            add_pair(pull_of(own, other, weight), of_a, of_b);
            add_sums<SHARED>(sums, places.row_at(b), of_b);
        }
        if (WEIGHT == ERR) {
            between += looks * static_cast<double>(other.gain) * steps[b];
            looks *= 1.0 - static_cast<double>(other.gain);
        }
    }
    add_sums<SHARED>(sums, places.row_at(a), of_a);
}

// Adds a row to what lies above the places below it; `fade` : of ERR only.
static __device__ __forceinline__ void add_row(Shares& shares, float gain, double step, const u32* fades, i64 row) {
    if (WEIGHT == ERR) shares.shares += fades[row];
    else shares.add(gain, step);
}

// Writes what a place counts by what lies above it, and adds its row. `firsts` : of the query.
static __device__ __forceinline__ void look_at(Shares& before, float gain, double step, const u32* fades, i64 row, i32 place,
                                               double* above, i32* firsts) {
    if (WEIGHT == ERR) *above = static_cast<double>(exp_of(static_cast<float>(-(static_cast<double>(before.shares) * FADE))));
    add_row(before, gain, step, fades, row);
    if (WEIGHT == MAP) *above = before.above(step);
    if (WEIGHT == MRR && gain > 0 && before.relevant <= 2) firsts[before.relevant - 1] = place;
}

// `which` : queries that blocks have; `order` : places of rows among all, by query. `margins`, `g`, `h` : of all rows.
// `drawn` : orders; `fades` : -log(1 - label) of rows by query, in units, of ERR only; `ids` and what follows: see Noise.
// Threads: 32 for each 128 rows of the largest of the queries, a power of two. Dynamic shared memory, by the least power of
// two from the number of its rows on: 32 bytes; 8 more for MAP and ERR.
extern "C" __global__ void __launch_bounds__(THREADS, 1) fill_orders(
    const u32* __restrict__ which, const u32* __restrict__ order, const i64* __restrict__ begins,
    const float* __restrict__ gains, const double* __restrict__ steps, const double* __restrict__ scales,
    const float* __restrict__ worths, const double* __restrict__ factors, const u32* __restrict__ fades, i32 top, i32 drawn,
    i32 neighbors, const u64* __restrict__ ids, const u64* __restrict__ draw_keys, const i32* __restrict__ ended,
    i32 is_gumbel, double power, const float* __restrict__ margins, float* __restrict__ g, float* __restrict__ h) {
    DYNAMIC_SHARED(u64, keys);
    __shared__ i64 of_shares[WARPS];
    __shared__ i32 of_relevant[WARPS];
    __shared__ i32 firsts[2];
    const i64 query = which[blockIdx.x], begin = begins[query];
    const i32 n = static_cast<i32>(begins[query + 1] - begin), size = power_from(n);
    const Noise noise = {ids, draw_keys, ended, is_gumbel, power};
    u64* const sums = keys + size;
    double* const aboves = reinterpret_cast<double*>(sums + 2 * size);
    float* const scores = reinterpret_cast<float*>(aboves + (HAS_ABOVES ? size : 0));
    float* const own_gains = scores + size;
    for (i32 i = threadIdx.x; i < n; i += blockDim.x) {
        scores[i] = margins[order[begin + i]], own_gains[i] = gains[begin + i];
        sums[2 * i] = sums[2 * i + 1] = 0;
    }
    const double scale = scales[query];
    for (i32 number = 0; number < drawn; ++number) {
        for (i32 i = threadIdx.x; i < size; i += blockDim.x)
            keys[i] = i < n ? key_of_row(noise.add_to(scores[i], begin + i, number), i) : ~0ull;
        if (threadIdx.x == 0) firsts[0] = firsts[1] = n;
        __syncthreads();
        sort_keys(keys, size);
        const bool is_finite = is_finite_key(keys[0]) && is_finite_key(keys[n - 1]);
        if (scale == 0 || !is_finite) {
            for (i32 i = threadIdx.x; i < n; i += blockDim.x)
                g[order[begin + i]] = h[order[begin + i]] = is_finite ? 0.0f : not_a_number();
            return;
        }
        if (LOOKS) {
            const i32 from = stretch_begin(n, threadIdx.x), to = stretch_begin(n, threadIdx.x + 1);
            Shares own = {0, 0};
            for (i32 i = from; i < to; ++i) {
                const u32 row = static_cast<u32>(keys[i]);
                add_row(own, own_gains[row], steps[i], fades, begin + row);
            }
            own = shares_before(own, of_shares, of_relevant);
            for (i32 i = from; i < to; ++i) {
                const u32 row = static_cast<u32>(keys[i]);
                look_at(own, own_gains[row], steps[i], fades, begin + row, i, aboves + i, firsts);
            }
            __syncthreads();
        }
        const Places places = {keys, scores, nullptr, own_gains, aboves, steps, firsts[0], firsts[1]};
        for (i32 i = threadIdx.x; i < n; i += blockDim.x)
            add_pairs_of<true>(places, n, top, neighbors, worths[query], i, sums);
        __syncthreads();
    }
    const double factor = 1.0 / drawn * factors[query];
    for (i32 i = threadIdx.x; i < n; i += blockDim.x) {
        const u32 row = order[begin + i];
        g[row] = gradient_of(static_cast<i64>(sums[2 * i]), scale, factor);
        h[row] = gradient_of(static_cast<i64>(sums[2 * i + 1]), scale, factor);
    }
}

// Queries that are too large for a block. `tiles` : see Tile of ranking.cuh; a block has one of them. `keys`, `aboves`,
// `sums` : those of a query from a multiple of 32 on. `firsts` : places of each large query's first two relevant rows.

// `noisy` : of all rows. Sums become 0 before the first order.
extern "C" __global__ void __launch_bounds__(THREADS, 2) draw_scores(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u32* __restrict__ order,
    const u64* __restrict__ ids, const u64* __restrict__ draw_keys, const i32* __restrict__ ended, i32 is_gumbel,
    double power, const float* __restrict__ margins, i32 number, float* __restrict__ noisy, u64* __restrict__ sums,
    i32* __restrict__ firsts) {
    const Tile tile = tiles[blockIdx.x];
    const Noise noise = {ids, draw_keys, ended, is_gumbel, power};
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const i64 row = begins[tile.query] + tile.first + i, place = tile.base + tile.first + i;
        noisy[order[row]] = noise.add_to(margins[order[row]], row, number);
        if (number == 0) sums[2 * place] = sums[2 * place + 1] = 0;
    }
    if (WEIGHT == MRR && tile.first == 0 && threadIdx.x < 2) firsts[2 * tile.number + threadIdx.x] = static_cast<i32>(tile.n);
}

// Sums over the rows of each tile; `of_tiles` : shape (tiles, 2).
extern "C" __global__ void __launch_bounds__(THREADS) sum_tiles(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u64* __restrict__ keys,
    const float* __restrict__ gains, const double* __restrict__ steps, const u32* __restrict__ fades,
    i64* __restrict__ of_tiles) {
    __shared__ i64 storage[WARPS];
    const Tile tile = tiles[blockIdx.x];
    Shares own = {0, 0};
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const i64 row = begins[tile.query] + static_cast<u32>(keys[tile.base + tile.first + i]);
        add_row(own, gains[row], steps[tile.first + i], fades, row);
    }
    write_shares<THREADS>(own, of_tiles, blockIdx.x, storage);
}

extern "C" __global__ void __launch_bounds__(THREADS) look_down(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u64* __restrict__ keys,
    const float* __restrict__ gains, const double* __restrict__ steps, const u32* __restrict__ fades,
    const i64* __restrict__ of_tiles, double* __restrict__ aboves, i32* __restrict__ firsts) {
    __shared__ i64 of_shares[WARPS];
    __shared__ i64 storage[WARPS];
    __shared__ i32 of_relevant[WARPS];
    const Tile tile = tiles[blockIdx.x];
    const i64 first = tile.base + tile.first, begin = begins[tile.query];
    const i32 from = stretch_begin(tile.size(), threadIdx.x), to = stretch_begin(tile.size(), threadIdx.x + 1);
    Shares own = {0, 0};
    for (i32 i = from; i < to; ++i) {
        const i64 row = begin + static_cast<u32>(keys[first + i]);
        add_row(own, gains[row], steps[tile.first + i], fades, row);
    }
    const i32 n_before = static_cast<i32>(tile.first / TILE);
    own = shares_before<THREADS>(own, of_tiles, blockIdx.x, n_before, storage, of_shares, of_relevant);
    for (i32 i = from; i < to; ++i) {
        const i64 row = begin + static_cast<u32>(keys[first + i]);
        look_at(own, gains[row], steps[tile.first + i], fades, row, static_cast<i32>(tile.first + i), aboves + first + i,
                firsts + 2 * tile.number);
    }
}

static __device__ __forceinline__ bool is_finite_query(const Tile& tile, const u64* keys) {
    return is_finite_key(keys[tile.base]) && is_finite_key(keys[tile.base + tile.n - 1]);
}

extern "C" __global__ void __launch_bounds__(THREADS) add_neighbors(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u32* __restrict__ order,
    const u64* __restrict__ keys, const float* __restrict__ gains, const double* __restrict__ steps,
    const double* __restrict__ scales, const float* __restrict__ worths, const double* __restrict__ aboves,
    const i32* __restrict__ firsts, i32 top, i32 neighbors, const float* __restrict__ margins, u64* __restrict__ sums) {
    const Tile tile = tiles[blockIdx.x];
    if (scales[tile.query] == 0 || !is_finite_query(tile, keys)) return;
    const i64 begin = begins[tile.query];
    const Places places = {
        keys + tile.base, margins, order + begin, gains + begin, aboves + (HAS_ABOVES ? tile.base : 0), steps,
        WEIGHT == MRR ? firsts[2 * tile.number] : 0, WEIGHT == MRR ? firsts[2 * tile.number + 1] : 0};
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS)
        add_pairs_of<false>(places, static_cast<i32>(tile.n), top, neighbors, worths[tile.query],
                            static_cast<i32>(tile.first) + i, sums + 2 * tile.base);
}

extern "C" __global__ void __launch_bounds__(THREADS) write_sums(
    const Tile* __restrict__ tiles, const i64* __restrict__ begins, const u32* __restrict__ order,
    const u64* __restrict__ keys, const double* __restrict__ scales, const double* __restrict__ factors, i32 drawn,
    const u64* __restrict__ sums, float* __restrict__ g, float* __restrict__ h) {
    const Tile tile = tiles[blockIdx.x];
    const double scale = scales[tile.query], factor = 1.0 / drawn * factors[tile.query];
    const bool is_finite = is_finite_query(tile, keys), has_pairs = scale != 0 && is_finite;
    for (i32 i = threadIdx.x; i < tile.size(); i += THREADS) {
        const i64 place = tile.base + tile.first + i;
        const u32 row = order[begins[tile.query] + tile.first + i];
        const float otherwise = is_finite ? 0.0f : not_a_number();
        g[row] = has_pairs ? gradient_of(static_cast<i64>(sums[2 * place]), scale, factor) : otherwise;
        h[row] = has_pairs ? gradient_of(static_cast<i64>(sums[2 * place + 1]), scale, factor) : otherwise;
    }
}
