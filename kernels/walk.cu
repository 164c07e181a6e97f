// Adds trees' leaf values to the margins of rows, walking them by bins; one thread per row and tree. FIND writes the
// leaves' numbers instead.
//
// A block copies the tree's first nodes, which most steps meet, into shared memory. Rows of 32 bytes (ROW_WORDS = 8) are
// held in registers, where picking a symbol takes some selections instead of a memory access per step; of wider ones, a
// step reads one symbol. LISTS: nodes may split by lists of bins. 1: they are searched (symbol.cuh). 2: a tree's sets are
// known by slot (mask_sets.cu), and short rows have some features of bytes, while others are looked up.
//
// variants: SYMBOL_BYTES=0,1,2 ROW_WORDS=0 FIND=0,1 LISTS=0,1
// variants: SYMBOL_BYTES=1,2 ROW_WORDS=8 FIND=0,1 LISTS=0
// variants: SYMBOL_BYTES=1,2 ROW_WORDS=0,8 FIND=0 LISTS=2
// usual: SYMBOL_BYTES=1 ROW_WORDS=8 FIND=0 LISTS=0
// budget: walk registers=64 shared=16*MOST_NODES
#ifndef LISTS
#define LISTS 0
#endif
#include "masks.cuh"
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

// What the kernel takes of short rows and of masks: bytes of rows, which have `n_columns` features from `first_column` on;
// masks of all slots, and the numbers of nodes' sets.
#define ROWS_AND_MASKS \
    const u8 *rows, i32 first_column, i32 n_columns, const u32 *masks, const i32 *set_numbers

// A node as a step takes it, by a single load.
struct __align__(16) Node {
    i32 left;   // -1 of a leaf
    i32 right;  // of a leaf, its number or the bits of its value
    u32 feature;  // and, from the highest bit on, what a step asks first
    u32 bins;     // the last bin on the left, NO_BIN, or the number of a set; of symbols, the missing one in the upper half
};
constexpr bool HAS_MASKS = LISTS == 2;
constexpr u32 MISSING_LEFT = 1u << 31;
constexpr u32 LISTED_LEFT = LISTS ? 1u << 30 : 0u;      // all but the listed bins go right
constexpr u32 MASKED = HAS_MASKS ? 1u << 29 : 0u;       // splits by a set that has a number
constexpr u32 LOOKED_UP = HAS_MASKS ? 1u << 28 : 0u;    // its symbol is not in the short row
constexpr u32 COLUMN_BITS = HAS_MASKS ? 23 : 0;         // from here on, five bits of its column there
constexpr u32 FEATURE_BITS = HAS_MASKS ? (1u << COLUMN_BITS) - 1 : ~(MISSING_LEFT | LISTED_LEFT);
constexpr u32 NO_BIN = SYMBOL_BYTES ? 0xFFFFu : 0xFFFFFFFFu;  // in its place: a list says which

static __device__ __forceinline__ Node node_at(i32 node, const i32* n_bins, TREE, i32 first_column, i32 n_columns,
                                               const i32* set_numbers) {
    const i32 left = left_child[node];
    if (left < 0) return {left, FIND ? node : __float_as_int(value[node]), 0, 0};
    const i32 feature = split_feature[node];
    const u32 missing = SYMBOL_BYTES ? static_cast<u32>(n_bins[feature]) << 16 : 0u;
    u32 place = static_cast<u32>(feature) | (default_left[node] ? MISSING_LEFT : 0u);
    u32 bin = static_cast<u32>(split_bin[node]);
    if (LISTS && split_bin[node] < 0) {
        place |= MASKED | (split_bin[node] == ALL_BUT ? LISTED_LEFT : 0u);
        bin = HAS_MASKS ? static_cast<u32>(set_numbers[node]) : NO_BIN;
    }
    if (HAS_MASKS && ROW_WORDS) {
        const u32 column = static_cast<u32>(feature - first_column);
        place |= column < static_cast<u32>(n_columns) ? column << COLUMN_BITS : LOOKED_UP;
    }
    return {left, right_child[node], place, bin | missing};
}

#if ROW_WORDS
static_assert(ROW_WORDS == MASK_WORDS, "a sector");
constexpr u32 ROW_SYMBOL = HAS_MASKS ? 1 : SYMBOL_BYTES;  // bytes

struct Row {
    u32 words[ROW_WORDS];

    __device__ __forceinline__ Row(const u8* rows, i64 row) { load_words(rows + row * 4 * ROW_WORDS, words); }

    __device__ __forceinline__ i32 symbol(u32 column) const {
        const u32 shift = column * ROW_SYMBOL % 4 * 8;
        return word_of(words, column * ROW_SYMBOL / 4) >> shift & ((1u << 8 * ROW_SYMBOL) - 1u);
    }
};
#endif

#if LISTS == 2
// Which of the tree's sets list a row's bin of the feature that was asked for last.
struct Listing {
    u32 feature = FEATURE_BITS;  // none
    u32 words[MASK_WORDS] = {};

    __device__ __forceinline__ void load(const u32* masks, const i64* slot_offsets, u32 own_feature, i32 bin) {
        if (feature == own_feature) return;
        feature = own_feature;
        load_words(masks + (slot_offsets[feature] + bin) * MASK_WORDS, words);
    }

    __device__ __forceinline__ bool has(u32 set) const { return word_of(words, set / 32) >> set % 32 & 1u; }
};
#endif

// `n_nodes` : of a tree, at most. `sets` : of all nodes, with LISTS. `out` : `out_stride` between its `n` rows. The next of
// `n_trees` trees is `next_links`, for default directions and values `n_nodes` further, what it writes `next_out`; masks
// are of one tree. Blocks stride over the rows; those of all trees are at the same rows at about the same time, whose
// symbols and margins they share in the L2 cache.
extern "C" __global__ void __launch_bounds__(THREADS) walk(
    const Symbol* symbols, const i64* indptr, i64 row_stride, i64 feature_stride, const i32* n_bins,
    const i64* slot_offsets, const i32* left_child, const i32* right_child, const i32* split_feature, const i32* split_bin,
    const u8* default_left, const float* value, SETS_PARAMETERS, ROWS_AND_MASKS, i32 n_nodes, i64 n, Found* out,
    i64 out_stride, i32 n_trees, i64 next_links, i64 next_out) {
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
#define NODE_AT(node) \
    node_at(node, n_bins, left_child, right_child, split_feature, split_bin, default_left, value, first_column, n_columns, \
            set_numbers)
    for (i32 node = threadIdx.x; node < min(n_nodes, MOST_NODES); node += THREADS) nodes[node] = NODE_AT(node);
    __syncthreads();
    for (i64 row = block * THREADS + threadIdx.x; row < n; row += blocks * THREADS) {
#if ROW_WORDS
        const Row own(rows, row);
#endif
        Node node = nodes[0];
#if LISTS == 1
        i32 number = 0;
#elif LISTS == 2
        Listing listing;
#endif
        while (node.left >= 0) {
            const u32 feature = node.feature & FEATURE_BITS, bin = node.bins & NO_BIN;
            const bool missing_left = node.feature & MISSING_LEFT;
            Predicate split = {static_cast<i32>(feature), static_cast<i32>(bin), missing_left, nullptr};
#if LISTS == 1
            if (bin == NO_BIN) {
                split.last_left = node.feature & LISTED_LEFT ? ALL_BUT : BY_SET;
                split.list = list_of(sets, set_width, number);
            }
#endif
#if SYMBOL_BYTES == 0
            const bool left = goes_left(SYMBOLS, static_cast<u32>(row), split);
#else
            const i32 missing = static_cast<i32>(node.bins >> 16);
#if ROW_WORDS
            const u32 column = HAS_MASKS ? node.feature >> COLUMN_BITS & 31u : feature;
            const i32 symbol = node.feature & LOOKED_UP ? symbol_of(SYMBOLS, static_cast<u32>(row), feature)
                                                        : own.symbol(column);
#else
            const i32 symbol = symbol_of(SYMBOLS, static_cast<u32>(row), feature);
#endif
#if LISTS == 2
            bool left = split.has(symbol, missing);
            if (node.feature & MASKED && symbol != missing) {
                listing.load(masks, slot_offsets, feature, symbol);
                left = listing.has(bin) == ((node.feature & LISTED_LEFT) != 0);
            }
#else
            const bool left = split.has(symbol, missing);
#endif
#endif
            const i32 next = left ? node.left : node.right;
#if LISTS == 1
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
