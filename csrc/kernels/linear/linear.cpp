#include "kernels/linear/linear.h"

#include "common/variants.h"
#include "kernels/linear/layout.h"

namespace kokuban {

extern const LinearKernels linear_kernels_scalar, linear_kernels_avx2, linear_kernels_avx512;

const LinearKernels& linear_kernels(Isa isa) {
    return choose(isa, linear_kernels_scalar, linear_kernels_avx2, linear_kernels_avx512);
}

bool takes_quantized(const PackedMatrix& w) { return is_quantized(*find_format(w.type)); }

namespace {

// An item reads about so many bytes of W: 2 µs at the memory's speed, far above the price of
// claiming it.
constexpr int64_t kItemBytes = 32 * 1024;

// The quantised rows of an item stay below this, half an L2 cache; unpacking a tile for fewer than
// kMinItemRows rows would show.
constexpr int64_t kItemRowBytes = 256 * 1024;
constexpr int64_t kMinItemRows = 32, kMaxItemRows = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t at_least(int64_t x, int64_t low) { return x < low ? low : x; }

int64_t rows_of_item(const PackedMatrix& w) {
    const int64_t row = takes_quantized(w) ? static_cast<int64_t>(quantized_bytes(1, w.k)) : w.k * 4;
    const int64_t fit = at_least(kItemRowBytes / row / kRowBlock * kRowBlock, kMinItemRows);
    return fit < kMaxItemRows ? fit : kMaxItemRows;
}

// More rows make a tile more work: from 16 rows on an item is a single tile, or nearly.
int64_t tiles_of_item(const PackedMatrix& w, int64_t rows) {
    const int64_t work = w.tile_bytes * at_least(rows / 4, 1);
    const int64_t tiles = at_least(kItemBytes / work, 1);
    // Unquantised W hides the latency of its sums over several tiles when rows are few.
    return takes_quantized(w) || rows > 4 ? tiles : at_least(tiles, 8 / at_least(rows, 1));
}

}  // namespace

int64_t linear_items(const PackedMatrix& w, int64_t rows) {
    return ceil_div(w.tiles(), tiles_of_item(w, rows)) * ceil_div(rows, rows_of_item(w));
}

LinearRange linear_range(const PackedMatrix& w, int64_t rows, int64_t item) {
    const int64_t tiles = tiles_of_item(w, rows), height = rows_of_item(w);
    const int64_t columns = ceil_div(w.tiles(), tiles);
    const int64_t tile = item % columns * tiles, row = item / columns * height;
    return {tile, tile + tiles < w.tiles() ? tile + tiles : w.tiles(), row, row + height < rows ? row + height : rows};
}

}  // namespace kokuban
