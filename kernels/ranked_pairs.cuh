// Pairs of rows of a query by their places in the order of scores: `daskboost/devices/cpu/queries.py`, operation by operation.
//
// The row of the higher place is the first one of a pair. With `odds` of the second one against it, the chance of their order
// is 1 / (1 + odds), so that one reciprocal serves the gradient, the second derivative and what a pair is divided by for the
// difference of its scores. Adding a shift rounds products to whole numbers, which then are the low bits of float32: sums of
// words of 32 bits, from which those of the shifts are taken away at the end. The query's scale, of a bound of its pairs, sees
// to it that no pair adds more than that has room for.
//
// Positions multiply pairs by numbers that differ 2**26 times. There sums are of 64 bits, and numbers are converted.
#pragma once

#include "positions.cuh"

#ifndef BY_POSITION
#define BY_POSITION 0  // whether pairs are divided by the chances of their positions, whose costs are added up
#endif

constexpr float MOST_RANGE = 32;
constexpr float SHARE_SLACK = 0x1p-18f;
constexpr i32 OWN = 4;  // rows of a lane

#if BY_POSITION
using Word = u64;
constexpr Word SLOPE_SHIFT = 0, CURVE_SHIFT = 0;
static __device__ __forceinline__ i64 signed_of(u64 word) { return static_cast<i64>(word); }
#else
using Word = u32;
constexpr Word SLOPE_SHIFT = 0x4B400000u, CURVE_SHIFT = 0x4A000000u;  // bits of 1.5 * 2**23, and of 2**21
static __device__ __forceinline__ i64 signed_of(u32 word) { return static_cast<i32>(word); }
#endif

// What is known of a row by its place. As the first row of pairs or as the second one, which tables keep apart:
struct alignas(16) Place {
    float score, gain;
    float odds;    // exp of the highest score less its own; of second ones, of its score less the highest; 1 if scores are wide
    float change;  // what the place counts, where pairs differ by that
};

// How the pairs of a query are computed.
struct How {
    float scale;  // power of two that what pairs add is multiplied by
    bool by_score, is_wide;

    // A place as pairs see it.
    __device__ __forceinline__ Place of(Place place) const {
        if (WEIGHT != ONE) place.gain *= scale;
        if (!by_score && !is_wide) place.score = 0;
        return place;
    }

    // A first row, or a second one, that adds nothing to any pair: its odds are 0, and more gain is that of the first.
    __device__ __forceinline__ Place no_first(Place place) const {
        place.odds = 0, place.gain = WEIGHT == ONE ? 3e38f : 2 * scale;
        return place;
    }

    __device__ __forceinline__ Place no_second(Place place) const {
        place.odds = 0, place.gain = WEIGHT == ONE ? -3e38f : -scale;
        return place;
    }
};

// Rows of a query by their places, from the highest score to the lowest.
struct Places {
    const Place* firsts;
    const Place* seconds;
    const u32* rows;  // numbers of rows in the query, `stride` apart, of BY_POSITION only
    i32 stride, n;
    i32 top;  // rows that are first ones of pairs
    Positions positions;  // of BY_POSITION only

    __device__ __forceinline__ Place first(i32 place, const How& how) const {
        const Place found = how.of(firsts[min(place, n - 1)]);
        return place < top ? found : how.no_first(found);
    }

    __device__ __forceinline__ Place second(i32 place, const How& how) const {
        const Place found = how.of(seconds[min(place, n - 1)]);
        return place < n ? found : how.no_second(found);
    }

    // A place that there is not has a position of which no chance is known.
    __device__ __forceinline__ u32 position(i32 place, i32 end) const {
        return BY_POSITION && place >= 0 && place < end ? rows[static_cast<i64>(place) * stride] : ~0u;
    }

    // What a pair is multiplied by, unless that is 0.
    __device__ __forceinline__ float ratio(u32 first, u32 second, bool first_is_high) const {
        return BY_POSITION ? positions.ratio(RELEVANT, first_is_high ? first : second)
                                 * positions.ratio(IRRELEVANT, first_is_high ? second : first)
                           : 0.0f;
    }
};

// What a pair of places counts, gains aside.
static __device__ __forceinline__ float change_of(const Place& first, const Place& second) {
    return WEIGHT == ONE ? 1.0f : first.change - second.change;
}

// What a pair adds, with the shifts: to the second row `slope`, which the first one loses, and to both `curve`.
struct Pulled {
    Word slope, curve;
    bool first_is_high;  // whether the first row has more gain
};

// `change` : by that of both places what a pair counts is multiplied; 1 where pairs do not differ by them. `is_turned` : whether
// the slope is that of the first row.

template <bool IS_WIDE>
static __device__ __forceinline__ Pulled pulled(const Places& places, const How& how, float gain_a, float gain_b, float change,
                                                float difference, float odds, u32 position_a, u32 position_b,
                                                bool is_turned = false) {
    if (IS_WIDE) {
        if (difference > 1e30f) difference = 1e30f;
        odds *= exp_of(-difference);
    }
    float unit = difference + (IS_WIDE || how.by_score ? 0.01f : 1.0f);
    if (IS_WIDE && !how.by_score) unit = 1.0f;
    const float scaled = odds * unit, share = reciprocal(unit + scaled);
    const bool is_high = gain_a > gain_b;
    float weight = WEIGHT != ONE ? fabsf(gain_a - gain_b) * change : gain_a == gain_b ? 0.0f : how.scale * change;
    if (BY_POSITION)
        if (const float ratio = places.ratio(position_a, position_b, is_high); ratio > 0) weight *= ratio;
    weight *= share;
    float pull = is_high ? odds : -1.0f;
    if (is_turned) pull = -pull;
    const float bend = scaled * share;
#if BY_POSITION
    return {static_cast<u64>(__float2ll_rn(weight * pull)), static_cast<u64>(__float2ll_rn(weight * bend * 4.0f)), is_high};
#else
    return {shifted_product(weight, pull, 12582912.0f), shifted_product(weight, bend, 2097152.0f), is_high};
#endif
}

// Sums of g and h.
struct Added {
    Word g, h;
};

// What the lane before has.
static __device__ __forceinline__ Added passed_on(Added own) {
    const i32 next = threadIdx.x + 1;  // modulo the warp's lanes
    return {__shfl_sync(ALL_LANES, own.g, next), __shfl_sync(ALL_LANES, own.h, next)};
}

// Adds to the sums of a place, (g, h) each: a block's of 32 bits where pairs have such, in shared memory.
template <class T, bool SHARED>
static __device__ __forceinline__ void add_added(T* sums, i32 place, const Added& own) {
    if constexpr (sizeof(T) == sizeof(u32)) {
        atomicAdd(sums + 2 * place, static_cast<u32>(own.g));
        atomicAdd(sums + 2 * place + 1, static_cast<u32>(own.h));
    } else {
        add_to<SHARED>(sums + 2 * place, signed_of(own.g));
        add_to<SHARED>(sums + 2 * place + 1, static_cast<i64>(own.h));
    }
}

// The slope of a pair if that is below 0, with the shift. Sums of sizes are those of slopes less twice these.
static __device__ __forceinline__ Word negative_of(Word slope) {
    return BY_POSITION ? (signed_of(slope) < 0 ? slope : 0) : min(slope, SLOPE_SHIFT);
}

// Adds the pairs of the 32 rows from `begin` on with each other. Half a round has all: each lane's row meets those of the 16
// lanes behind it, the last of them in half of the lanes. `firsts` : these rows as pairs see them, twice. The sum of the sizes
// of their gradients.
template <class T, bool SHARED, bool IS_WIDE>
static __device__ __forceinline__ i64 add_inner_pairs(const Places& places, const How& how, const Place* firsts, i32 begin,
                                                      T* sums) {
    constexpr i32 TURNS = LANES / 2;
    const i32 lane = threadIdx.x % LANES, place = begin + lane;
    const Place* const own_firsts = firsts + lane;
    const Place as_first = *own_firsts, as_second = places.seconds[min(place, places.n - 1)];
    const u32 own_position = places.position(place, places.n);
    // The turns up to which there are pairs with rows of lower places, and of higher ones.
    const i32 most = lane < TURNS ? TURNS + 1 : TURNS;
    const i32 lower = place < places.top ? min(most, places.n - place) : 0;
    const i32 higher = place < places.n ? min(most, places.top - begin + LANES - lane) : 0;
    Added of_own = {0, 0}, of_other = {0, 0};
    Word negative = 0;
#pragma unroll(BY_POSITION || IS_WIDE ? 1 : 2)
    for (i32 turn = 1; turn <= TURNS; ++turn) {
        of_other = passed_on(of_other);
        const i32 other = lane + turn;  // modulo the warp's lanes
        const bool is_first = other < LANES, is_pair = turn < (is_first ? lower : higher);
        const Place first = own_firsts[turn];
        const float second_odds = __shfl_sync(ALL_LANES, as_second.odds, other);
        const u32 position = BY_POSITION ? __shfl_sync(ALL_LANES, own_position, other) : 0;
        float change = WEIGHT == NDCG ? fabsf(as_first.change - first.change) : 1.0f;
        if (WEIGHT == MAP) {
            const float second_change = __shfl_sync(ALL_LANES, as_second.change, other);
            change = is_first ? as_first.change - second_change : first.change - as_second.change;
        }
        const Pulled pair = pulled<IS_WIDE>(
            places, how, is_first ? as_first.gain : first.gain, is_first ? first.gain : as_first.gain, is_pair ? change : 0.0f,
            fabsf(as_first.score - first.score), is_first ? as_first.odds * second_odds : first.odds * as_second.odds,
            is_first ? own_position : position, is_first ? position : own_position, is_first);
        const Word slope = pair.slope;
        of_own.g += slope, of_other.g -= slope;
        of_own.h += pair.curve, of_other.h += pair.curve;
        negative += negative_of(slope);
    }
    of_own.g -= TURNS * SLOPE_SHIFT, of_other.g += TURNS * SLOPE_SHIFT;
    of_own.h -= TURNS * CURVE_SHIFT, of_other.h -= TURNS * CURVE_SHIFT;
    add_added<T, SHARED>(sums, place, of_own);
    add_added<T, SHARED>(sums, begin + (lane + TURNS) % LANES, of_other);
    return signed_of(of_own.g) - 2 * signed_of(negative - TURNS * SLOPE_SHIFT);
}

// Where the rows of a lane are, in the warp's tiles of 32: the last tile comes first, so that those behind some place are the
// first ones.
struct LaneTiles {
    i32 tile, bits, count;  // the warp's first tile, 2**bits tiles from one to the next, and how many have rows

    __device__ __forceinline__ LaneTiles(i32 n, i32 tile_, i32 bits_) : tile(tile_), bits(bits_) {
        const i32 n_tiles = (n + LANES - 1) / LANES;
        count = tile < n_tiles ? min(((n_tiles - tile - 1) >> bits) + 1, OWN) : 0;
    }

    // Below 0 where there is no tile.
    __device__ __forceinline__ i32 place_of(i32 k) const {
        return k < count ? (tile + ((count - 1 - k) << bits)) * LANES + static_cast<i32>(threadIdx.x % LANES) : -1;
    }

    // Tiles behind another one; `has` : whether that is one of the warp's.
    __device__ __forceinline__ i32 behind(i32 other, bool& has) const {
        const i32 number = (other - tile) >> bits;  // -1 or less before the first one
        has = other >= tile && (number << bits) == other - tile && number < count;
        return other < tile ? count : max(count - 1 - number, 0);
    }
};

// A row of a query for any place, also for those that there are not.
static __device__ __forceinline__ i32 within(i32 place, i32 n) { return min(max(place, 0), n - 1); }

// Rows of a lane as second ones of pairs, and their sums.
template <class T>
struct LaneRows {
    LaneTiles tiles;
    Place rows[OWN];
    u32 positions[OWN];  // of BY_POSITION only
    T g[OWN], h[OWN];

    __device__ __forceinline__ LaneRows(const LaneTiles& tiles_) : tiles(tiles_) {}

    // Makes of rows what pairs see of them. Tiles but for the last one are full.
    __device__ __forceinline__ void prepare(const Places& places, const How& how) {
#pragma unroll
        for (i32 k = 0; k < OWN; ++k) {
            rows[k] = how.of(rows[k]);
            positions[k] = BY_POSITION ? places.position(tiles.place_of(k), places.n) : 0;
            g[k] = h[k] = 0;
        }
        if (tiles.place_of(0) >= places.n) rows[0] = how.no_second(rows[0]);
    }
};

// Adds the pairs of 32 rows from `begin` on with the rows of a lane's first `COUNT` tiles, which lie behind. Each of the 32
// rows goes round all lanes, with what it gains there. `firsts` : of `Places::first`, twice. The sum of the sizes of
// gradients.
template <i32 COUNT, bool IS_WIDE, class T>
static __device__ __forceinline__ i64 add_turns(const Places& places, const How& how, const Place* firsts, i32 begin,
                                                LaneRows<T>& own, Added& of_first) {
    const i32 lane = threadIdx.x % LANES;
    const Place* const own_firsts = firsts + lane;
    Added of_own[COUNT];
#pragma unroll
    for (i32 k = 0; k < COUNT; ++k) of_own[k] = {0, 0};
    of_first = {0, 0};
    Word negative = 0;
#pragma unroll(BY_POSITION || IS_WIDE ? 1 : 2)
    for (i32 turn = 0; turn < LANES; ++turn) {
        const Place first = own_firsts[turn];
        const u32 position = places.position(begin + (lane + turn) % LANES, places.top);
#pragma unroll
        for (i32 k = 0; k < COUNT; ++k) {
            const Place& second = own.rows[k];
            const Pulled pair = pulled<IS_WIDE>(places, how, first.gain, second.gain, change_of(first, second),
                                                first.score - second.score, first.odds * second.odds, position,
                                                own.positions[k]);
            of_own[k].g += pair.slope, of_own[k].h += pair.curve;
            of_first.g -= pair.slope, of_first.h += pair.curve;
            negative += negative_of(pair.slope);
        }
        of_first = passed_on(of_first);
    }
    constexpr Word TURNS = LANES;
    of_first.g += TURNS * COUNT * SLOPE_SHIFT, of_first.h -= TURNS * COUNT * CURVE_SHIFT;
    i64 sizes = -2 * signed_of(negative - TURNS * COUNT * SLOPE_SHIFT);
#pragma unroll
    for (i32 k = 0; k < COUNT; ++k) {
        const i64 slopes = signed_of(of_own[k].g - TURNS * SLOPE_SHIFT);
        own.g[k] += static_cast<T>(slopes), own.h[k] += of_own[k].h - TURNS * CURVE_SHIFT;
        sizes += slopes;
    }
    return sizes;
}

// Adds the pairs of the first `top` of a query's rows with the rows of a lane: to these, and to `sums` of the first rows,
// (g, h) each, of which there is a multiple of 32. `tile` : of the warp, for 32 rows twice. The sum of the sizes of gradients, by lane.
template <bool SHARED, bool IS_WIDE, class T>
static __device__ __forceinline__ i64 add_top_pairs(const Places& places, const How& how, LaneRows<T>& own, T* sums,
                                                    Place* tile) {
    i64 sizes = 0;
    const i32 lane = threadIdx.x % LANES;
    for (i32 begin = 0; begin < places.top; begin += LANES) {
        bool is_own;
        const i32 later = own.tiles.behind(begin / LANES, is_own);
        if (!is_own && later == 0) continue;
        const Place own_first = how.of(places.firsts[min(begin + lane, places.n - 1)]);
        __syncwarp();
        tile[lane] = tile[lane + LANES] = own_first;
        __syncwarp();
        if (is_own) sizes += add_inner_pairs<T, SHARED, IS_WIDE>(places, how, tile, begin, sums);
        if (later == 0) continue;
        if (begin + LANES > places.top) {
            __syncwarp();
            if (begin + lane >= places.top) tile[lane] = tile[lane + LANES] = how.no_first(own_first);
            __syncwarp();
        }
        Added of_first;
        switch (later) {
            case 1: sizes += add_turns<1, IS_WIDE>(places, how, tile, begin, own, of_first); break;
            case 2: sizes += add_turns<2, IS_WIDE>(places, how, tile, begin, own, of_first); break;
            case 3: sizes += add_turns<3, IS_WIDE>(places, how, tile, begin, own, of_first); break;
            case 4: sizes += add_turns<4, IS_WIDE>(places, how, tile, begin, own, of_first); break;
            default: continue;
        }
        add_added<T, SHARED>(sums, begin + lane, of_first);
    }
    return sizes;
}
static_assert(OWN == 4, "add_top_pairs has as many cases");

// A bound of what pairs of the first rows `from`, `from` + `stride` and so on count, gains aside, as the bits of a number from
// 0 on.
//
// The pairs of a row with those 2**j to 2**(j + 1) places below have at least the difference in scores of the nearest of
// these, and at most the difference in places of the last. The chance of the other order that goes with a difference, divided
// by it, is the less the larger that is.
static __device__ __forceinline__ u32 bound_of(const Places& places, const How& how, const double* steps, u32 from, u32 stride) {
    const u32 n = static_cast<u32>(places.n), top = static_cast<u32>(places.top);
    float bound = 0;
    for (u32 a = from; a < top; a += stride) {
        const Place own = places.firsts[a];
        const Place* const below = places.seconds + a;
        Place near = below[1 < n - a ? 1 : 0];
#pragma unroll(BY_POSITION || DRAWN ? 1 : 7)
        for (u32 step = 1; step < n - a; step *= 2) {
            const u32 last = min(2 * step, n - 1 - a);
            const Place lowest = below[last];
            float difference = own.score - near.score;
            near = lowest;
            if (how.is_wide && difference > 1e30f) difference = 1e30f;
            float change = 1.0f, chance = how.by_score ? 0.25f * difference + 0.5f : 1.0f;
            if (WEIGHT == NDCG) change = own.change - lowest.change;
            if (WEIGHT == MAP) {
                const float least = lowest.change - (lowest.gain > 0 ? static_cast<float>(steps[a + last]) : 0.0f);
                change = own.change - least + SHARE_SLACK;
            }
            if (chance > 1.0f) chance = 1.0f;
            const float unit = how.by_score ? difference + 0.01f : 1.0f, found = change * chance * reciprocal(unit);
            if (found > bound) bound = found;
        }
    }
    return __float_as_uint(bound);
}

// Bits of what a pair of a query of `n` rows adds, at most; each row begins `each` pairs.
static __device__ __forceinline__ i32 pair_bits(i64 n, i64 each) {
    return BY_POSITION ? min(48, 60 - (64 - __clzll(n * each))) : 22;
}

// The largest power of two that what pairs add may be multiplied by to have at most so many bits. `bound` : of `bound_of`;
// `spread` : by how much gains differ at most.
static __device__ __forceinline__ float scale_of(u32 bound, double spread, i32 n_bits) {
    const float most = __uint_as_float(bound) * static_cast<float>(spread) * 1.001f;
    const i32 exponent = max(static_cast<i32>(__float_as_uint(most) >> 23) - 126, -64);
    return __uint_as_float(static_cast<u32>(n_bits - exponent + 127) << 23);
}

// What a pair counts of the costs of positions, but for its scores.
static __device__ __forceinline__ float counted(const Place& first, const Place& second) {
    return WEIGHT == ONE ? 1.0f : fabsf(first.gain - second.gain) * change_of(first, second);
}

// What positions are judged by of a pair of places.
static __device__ __forceinline__ double pair_cost(const Places& places, i32 a, i32 b, float worth, bool by_score) {
    const Place first = places.firsts[min(a, b)], second = places.seconds[max(a, b)];
    return static_cast<double>(worth * counted(first, second))
           * cost_of(first.score, second.score, first.gain > second.gain, by_score);
}

// Adds the costs of the pairs of the first rows, of those at positions from `from` to `to`, to these; `place` : of rows.
static __device__ __forceinline__ void add_top_costs(const Places& places, const u32* place, float worth, bool by_score,
                                                     i32 from, i32 to) {
    const i32 n_positions = min(places.n, places.positions.n);
    for (i32 row = from + threadIdx.x; row < min(to, n_positions); row += blockDim.x) {
        const i32 a = place[row];
        const float gain = places.seconds[a].gain;
        double relevant = 0, irrelevant = 0;
        for (i32 other = 0; other < n_positions; ++other) {
            const i32 b = place[other];
            const float gain_b = places.seconds[b].gain;
            if (min(a, b) >= places.top || gain == gain_b) continue;
            const double cost = pair_cost(places, a, b, worth, by_score);
            if (gain > gain_b)
                relevant += cost * static_cast<double>(places.positions.ratio(IRRELEVANT, other));
            else
                irrelevant += cost * static_cast<double>(places.positions.ratio(RELEVANT, other));
        }
        places.positions.add(RELEVANT, row, relevant);
        places.positions.add(IRRELEVANT, row, irrelevant);
    }
}
