// Convolutions and pooling of float32 images on CPUs, forward and backward.
//
// Images are in memory order (rows, columns, channels); the channels of every tensor but an observation are a
// multiple of 16. Vectors are the compiler's own vector types, so that AVX-512, AVX2, SSE and NEON come from the
// same source. Nothing here starts a thread: callers split a batch between threads.
//
// 3x3 convolutions use Winograd's algorithm F(4x4, 3x3) (Lavin and Gray 2016, "Fast Algorithms for Convolutional
// Neural Networks"): a tile of 6 x 6 inputs gives 4 x 4 outputs with 36 multiplications for each pair of channels
// instead of 144. With the input tile d, the filter g and matrices A, B, G of constants:
//   output           Y  = A^T [(G g G^T) . (B^T d B)] A
//   filter gradient  dg = G^T [(B^T d B) . (A dY A^T)] G
// `.` is a product element by element, summed over channels (output) or tiles (gradient): 36 small matrix products.
// Other convolutions are direct: blocks of pixels times output channels stay in registers.

#if !defined(__clang__)
// GCC would keep inputs that the next step needs again in registers, which the sums need.
#pragma GCC optimize("no-predictive-commoning")
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
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

constexpr int TILE = 4;             // outputs of a Winograd tile, along each side
constexpr int WINDOW = TILE + 2;    // inputs of a tile, along each side
constexpr int POINTS = WINDOW * WINDOW;  // products of matrices
constexpr int BATCH = 32;           // tiles that are multiplied at once

// Floats from one point's matrix (BATCH, channels) to the next. Not a multiple of 4 KB: all 36 would share a cache set.
inline int point_floats(int channels) { return BATCH * channels + 16; }

inline int tiles_along(int outputs) { return (outputs + TILE - 1) / TILE; }

// Where the window of an output begins in the frame, and where the output goes.
struct Pixel {
    ptrdiff_t in, out;
};

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

thread_local Scratch frame_scratch, gradient_frame_scratch, tile_scratch;
thread_local std::vector<Pixel> pixel_scratch;

// --- Frames: an image with zeros around it ------------------------------------------------------------------

struct Image {
    int height, width, channels;
    size_t floats() const { return static_cast<size_t>(height) * width * channels; }
};

INLINE Vector convert(const float* p) { return load(p); }
INLINE Vector convert(const uint8_t* p) {
    return __builtin_convertvector(*reinterpret_cast<const UnalignedBytes*>(p), Vector);
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
        int i = 0;
        for (; i + LANES <= used; i += LANES) {
            const Vector v = convert(in + i);
            store(out + left + i, rectify ? rectified(v) : v);
        }
        for (; i < used; i++) {
            const float v = in[i];
            out[left + i] = rectify && v < 0 ? 0 : v;
        }
        for (i += left; i < row; i++) out[i] = 0;
    }
    const int filled = pad + size.height;
    std::memset(frame + static_cast<size_t>(filled) * row, 0, sizeof(float) * row * (frame_size.height - filled));
}

// --- Winograd's transforms of one tile, for LANES channels at a time ----------------------------------------

INLINE void input_transform(const Vector d[6], Vector o[6]) {  // B^T d
    const Vector a = d[3] - 4.f * d[1], b = d[4] - 4.f * d[2], c = d[4] - d[2], e = 2.f * (d[3] - d[1]);
    o[0] = 4.f * d[0] - 5.f * d[2] + d[4];
    o[1] = b + a;
    o[2] = b - a;
    o[3] = c + e;
    o[4] = c - e;
    o[5] = 4.f * d[1] - 5.f * d[3] + d[5];
}

INLINE void output_transform(const Vector m[6], Vector o[4]) {  // A^T m
    const Vector a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], e = m[3] - m[4];
    o[0] = m[0] + a + c;
    o[1] = b + 2.f * e;
    o[2] = a + 4.f * c;
    o[3] = b + 8.f * e + m[5];
}

INLINE void gradient_transform(const Vector y[4], Vector o[6]) {  // A y
    const Vector a = y[0] + y[2], b = y[1] + y[3], c = y[0] + 4.f * y[2], e = 2.f * y[1] + 8.f * y[3];
    o[0] = y[0];
    o[1] = a + b;
    o[2] = a - b;
    o[3] = c + e;
    o[4] = c - e;
    o[5] = y[3];
}

// Functions below have the usual numbers of channels as a template argument, FIXED, so that addresses are constants;
// 0 stands for any other number.

// Writes the 36 points of a tile of SIDE x SIDE values that begins at `in`: TRANSFORM of its columns, then of its rows.
// Point i goes to out + i * point_floats(channels). Inputs are 6 x 6 with input_transform (B^T d B), output gradients
// 4 x 4 with gradient_transform (A dY A^T).
template <int FIXED, int SIDE, void TRANSFORM(const Vector*, Vector*)>
void transform_tile(const float* in, int row, int any_channels, float* out) {
    const int channels = FIXED != 0 ? FIXED : any_channels, point_stride = point_floats(channels);
    for (int c = 0; c < channels; c += LANES) {
        Vector half[6][SIDE];
        UNROLL for (int x = 0; x < SIDE; x++) {
            Vector column[SIDE], o[6];
            UNROLL for (int y = 0; y < SIDE; y++) column[y] = load(in + y * row + x * channels + c);
            TRANSFORM(column, o);
            UNROLL for (int y = 0; y < 6; y++) half[y][x] = o[y];
        }
        UNROLL for (int y = 0; y < 6; y++) {
            Vector o[6];
            TRANSFORM(half[y], o);
            UNROLL for (int x = 0; x < 6; x++) store(out + (y * 6 + x) * static_cast<ptrdiff_t>(point_stride) + c, o[x]);
        }
    }
}

// What happens to an output before it is stored: + bias[channel], zero where mask <= 0, + add. Each may be null.
struct Epilogue {
    const float *bias, *mask, *add;
    template <bool BIAS, bool MASK, bool ADD>
    Vector apply(Vector v, size_t position, int channel) const {
        if (BIAS) v += load(bias + channel);
        if (MASK) v = where_positive(load(mask + position), v);
        if (ADD) v += load(add + position);
        return v;
    }
    Vector operator()(Vector v, size_t position, int channel) const {
        if (bias != nullptr) v += load(bias + channel);
        if (mask != nullptr) v = where_positive(load(mask + position), v);
        if (add != nullptr) v += load(add + position);
        return v;
    }
};

struct Tile {
    size_t position;    // of its first output in y
    int rows, columns;  // of its outputs that lie inside the image
};

// Writes the outputs of a tile.
template <int FIXED, bool BIAS, bool MASK, bool ADD>
void finish_tile(const float* in, Image out, const Tile& tile, float* y, const Epilogue& epilogue) {
    const int channels = FIXED != 0 ? FIXED : out.channels, row = out.width * channels;
    const ptrdiff_t point_stride = point_floats(channels);
    for (int c = 0; c < channels; c += LANES) {
        Vector half[4][6];
        UNROLL for (int x = 0; x < 6; x++) {
            Vector column[6], o[4];
            UNROLL for (int i = 0; i < 6; i++) column[i] = load(in + (i * 6 + x) * point_stride + c);
            output_transform(column, o);
            UNROLL for (int i = 0; i < 4; i++) half[i][x] = o[i];
        }
        const auto finish = [&](int i, int x, Vector v) INLINE_LAMBDA {
            const size_t at = tile.position + static_cast<size_t>(i) * row + x * channels + c;
            store(y + at, epilogue.apply<BIAS, MASK, ADD>(v, at, c));
        };
        const bool whole = tile.rows == TILE && tile.columns == TILE;
        Vector edge[4][4];
        UNROLL for (int i = 0; i < 4; i++) {
            Vector o[4];
            output_transform(half[i], o);
            UNROLL for (int x = 0; x < 4; x++) {
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

template <int FIXED>
FinishTile finish_for(const Epilogue& e) {
    if (e.bias != nullptr) return e.add != nullptr ? finish_tile<FIXED, true, false, true> : finish_tile<FIXED, true, false, false>;
    if (e.mask != nullptr) return e.add != nullptr ? finish_tile<FIXED, false, true, true> : finish_tile<FIXED, false, true, false>;
    return e.add != nullptr ? finish_tile<FIXED, false, false, true> : finish_tile<FIXED, false, false, false>;
}

// The functions for a number of channels.
struct Transforms {
    void (*tile)(const float*, int, int, float*);
    void (*gradient_tile)(const float*, int, int, float*);
    FinishTile (*finish)(const Epilogue&);
};

template <int FIXED>
Transforms transforms() {
    return {transform_tile<FIXED, 6, input_transform>, transform_tile<FIXED, 4, gradient_transform>, finish_for<FIXED>};
}

Transforms transforms_for(int channels) {
    switch (channels) {
        case 16: return transforms<16>();
        case 32: return transforms<32>();
        case 64: return transforms<64>();
        default: return transforms<0>();
    }
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

// --- 3x3 convolutions ---------------------------------------------------------------------------------------

Image frame_of(Image in, int pad) {
    return {TILE * tiles_along(in.height + 2 * pad - 2) + 2, TILE * tiles_along(in.width + 2 * pad - 2) + 2, in.channels};
}

void winograd(const float* x, const float* u, float* y, int count, Image in, int K, int pad, bool rectify,
              int point_stride, const Epilogue& epilogue) {
    const int C = in.channels;
    const Image out = {in.height + 2 * pad - 2, in.width + 2 * pad - 2, K}, frame_size = frame_of(in, pad);
    const int row = frame_size.width * C, down = tiles_along(out.height), across = tiles_along(out.width);
    float* frame = frame_scratch.floats(frame_size.floats());
    float* v = tile_scratch.floats(static_cast<size_t>(POINTS) * (point_floats(C) + point_floats(K)));
    float* m = v + static_cast<size_t>(POINTS) * point_floats(C);
    const auto transform = transforms_for(C).tile;
    const FinishTile finish = transforms_for(K).finish(epilogue);
    Tile tiles[BATCH];
    int waiting = 0;
    for (int n = 0; n < count; n++) {
        fill_frame(x + n * in.floats(), in, frame, frame_size, pad, rectify);
        for (int i = 0; i < down; i++) {
            for (int j = 0; j < across; j++) {
                transform(frame + i * TILE * row + j * TILE * C, row, C, v + waiting * C);
                tiles[waiting++] = {n * out.floats() + (static_cast<size_t>(i) * TILE * out.width + j * TILE) * K,
                                    std::min(TILE, out.height - i * TILE), std::min(TILE, out.width - j * TILE)};
                if (waiting < BATCH && !(n == count - 1 && i == down - 1 && j == across - 1)) continue;
                const int rows = (waiting + 2 * ROWS - 1) / (2 * ROWS) * (2 * ROWS);
                for (int point = 0; point < POINTS; point++) {
                    const float* left = v + static_cast<size_t>(point) * point_floats(C);
                    const float* right = u + static_cast<size_t>(point) * point_stride;
                    float* result = m + static_cast<size_t>(point) * point_floats(K);
                    if (C == 16) product_of_any_width<16>(left, right, result, rows, C, K);
                    else if (C == 32) product_of_any_width<32>(left, right, result, rows, C, K);
                    else if (C == 64) product_of_any_width<64>(left, right, result, rows, C, K);
                    else product_of_any_width<0>(left, right, result, rows, C, K);
                }
                for (int t = 0; t < waiting; t++)
                    finish(m + t * K, out, tiles[t], y, epilogue);
                waiting = 0;
            }
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

void winograd_weights(const float* x, const float* dy, float* du, float* bias_sums, int count, Image in, int K,
                      int pad, bool rectify, int point_stride) {
    const int C = in.channels;
    const Image out = {in.height + 2 * pad - 2, in.width + 2 * pad - 2, K}, frame_size = frame_of(in, pad);
    const Image gradient_frame_size = {frame_size.height - 2, frame_size.width - 2, K};
    const int row = frame_size.width * C, gradient_row = gradient_frame_size.width * K;
    const int down = tiles_along(out.height), across = tiles_along(out.width);
    const bool whole = out.height % TILE == 0 && out.width % TILE == 0;
    float* frame = frame_scratch.floats(frame_size.floats());
    float* gradient_frame = whole ? nullptr : gradient_frame_scratch.floats(gradient_frame_size.floats());
    float* v = tile_scratch.floats(static_cast<size_t>(POINTS) * (point_floats(C) + point_floats(K)));
    float* m = v + static_cast<size_t>(POINTS) * point_floats(C);
    const auto transform = transforms_for(C).tile, transform_gradient = transforms_for(K).gradient_tile;
    int waiting = 0;
    for (int n = 0; n < count; n++) {
        const float* gradient = dy + n * out.floats();
        add_channel_sums(gradient, static_cast<size_t>(out.height) * out.width, K, bias_sums);
        fill_frame(x + n * in.floats(), in, frame, frame_size, pad, rectify);
        if (!whole) {
            fill_frame(gradient, out, gradient_frame, gradient_frame_size, 0, false);
            gradient = gradient_frame;
        }
        for (int i = 0; i < down; i++) {
            for (int j = 0; j < across; j++) {
                transform(frame + i * TILE * row + j * TILE * C, row, C, v + waiting * C);
                transform_gradient(gradient + i * TILE * gradient_row + j * TILE * K, gradient_row, K,
                                        m + waiting * K);
                waiting++;
                if (waiting < BATCH && !(n == count - 1 && i == down - 1 && j == across - 1)) continue;
                for (int point = 0; point < POINTS; point++) {
                    const float* left = v + static_cast<size_t>(point) * point_floats(C);
                    const float* right = m + static_cast<size_t>(point) * point_floats(K);
                    float* sum = du + static_cast<size_t>(point) * point_stride;
                    if (K % (WIDE * LANES) == 0) accumulate_product<ROWS, WIDE>(left, right, sum, waiting, C, K);
                    else accumulate_product<2 * ROWS, 1>(left, right, sum, waiting, C, K);
                }
                waiting = 0;
            }
        }
    }
}

}  // namespace

// --- Direct convolutions of any size and stride -------------------------------------------------------------

// The geometry of a direct convolution. kernels/library.py has the same structure.
struct Direct {
    int height, width, channels;           // of an input image
    int pad;                               // zeros above and left of it; below and right as many as are needed
    int kernel, stride;                    // along both sides
    int down, across, out_channels;        // outputs that are computed
    int out_height, out_width;             // the image that they are written to, at row first_row + step * i ...
    int first_row, first_column, step;     // ... and column first_column + step * j
    int bytes;                             // 1 if the input is uint8, 0 if it is float32
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

const std::vector<Pixel>& pixels_of(const Direct& d, Image frame) {
    std::vector<Pixel>& pixels = pixel_scratch;
    pixels.clear();
    for (int i = 0; i < d.down; i++)
        for (int j = 0; j < d.across; j++)
            pixels.push_back({(static_cast<ptrdiff_t>(i) * frame.width + j) * d.stride * d.channels,
                              (static_cast<ptrdiff_t>(d.first_row + d.step * i) * d.out_width + d.first_column + d.step * j) *
                                  d.out_channels});
    return pixels;
}

// STEP: inputs from one pixel's window to the next if each P pixels are side by side, else 0.
template <int P, int X, int STEP>
void direct_image(const float* frame, Image size, const Direct& d, const std::vector<Pixel>& pixels, const float* w,
                  float* y, size_t start, bool rectify, const Epilogue& epilogue) {
    const int K = d.out_channels, row = size.width * d.channels, length = d.kernel * d.channels;
    const int count = static_cast<int>(pixels.size());
    for (int first = 0; first < count; first += P) {
        const float* in[P];
        UNROLL for (int p = 0; p < P; p++) in[p] = frame + pixels[std::min(first + p, count - 1)].in;
        for (int k = 0; k < K; k += X * LANES) {
            Vector sum[P][X] = {};
            if (STEP != 0) row_products<P, X, STEP>(in[0], row, d.kernel, length, w + k, K, sum);
            else window_products<P, X>(in, row, d.kernel, length, w + k, K, sum);
            const auto finish = [&](int p, int x, Vector v) INLINE_LAMBDA {
                const size_t at = start + pixels[first + p].out + k + x * LANES;
                v = epilogue(v, at, k + x * LANES);
                store(y + at, rectify ? rectified(v) : v);
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

// --- What Python calls (kernels/library.py) -----------------------------------------------------------------

extern "C" {

int rlcb_lanes() { return LANES; }

// y (count, H + 2 pad - 2, W + 2 pad - 2, K) = conv3x3(x (count, H, W, C)), where u (36, C, K) is the transformed
// filter. `rectify`: of max(x, 0). Then + bias (K,), zero where mask <= 0, + add (both like y); each may be null.
void rlcb_convolve_3x3(const float* x, const float* u, const float* bias, const float* mask, const float* add, float* y,
                       int count, int height, int width, int channels, int out_channels, int pad, int rectify,
                       int point_stride) {
    winograd(x, u, y, count, {height, width, channels}, out_channels, pad, rectify != 0, point_stride, {bias, mask, add});
}

// du (36, C, K) += the gradient of the transformed filter; bias_sums (K,) += dy summed over images and pixels.
void rlcb_weights_3x3(const float* x, const float* dy, float* du, float* bias_sums, int count, int height, int width,
                      int channels, int out_channels, int pad, int rectify, int point_stride) {
    winograd_weights(x, dy, du, bias_sums, count, {height, width, channels}, out_channels, pad, rectify != 0,
                     point_stride);
}

// y = conv(x (count, H, W, C)) with w (kernel, kernel, C, K); bias, mask and add as above; then max(y, 0) if `rectify`.
void rlcb_convolve(const Direct* geometry, const void* x, const float* w, const float* bias, const float* mask,
                   const float* add, float* y, int count, int rectify) {
    const Direct& d = *geometry;
    const Image size = frame_of(d);
    const std::vector<Pixel>& pixels = pixels_of(d, size);
    const size_t out = static_cast<size_t>(d.out_height) * d.out_width * d.out_channels;
    const bool wide = d.out_channels % (WIDE * LANES) == 0;
    const bool rgb_rows = d.stride * d.channels == 3 && d.across % (2 * ROWS) == 0;
    const auto compute = rgb_rows ? (wide ? direct_image<ROWS, WIDE, 3> : direct_image<2 * ROWS, 1, 3>)
                                  : (wide ? direct_image<ROWS, WIDE, 0> : direct_image<ROWS, 1, 0>);
    for (int n = 0; n < count; n++) {
        const float* frame = frame_of_image(x, d, size, n);
        compute(frame, size, d, pixels, w, y, n * out, rectify != 0, {bias, mask, add});
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
