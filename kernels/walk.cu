// Adds trees' leaf values to the margins of rows, walking them by bins; one thread per row and tree. FIND writes the
// leaves' numbers instead.
//
// A block copies the tree's first nodes, which most steps meet, into shared memory. Rows of 32 bytes (ROW_WORDS = 8) are
// held in registers, where picking a symbol takes some selections instead of a memory access per step; of wider ones, a
// step reads one symbol. With LISTS, nodes may split by lists of bins (symbol.cuh).
//
// variants: SYMBOL_BYTES=0,1,2 ROW_WORDS=0 FIND=0,1 LISTS=0,1
// variants: SYMBOL_BYTES=1,2 ROW_WORDS=8 FIND=0,1 LISTS=0
// usual: SYMBOL_BYTES=1 ROW_WORDS=8 FIND=0 LISTS=0
// budget: walk registers=64 shared=16*MOST_NODES
#ifndef LISTS
#define LISTS 0
#endif
#include "symbol.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef ROW_WORDS
#define ROW_WORDS 0
#endif
#ifndef FIND
#define FIND 0
#endif
#if FIND
using Found = i32;
#else
using Found = float;
#endif
#ifndef MOST_NODES
#define MOST_NODES 1024
#endif

// The tree as it comes: one array per field.
#define TREE const i32 *left_child, const i32 *right_child, const i32 *split_feature, const i32 *split_bin, \
    const u8 *default_left, const float *value

// A node as a step takes it, by a single load.
struct __align__(16) Node {
    i32 left;   // -1 of a leaf
    i32 right;  // of a leaf, its number or the bits of its value
    u32 feature;  // highest bit: missing values go left; with LISTS the next one: all but the listed bins go right
    u32 bins;     // the last bin on the left, or NO_BIN; of symbols, the missing one in the upper half
};
constexpr u32 MISSING_LEFT = 1u << 31, LISTED_LEFT = LISTS ? 1u << 30 : 0u;
constexpr u32 NO_BIN = SYMBOL_BYTES ? 0xFFFFu : 0xFFFFFFFFu;  // in its place: a list says which

static __device__ __forceinline__ Node node_at(i32 node, const i32* n_bins, TREE) {
    const i32 left = left_child[node];
    if (left < 0) return {left, FIND ? node : __float_as_int(value[node]), 0, 0};
    const i32 feature = split_feature[node];
    const u32 missing = SYMBOL_BYTES ? static_cast<u32>(n_bins[feature]) << 16 : 0u;
    const u32 directions = (default_left[node] ? MISSING_LEFT : 0u) | (split_bin[node] == ALL_BUT ? LISTED_LEFT : 0u);
    const u32 bin = LISTS && split_bin[node] < 0 ? NO_BIN : static_cast<u32>(split_bin[node]);
    return {left, right_child[node], static_cast<u32>(feature) | directions, bin | missing};
}

#if ROW_WORDS
static_assert(ROW_WORDS == 8, "two loads of four words");

struct Row {
    u32 words[ROW_WORDS];

    __device__ __forceinline__ Row(const Symbol* symbols, i64 row_stride, i64 row) {
        const uint4* from = reinterpret_cast<const uint4*>(symbols + row * row_stride);
        const uint4 low = from[0], high = from[1];
        words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
        words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
    }

    __device__ __forceinline__ i32 symbol(u32 feature) const {
        const u32 word = feature * SYMBOL_BYTES / 4, shift = feature * SYMBOL_BYTES % 4 * 8;
        const u32 a = word & 1 ? words[1] : words[0], b = word & 1 ? words[3] : words[2];
        const u32 c = word & 1 ? words[5] : words[4], d = word & 1 ? words[7] : words[6];
        const u32 low = word & 2 ? b : a, high = word & 2 ? d : c;
        return (word & 4 ? high : low) >> shift & ((1u << 8 * SYMBOL_BYTES) - 1u);
    }
};
#endif

// `n_nodes` : of a tree, at most. `sets` : of all nodes, with LISTS. `out` : `out_stride` between its `n` rows. The next of `n_trees` trees is `next_links`,
// for default directions and values `n_nodes` further, what it writes `next_out`. Blocks stride over the rows; those of
// all trees are at the same rows at about the same time, whose symbols and margins they share in the L2 cache.
extern "C" __global__ void __launch_bounds__(THREADS) walk(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, const i32* left_child, const i32* right_child, const i32* split_feature, const i32* split_bin,
    const u8* default_left, const float* value, SETS_PARAMETERS, i32 n_nodes, i64 n, Found* out, i64 out_stride,
    i32 n_trees, i64 next_links, i64 next_out) {
    __shared__ Node nodes[MOST_NODES];
    const i64 tree = blockIdx.x % static_cast<u32>(n_trees);
    const i64 block = blockIdx.x / static_cast<u32>(n_trees), blocks = gridDim.x / static_cast<u32>(n_trees);
    left_child += tree * next_links;
    right_child += tree * next_links;
    split_feature += tree * next_links;
    split_bin += tree * next_links;
    default_left += tree * n_nodes;
    value += tree * n_nodes;
#if LISTS
    sets += tree * n_nodes * set_width;
#endif
    out += tree * next_out;
#define NODE_AT(node) node_at(node, n_bins, left_child, right_child, split_feature, split_bin, default_left, value)
    for (i32 node = threadIdx.x; node < min(n_nodes, MOST_NODES); node += THREADS) nodes[node] = NODE_AT(node);
    __syncthreads();
    for (i64 row = block * THREADS + threadIdx.x; row < n; row += blocks * THREADS) {
#if ROW_WORDS
        const Row own(symbols, row_stride, row);
#endif
        Node node = nodes[0];
#if LISTS
        i32 number = 0;
#endif
        while (node.left >= 0) {
            const u32 feature = node.feature & ~(MISSING_LEFT | LISTED_LEFT);
            const bool missing_left = node.feature & MISSING_LEFT;
            const u32 bin = node.bins & NO_BIN;
            Predicate split = {static_cast<i32>(feature), static_cast<i32>(bin), missing_left, nullptr};
#if LISTS
            if (bin == NO_BIN) {
                split.last_left = node.feature & LISTED_LEFT ? ALL_BUT : BY_SET;
                split.list = list_of(sets, set_width, number);
            }
#endif
#if SYMBOL_BYTES == 0
            const bool left = goes_left(SYMBOLS, static_cast<u32>(row), split);
#else
#if ROW_WORDS
            const i32 symbol = own.symbol(feature);
#else
            const i32 symbol = symbol_of(SYMBOLS, static_cast<u32>(row), feature);
#endif
            const bool left = split.has(symbol, static_cast<i32>(node.bins >> 16));
#endif
            const i32 next = left ? node.left : node.right;
#if LISTS
            number = next;
#endif
            node = next < MOST_NODES ? nodes[next] : NODE_AT(next);
        }
#if FIND
        out[row * out_stride] = node.right;
#else
        out[row * out_stride] += __int_as_float(node.right);
#endif
    }
}
