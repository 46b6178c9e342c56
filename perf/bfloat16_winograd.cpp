// Three ways to compute a 3x3 convolution by Winograd's algorithm, against each other: see bfloat16_winograd.py.
//
//   float32      the kernel of the program
//   activations  inputs and outputs in bfloat16, all computing in float32
//   products     float32 inputs and outputs; the matrix products in bfloat16, with sums in float32 (AVX512-BF16)

#include "../src/rlcb/kernels/convolutions.cpp"

#include <chrono>
#include <cstdio>
#include <immintrin.h>
#include <random>

namespace {

struct Half { uint16_t bits; };  // a bfloat16

INLINE void store(Half* p, Vector v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)v)); }
INLINE Vector load(const Half* p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return (Vector)_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
void convert(const Half* in, int count, float* out, bool rectify) {
    for (int i = 0; i < count; i += LANES) ::store(out + i, rectify ? rectified(load(in + i)) : load(in + i));
}

std::vector<Half> halves(const std::vector<float>& values) {
    std::vector<Half> found(values.size());
    for (size_t i = 0; i < values.size(); i += LANES) store(found.data() + i, ::load(values.data() + i));
    return found;
}
std::vector<float> floats(const std::vector<Half>& values) {
    std::vector<float> found(values.size());
    for (size_t i = 0; i < values.size(); i += LANES) ::store(found.data() + i, load(values.data() + i));
    return found;
}

// fill_frame (convolutions.cpp) for an image in bfloat16, with one row and column of zeros before it.
void fill_frame(const Half* image, Image size, float* frame, Image frame_size) {
    const int row = frame_size.width * frame_size.channels, used = size.width * size.channels;
    std::memset(frame, 0, sizeof(float) * row);
    for (int y = 0; y < size.height; y++) {
        float* out = frame + static_cast<size_t>(y + 1) * row;
        std::fill(out, out + size.channels, 0.f);
        convert(image + static_cast<size_t>(y) * used, used, out + size.channels, true);
        std::fill(out + size.channels + used, out + row, 0.f);
    }
    std::memset(frame + static_cast<size_t>(1 + size.height) * row, 0, sizeof(float) * row * (frame_size.height - 1 - size.height));
}

// transform_tile and finish_tile (convolutions.cpp) for whole tiles, with any type of the points and of the output.
template <int C, typename Value>
void read_tile(const float* in, ptrdiff_t row, Value* out, ptrdiff_t point_stride) {
    for (int c = 0; c < C; c += LANES, in += LANES, out += LANES) {
        Vector half[6][6];
        UNROLL for (int x = 0; x < 6; x++) {
            Vector column[6], o[6];
            UNROLL for (int y = 0; y < 6; y++) column[y] = ::load(in + y * row + x * C);
            F4x3::input(column, o);
            UNROLL for (int y = 0; y < 6; y++) half[y][x] = o[y];
        }
        UNROLL for (int y = 0; y < 6; y++) {
            Vector o[6];
            F4x3::input(half[y], o);
            UNROLL for (int x = 0; x < 6; x++) store(out + (y * 6 + x) * point_stride, o[x]);
        }
    }
}
template <int K, typename Value>
void write_tile(const float* in, int row, const float* bias, Value* y) {
    for (int c = 0; c < K; c += LANES) {
        Vector half[4][6];
        UNROLL for (int x = 0; x < 6; x++) {
            Vector column[6], o[4];
            UNROLL for (int i = 0; i < 6; i++) column[i] = ::load(in + (i * 6 + x) * point_floats(K) + c);
            F4x3::output(column, o);
            UNROLL for (int i = 0; i < 4; i++) half[i][x] = o[i];
        }
        UNROLL for (int i = 0; i < 4; i++) {
            Vector o[4];
            F4x3::output(half[i], o);
            UNROLL for (int x = 0; x < 4; x++) store(y + i * row + x * K + c, o[x] + ::load(bias + c));
        }
    }
}

// `product` (convolutions.cpp) with pairs of bfloat16: v (rows, C) and u (C / 2, K, 2).
template <int P, int X, int C>
void product(const Half* v, const Half* u, float* m, int rows, int K) {
    for (int t = 0; t < rows; t += P) {
        for (int k = 0; k < K; k += X * LANES) {
            __m512 sum[P][X] = {};
            for (int c = 0; c < C; c += 2) {
                __m512bh w[X];
                UNROLL for (int x = 0; x < X; x++) w[x] = (__m512bh)_mm512_loadu_si512(u + c * K + 2 * (k + x * LANES));
                UNROLL for (int p = 0; p < P; p++) {
                    int pair;
                    std::memcpy(&pair, v + static_cast<ptrdiff_t>(t + p) * C + c, sizeof(pair));
                    const __m512bh tile = (__m512bh)_mm512_set1_epi32(pair);
                    UNROLL for (int x = 0; x < X; x++) sum[p][x] = _mm512_dpbf16_ps(sum[p][x], tile, w[x]);
                }
            }
            UNROLL for (int p = 0; p < P; p++)
                UNROLL for (int x = 0; x < X; x++)
                    ::store(m + static_cast<ptrdiff_t>(t + p) * K + k + x * LANES, (Vector)sum[p][x]);
        }
    }
}

// The convolution in another way: Input and Output are float or Half, Point the type of what is multiplied.
template <int C, int K, typename Input, typename Point, typename Output>
void convolution(const WinogradGeometry& g, const Input* x, const Point* u, const float* bias, Output* y, int count) {
    const Tiles<F4x3> tiles(g, x);
    const Image size = tiles.size, frame_size = tiles.frame_size;
    float* frame = frame_scratch.floats(frame_size.floats());
    const ptrdiff_t row = static_cast<ptrdiff_t>(frame_size.width) * C, stride = point_floats(C) + 16;
    static thread_local std::vector<Point> points(36 * (BATCH * 64 + 32));
    float* m = tile_scratch.floats(36 * point_floats(K));
    size_t places[BATCH];
    int waiting = 0;
    for (int n = 0; n < count; n++) {
        if constexpr (sizeof(Input) == 2) fill_frame(x + n * size.floats(), size, frame, frame_size);
        else ::fill_frame(x + n * size.floats(), size, frame, frame_size, 1, true);
        for (int i = 0; i < tiles.down; i++) {
            for (int j = 0; j < tiles.across; j++) {
                read_tile<C>(frame + 4 * (i * row + j * C), row, points.data() + waiting * C, stride);
                places[waiting++] = n * tiles.out.floats() + (static_cast<size_t>(i) * size.width + j) * 4 * K;
                if (waiting < BATCH && !(n == count - 1 && i == tiles.down - 1 && j == tiles.across - 1)) continue;
                for (ptrdiff_t point = 0; point < 36; point++) {
                    const Point *v = points.data() + point * stride, *filter = u + point * g.point_stride;
                    if constexpr (sizeof(Point) == 4) tile_product(v, filter, m + point * point_floats(K), waiting, C, K);
                    else if constexpr (K % 32 == 0) product<ROWS, WIDE, C>(v, filter, m + point * point_floats(K), BATCH, K);
                    else product<2 * ROWS, 1, C>(v, filter, m + point * point_floats(K), BATCH, K);
                }
                for (int t = 0; t < waiting; t++) write_tile<K>(m + t * K, size.width * K, bias, y + places[t]);
                waiting = 0;
            }
        }
    }
}

// The norm of the difference to the sums in float64, relative to their norm.
double error(const WinogradGeometry& g, const std::vector<float>& x, const std::vector<float>& w,
             const std::vector<float>& bias, const std::vector<float>& y, int count) {
    double wrong = 0, whole = 0;
    const int C = g.channels, K = g.out_channels;
    for (int n = 0; n < count; n++)
        for (int i = 0; i < g.height; i++)
            for (int j = 0; j < g.width; j++)
                for (int k = 0; k < K; k++) {
                    double sum = bias[k];
                    for (int a = 0; a < 3; a++)
                        for (int b = 0; b < 3; b++) {
                            const int up = i + a - 1, left = j + b - 1;
                            if (up < 0 || left < 0 || up >= g.height || left >= g.width) continue;
                            for (int c = 0; c < C; c++)
                                sum += std::max(0., double(x[((size_t(n) * g.height + up) * g.width + left) * C + c])) *
                                       w[((k * 3 + a) * 3 + b) * C + c];
                        }
                    const double found = y[((size_t(n) * g.height + i) * g.width + j) * K + k];
                    wrong += (found - sum) * (found - sum);
                    whole += sum * sum;
                }
    return std::sqrt(wrong / whole);
}

template <typename Work>
double seconds(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <int C, int K>
void measure(int side, int images, int rounds) {
    WinogradGeometry g = {side, side, C, 1, 1, 1, 0, K, C * K + 16};
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(size_t(images) * side * side * C), w(9 * C * K), bias(K), u(36 * g.point_stride), y(size_t(images) * side * side * K);
    for (float& value : x) value = normal(random);
    for (float& value : w) value = normal(random) / std::sqrt(9.f * C / 2);
    for (float& value : bias) value = 0.1f * normal(random);
    rlcb_winograd_filter(&g, w.data(), 1, u.data());
    std::vector<Half> pairs(u.size()), x_half = halves(x), y_half(y.size()), u_half = halves(u);
    for (int point = 0; point < 36; point++)
        for (int c = 0; c < C; c++)
            for (int k = 0; k < K; k++)
                pairs[point * g.point_stride + c / 2 * 2 * K + 2 * k + c % 2] = u_half[point * g.point_stride + c * K + k];
    const auto plain = [&] { rlcb_winograd(&g, x.data(), u.data(), bias.data(), nullptr, nullptr, y.data(), images, 0); };
    const auto activations = [&] { convolution<C, K>(g, x_half.data(), u.data(), bias.data(), y_half.data(), images); };
    const auto products = [&] { convolution<C, K>(g, x.data(), pairs.data(), bias.data(), y.data(), images); };
    const int checked = std::min(images, 4);
    plain();
    std::printf("{\"side\": %d, \"C\": %d, \"K\": %d, \"errors\": [%.3g", side, C, K, error(g, x, w, bias, y, checked));
    activations();
    std::printf(", %.3g", error(g, x, w, bias, floats(y_half), checked));
    products();
    std::printf(", %.3g], \"seconds\": [", error(g, x, w, bias, y, checked));
    for (int i = 0; i < rounds; i++)
        std::printf("%s[%.4g, %.4g, %.4g]", i ? ", " : "", seconds(plain), seconds(activations), seconds(products));
    std::printf("]}\n");
}

}  // namespace

int main(int, char** arguments) {
    const int images = std::atoi(arguments[1]), rounds = std::atoi(arguments[2]);
    measure<16, 16>(32, images, rounds);
    measure<16, 32>(32, images, rounds);
    measure<32, 32>(16, images, rounds);
    measure<32, 32>(8, images, rounds);
    measure<64, 64>(8, images, rounds);
}
