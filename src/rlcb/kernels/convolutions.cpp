// Convolutions, pooling and dense layers in float32 on CPUs, forward and backward.
//
// Images are in memory order (rows, columns, channels); the channels of every tensor but an observation are a
// multiple of 16. Vectors are the compiler's own vector types, so that AVX-512, AVX2, SSE and NEON come from the
// same source. Nothing here starts a thread: callers split a batch between threads.
//
// Winograd's algorithm F(m x m, r x r) (Lavin and Gray 2016, "Fast Algorithms for Convolutional Neural Networks")
// computes m x m outputs of an r x r convolution from a tile of n x n inputs, n = m + r - 1, with n^2 multiplications for
// each pair of channels instead of m^2 r^2: F(4x4, 3x3) needs 36 instead of 144, F(3x3, 2x2) 16 instead of 36. With the
// input tile d, the filter g, the output gradient dY of a tile and matrices A, B, G of constants:
//   output           Y  = A^T [(G g G^T) . (B^T d B)] A
//   filter gradient  dg = G^T [(B^T d B) . (A dY A^T)] G
//   input gradient   dd = B [(G g G^T) . (A dY A^T)] B^T, added where tiles overlap
// `.` is a product element by element, summed over input channels (output), tiles (filter gradient) or output channels
// (input gradient): n^2 small matrix products.
//
// A convolution with stride s and a kernel of 2s x 2s, without padding, is a 2 x 2 convolution with stride 1 of blocks of
// s x s pixels, which have s^2 times the channels: F(3x3, 2x2) computes it. The channels of a block are in the order
// (row, column, channel), so that each of its rows is contiguous in the image.
//
// Other convolutions are direct: blocks of pixels times output channels stay in registers. Dense layers are products of
// matrices in the same blocks.

#if !defined(__clang__)
// GCC would keep inputs that the next step needs again in registers, which the sums need.
#pragma GCC optimize("no-predictive-commoning")
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 36")
#endif

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace {

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef float UnalignedVector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(LANES * 4)));
typedef uint8_t ByteVector __attribute__((vector_size(LANES)));
typedef uint8_t UnalignedBytes __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE Vector load(const float* p) { return *reinterpret_cast<const UnalignedVector*>(p); }
INLINE void store(float* p, Vector v) { *reinterpret_cast<UnalignedVector*>(p) = v; }
INLINE Vector broadcast(float x) { return x - Vector{}; }
INLINE Vector rectified(Vector v) { return v < Vector{} ? Vector{} : v; }                        // keeps NaN
INLINE Vector where_positive(Vector mask, Vector v) { return mask <= Vector{} ? Vector{} : v; }  // keeps NaN

constexpr int BATCH = 32;  // tiles that are multiplied at once

// Floats from one point's matrix (BATCH, channels) to the next. Not a multiple of 4 KB: all 36 would share a cache set.
inline int point_floats(int channels) { return BATCH * channels + 16; }

// Memory that a thread reuses from call to call.
class Scratch {
  public:
    ~Scratch() { std::free(memory); }
    float* floats(size_t count) {
        if (count > size) {
            std::free(memory);
            size = (count + 15) / 16 * 16;
            memory = static_cast<float*>(std::aligned_alloc(64, size * sizeof(float)));
            if (memory == nullptr) {
                size = 0;
                throw std::bad_alloc();
            }
            std::memset(memory, 0, size * sizeof(float));
        }
        return memory;
    }

  private:
    float* memory = nullptr;
    size_t size = 0;
};

thread_local Scratch row_scratch, frame_scratch, gradient_frame_scratch, tile_scratch;
thread_local std::vector<ptrdiff_t> pixel_scratch;

// --- Frames: an image with zeros around it ------------------------------------------------------------------

struct Image {
    int height, width, channels;
    size_t floats() const { return static_cast<size_t>(height) * width * channels; }
};

// Converts `count` values to float32: of max(x, 0) with `rectify`.
void convert(const float* in, int count, float* out, bool rectify) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(out + i, rectify ? rectified(load(in + i)) : load(in + i));
    for (; i < count; i++) out[i] = rectify && in[i] < 0 ? 0 : in[i];
}
// A plain loop: with vector types, GCC 12 converts bytes one by one, in eleven times the time.
void convert(const uint8_t* __restrict in, int count, float* __restrict out, bool) {
    for (int i = 0; i < count; i++) out[i] = in[i];
}

// Copies `image` into `frame`, `pad` rows below its top and `pad` columns right of its left border; the rest of the
// frame becomes zero.
template <typename Value>
void fill_frame(const Value* image, Image size, float* frame, Image frame_size, int pad, bool rectify) {
    const int row = frame_size.width * frame_size.channels, used = size.width * size.channels;
    const int left = pad * size.channels;
    std::memset(frame, 0, sizeof(float) * row * pad);
    for (int y = 0; y < size.height; y++) {
        float* out = frame + static_cast<size_t>(y + pad) * row;
        const Value* in = image + static_cast<size_t>(y) * used;
        for (int i = 0; i < left; i++) out[i] = 0;
        convert(in, used, out + left, rectify);
        for (int i = left + used; i < row; i++) out[i] = 0;
    }
    const int filled = pad + size.height;
    std::memset(frame + static_cast<size_t>(filled) * row, 0, sizeof(float) * row * (frame_size.height - filled));
}

// Copies `bytes` bytes in pieces of 16: writes up to 15 more, and reads them if the next `readable` bytes exist.
INLINE void copy_pieces(const void* from, size_t bytes, size_t readable, void* to) {
    const char* in = static_cast<const char*>(from);
    char* out = static_cast<char*>(to);
    const size_t rounded = (bytes + 15) / 16 * 16;
    if (rounded > readable) std::memcpy(out, in, bytes);
    else
        for (size_t i = 0; i < rounded; i += 16) std::memcpy(out + i, in + i, 16);
}

// Copies `image` into `frame`, whose pixels are blocks of block x block pixels; the rest of the frame becomes zero.
// Pixels that fill no block are left out. The channels of the frame are a multiple of 16.
template <typename Value>
void fill_frame_with_blocks(const Value* image, Image size, int block, float* frame, Image frame_size) {
    const int length = block * size.channels, row = size.width * size.channels;
    const int down = size.height / block, across = size.width / block;
    const int used = across * block * length, frame_row = frame_size.width * frame_size.channels;
    Value* regrouped = reinterpret_cast<Value*>(row_scratch.floats(used + 16));
    for (int i = 0; i < down; i++) {
        // Floats would be written across the borders of cache lines, so the blocks are put together first.
        Value* out = regrouped;
        for (int j = 0; j < across; j++) {
            for (int r = 0; r < block; r++, out += length) {  // the next piece overwrites what is too much
                const size_t at = static_cast<size_t>(i * block + r) * row + j * length;
                copy_pieces(image + at, length * sizeof(Value), (size.floats() - at) * sizeof(Value), out);
            }
        }
        float* line = frame + static_cast<size_t>(i) * frame_row;
        convert(regrouped, used, line, false);
        std::fill(line + used, line + frame_row, 0.f);
    }
    std::fill(frame + static_cast<size_t>(down) * frame_row, frame + frame_size.floats(), 0.f);
}

// --- Winograd's transforms of one tile, for LANES channels at a time ----------------------------------------

// An algorithm: its sizes and the transforms along one side of a tile.
struct F4x3 {  // F(4x4, 3x3), points 0, 1, -1, 2, -2, infinity
    static constexpr int OUT = 4, KERNEL = 3, WINDOW = 6, POINTS = 36;

    static INLINE void input(const Vector d[6], Vector o[6]) {  // B^T d
        const Vector a = d[3] - 4.f * d[1], b = d[4] - 4.f * d[2], c = d[4] - d[2], e = 2.f * (d[3] - d[1]);
        o[0] = 4.f * d[0] - 5.f * d[2] + d[4];
        o[1] = b + a;
        o[2] = b - a;
        o[3] = c + e;
        o[4] = c - e;
        o[5] = 4.f * d[1] - 5.f * d[3] + d[5];
    }
    static INLINE void output(const Vector m[6], Vector o[4]) {  // A^T m
        const Vector a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], e = m[3] - m[4];
        o[0] = m[0] + a + c;
        o[1] = b + 2.f * e;
        o[2] = a + 4.f * c;
        o[3] = b + 8.f * e + m[5];
    }
    static INLINE void gradient(const Vector y[4], Vector o[6]) {  // A y
        const Vector a = y[0] + y[2], b = y[1] + y[3], c = y[0] + 4.f * y[2], e = 2.f * y[1] + 8.f * y[3];
        o[0] = y[0];
        o[1] = a + b;
        o[2] = a - b;
        o[3] = c + e;
        o[4] = c - e;
        o[5] = y[3];
    }
    static INLINE void input_gradient(const Vector m[6], Vector o[6]) {  // B m
        const Vector a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], e = m[3] - m[4];
        o[0] = 4.f * m[0];
        o[1] = 4.f * (m[5] - b) - 2.f * e;
        o[2] = -5.f * m[0] - 4.f * a - c;
        o[3] = b + 2.f * e - 5.f * m[5];
        o[4] = m[0] + a + c;
        o[5] = m[5];
    }
    static INLINE void filter(const Vector g[3], Vector o[6]) {  // G g
        const Vector a = (g[0] + g[2]) * (1 / 6.f), b = g[1] * (1 / 6.f), c = g[0] * (1 / 24.f) + g[2] * (1 / 6.f), e = g[1] * (1 / 12.f);
        o[0] = 0.25f * g[0];
        o[1] = -a - b;
        o[2] = b - a;
        o[3] = c + e;
        o[4] = c - e;
        o[5] = g[2];
    }
    static INLINE void filter_gradient(const Vector m[6], Vector o[3]) {  // G^T m
        const Vector a = (m[1] + m[2]) * (1 / 6.f), b = (m[2] - m[1]) * (1 / 6.f), c = m[3] + m[4], e = m[3] - m[4];
        o[0] = 0.25f * m[0] - a + c * (1 / 24.f);
        o[1] = b + e * (1 / 12.f);
        o[2] = c * (1 / 6.f) - a + m[5];
    }
};

struct F3x2 {  // F(3x3, 2x2), points 0, 1, -1, infinity
    static constexpr int OUT = 3, KERNEL = 2, WINDOW = 4, POINTS = 16;

    static INLINE void input(const Vector d[4], Vector o[4]) {  // B^T d
        o[0] = d[0] - d[2];
        o[1] = d[1] + d[2];
        o[2] = d[2] - d[1];
        o[3] = d[3] - d[1];
    }
    static INLINE void output(const Vector m[4], Vector o[3]) {  // A^T m
        const Vector a = m[1] + m[2];
        o[0] = m[0] + a;
        o[1] = m[1] - m[2];
        o[2] = a + m[3];
    }
    static INLINE void gradient(const Vector y[3], Vector o[4]) {  // A y
        const Vector a = y[0] + y[2];
        o[0] = y[0];
        o[1] = a + y[1];
        o[2] = a - y[1];
        o[3] = y[2];
    }
    static INLINE void input_gradient(const Vector m[4], Vector o[4]) {  // B m
        o[0] = m[0];
        o[1] = m[1] - m[2] - m[3];
        o[2] = m[1] + m[2] - m[0];
        o[3] = m[3];
    }
    static INLINE void filter(const Vector g[2], Vector o[4]) {  // G g
        o[0] = g[0];
        o[1] = 0.5f * (g[0] + g[1]);
        o[2] = 0.5f * (g[0] - g[1]);
        o[3] = g[1];
    }
    static INLINE void filter_gradient(const Vector m[4], Vector o[2]) {  // G^T m
        o[0] = m[0] + 0.5f * (m[1] + m[2]);
        o[1] = 0.5f * (m[1] - m[2]) + m[3];
    }
};

// How the pixels, or blocks of pixels, of a tile lie in memory. The channels of one are `segments` contiguous pieces of
// `length` floats, `segment` floats apart. The next pixel to the right begins `length` floats later, the one below `row`.
struct Layout {
    int length, segments;
    ptrdiff_t row, segment;
    int channels() const { return length * segments; }
};

// Functions below have the usual layouts as template arguments, LENGTH and SEGMENTS, so that addresses are constants;
// 0 stands for any other number.

// Writes the points of a tile of SIDE x SIDE pixels that begins at `in`: TRANSFORM of its columns, then of its rows.
// Point i goes to out + i * point_floats(channels). Inputs have SIDE = WINDOW and F::input (B^T d B), output gradients
// SIDE = OUT and F::gradient (A dY A^T).
template <int LENGTH, int SEGMENTS, int SIDE, int WINDOW, void TRANSFORM(const Vector*, Vector*)>
void transform_tile(const float* in, const Layout& layout, float* out) {
    const int length = LENGTH != 0 ? LENGTH : layout.length, segments = LENGTH != 0 ? SEGMENTS : layout.segments;
    const ptrdiff_t row = layout.row, point_stride = point_floats(length * segments);
    for (int s = 0; s < segments; s++, in += layout.segment - length) {
        for (int c = 0; c < length; c += LANES, in += LANES, out += LANES) {
            Vector half[WINDOW][SIDE];
            UNROLL for (int x = 0; x < SIDE; x++) {
                Vector column[SIDE], o[WINDOW];
                UNROLL for (int y = 0; y < SIDE; y++) column[y] = load(in + y * row + x * length);
                TRANSFORM(column, o);
                UNROLL for (int y = 0; y < WINDOW; y++) half[y][x] = o[y];
            }
            UNROLL for (int y = 0; y < WINDOW; y++) {
                Vector o[WINDOW];
                TRANSFORM(half[y], o);
                UNROLL for (int x = 0; x < WINDOW; x++) store(out + (y * WINDOW + x) * point_stride, o[x]);
            }
        }
    }
}

using TransformTile = void (*)(const float*, const Layout&, float*);

template <int SIDE, int WINDOW, void TRANSFORM(const Vector*, Vector*)>
TransformTile transform_for(const Layout& layout) {
    if (layout.segments == 1) {
        switch (layout.length) {
            case 16: return transform_tile<16, 1, SIDE, WINDOW, TRANSFORM>;
            case 32: return transform_tile<32, 1, SIDE, WINDOW, TRANSFORM>;
            case 48: return transform_tile<48, 1, SIDE, WINDOW, TRANSFORM>;
            case 64: return transform_tile<64, 1, SIDE, WINDOW, TRANSFORM>;
        }
    } else if (layout.segments == 2 && layout.length == 64) {
        return transform_tile<64, 2, SIDE, WINDOW, TRANSFORM>;
    }
    return transform_tile<0, 0, SIDE, WINDOW, TRANSFORM>;
}

// What happens to an output before it is stored: + bias[channel], zero where mask <= 0, + add, then max(., 0) if
// `rectify`. Each pointer may be null.
struct Epilogue {
    const float *bias, *mask, *add;
    bool rectify;
    template <bool BIAS, bool MASK, bool ADD, bool RECTIFY>
    Vector apply(Vector v, size_t position, int channel) const {
        if (BIAS) v += load(bias + channel);
        if (MASK) v = where_positive(load(mask + position), v);
        if (ADD) v += load(add + position);
        return RECTIFY ? rectified(v) : v;
    }
};

struct Tile {
    size_t position;    // of its first output in y, or of its first input in dx
    int rows, columns;  // of its outputs, or inputs, that lie inside the image
    int last_of;        // the image whose last tile it is, or -1
};

// Writes the outputs of a tile.
template <class F, int FIXED, bool BIAS, bool MASK, bool ADD, bool RECTIFY>
void finish_tile(const float* in, Image out, const Tile& tile, float* y, const Epilogue& epilogue) {
    const int channels = FIXED != 0 ? FIXED : out.channels, row = out.width * channels;
    const ptrdiff_t point_stride = point_floats(channels);
    for (int c = 0; c < channels; c += LANES) {
        Vector half[F::OUT][F::WINDOW];
        UNROLL for (int x = 0; x < F::WINDOW; x++) {
            Vector column[F::WINDOW], o[F::OUT];
            UNROLL for (int i = 0; i < F::WINDOW; i++) column[i] = load(in + (i * F::WINDOW + x) * point_stride + c);
            F::output(column, o);
            UNROLL for (int i = 0; i < F::OUT; i++) half[i][x] = o[i];
        }
        const auto finish = [&](int i, int x, Vector v) INLINE_LAMBDA {
            const size_t at = tile.position + static_cast<size_t>(i) * row + x * channels + c;
            store(y + at, epilogue.apply<BIAS, MASK, ADD, RECTIFY>(v, at, c));
        };
        const bool whole = tile.rows == F::OUT && tile.columns == F::OUT;
        Vector edge[F::OUT][F::OUT];
        UNROLL for (int i = 0; i < F::OUT; i++) {
            Vector o[F::OUT];
            F::output(half[i], o);
            UNROLL for (int x = 0; x < F::OUT; x++) {
                if (whole) finish(i, x, o[x]);
                else edge[i][x] = o[x];
            }
        }
        if (whole) continue;
        for (int i = 0; i < tile.rows; i++)
            for (int x = 0; x < tile.columns; x++) finish(i, x, edge[i][x]);
    }
}

using FinishTile = void (*)(const float*, Image, const Tile&, float*, const Epilogue&);

template <class F, int FIXED>
FinishTile finish_for(const Epilogue& e) {
    if (e.rectify) return finish_tile<F, FIXED, true, false, false, true>;
    if (e.bias != nullptr)
        return e.add != nullptr ? finish_tile<F, FIXED, true, false, true, false> : finish_tile<F, FIXED, true, false, false, false>;
    if (e.mask != nullptr)
        return e.add != nullptr ? finish_tile<F, FIXED, false, true, true, false> : finish_tile<F, FIXED, false, true, false, false>;
    return e.add != nullptr ? finish_tile<F, FIXED, false, false, true, false> : finish_tile<F, FIXED, false, false, false, false>;
}

template <class F>
FinishTile finish_for(int channels, const Epilogue& epilogue) {
    switch (channels) {
        case 16: return finish_for<F, 16>(epilogue);
        case 32: return finish_for<F, 32>(epilogue);
        case 64: return finish_for<F, 64>(epilogue);
        default: return finish_for<F, 0>(epilogue);
    }
}

// Adds the input gradient of a tile, B m B^T, to dx.
template <class F, int LENGTH, int SEGMENTS>
void add_tile(const float* in, const Layout& layout, const Tile& tile, float* dx) {
    const int length = LENGTH != 0 ? LENGTH : layout.length, segments = LENGTH != 0 ? SEGMENTS : layout.segments;
    const ptrdiff_t row = layout.row, point_stride = point_floats(length * segments);
    const bool whole = tile.rows == F::WINDOW && tile.columns == F::WINDOW;
    float* out = dx + tile.position;
    for (int s = 0; s < segments; s++, out += layout.segment - length) {
        for (int c = 0; c < length; c += LANES, in += LANES, out += LANES) {
            Vector half[F::WINDOW][F::WINDOW];
            UNROLL for (int x = 0; x < F::WINDOW; x++) {
                Vector column[F::WINDOW], o[F::WINDOW];
                UNROLL for (int i = 0; i < F::WINDOW; i++) column[i] = load(in + (i * F::WINDOW + x) * point_stride);
                F::input_gradient(column, o);
                UNROLL for (int i = 0; i < F::WINDOW; i++) half[i][x] = o[i];
            }
            const auto add = [&](int i, int x, Vector v) INLINE_LAMBDA {
                float* at = out + i * row + x * length;
                store(at, load(at) + v);
            };
            Vector edge[F::WINDOW][F::WINDOW];
            UNROLL for (int i = 0; i < F::WINDOW; i++) {
                Vector o[F::WINDOW];
                F::input_gradient(half[i], o);
                UNROLL for (int x = 0; x < F::WINDOW; x++) {
                    if (whole) add(i, x, o[x]);
                    else edge[i][x] = o[x];
                }
            }
            if (whole) continue;
            for (int i = 0; i < tile.rows; i++)
                for (int x = 0; x < tile.columns; x++) add(i, x, edge[i][x]);
        }
    }
}

using AddTile = void (*)(const float*, const Layout&, const Tile&, float*);

template <class F>
AddTile add_for(const Layout& layout) {
    if (layout.segments == 1 && layout.length == 64) return add_tile<F, 64, 1>;
    if (layout.segments == 2 && layout.length == 64) return add_tile<F, 64, 2>;
    return add_tile<F, 0, 0>;
}

// --- Products of small matrices -----------------------------------------------------------------------------

// Register blocks: WIDE vectors of output channels, ROWS tiles or pixels.
constexpr int WIDE = LANES == 16 ? 2 : (LANES == 8 || REGISTERS == 16) ? 2 : 4;
constexpr int ROWS = REGISTERS == 32 ? 8 : 4;

// m (rows, K) = v (rows, C) u (C, K), for rows a multiple of P and K a multiple of X * LANES. FIXED is C if the
// compiler may know it, else 0.
template <int P, int X, int FIXED>
void product(const float* v, const float* u, float* m, int rows, int channels, int K) {
    const int C = FIXED != 0 ? FIXED : channels;
    for (int t = 0; t < rows; t += P) {
        for (int k = 0; k < K; k += X * LANES) {
            Vector sum[P][X] = {};
            const float* weights = u + k;
            const float* tiles = v + static_cast<ptrdiff_t>(t) * C;
            for (int c = 0; c < C; c++, weights += K, tiles++) {
                Vector w[X];
                UNROLL for (int x = 0; x < X; x++) w[x] = load(weights + x * LANES);
                UNROLL for (int p = 0; p < P; p++) {
                    const Vector tile = broadcast(tiles[p * C]);
                    UNROLL for (int x = 0; x < X; x++) sum[p][x] += tile * w[x];
                }
            }
            UNROLL for (int p = 0; p < P; p++)
                UNROLL for (int x = 0; x < X; x++) store(m + static_cast<ptrdiff_t>(t + p) * K + k + x * LANES, sum[p][x]);
        }
    }
}

template <int FIXED>
void product_of_any_width(const float* v, const float* u, float* m, int rows, int C, int K) {
    if (K % (WIDE * LANES) == 0) return product<ROWS, WIDE, FIXED>(v, u, m, rows, C, K);
    return product<2 * ROWS, 1, FIXED>(v, u, m, rows, C, K);
}

// The same for any number of tiles up to BATCH: v and m have memory for whole blocks of rows.
void tile_product(const float* v, const float* u, float* m, int tiles, int C, int K) {
    const int rows = (tiles + 2 * ROWS - 1) / (2 * ROWS) * (2 * ROWS);
    switch (C) {
        case 16: return product_of_any_width<16>(v, u, m, rows, C, K);
        case 32: return product_of_any_width<32>(v, u, m, rows, C, K);
        case 48: return product_of_any_width<48>(v, u, m, rows, C, K);
        case 64: return product_of_any_width<64>(v, u, m, rows, C, K);
        case 128: return product_of_any_width<128>(v, u, m, rows, C, K);
        default: return product_of_any_width<0>(v, u, m, rows, C, K);
    }
}

// sum (C, K) += v (rows, C)^T m (rows, K), for C a multiple of P and K of X * LANES.
template <int P, int X>
void accumulate_product(const float* v, const float* m, float* sum, int rows, int C, int K) {
    for (int c = 0; c < C; c += P) {
        for (int k = 0; k < K; k += X * LANES) {
            Vector total[P][X];
            UNROLL for (int p = 0; p < P; p++)
                UNROLL for (int x = 0; x < X; x++) total[p][x] = load(sum + static_cast<ptrdiff_t>(c + p) * K + k + x * LANES);
            const float *left = v + c, *right = m + k;
            for (int t = 0; t < rows; t++, left += C, right += K) {
                Vector g[X];
                UNROLL for (int x = 0; x < X; x++) g[x] = load(right + x * LANES);
                UNROLL for (int p = 0; p < P; p++) {
                    const Vector value = broadcast(left[p]);
                    UNROLL for (int x = 0; x < X; x++) total[p][x] += value * g[x];
                }
            }
            UNROLL for (int p = 0; p < P; p++)
                UNROLL for (int x = 0; x < X; x++) store(sum + static_cast<ptrdiff_t>(c + p) * K + k + x * LANES, total[p][x]);
        }
    }
}

void add_channel_sums(const float* gradient, size_t pixels, int K, float* sums) {
    for (int k = 0; k < K; k += LANES) {
        Vector sum[4] = {};
        size_t i = 0;
        for (; i + 4 <= pixels; i += 4)
            UNROLL for (int j = 0; j < 4; j++) sum[j] += load(gradient + (i + j) * K + k);
        for (; i < pixels; i++) sum[0] += load(gradient + i * K + k);
        store(sums + k, load(sums + k) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
    }
}

}  // namespace

// --- Convolutions by Winograd's algorithm -------------------------------------------------------------------

// The geometry of such a convolution. kernels/library.py has the same structure.
struct WinogradGeometry {
    int height, width, channels;  // of an input image
    int block;                    // pixels of a block along each side; with more than 1, the kernel is 2 x 2 blocks
    int pad;                      // zeros around an image, for blocks of one pixel
    int rectify;                  // 1 if the input is max(x, 0), for blocks of one pixel
    int bytes;                    // 1 if the input is uint8, for larger blocks
    int out_channels;
    int point_stride;             // floats from one point's matrix (C, K) of the filters to the next
};

namespace {

// The input of a convolution, or of its gradient of the filter, in tiles.
template <class F>
class Tiles {
  public:
    Tiles(const WinogradGeometry& g, const void* x)
        : g(g), x(x), size{g.height, g.width, g.channels},
          blocks{g.height / g.block, g.width / g.block, g.block * g.block * g.channels},
          out{blocks.height + 2 * g.pad - F::KERNEL + 1, blocks.width + 2 * g.pad - F::KERNEL + 1, g.out_channels},
          down(along(out.height)), across(along(out.width)),
          frame_size{down * F::OUT + F::KERNEL - 1, across * F::OUT + F::KERNEL - 1, blocks.channels},
          whole(out.height % F::OUT == 0 && out.width % F::OUT == 0),
          in_place(whole && g.pad == 0 && !g.rectify && !g.bytes && g.block * g.channels % LANES == 0),
          layout(in_place ? image_layout() : Layout{blocks.channels, 1, static_cast<ptrdiff_t>(frame_size.width) * blocks.channels, 0}),
          frame(in_place ? nullptr : frame_scratch.floats(frame_size.floats())),
          transform(transform_for<F::WINDOW, F::WINDOW, F::input>(layout)) {}

    // The layout of an input image, as it is in memory.
    Layout image_layout() const {
        const int length = g.block * g.channels;
        const ptrdiff_t row = static_cast<ptrdiff_t>(g.width) * g.channels;
        return {length, g.block, row * g.block, row};
    }

    // Makes image n the one that `read` reads from.
    void open(int n) {
        const size_t start = n * size.floats();
        if (in_place) image = static_cast<const float*>(x) + start;
        else if (g.bytes) fill_frame_with_blocks(static_cast<const uint8_t*>(x) + start, size, g.block, frame, frame_size);
        else if (g.block > 1) fill_frame_with_blocks(static_cast<const float*>(x) + start, size, g.block, frame, frame_size);
        else fill_frame(static_cast<const float*>(x) + start, size, frame, frame_size, g.pad, g.rectify != 0);
        if (!in_place) image = frame;
    }

    // Writes the transformed tile (i, j) to v.
    void read(int i, int j, float* v) const { transform(image + F::OUT * (i * layout.row + j * layout.length), layout, v); }

    const WinogradGeometry& g;
    const void* const x;
    const Image size, blocks, out;  // of an input image; with blocks as pixels; of an output
    const int down, across;         // numbers of tiles
    const Image frame_size;
    const bool whole;               // whether all tiles lie inside the output

  private:
    static int along(int outputs) { return (outputs + F::OUT - 1) / F::OUT; }
    const bool in_place;
    const Layout layout;
    float* const frame;
    const TransformTile transform;
    const float* image = nullptr;
};

template <class F>
void winograd(const WinogradGeometry& g, const void* x, const float* u, float* y, int count, const Epilogue& epilogue) {
    Tiles<F> inputs(g, x);
    const Image out = inputs.out;
    const int C = inputs.blocks.channels, K = out.channels;
    float* v = tile_scratch.floats(static_cast<size_t>(F::POINTS) * (point_floats(C) + point_floats(K)));
    float* m = v + static_cast<size_t>(F::POINTS) * point_floats(C);
    const FinishTile finish = finish_for<F>(K, epilogue);
    Tile tiles[BATCH];
    int waiting = 0;
    for (int n = 0; n < count; n++) {
        inputs.open(n);
        for (int i = 0; i < inputs.down; i++) {
            for (int j = 0; j < inputs.across; j++) {
                inputs.read(i, j, v + waiting * C);
                const size_t position = n * out.floats() + (static_cast<size_t>(i) * out.width + j) * F::OUT * K;
                tiles[waiting++] = {position, std::min(F::OUT, out.height - i * F::OUT), std::min(F::OUT, out.width - j * F::OUT), -1};
                if (waiting < BATCH && !(n == count - 1 && i == inputs.down - 1 && j == inputs.across - 1)) continue;
                for (ptrdiff_t point = 0; point < F::POINTS; point++)
                    tile_product(v + point * point_floats(C), u + point * g.point_stride, m + point * point_floats(K), waiting, C, K);
                for (int t = 0; t < waiting; t++) finish(m + t * K, out, tiles[t], y, epilogue);
                waiting = 0;
            }
        }
    }
}

// Gradients of the filter, of the bias and, if dx is not null, of the input, with the transposed filters `transposed`.
template <class F>
void winograd_gradients(const WinogradGeometry& g, const void* x, const float* dy, float* du, float* bias_sums,
                        const float* transposed, const float* mask, float* dx, int count) {
    Tiles<F> inputs(g, x);
    const Image out = inputs.out, blocks = inputs.blocks, frame_size = {inputs.down * F::OUT, inputs.across * F::OUT, out.channels};
    const int C = blocks.channels, K = out.channels;
    const Layout layout = {K, 1, static_cast<ptrdiff_t>(frame_size.width) * K, 0}, dx_layout = inputs.image_layout();
    float* frame = inputs.whole ? nullptr : gradient_frame_scratch.floats(frame_size.floats());
    float* v = tile_scratch.floats(static_cast<size_t>(F::POINTS) * (point_floats(C) + point_floats(K)));
    float* m = v + static_cast<size_t>(F::POINTS) * point_floats(C);
    const auto transform = transform_for<F::OUT, F::WINDOW, F::gradient>(layout);
    const auto add = add_for<F>(dx_layout);
    const size_t dx_floats = inputs.size.floats();
    Tile tiles[BATCH];
    int waiting = 0;
    for (int n = 0; n < count; n++) {
        const float* gradient = dy + n * out.floats();
        add_channel_sums(gradient, static_cast<size_t>(out.height) * out.width, K, bias_sums);
        inputs.open(n);
        if (!inputs.whole) {
            fill_frame(gradient, out, frame, frame_size, 0, false);
            gradient = frame;
        }
        if (dx != nullptr) std::fill_n(dx + n * dx_floats, dx_floats, 0.f);
        for (int i = 0; i < inputs.down; i++) {
            for (int j = 0; j < inputs.across; j++) {
                const bool last = i == inputs.down - 1 && j == inputs.across - 1;
                inputs.read(i, j, v + waiting * C);
                transform(gradient + F::OUT * (i * layout.row + j * K), layout, m + waiting * K);
                const size_t position = n * dx_floats + F::OUT * (i * dx_layout.row + j * dx_layout.length);
                tiles[waiting++] = {position, std::min(F::WINDOW, blocks.height - i * F::OUT),
                                    std::min(F::WINDOW, blocks.width - j * F::OUT), last ? n : -1};
                if (waiting < BATCH && !(n == count - 1 && last)) continue;
                for (ptrdiff_t point = 0; point < F::POINTS; point++) {
                    float *left = v + point * point_floats(C), *right = m + point * point_floats(K);
                    float* sum = du + point * g.point_stride;
                    if (K % (WIDE * LANES) == 0) accumulate_product<ROWS, WIDE>(left, right, sum, waiting, C, K);
                    else accumulate_product<2 * ROWS, 1>(left, right, sum, waiting, C, K);
                    if (dx != nullptr) tile_product(right, transposed + point * g.point_stride, left, waiting, K, C);
                }
                for (int t = 0; t < waiting && dx != nullptr; t++) {
                    add(v + t * C, dx_layout, tiles[t], dx);
                    if (tiles[t].last_of < 0 || mask == nullptr) continue;
                    const size_t start = tiles[t].last_of * dx_floats;
                    for (size_t at = start; at < start + dx_floats; at += LANES) store(dx + at, where_positive(load(mask + at), load(dx + at)));
                }
                waiting = 0;
            }
        }
    }
}

// u (points, C', K) = scale * G w G^T for w (K, rows, columns, C), or with TRANSPOSED u (points, K, C'). There it is for
// LANES contiguous channels C' at a time; a convolution with padding turns the filter by 180 degrees.
template <class F, bool TRANSPOSED>
void winograd_filter(const WinogradGeometry& g, const float* w, float scale, float* u) {
    const int C = g.channels, K = g.out_channels, row = F::KERNEL * g.block * C;
    const size_t filter = static_cast<size_t>(F::KERNEL) * g.block * row;
    const bool turn = TRANSPOSED && g.pad > 0;
    for (int k = 0; k < K; k += TRANSPOSED ? 1 : LANES) {
        for (int r = 0; r < g.block; r++) {
            for (int c = 0; c < g.block * C; c += TRANSPOSED ? LANES : 1) {
                const float* in = w + k * filter + static_cast<size_t>(r) * row + c;
                Vector half[F::WINDOW][F::KERNEL];
                UNROLL for (int x = 0; x < F::KERNEL; x++) {
                    Vector column[F::KERNEL], o[F::WINDOW];
                    UNROLL for (int y = 0; y < F::KERNEL; y++) {
                        const float* at = in + (turn ? F::KERNEL - 1 - y : y) * g.block * row + (turn ? F::KERNEL - 1 - x : x) * g.block * C;
                        if (TRANSPOSED) column[y] = load(at);
                        else UNROLL for (int lane = 0; lane < LANES; lane++) column[y][lane] = at[lane * filter];
                    }
                    F::filter(column, o);
                    UNROLL for (int y = 0; y < F::WINDOW; y++) half[y][x] = o[y];
                }
                const size_t channel = static_cast<size_t>(r) * g.block * C + c;
                float* out = u + (TRANSPOSED ? static_cast<size_t>(k) * g.block * g.block * C + channel : channel * K + k);
                UNROLL for (int y = 0; y < F::WINDOW; y++) {
                    Vector o[F::WINDOW];
                    F::filter(half[y], o);
                    UNROLL for (int x = 0; x < F::WINDOW; x++)
                        store(out + (y * F::WINDOW + x) * static_cast<ptrdiff_t>(g.point_stride), scale * o[x]);
                }
            }
        }
    }
}

// dw (K, rows, columns, C) = scale * G^T du G, for du (points, C', K).
template <class F>
void winograd_filter_gradient(const WinogradGeometry& g, const float* du, float scale, float* dw) {
    const int C = g.channels, K = g.out_channels, row = F::KERNEL * g.block * C;
    const size_t filter = static_cast<size_t>(F::KERNEL) * g.block * row;
    for (int k = 0; k < K; k += LANES) {
        for (int r = 0; r < g.block; r++) {
            for (int c = 0; c < g.block * C; c++) {
                const float* in = du + (static_cast<size_t>(r) * g.block * C + c) * K + k;
                Vector half[F::KERNEL][F::WINDOW];
                UNROLL for (int x = 0; x < F::WINDOW; x++) {
                    Vector column[F::WINDOW], o[F::KERNEL];
                    UNROLL for (int y = 0; y < F::WINDOW; y++)
                        column[y] = load(in + (y * F::WINDOW + x) * static_cast<ptrdiff_t>(g.point_stride));
                    F::filter_gradient(column, o);
                    UNROLL for (int y = 0; y < F::KERNEL; y++) half[y][x] = o[y];
                }
                float* out = dw + k * filter + static_cast<size_t>(r) * row + c;
                UNROLL for (int y = 0; y < F::KERNEL; y++) {
                    Vector o[F::KERNEL];
                    F::filter_gradient(half[y], o);
                    UNROLL for (int x = 0; x < F::KERNEL; x++) {
                        const Vector v = scale * o[x];
                        UNROLL for (int lane = 0; lane < LANES; lane++)
                            out[lane * filter + y * g.block * row + x * g.block * C] = v[lane];
                    }
                }
            }
        }
    }
}

}  // namespace

// --- Direct convolutions of any size and stride -------------------------------------------------------------

// The geometry of a direct convolution. kernels/library.py has the same structure.
struct Direct {
    int height, width, channels;     // of an input image
    int pad;                         // zeros above and left of it; below and right as many as are needed
    int kernel, stride;              // along both sides
    int down, across, out_channels;  // of an output
    int bytes;                       // 1 if the input is uint8, 0 if it is float32
};

namespace {

Image frame_of(const Direct& d) {
    const int rows = (d.down - 1) * d.stride + d.kernel, columns = (d.across - 1) * d.stride + d.kernel;
    return {std::max(rows, d.pad + d.height), std::max(columns, d.pad + d.width), d.channels};
}

// Returns image n as a frame, or where it is if it needs none.
const float* frame_of_image(const void* x, const Direct& d, Image size, int n) {
    const Image image = {d.height, d.width, d.channels};
    const size_t start = n * image.floats();
    if (d.bytes == 0 && d.pad == 0 && size.height == d.height && size.width == d.width)
        return static_cast<const float*>(x) + start;
    float* frame = frame_scratch.floats(size.floats() + LANES);
    if (d.bytes != 0) fill_frame(static_cast<const uint8_t*>(x) + start, image, frame, size, d.pad, false);
    else fill_frame(static_cast<const float*>(x) + start, image, frame, size, d.pad, false);
    return frame;
}

// sum[p][x] += over the window of pixel p; `pixels` are the first inputs of each, `length` those of a window's row.
template <int P, int X>
INLINE void window_products(const float* const pixels[P], int row, int kernel, int length, const float* w, int K,
                     Vector sum[P][X]) {
    const float* in[P];
    UNROLL for (int p = 0; p < P; p++) in[p] = pixels[p];
    for (int r = 0; r < kernel; r++) {
        for (int j = 0; j < length; j++, w += K) {
            Vector weight[X];
            UNROLL for (int x = 0; x < X; x++) weight[x] = load(w + x * LANES);
            UNROLL for (int p = 0; p < P; p++) {
                const Vector value = broadcast(in[p][j]);
                UNROLL for (int x = 0; x < X; x++) sum[p][x] += value * weight[x];
            }
        }
        UNROLL for (int p = 0; p < P; p++) in[p] += row;
    }
}

// The same for P pixels side by side whose windows begin STEP inputs apart: addresses are constants.
template <int P, int X, int STEP>
INLINE void row_products(const float* in, int row, int kernel, int length, const float* w, int K, Vector sum[P][X]) {
    for (int r = 0; r < kernel; r++, in += row) {
        for (int j = 0; j < length; j++, w += K) {
            Vector weight[X];
            UNROLL for (int x = 0; x < X; x++) weight[x] = load(w + x * LANES);
            UNROLL for (int p = 0; p < P; p++) {
                const Vector value = broadcast(in[j + p * STEP]);
                UNROLL for (int x = 0; x < X; x++) sum[p][x] += value * weight[x];
            }
        }
    }
}

// Where the window of each output begins in the frame.
const std::vector<ptrdiff_t>& pixels_of(const Direct& d, Image frame) {
    std::vector<ptrdiff_t>& pixels = pixel_scratch;
    pixels.clear();
    for (int i = 0; i < d.down; i++)
        for (int j = 0; j < d.across; j++)
            pixels.push_back((static_cast<ptrdiff_t>(i) * frame.width + j) * d.stride * d.channels);
    return pixels;
}

// STEP: inputs from one pixel's window to the next if each P pixels are side by side, else 0.
template <int P, int X, int STEP>
void direct_image(const float* frame, Image size, const Direct& d, const std::vector<ptrdiff_t>& pixels, const float* w,
                  const float* bias, float* y) {
    const int K = d.out_channels, row = size.width * d.channels, length = d.kernel * d.channels;
    const int count = static_cast<int>(pixels.size());
    for (int first = 0; first < count; first += P) {
        const float* in[P];
        UNROLL for (int p = 0; p < P; p++) in[p] = frame + pixels[std::min(first + p, count - 1)];
        for (int k = 0; k < K; k += X * LANES) {
            Vector sum[P][X] = {};
            if (STEP != 0) row_products<P, X, STEP>(in[0], row, d.kernel, length, w + k, K, sum);
            else window_products<P, X>(in, row, d.kernel, length, w + k, K, sum);
            const auto finish = [&](int p, int x, Vector v) INLINE_LAMBDA {
                const int channel = k + x * LANES;
                store(y + static_cast<size_t>(first + p) * K + channel, v + load(bias + channel));
            };
            if (first + P <= count) {
                UNROLL for (int p = 0; p < P; p++)
                    UNROLL for (int x = 0; x < X; x++) finish(p, x, sum[p][x]);
            } else {  // indices that are not constants would keep `sum` itself out of the registers
                Vector copy[P][X];
                UNROLL for (int p = 0; p < P; p++)
                    UNROLL for (int x = 0; x < X; x++) copy[p][x] = sum[p][x];
                for (int p = 0; first + p < count; p++)
                    for (int x = 0; x < X; x++) finish(p, x, copy[p][x]);
            }
        }
    }
}

// sums (kernel, length, K) += for each row r of the window and G inputs of it at a time.
template <int G, int X>
void direct_weights_image(const float* frame, Image size, const Direct& d, const float* dy, float* sums) {
    const int K = d.out_channels, row = size.width * d.channels, length = d.kernel * d.channels;
    const int step = d.stride * d.channels;
    for (int r = 0; r < d.kernel; r++) {
        for (int j = 0; j < length; j += G) {
            for (int k = 0; k < K; k += X * LANES) {
                float* sum = sums + (static_cast<size_t>(r) * length + j) * K + k;
                Vector total[G][X];
                UNROLL for (int g = 0; g < G; g++)
                    UNROLL for (int x = 0; x < X; x++) total[g][x] = load(sum + g * K + x * LANES);
                for (int i = 0; i < d.down; i++) {
                    const float* in = frame + static_cast<size_t>(i * d.stride + r) * row + j;
                    const float* gradient = dy + static_cast<size_t>(i) * d.across * K + k;
                    for (int pixel = 0; pixel < d.across; pixel++, in += step, gradient += K) {
                        Vector v[X];
                        UNROLL for (int x = 0; x < X; x++) v[x] = load(gradient + x * LANES);
                        UNROLL for (int g = 0; g < G; g++) {
                            const Vector value = broadcast(in[g]);
                            UNROLL for (int x = 0; x < X; x++) total[g][x] += value * v[x];
                        }
                    }
                }
                UNROLL for (int g = 0; g < G; g++)
                    UNROLL for (int x = 0; x < X; x++) store(sum + g * K + x * LANES, total[g][x]);
            }
        }
    }
}

template <int X>
void direct_weights_image_of_any_length(const float* frame, Image size, const Direct& d, const float* dy, float* sums) {
    const int length = d.kernel * d.channels;
    if (length % 8 == 0) direct_weights_image<8, X>(frame, size, d, dy, sums);
    else if (length % 9 == 0) direct_weights_image<9, X>(frame, size, d, dy, sums);
    else if (length % 4 == 0) direct_weights_image<4, X>(frame, size, d, dy, sums);
    else if (length % 3 == 0) direct_weights_image<3, X>(frame, size, d, dy, sums);
    else direct_weights_image<1, X>(frame, size, d, dy, sums);
}

}  // namespace

namespace {

// The gradient of one max-pool window, for LANES channels: zero unless `exists`.
struct Window {
    Vector gradient;
    IntVector place;
    Window(const float* dy, const uint8_t* index, size_t at, bool exists) : gradient(), place() {
        if (!exists) return;
        gradient = load(dy + at);
        place = __builtin_convertvector(*reinterpret_cast<const UnalignedBytes*>(index + at), IntVector);
    }
    Vector at(int input) const { return place == input ? gradient : Vector{}; }
};

}  // namespace

// --- Dense layers -------------------------------------------------------------------------------------------

namespace {

thread_local Scratch panel_scratch;
constexpr int PANEL = WIDE * LANES;  // columns of a matrix that are multiplied at once

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, IntVector{__VA_ARGS__})
#endif

// a[0] b[0] a[1] b[1] ..., the lower and the upper half.
template <int... I>
INLINE void interleave(Vector a, Vector b, Vector& low, Vector& high, std::integer_sequence<int, I...>) {
    low = SHUFFLE(a, b, (I % 2 * LANES + I / 2)...);
    high = SHUFFLE(a, b, (I % 2 * LANES + LANES / 2 + I / 2)...);
}

// panel (columns, PANEL) = the transposed rows of w, PANEL rows of `columns` floats.
void transpose_panel(const float* w, int columns, float* panel) {
    for (int x = 0; x < WIDE; x++) {
        for (int c = 0; c < columns; c += LANES) {
            Vector rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = load(w + static_cast<size_t>(x * LANES + i) * columns + c);
            UNROLL for (int stage = 1; stage < LANES; stage *= 2) {
                Vector next[LANES];
                UNROLL for (int i = 0; i < LANES / 2; i++)
                    interleave(rows[i], rows[i + LANES / 2], next[2 * i], next[2 * i + 1], std::make_integer_sequence<int, LANES>());
                UNROLL for (int i = 0; i < LANES; i++) rows[i] = next[i];
            }
            UNROLL for (int i = 0; i < LANES; i++) store(panel + static_cast<size_t>(c + i) * PANEL + x * LANES, rows[i]);
        }
    }
}

// panel (rows, PANEL) = PANEL columns of a matrix with `stride` columns.
void copy_panel(const float* matrix, int rows, int stride, float* panel) {
    for (int i = 0; i < rows; i++)
        UNROLL for (int x = 0; x < WIDE; x++)
            store(panel + i * PANEL + x * LANES, load(matrix + static_cast<size_t>(i) * stride + x * LANES));
}

// sum[p][x] += over `depth`: left[p] times a row of the panel.
INLINE void panel_products(const float* const left[ROWS], const float* panel, int depth, Vector sum[ROWS][WIDE]) {
    for (int i = 0; i < depth; i++, panel += PANEL) {
        Vector right[WIDE];
        UNROLL for (int x = 0; x < WIDE; x++) right[x] = load(panel + x * LANES);
        UNROLL for (int p = 0; p < ROWS; p++) {
            const Vector value = broadcast(left[p][i]);
            UNROLL for (int x = 0; x < WIDE; x++) sum[p][x] += value * right[x];
        }
    }
}

// PANEL columns of out (rows, columns) = left (rows, depth) panel (depth, PANEL), + bias and max(., 0) if there is one.
void panel_product(const float* left, const float* panel, const float* bias, float* out, int rows, int depth, int columns) {
    for (int first = 0; first < rows; first += ROWS) {
        const float* in[ROWS];
        UNROLL for (int p = 0; p < ROWS; p++) in[p] = left + static_cast<size_t>(std::min(first + p, rows - 1)) * depth;
        Vector sum[ROWS][WIDE] = {};
        panel_products(in, panel, depth, sum);
        Vector copy[ROWS][WIDE];
        UNROLL for (int p = 0; p < ROWS; p++)
            UNROLL for (int x = 0; x < WIDE; x++)
                copy[p][x] = bias == nullptr ? sum[p][x] : rectified(sum[p][x] + load(bias + x * LANES));
        for (int p = 0; p < ROWS && first + p < rows; p++)
            UNROLL for (int x = 0; x < WIDE; x++) store(out + static_cast<size_t>(first + p) * columns + x * LANES, copy[p][x]);
    }
}

// The sum of a[i] b[i] over i < count, for a multiple of 2 * LANES.
float dot(const float* a, const float* b, int count) {
    Vector one = {}, two = {};
    for (int i = 0; i < count; i += 2 * LANES) {
        one += load(a + i) * load(b + i);
        two += load(a + i + LANES) * load(b + i + LANES);
    }
    one += two;
    float sum = 0;
    UNROLL for (int lane = 0; lane < LANES; lane++) sum += one[lane];
    return sum;
}

thread_local Scratch logit_scratch;
thread_local std::vector<double> probability_scratch;

}  // namespace

// --- What Python calls (kernels/library.py) -----------------------------------------------------------------

extern "C" {

int rlcb_lanes() { return LANES; }

// y = conv(x (count, H, W, C)), where u (points, C', K) is the transformed filter of blocks, which have C' channels.
// Then + bias (K,), zero where mask <= 0, + add (both like y), and max(., 0) if `rectify`; each pointer may be null.
void rlcb_winograd(const WinogradGeometry* geometry, const void* x, const float* u, const float* bias, const float* mask,
                   const float* add, float* y, int count, int rectify) {
    const Epilogue epilogue = {bias, mask, add, rectify != 0};
    if (geometry->block > 1) winograd<F3x2>(*geometry, x, u, y, count, epilogue);
    else winograd<F4x3>(*geometry, x, u, y, count, epilogue);
}

// du (points, C', K) += the gradient of the transformed filter; bias_sums (K,) += dy summed over images and pixels.
// If dx is not null: dx (count, H, W, C) = the gradient of the input, zero where mask <= 0 if there is a mask. Only for
// float32 inputs without padding; `transposed` (points, K, C') has the transformed filter.
void rlcb_winograd_gradients(const WinogradGeometry* geometry, const void* x, const float* dy, float* du, float* bias_sums,
                             const float* transposed, const float* mask, float* dx, int count) {
    const auto compute = geometry->block > 1 ? winograd_gradients<F3x2> : winograd_gradients<F4x3>;
    compute(*geometry, x, dy, du, bias_sums, transposed, mask, dx, count);
}

// u (points, C', K) = `scale` times the transformed filter of w (K, kernel, kernel, C).
void rlcb_winograd_filter(const WinogradGeometry* geometry, const float* w, float scale, float* u) {
    const auto compute = geometry->block > 1 ? winograd_filter<F3x2, false> : winograd_filter<F4x3, false>;
    compute(*geometry, w, scale, u);
}

// u (points, K, C') = the transformed filter with which the gradient of the output becomes that of the input: of `w`
// turned by 180 degrees for a convolution with padding. C' is a multiple of 16.
void rlcb_winograd_transposed_filter(const WinogradGeometry* geometry, const float* w, float* u) {
    const auto compute = geometry->block > 1 ? winograd_filter<F3x2, true> : winograd_filter<F4x3, true>;
    compute(*geometry, w, 1.f, u);
}

// dw (K, kernel, kernel, C) = `scale` times the gradient of the filter, from that of the transformed one, du.
void rlcb_winograd_filter_gradient(const WinogradGeometry* geometry, const float* du, float scale, float* dw) {
    const auto compute = geometry->block > 1 ? winograd_filter_gradient<F3x2> : winograd_filter_gradient<F4x3>;
    compute(*geometry, du, scale, dw);
}

// y = conv(x (count, H, W, C)) with w (kernel, kernel, C, K), + bias (K,).
void rlcb_convolve(const Direct* geometry, const void* x, const float* w, const float* bias, float* y, int count) {
    const Direct& d = *geometry;
    const Image size = frame_of(d);
    const std::vector<ptrdiff_t>& pixels = pixels_of(d, size);
    const size_t out = pixels.size() * d.out_channels;
    const bool wide = d.out_channels % (WIDE * LANES) == 0;
    const bool rgb_rows = d.stride * d.channels == 3 && d.across % (2 * ROWS) == 0;
    const auto compute = rgb_rows ? (wide ? direct_image<ROWS, WIDE, 3> : direct_image<2 * ROWS, 1, 3>)
                                  : (wide ? direct_image<ROWS, WIDE, 0> : direct_image<ROWS, 1, 0>);
    for (int n = 0; n < count; n++) {
        const float* frame = frame_of_image(x, d, size, n);
        compute(frame, size, d, pixels, w, bias, y + n * out);
    }
}

// dw (kernel, kernel, C, K) += the gradient of the filter; bias_sums (K,) += dy summed over images and pixels.
void rlcb_weights(const Direct* geometry, const void* x, const float* dy, float* dw, float* bias_sums, int count) {
    const Direct& d = *geometry;
    const Image size = frame_of(d);
    const size_t pixels = static_cast<size_t>(d.down) * d.across;
    add_channel_sums(dy, count * pixels, d.out_channels, bias_sums);
    for (int n = 0; n < count; n++) {
        const float* frame = frame_of_image(x, d, size, n);
        const float* gradient = dy + n * pixels * d.out_channels;
        if (d.out_channels % (WIDE * LANES) == 0) direct_weights_image_of_any_length<WIDE>(frame, size, d, gradient, dw);
        else direct_weights_image_of_any_length<1>(frame, size, d, gradient, dw);
    }
}

// panels (K / PANEL, C, PANEL) = w (K, C), in the order in which rlcb_dense reads it.
void rlcb_dense_panels(const float* w, float* panels, int C, int K) {
    for (size_t k = 0; k < static_cast<size_t>(K); k += PANEL) transpose_panel(w + k * C, C, panels + k * C);
}

// y (rows, K) = max(x (rows, C) w (K, C)^T + bias (K,), 0). `panels` of w may be null.
void rlcb_dense(const float* x, const float* w, const float* panels, const float* bias, float* y, int rows, int C, int K) {
    float* scratch = panels ? nullptr : panel_scratch.floats(static_cast<size_t>(C) * PANEL);
    for (size_t k = 0; k < static_cast<size_t>(K); k += PANEL) {
        if (!panels) transpose_panel(w + k * C, C, scratch);
        panel_product(x, panels ? panels + k * C : scratch, bias + k, y + k, rows, C, K);
    }
}

// dx (rows, C) = dz (rows, K) w (K, C), for the gradient dz of what the layer rectifies.
void rlcb_dense_input_gradient(const float* dz, const float* w, float* dx, int rows, int C, int K) {
    float* panel = panel_scratch.floats(static_cast<size_t>(K) * PANEL);
    for (int c = 0; c < C; c += PANEL) {
        copy_panel(w + c, K, C, panel);
        panel_product(dz, panel, nullptr, dx + c, rows, K, C);
    }
}

// dw (outputs, C) = columns [first, first + outputs) of dz (rows, K), transposed, times x (rows, C).
void rlcb_dense_weight_gradient(const float* x, const float* dz, float* dw, int rows, int C, int K, int first, int outputs) {
    constexpr int DEPTH = 128;  // rows that are multiplied at once
    float* panel = panel_scratch.floats(DEPTH * PANEL);
    for (int row = 0; row == 0 || row < rows; row += DEPTH) {
        const int depth = std::min(DEPTH, rows - row);
        for (int c = 0; c < C; c += PANEL) {
            copy_panel(x + static_cast<size_t>(row) * C + c, depth, C, panel);
            for (int k = 0; k < outputs; k += ROWS) {
                float* out = dw + static_cast<size_t>(k) * C + c;
                Vector sum[ROWS][WIDE] = {};
                if (row > 0)
                    UNROLL for (int p = 0; p < ROWS; p++)
                        UNROLL for (int x = 0; x < WIDE; x++) sum[p][x] = load(out + static_cast<size_t>(p) * C + x * LANES);
                const float *left = dz + static_cast<size_t>(row) * K + first + k, *right = panel;
                for (int i = 0; i < depth; i++, left += K, right += PANEL) {
                    Vector v[WIDE];
                    UNROLL for (int x = 0; x < WIDE; x++) v[x] = load(right + x * LANES);
                    UNROLL for (int p = 0; p < ROWS; p++) {
                        const Vector value = broadcast(left[p]);
                        UNROLL for (int x = 0; x < WIDE; x++) sum[p][x] += value * v[x];
                    }
                }
                UNROLL for (int p = 0; p < ROWS; p++)
                    UNROLL for (int x = 0; x < WIDE; x++) store(out + static_cast<size_t>(p) * C + x * LANES, sum[p][x]);
            }
        }
    }
}

// Acts in the states with hidden units (rows, H): `actions` by inverse transform sampling with noise (rows,) in [0, 1)
// from the softmax of the policy (A, H), their `log_probs`, and the `values` of the value head (H,).
void rlcb_act(const float* hidden, const float* policy, const float* policy_bias, const float* value, const float* value_bias,
              const double* noise, int64_t* actions, float* log_probs, float* values, int rows, int H, int A) {
    float* logits = logit_scratch.floats(A);
    probability_scratch.resize(A);
    double* sums = probability_scratch.data();
    for (int n = 0; n < rows; n++, hidden += H) {
        values[n] = dot(hidden, value, H) + value_bias[0];
        for (int a = 0; a < A; a++) logits[a] = dot(hidden, policy + static_cast<size_t>(a) * H, H) + policy_bias[a];
        const double largest = *std::max_element(logits, logits + A);
        double total = 0;
        for (int a = 0; a < A; a++) sums[a] = total += std::exp(logits[a] - largest);
        int action = 0;
        while (action < A - 1 && sums[action] <= noise[n] * total) action++;
        actions[n] = action;
        log_probs[n] = static_cast<float>(logits[action] - largest - std::log(total));
    }
}

// y (count, ceil(H / 2), ceil(W / 2), C) = max-pool 3x3, stride 2, padding 1. `index` (like y) gets the place of the
// maximum in its window, 0 to 8, for the backward pass. The first of equal values counts; NaN counts as largest.
void rlcb_max_pool(const float* x, float* y, uint8_t* index, int count, int height, int width, int channels) {
    const int down = (height + 1) / 2, across = (width + 1) / 2;
    for (int n = 0; n < count; n++)
        for (int i = 0; i < down; i++)
            for (int j = 0; j < across; j++)
                for (int c = 0; c < channels; c += LANES) {
                    Vector largest = broadcast(-__builtin_inff()), sum = Vector{};
                    IntVector place = IntVector{};
                    for (int a = i == 0; a < 3 && 2 * i - 1 + a < height; a++)
                        for (int b = j == 0; b < 3 && 2 * j - 1 + b < width; b++) {
                            const Vector v = load(x + ((static_cast<size_t>(n) * height + 2 * i - 1 + a) * width + 2 * j - 1 + b) * channels + c);
                            const IntVector smaller = v <= largest;  // false for NaN
                            largest = smaller ? largest : v;
                            place = smaller ? place : IntVector{} + (a * 3 + b);
                            sum += v;
                        }
                    const size_t out = ((static_cast<size_t>(n) * down + i) * across + j) * channels + c;
                    store(y + out, sum == sum ? largest : sum);  // a NaN that was followed by a number is not lost
                    *reinterpret_cast<UnalignedBytes*>(index + out) = __builtin_convertvector(place, ByteVector);
                }
}

// dx (count, H, W, C) = the gradient of the input of rlcb_max_pool. Four windows meet in each 2 x 2 block of inputs.
void rlcb_max_pool_gradient(const float* dy, const uint8_t* index, float* dx, int count, int height, int width,
                            int channels) {
    const int down = (height + 1) / 2, across = (width + 1) / 2;
    for (int n = 0; n < count; n++)
        for (int i = 0; i < down; i++)
            for (int c = 0; c < channels; c += LANES) {
                const size_t row = (static_cast<size_t>(n) * down + i) * across * channels + c;
                const size_t below = static_cast<size_t>(across) * channels;
                const bool last_row = i == down - 1, odd_row = 2 * i + 1 < height;
                float* out = dx + (static_cast<size_t>(n) * height + 2 * i) * width * channels + c;
                float* out_below = out + static_cast<size_t>(width) * channels;
                Window left(dy, index, row, true), under_left(dy, index, row + below, !last_row);
                for (int j = 0; j < across; j++, out += 2 * channels, out_below += 2 * channels) {
                    const bool last = j == across - 1, odd = 2 * j + 1 < width;
                    const Window right(dy, index, row + (j + 1) * channels, !last);
                    const Window under_right(dy, index, row + below + (j + 1) * channels, !last && !last_row);
                    store(out, left.at(4));
                    if (odd) store(out + channels, left.at(5) + right.at(3));
                    if (odd_row) store(out_below, left.at(7) + under_left.at(1));
                    if (odd_row && odd)
                        store(out_below + channels, (left.at(8) + right.at(6)) + (under_left.at(2) + under_right.at(0)));
                    left = right;
                    under_left = under_right;
                }
            }
}
}
