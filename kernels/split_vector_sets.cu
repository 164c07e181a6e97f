// The best sets of bins for leaves that are vectors: the choices of `best_of_vectors` and `best_of_level` in
// `daskboost/devices/cpu/split_vectors.py`, to the last bit and the last tie.
//
//   sum_level       a block per (chunk of a feature's codes, output): the sums of a symmetric tree's level
//   project_codes   a block per (tree, feature): by what number each code is ordered (`project` of
//                   `daskboost/devices/cpu/split_sets.py`), as a key
//   ends_of_codes   a block per (tree, chunk): the codes at either end of the order, which split_sets.cu joins and
//                   split_level_sets.cu ranks
//   gain_of_codes   a block per (node, feature): what the node gains by each set, of which split_level_sets.cu finds the best
//   best_of_sets    a warp per node: the set of the best feature, or the split by a threshold that split_vectors.cu has found
//
// A "tree" is what has one split: a level of a symmetric tree, or else each node by itself, `per_tree` nodes in any case.
//
// Sums of floats over codes run in the order of codes, as the CPU's do. So a thread adds up one sum, of up to ROWS at a time,
// and all threads compute what it adds; codes without rows, which add nothing, are left out.
//
// variants: THREADS=256
// budget: sum_level registers=48 shared=0
// budget: project_codes registers=128 shared=8*ROWS*(THREADS+1)+4*THREADS/32+36
// budget: ends_of_codes registers=80 shared=2240
// budget: gain_of_codes registers=128 shared=80*MOST_TAKEN
// budget: best_of_sets registers=64 shared=0
#include "code_ends.cuh"
#include "vector_gain.cuh"

#define ROWS 16
#define STEPS 4

// `sums` : shape (outputs, n_words / 2, 2), of all slots. `level_own`, `level_steps` : the address of these sums, 0 where the tree
// is not there, and bytes from one output's to the next one's. Grid: outputs x chunks.
extern "C" __global__ void __launch_bounds__(THREADS) sum_level(
    const u64* own, const u64* own_steps, i32 n_nodes, const i64* slot_offsets, const i32* n_bins, const Coded* coded,
    const Chunk* chunks, i32 n_chunks, i64 n_words, i64* sums, u64* level_own, u64* level_steps) {
    const i32 output = static_cast<i32>(blockIdx.x) / n_chunks;
    const Chunk chunk = chunks[static_cast<i32>(blockIdx.x) % n_chunks];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *level_own = own[0] == 0 ? 0 : reinterpret_cast<u64>(sums);
        *level_steps = 8 * static_cast<u64>(n_words);
    }
    if (own[0] == 0 || chunk.ends == NONE) return;
    const i32 feature = coded[chunk.coded].feature, first = chunk.number * CHUNK;
    const i32 end = min(first + CHUNK, n_bins[feature]);
    for (i32 bin = first + static_cast<i32>(threadIdx.x); bin < end; bin += THREADS) {
        const i64 slot = slot_offsets[feature] + bin;
        Pair64 all = {0, 0};
        for (i32 node = 0; node < n_nodes; ++node) {
            if (own[node] == 0) continue;
            const longlong2* const histogram =
                reinterpret_cast<const longlong2*>(own[node] + static_cast<u64>(output) * own_steps[node]);
            const longlong2 of_node = histogram[slot];
            all = {all.g + of_node.x, all.h + of_node.y};
        }
        i64* const to = sums + output * n_words + 2 * slot;
        to[0] = all.g;
        to[1] = all.h;
    }
}

// Sums by code of a tree's feature, and the penalties by which codes are ordered.
struct Vectors {
    u64 own;  // address of the first output's sums of the first code
    u64 step;
    const double* units;
    i32 units_stride;
    i32 n_outputs;
    Regular regular;

    __device__ __forceinline__ Sums worth(i32 code, i32 output) const {
        const longlong2 sums = reinterpret_cast<const longlong2*>(own + static_cast<u64>(output) * step)[code];
        const double* const unit = units + static_cast<i64>(output) * units_stride;
        return sums_of(sums.x, sums.y, unit[0], unit[1]);
    }

    // The leaf value that a code would have alone; of many codes, and a division of 0 is slow.
    __device__ __forceinline__ double value(i32 code, i32 output) const {
        const Sums own_sums = worth(code, output);
        if (soft_magnitude(own_sums.g, regular.alpha) == 0.0) return 0.0;
        return leaf_weight(own_sums, regular, {NO_GAIN, NO_LIMIT});
    }

    __device__ __forceinline__ double projection(i32 code, const double* direction) const {
        double found = 0.0;
        for (i32 output = 0; output < n_outputs; ++output) found += direction[output] * value(code, output);
        return found;
    }
};

// The hessians of a code: of all outputs, 0 where none of them has enough to be taken; and the largest.
struct Weight {
    double all;
    double heaviest;
    bool has_rows;

    __device__ __forceinline__ void add(double h) {
        all += h;
        heaviest = larger(heaviest, h);
        has_rows = has_rows || h != 0.0;
    }
};

static __device__ __forceinline__ Weight weight_of(const Vectors& vectors, i32 code) {
    Weight found = {0.0, 0.0, false};
    for (i32 output = 0; output < vectors.n_outputs; ++output) found.add(vectors.worth(code, output).h);
    return found;
}

// List the codes that have rows, in order, with their weights, and return how many there are. By all threads, which know the list
// afterwards.
static __device__ __forceinline__ i32 list_codes(const Vectors& vectors, i32 n_codes, double smooth, i32* codes,
                                                 double* weights, u32* counts) {
    i32 n = 0;
    for (i32 start = 0; start < n_codes; start += THREADS) {
        const i32 code = start + static_cast<i32>(threadIdx.x);
        Weight own = {0.0, 0.0, false};
        if (code < n_codes) own = weight_of(vectors, code);
        const Rank rank = rank_in_block<THREADS>(own.has_rows, counts);
        if (own.has_rows) {
            codes[n + static_cast<i32>(rank.before)] = code;
            weights[n + static_cast<i32>(rank.before)] = own.heaviest < smooth ? 0.0 : own.all;
        }
        n += static_cast<i32>(rank.total);
    }
    __syncthreads();
    return n;
}

struct Summing {
    double terms[ROWS][THREADS + 1];
};

// Add up numbers of `n` places, in their order: `n_sums` sums, each by one thread, which gives it to `take(number, sum)`. Each
// place is loaded by one thread, always the same, and adds `term(number, loaded)`. By all threads; what `take` writes is known to
// all afterwards.
template <class Load, class Term, class Take>
static __device__ __forceinline__ void sum_in_order(i32 n, i32 n_sums, Summing& room, Load load, Term term, Take take) {
    const i32 thread = static_cast<i32>(threadIdx.x);
    for (i32 first = 0; first < n_sums; first += ROWS) {
        const i32 rows = min(n_sums - first, ROWS);
        double sum = 0.0;
        for (i32 start = 0; start < n; start += THREADS) {
            const i32 n_there = min(n - start, THREADS);
            if (thread < n_there) {
                const auto loaded = load(start + thread);
                for (i32 row = 0; row < rows; ++row) room.terms[row][thread] = term(first + row, loaded);
            }
            __syncthreads();
            if (thread < rows) {
#pragma unroll 8
                for (i32 i = 0; i < n_there; ++i) sum += room.terms[thread][i];
            }
            __syncthreads();
        }
        if (thread < rows) take(first + thread, sum);
    }
    __syncthreads();
}

struct LoadedCode {
    i32 code;
    double weight;
    double projected;
};

// What the threads of `project_codes` share.
struct Known {
    double total;  // of weights
    double mean;   // of projections
    bool turns;    // whether there is a direction to find
};

// `keys` : shape (trees, n_codes), of each code; `listed`, `weights` : memory of that shape. `directions` : memory, shape (trees,
// coded, 3, outputs). `n_sets` : shape (trees, coded), codes; 0 where some node may not be split by the feature. `n_codes` : of all
// features. Grid: trees x coded.
extern "C" __global__ void __launch_bounds__(THREADS, 2) project_codes(
    const u64* own, const u64* own_steps, const u8* allowed, i32 allowed_every, i32 per_tree, const double* units,
    i32 units_stride, i32 n_outputs, const i64* slot_offsets, const i32* n_bins, i32 n_features, double lambda, double alpha,
    double max_step, double least_h, double smooth, const Coded* coded, i32 n_coded, i64 n_codes, i32* listed,
    double* weights, u64* keys, double* directions, i32* n_sets) {
    __shared__ Summing room;
    __shared__ u32 counts[THREADS / WARP];
    __shared__ Known known;
    const i32 tree = static_cast<i32>(blockIdx.x) / n_coded, thread = static_cast<i32>(threadIdx.x);
    const Coded own_feature = coded[static_cast<i32>(blockIdx.x) % n_coded];
    const i32 feature = own_feature.feature;
    if (own[tree] == 0) return;
    bool usable = true;
    for (i32 i = tree * per_tree + thread; i < (tree + 1) * per_tree; i += THREADS)
        usable = usable && allowed[static_cast<i64>(i / allowed_every) * n_features + feature];
    usable = __syncthreads_and(usable);
    const i32 n_own = n_bins[feature] - 1;
    if (thread == 0) n_sets[blockIdx.x] = usable ? n_own : 0;
    if (!usable || own_feature.most == 0) return;

    const Vectors vectors = {own[tree] + 16 * static_cast<u64>(slot_offsets[feature]), own_steps[tree], units, units_stride,
                             n_outputs, {lambda + smooth, alpha, max_step, least_h}};
    const i64 first = tree * n_codes + own_feature.first_code;
    i32* const codes = listed + first;
    double* const weight = weights + first;
    double* const projected = reinterpret_cast<double*>(keys) + first;  // until keys are known
    double* const direction = directions + static_cast<i64>(blockIdx.x) * 3 * n_outputs;
    double* const hessians = direction + n_outputs;
    double* const means = hessians + n_outputs;  // then what values vary
    const i32 n = list_codes(vectors, n_own, smooth, codes, weight, counts);
    const auto load = [&](i32 place) { return LoadedCode{codes[place], weight[place], 0.0}; };

    sum_in_order(
        n, 1 + n_outputs, room, load,
        [&](i32 row, const LoadedCode& at) { return row == 0 ? at.weight : vectors.worth(at.code, row - 1).h; },
        [&](i32 row, double sum) {
            if (row == 0) known.total = sum;
            else hessians[row - 1] = sum;
        });
    const double total = known.total;
    sum_in_order(
        n, n_outputs, room, load, [&](i32 k, const LoadedCode& at) { return at.weight * vectors.value(at.code, k); },
        [&](i32 k, double sum) { means[k] = total > 0.0 ? sum / total : 0.0; });
    sum_in_order(
        n, n_outputs, room, load,
        [&](i32 k, const LoadedCode& at) {
            const double away = vectors.value(at.code, k) - means[k];
            return at.weight * (away * away);
        },
        [&](i32 k, double sum) { means[k] = hessians[k] * sum; });
    if (thread == 0) {
        double most = -1.0;
        i32 widest = 0;
        for (i32 k = 0; k < n_outputs; ++k) {
            direction[k] = 0.0;
            if (means[k] > most) {
                most = means[k];
                widest = k;
            }
        }
        direction[widest] = 1.0;
        known.turns = n_outputs > 1 && most > 0.0;
    }
    __syncthreads();
    for (i32 step = 0; known.turns && step < STEPS; ++step) {
        sum_in_order(
            n, 1, room,
            [&](i32 place) {
                const double found = vectors.projection(codes[place], direction);
                projected[place] = found;
                return LoadedCode{codes[place], weight[place], found};
            },
            [](i32, const LoadedCode& at) { return at.weight * at.projected; },
            [&](i32, double sum) { known.mean = total > 0.0 ? sum / total : 0.0; });
        const double mean = known.mean;
        sum_in_order(
            n, n_outputs, room, [&](i32 place) { return LoadedCode{codes[place], weight[place], projected[place]}; },
            [&](i32 k, const LoadedCode& at) { return at.weight * (at.projected - mean) * vectors.value(at.code, k); },
            [&](i32 k, double sum) { direction[k] = hessians[k] * sum; });
        if (thread == 0) {
            double most = 0.0;
            for (i32 k = 0; k < n_outputs; ++k) most = larger(most, fabs(direction[k]));
            for (i32 k = 0; k < n_outputs; ++k) direction[k] /= most > 0.0 ? most : 1.0;
        }
        __syncthreads();
    }
    for (i32 code = thread; code < n_own; code += THREADS) {
        const bool is_light = smooth > 0.0 && weight_of(vectors, code).heaviest < smooth;
        keys[first + code] = is_light ? LIGHT : key_of_number(vectors.projection(code, direction));
    }
}

// `keys`, `n_sets` : see project_codes. Grid: trees x chunks.
extern "C" __global__ void __launch_bounds__(THREADS, 3) ends_of_codes(
    const u64* own, const i32* n_bins, const Coded* coded, i32 n_coded, const Chunk* chunks, i32 n_chunks, i64 n_codes,
    const u64* keys, const i32* n_sets, ENDS) {
    __shared__ SideRoom rooms[2];
    const i32 node = static_cast<i32>(blockIdx.x) / n_chunks;
    const Chunk chunk = chunks[static_cast<i32>(blockIdx.x) % n_chunks];
    if (own[node] == 0 || chunk.ends == NONE || n_sets[static_cast<i64>(node) * n_coded + chunk.coded] == 0) return;
    const Coded own_feature = coded[chunk.coded];
    const i32 first = chunk.number * CHUNK, last = min(first + CHUNK, n_bins[own_feature.feature] - 1);
    const i32 side = static_cast<i32>(threadIdx.x) / SIDE_THREADS;
    const Ends ends = ENDS_OF_NODE;
    const Codes items = {keys + node * n_codes + own_feature.first_code + first, last - first, first, side != 0};
    store_ends(items, own_feature.most, rooms[side], ends, chunk.ends, side);
}

// Take the gains from the sets of one end that come too soon behind another one that is tried, or leave too little; by a warp.
// `codes` : of that end, in order. `group` : memory, shape (outputs,).
static __device__ __forceinline__ void rule_out_vectors(Gain* gains, const Place& place, const i32* codes, i32 n_sets,
                                                        bool from_last, const double* units, i32 units_stride,
                                                        i32 n_outputs, double least_group, i64* group) {
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    for (i32 k = lane; k < n_outputs; k += WARP) group[k] = 0;
    for (i32 i = 0; i < n_sets; ++i) {
        double heaviest = 0.0;
        for (i32 k = lane; k < n_outputs; k += WARP) {
            group[k] += place.sums(codes[i], k).h;
            heaviest = larger(heaviest, static_cast<double>(group[k]) * units[static_cast<i64>(k) * units_stride + 1]);
        }
        heaviest = max_of_warp(heaviest);
        const double others = from_last ? gains[i].heaviest_right : gains[i].heaviest_left;
        if (smaller(heaviest, others) < least_group) {
            if (lane == 0) gains[i].sum = NO_GAIN;
        } else if (gains[i].sum > NO_GAIN) {
            for (i32 k = lane; k < n_outputs; k += WARP) group[k] = 0;
        }
    }
}

// `orders`, `n_sets`, `gains` : see split_level_sets.cu. `groups` : memory, shape (nodes, coded, 2, outputs). Grid: nodes x coded.
extern "C" __global__ void __launch_bounds__(THREADS, 2) gain_of_codes(
    SEARCHED_VECTORS, i32 per_tree, double l2, double least_group, const Coded* coded, i32 n_coded, i32 most_of_all,
    const i32* orders, const i32* n_sets, i32 width, i64* groups, double* gains) {
    __shared__ Pair64 rights[2 * MOST_TAKEN];
    __shared__ Gain of_sets[2 * MOST_TAKEN];
    const i32 node = static_cast<i32>(blockIdx.x) / n_coded, which = static_cast<i32>(blockIdx.x) % n_coded;
    const i64 of_tree = static_cast<i64>(node / per_tree) * n_coded + which;
    const i32 feature = coded[which].feature, most = coded[which].most, thread = static_cast<i32>(threadIdx.x);
    if (own[node] == 0 || n_sets[of_tree] == 0) return;
    const i32 n = n_sets[of_tree];
    const Place place = place_of(node, feature, own, own_steps, totals, slot_offsets, n_bins, n_features, n_outputs,
                                 sums_before);
    Regular regular = {lambda, alpha, max_step, least_h};
    const double parent = parent_of(place.totals, units, units_stride, n_outputs, regular, is_plain);
    const auto add = [&](Gain& gain, i32 output, Pair64 right) {
        const Pair64 all = place.total(output);
        const double* const unit = units + static_cast<i64>(output) * units_stride;
        gain.add(all.g - right.g, all.h - right.h, all.g, all.h, unit[0], unit[1], regular, is_plain);
    };
    double* const to = gains + blockIdx.x * static_cast<i64>(width);
    if (most == 0) {
        for (i32 i = thread; i < 2 * n; i += THREADS) {
            Gain gain = {0.0, 0.0, 0.0};
            for (i32 output = 0; output < n_outputs; ++output) {
                Pair64 right = place.sums(i / 2, output);
                const Pair64 missing = place.missing(output, n_outputs);
                if (i % 2) right = {right.g + missing.g, right.h + missing.h};
                add(gain, output, right);
            }
            to[i] = gain.allowed(least_h) - parent;
        }
        return;
    }
    regular.lambda += l2;
    const i32* const codes = orders + of_tree * 2 * most_of_all;
    for (i32 i = thread; i < 2 * most; i += THREADS) of_sets[i] = {0.0, 0.0, 0.0};
    for (i32 output = 0; output < n_outputs; ++output) {
        for (i32 i = thread; i < 2 * most; i += THREADS) {
            const bool is_set = i % most < n;
            rights[i] = is_set ? place.sums(codes[i / most * most_of_all + i % most], output) : Pair64{0, 0};
        }
        __syncthreads();
        const Pair64 total = place.total(output), no_code = place.sums(place.bins - 1, output);
        sum_rights(rights, most, {total.g - no_code.g, total.h - no_code.h});
        for (i32 i = thread; i < 2 * most; i += THREADS)
            if (i % most < n) add(of_sets[i], output, rights[i]);
        __syncthreads();
    }
    for (i32 i = thread; i < 2 * most; i += THREADS) of_sets[i].sum = of_sets[i].allowed(least_h);
    __syncthreads();
    const i32 side = thread / SIDE_THREADS;
    if (least_group > 0.0 && thread % SIDE_THREADS < LANES)
        rule_out_vectors(of_sets + side * most, place, codes + side * most_of_all, n, side != 0, units, units_stride,
                         n_outputs, least_group, groups + (2 * static_cast<i64>(blockIdx.x) + side) * n_outputs);
    __syncthreads();
    for (i32 i = thread; i < 2 * most; i += THREADS)
        if (i % most < n) to[i] = of_sets[i].sum - parent;  // NO_GAIN where it is that
}

// `results` : shape (nodes, results_of(outputs)), of thresholds before. `found`, `lists` : of the best sets of features, see
// split_level_sets.cu. `sets` : shape (nodes, list_width).
extern "C" __global__ void __launch_bounds__(THREADS) best_of_sets(
    SEARCHED_VECTORS, i32 per_tree, i32 n_coded, const i64* found, const i32* lists, i32 list_width, i64* results, i32* sets) {
    const i32 node = static_cast<i32>(blockIdx.x) * (THREADS / static_cast<i32>(WARP)) +
                     static_cast<i32>(threadIdx.x) / static_cast<i32>(WARP);
    if (node >= n_nodes || own[node] == 0) return;
    i64* const result = results + static_cast<i64>(node) * results_of(n_outputs);
    const i64 best = best_found(result, found, static_cast<i64>(node / per_tree) * n_coded, n_coded);
    if (best == NONE) return;
    const i64* const of_tree = found + best * RESULTS;
    const i32* const list = lists + best * list_width;
    const Place place = place_of(node, static_cast<i32>(of_tree[1]), own, own_steps, totals, slot_offsets, n_bins, n_features,
                                 n_outputs, sums_before);
    const i32 lane = static_cast<i32>(threadIdx.x % WARP);
    const bool is_all_but = of_tree[2] == ALL_BUT, missing_right = of_tree[3] == 0;
    for (i32 output = 0; output < n_outputs; ++output) {
        Pair64 listed = {0, 0};
        for (i32 i = lane; i < list[0]; i += WARP) {
            const Pair64 sums = place.sums(list[1 + i], output);
            listed = {listed.g + sums.g, listed.h + sums.h};
        }
        Pair64 left = {sum_of_warp(listed.g), sum_of_warp(listed.h)};
        if (!is_all_but) {  // or else what is not listed goes right, missing values too
            const Pair64 total = place.total(output), missing = place.missing(output, n_outputs);
            left = {total.g - left.g, total.h - left.h};
            if (missing_right) left = {left.g - missing.g, left.h - missing.h};
        }
        if (lane > 0) continue;
        result[4 + 2 * output] = left.g;
        result[5 + 2 * output] = left.h;
    }
    if (lane < 4) result[lane] = of_tree[lane];
    copy_list(list, sets + static_cast<i64>(node) * list_width);
}
