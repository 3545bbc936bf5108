// Deviation of one tensor from another, by rows. Built once per pair of element types (ACTUAL, EXPECTED).
// A row is cut into `segments` of `length` elements; a tile is one segment, worked on by `lanes` threads: a warp for
// short rows, a block for long ones. Sums are taken in double and in a fixed order, so that results repeat.
#include "elements.h"

using Actual = ACTUAL;
using Expected = EXPECTED;
constexpr unsigned THREADS = 256;

template <class A, class B>
struct Wider {
    using type = double;
};
template <>
struct Wider<float, float> {
    using type = float;
};
using Wide = Wider<decltype(widen(Actual())), decltype(widen(Expected()))>::type;

__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7FF0000000000000ll); }
template <class T>
__device__ __forceinline__ bool finite(T x) {
    return x - x == T(0);
}

struct Shape {
    u64 rows, columns, segments, length;
    unsigned lanes;
};

struct Tile {
    u64 index, row, begin, end;
    unsigned lane;
    bool exists;

    __device__ __forceinline__ explicit Tile(const Shape& s) {
        index = u64(blockIdx.x) * (THREADS / s.lanes) + threadIdx.x / s.lanes;
        lane = threadIdx.x % s.lanes;
        exists = index < s.rows * s.segments;
        row = s.segments == 1 ? index : index / s.segments;
        begin = s.segments == 1 ? 0 : index % s.segments * s.length;
        end = min(begin + s.length, s.columns);
    }
};

// Sum over the threads of a tile (`lanes` of them), the same in each.
__device__ __forceinline__ double tile_sum(double x, unsigned lanes) {
    __shared__ double parts[THREADS / 32];
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    if (lanes == 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (unsigned w = 0; w < THREADS / 32; ++w) x += parts[w];
    return x;
}

struct Worst {
    double value;
    u64 index;

    __device__ __forceinline__ void take(double v, u64 i) {  // the first of equals, so that results repeat
        if (v > value || (v == value && i < index)) value = v, index = i;
    }
};

__device__ __forceinline__ Worst tile_worst(Worst w, unsigned lanes) {
    __shared__ Worst parts[THREADS / 32];
    for (int o = 16; o; o >>= 1) w.take(__shfl_xor_sync(~0u, w.value, o), __shfl_xor_sync(~0u, w.index, o));
    if (lanes == 32) return w;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = w;
    __syncthreads();
    for (unsigned i = 0; i < THREADS / 32; ++i) w.take(parts[i].value, parts[i].index);
    return w;
}

template <class T, int V>
struct alignas(V * sizeof(T)) Pack {
    T at[V];
};

template <class T>
__device__ __forceinline__ bool packable(const T* data, u64 columns) {  // rows start at whole packs of four
    return u64(data) % (4 * sizeof(T)) == 0 && columns % 4 == 0;
}

// ------------------------------------------------------------------------------------- pass 1: energy of the truth

template <int V>
__device__ __forceinline__ double energy_of(const Expected* truth, const Tile& t, unsigned lanes) {
    double sum = 0;
#pragma unroll 2
    for (u64 i = t.begin + t.lane * V; i < t.end; i += lanes * V) {
        const Pack<Expected, V> pack = *reinterpret_cast<const Pack<Expected, V>*>(truth + i);
#pragma unroll
        for (int j = 0; j < V; ++j) {
            const double y = widen(pack.at[j]);
            if (finite(y)) sum += y * y;
        }
    }
    return sum;
}

// energy[tile] = sum of squares of the finite elements of the truth.
extern "C" __global__ void __launch_bounds__(THREADS) row_energy(const Expected* expected, Shape s, double* energy) {
    const Tile t(s);
    if (!t.exists) return;
    const Expected* truth = expected + t.row * s.columns;
    double sum = packable(expected, s.columns) ? energy_of<4>(truth, t, s.lanes) : energy_of<1>(truth, t, s.lanes);
    sum = tile_sum(sum, s.lanes);
    if (t.lane == 0) energy[t.index] = sum;
}

// ----------------------------------------------------------------------------------------------- pass 2: differences

// (squared, scaled) difference where it overflows or something is not finite. Apart, so that the loop stays small.
__device__ __noinline__ double2 extreme(double x, double y, double rms) {
    if (x == y || (x != x && y != y)) return {0, 0};
    const double d = finite(x) && finite(y) ? x - y : infinity();
    return {d * d, fabs(d) / fmax(finite(y) ? fabs(y) : 0.0, rms)};
}

struct Difference {
    double squares = 0;
    Wide worst = 0, rms;
    u64 index;

    __device__ __forceinline__ void add(Actual actual, Expected expected, u64 i) {
        const Wide x = widen(actual), y = widen(expected), d = x - y;
        if (!finite(d)) {
            const double2 found = extreme(x, y, rms);
            squares += found.x;
            if (found.y > worst) worst = Wide(found.y), index = i;
            return;
        }
        squares += double(d) * double(d);
        const Wide size = fabs(d), scale = fmax(fabs(y), rms);
        if (size > worst * scale) {  // a product: divisions are rare
            const Wide ratio = size / scale;
            if (ratio > worst) worst = ratio, index = i;
        }
    }
};

template <int V>
__device__ __forceinline__ void differences_of(
    const Actual* out, const Expected* truth, const Tile& t, unsigned lanes, Difference& found
) {
#pragma unroll 2
    for (u64 i = t.begin + t.lane * V; i < t.end; i += lanes * V) {
        const Pack<Actual, V> x = *reinterpret_cast<const Pack<Actual, V>*>(out + i);
        const Pack<Expected, V> y = *reinterpret_cast<const Pack<Expected, V>*>(truth + i);
#pragma unroll
        for (int j = 0; j < V; ++j) found.add(x.at[j], y.at[j], i + j);
    }
}

// `least` is the smallest RMS that a row counts with. squares[tile] = sum of squared differences; worst[tile], where[tile] = largest scaled difference and its flat index.
extern "C" __global__ void __launch_bounds__(THREADS) row_difference(
    const Actual* actual, const Expected* expected, Shape s, double least, const double* energy, double* squares,
    double* worst, u64* where
) {
    const Tile t(s);
    if (!t.exists) return;
    double sum = 0;
    for (u64 k = t.lane; k < s.segments; k += s.lanes) sum += energy[t.row * s.segments + k];
    Difference found;
    found.rms = Wide(fmax(sqrt(tile_sum(sum, s.lanes) / double(s.columns)), least));
    found.index = t.begin;
    const Actual* out = actual + t.row * s.columns;
    const Expected* truth = expected + t.row * s.columns;
    if (packable(actual, s.columns) && packable(expected, s.columns))
        differences_of<4>(out, truth, t, s.lanes, found);
    else
        differences_of<1>(out, truth, t, s.lanes, found);
    const Worst last = tile_worst(Worst{double(found.worst), t.row * s.columns + found.index}, s.lanes);
    const double total = tile_sum(found.squares, s.lanes);
    if (t.lane == 0) squares[t.index] = total, worst[t.index] = last.value, where[t.index] = last.index;
}

// -------------------------------------------------------------------------------------------------- pass 3: summary

struct Summary {
    double squares, energy, row, worst;
    u64 index;
};

// One summary a block, over rows taken in turn by warps; the host joins them.
extern "C" __global__ void __launch_bounds__(THREADS) summarise(
    Shape s, double least, const double* energy, const double* squares, const double* worst, const u64* where,
    Summary* summaries
) {
    const unsigned lane = threadIdx.x % 32;
    double all_squares = 0, all_energy = 0;
    Worst row{0, 0}, element{0, ~u64(0)};
    for (u64 r = u64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32; r < s.rows; r += u64(gridDim.x) * (THREADS / 32)) {
        double e = 0, d = 0;
        for (u64 k = r * s.segments + lane; k < (r + 1) * s.segments; k += 32) {
            e += energy[k], d += squares[k];
            element.take(worst[k], where[k]);
        }
        e = tile_sum(e, 32), d = tile_sum(d, 32);
        const double size = fmax(e, least * least * double(s.columns));
        row.take(d == 0 ? 0.0 : size == 0 || !finite(d) ? infinity() : sqrt(d / size), r);
        if (lane == 0) all_energy += e, all_squares += d;
    }
    all_squares = tile_sum(all_squares, THREADS), all_energy = tile_sum(all_energy, THREADS);
    row = tile_worst(row, THREADS), element = tile_worst(element, THREADS);
    if (threadIdx.x == 0) summaries[blockIdx.x] = {all_squares, all_energy, row.value, element.value, element.index};
}
