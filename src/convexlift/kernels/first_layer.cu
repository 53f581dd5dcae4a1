// A convolutional layer and its adjoint in one pass over its dual variable, for images with one
// channel: the dual half of a PDHG iteration (see iteration.py), and the sums of a certificate (see
// problems/minorant.py); and what belongs to them, the primal half and restarts.
//
// A thread holds PIXELS pixels of a column, one channel after the other, and two windows of the image
// around them in registers: what V reads, and the sums that V* makes. A number of the dual variable
// is read once and written once. A warp is 32 columns wide, so that memory is read and written in
// whole lines whatever the width of the image. In the end the windows of a tile are added in a fixed
// order: results do not depend on the order in which threads run.
//
// Written for NVRTC: names in capitals that are not defined here are macros, from first_layer.py,
// which puts all of it into extern "C"; hence no templates. Lambdas would be host functions.

#define WINDOW (PIXELS + KERNEL_HEIGHT - 1)
#define TAPS (KERNEL_HEIGHT * KERNEL_WIDTH)
#define ROOM ((TAPS + 3) / 4)
#define THREADS (32 * WARPS)
#define DOWN (WARPS * PIXELS + KERNEL_HEIGHT - 1)
#define ACROSS (32 + KERNEL_WIDTH - 1)
#define PROGRAMS (TAPS <= 32 ? 3 : 2)  // on a multiprocessor, which limits their registers
#define TINY 1e-37f
#define EACH_PIXEL _Pragma("unroll") for (int p = 0; p < PIXELS; p++)

typedef float Window[WINDOW][KERNEL_WIDTH];
typedef float Pixels[PIXELS];

// Where a thread is: its first row and its column of an image of `size` pixels, and how many of its
// pixels are inside.
struct Place {
    int thread, image, top, column, height, width, size, inside;

    __device__ Place(int height, int width)
        : thread(threadIdx.y * 32 + threadIdx.x), image(blockIdx.y), height(height), width(width),
          size(height * width)
    {
        const int across = (width + 31) / 32;
        top = (blockIdx.x / across * WARPS + threadIdx.y) * PIXELS;
        column = blockIdx.x % across * 32 + threadIdx.x;
        inside = column < width ? height - top : 0;
    }
    __device__ bool holds(int p) const { return p < inside; }
    __device__ int at(int channel, int p) const
    {
        return channel * size + (top + p) * width + column;
    }
    __device__ int tile() const { return image * gridDim.x + blockIdx.x; }
};

// The taps of all filters, four at a time.
__device__ __forceinline__ void load_taps(float4 (&taps)[CHANNELS * ROOM], const float* filters,
                                          const Place& here)
{
    for (int k = here.thread; k < CHANNELS * ROOM * 4; k += THREADS) {
        const int tap = k % (ROOM * 4);
        (&taps[0].x)[k] = tap < TAPS ? filters[k / (ROOM * 4) * TAPS + tap] : 0.0f;
    }
    __syncthreads();
}

// x with its margins, and sums of zeros.
__device__ __forceinline__ void start(Window& x, Window& sums, const float* padded,
                                      const Place& here)
{
    const int rows = here.height + KERNEL_HEIGHT - 1, stride = here.width + KERNEL_WIDTH - 1;
    const float* image = padded + (long long)here.image * rows * stride;
#pragma unroll
    for (int r = 0; r < WINDOW; r++)
#pragma unroll
        for (int s = 0; s < KERNEL_WIDTH; s++) {
            const bool known = here.top + r < rows && here.column < here.width;
            x[r][s] = known ? image[(here.top + r) * stride + here.column + s] : 0.0f;
            sums[r][s] = 0.0f;
        }
}

#define EACH_TAP(statement)                                             \
    _Pragma("unroll") for (int four = 0; four < ROOM; four++)           \
    {                                                                   \
        const float4 some = taps[four];                                 \
        const float each[4] = {some.x, some.y, some.z, some.w};         \
        _Pragma("unroll") for (int k = 0; k < 4; k++)                   \
            if (4 * four + k < TAPS) EACH_PIXEL                         \
            {                                                           \
                const float f = each[k];                                \
                const int r = p + (4 * four + k) / KERNEL_WIDTH;        \
                const int s = (4 * four + k) % KERNEL_WIDTH;            \
                statement;                                              \
            }                                                           \
    }

// a += V x in one channel
__device__ __forceinline__ void respond(Pixels& a, const Window& x, const float4* taps)
{
    EACH_TAP(a[p] += f * x[r][s])
}

// sums += V* v in one channel
__device__ __forceinline__ void add_back(Window& sums, const Pixels& v, const float4* taps)
{
    EACH_TAP(sums[r][s] += f * v[p])
}

// The sums of a tile and its margin, from windows of its warps, whose rows overlap.
__device__ __forceinline__ void store(const float (&windows)[WARPS][WINDOW][ACROSS], float* spill,
                                      const Place& here)
{
    __syncthreads();
    float* own = spill + (long long)here.tile() * (DOWN * ACROSS);
    for (int k = here.thread; k < DOWN * ACROSS; k += THREADS) {
        float total = 0.0f;
        for (int warp = 0; warp < WARPS; warp++) {
            const int r = k / ACROSS - warp * PIXELS;
            if (r >= 0 && r < WINDOW) total += windows[warp][r][k % ACROSS];
        }
        own[k] = total;
    }
}

// The same, from windows of its threads.
__device__ __forceinline__ void store_windows(const Window& sums, float* spill, const Place& here)
{
    __shared__ float windows[WARPS][WINDOW][ACROSS];
    for (int k = here.thread; k < WARPS * WINDOW * ACROSS; k += THREADS)
        (&windows[0][0][0])[k] = 0.0f;
    __syncthreads();
    // Columns of a warp overlap: one column of all its windows at a time.
#pragma unroll
    for (int s = 0; s < KERNEL_WIDTH; s++) {
#pragma unroll
        for (int r = 0; r < WINDOW; r++) windows[threadIdx.y][r][threadIdx.x + s] += sums[r][s];
        __syncwarp();
    }
    store(windows, spill, here);
}

// One number of a tile.
__device__ __forceinline__ double sum_of_threads(double number, const Place& here)
{
    __shared__ double numbers[THREADS];
    numbers[here.thread] = number;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (here.thread < half) numbers[here.thread] += numbers[here.thread + half];
        __syncthreads();
    }
    const double total = numbers[0];
    __syncthreads();
    return total;
}

// The sum over POOL neighbouring threads of a warp, known to the first of them.
__device__ __forceinline__ float sum_of_neighbours(float number)
{
    __shared__ float numbers[WARPS][32 + POOL];
    numbers[threadIdx.y][threadIdx.x] = number;
    __syncwarp();
#pragma unroll
    for (int half = POOL / 2; half > 0; half /= 2) {
        const float other = numbers[threadIdx.y][threadIdx.x + half];
        __syncwarp();
        number += other;
        numbers[threadIdx.y][threadIdx.x] = number;
        __syncwarp();
    }
    return number;
}

// Multipliers of a pixel: of its channel, of the pixel, or of a block of COARSE x COARSE pixels; those
// of the next image are `apart`.
__device__ __forceinline__ float multiplier(const float* multipliers, int apart, int channel, int p,
                                            const Place& here)
{
    if (COARSE == 0) return multipliers[(long long)here.image * apart + channel];
    if (!here.holds(p)) return 0.0f;
    if (COARSE == 1) return multipliers[(long long)here.image * apart + here.at(channel, p)];
    const int down = (here.height + COARSE - 1) / max(COARSE, 1);
    const int across = (here.width + COARSE - 1) / max(COARSE, 1);
    const int row = (here.top + p) / max(COARSE, 1), column = here.column / max(COARSE, 1);
    return multipliers[(long long)here.image * apart + (channel * down + row) * across + column];
}

__device__ __forceinline__ float bias_of(const float* bias, int apart, int channel, int p,
                                         const Place& here)
{
    if (!BIASED) return bias[channel];
    return here.holds(p) ? bias[(long long)here.image * apart + here.at(channel, p)] : 0.0f;
}

// The terms of V* w at a position of the padded image: the spill of the tile there and of those before
// it. They are not added yet, which would wait for memory.
__device__ __forceinline__ void spilt_on(float (&terms)[4], const float* spill, int top, int left,
                                         const Place& here)
{
    const int down = (here.height + WARPS * PIXELS - 1) / (WARPS * PIXELS);
    const int across = (here.width + 31) / 32;
#pragma unroll
    for (int before = 0; before < 4; before++) {
        const int tile_i = top / (WARPS * PIXELS) - before / 2, tile_j = left / 32 - before % 2;
        const int row = top - tile_i * (WARPS * PIXELS), column = left - tile_j * 32;
        const bool exists = tile_i >= 0 && tile_i < down && tile_j >= 0 && tile_j < across
            && row < DOWN && column < ACROSS;
        const int at = (tile_i * across + tile_j) * (DOWN * ACROSS) + row * ACROSS + column;
        terms[before] = exists ? spill[at] : 0.0f;
    }
}

// argmin_z f(z) + (z - free)^2 / (2 step), f the density of the data term: of squared errors, absolute
// ones or counts
__device__ __forceinline__ float data_prox(int fidelity, float free, float step, float y,
                                           float scale, float background)
{
    if (fidelity == 1) return (free + step * y) / (1.0f + step);
    if (fidelity == 2) return fminf(fmaxf(y, free - scale * step), free + scale * step);
    if (fidelity != 3) return free;
    const float shifted = free + background - step;
    const float root = sqrtf(shifted * shifted + 4.0f * step * y);
    const float flipped = 2.0f * step * y / fmaxf(root - shifted, TINY);
    return (shifted >= 0.0f ? (shifted + root) / 2.0f : flipped) - background;
}

// Copies of a pixel in the margins of the padded image, which only pixels near the edge have: at
// rows (copies, height) and columns, -1 for none; the first is the pixel itself.
struct Copies {
    const int *rows, *columns;
    int copies, height, width;

    __device__ int count(int i, int j) const
    {
        const bool inside = i > KERNEL_HEIGHT / 2 && i < height - 1 - KERNEL_HEIGHT / 2
            && j > KERNEL_WIDTH / 2 && j < width - 1 - KERNEL_WIDTH / 2;
        return inside ? 1 : copies * copies;
    }
    __device__ bool at(int copy, int i, int j, int& top, int& left) const
    {
        top = rows[copy / copies * height + i];
        left = columns[copy % copies * width + j];
        return top >= 0 && left >= 0;
    }
};

// u = prox_{tau g}(x - tau c),  c = V* w (+ more),  x <- a u + b x + e anchor,  x_bar = 2 u - x.
__global__ void __launch_bounds__(THREADS) primal_step(
    const float* __restrict__ spill, const float* __restrict__ more, float* __restrict__ x,
    const float* __restrict__ anchor, float* __restrict__ u, float* __restrict__ x_bar,
    float* moved, const float* __restrict__ y, const float* __restrict__ diagonal,
    const float* __restrict__ background, const float* __restrict__ target,
    const int* __restrict__ copies_of_rows, const int* __restrict__ copies_of_columns,
    const float* table, int* clock,
    double scale, double pull, double lower, double upper,
    int height, int width, int columns, int fidelity, int has_more, int copies, int observed)
{
    const Place here(height, width);
    const Copies margins = {copies_of_rows, copies_of_columns, copies, height, width};
    const long long begin = (long long)here.image * here.size;
    const float* own = spill + (long long)here.image * gridDim.x * (DOWN * ACROSS);
    Pixels c, old, d, data;
    float terms[PIXELS][4];
    EACH_PIXEL {
        const int i = here.top + p, j = here.column;
        const long long at = begin + i * width + j;
        const bool holds = here.holds(p);
        spilt_on(terms[p], own, i + KERNEL_HEIGHT / 2, j + KERNEL_WIDTH / 2, here);
        old[p] = holds ? x[at] : 0.0f;
        d[p] = holds ? diagonal[at] : 0.0f;
        data[p] = holds ? y[at] : 0.0f;
        c[p] = holds && has_more ? more[at] : 0.0f;
    }
    const int row = clock[0];
    if (here.thread == 0 && here.tile() == 0) clock[1] = row;
    const float* numbers = table + (row * (int)gridDim.y + here.image) * columns;
    const float tau = numbers[0], a = numbers[3], b = numbers[4], e = numbers[5];
    if (tau == 0.0f) return;  // this image has ended
    const int stride = width + KERNEL_WIDTH - 1;
    float* bar = x_bar + (long long)here.image * (height + KERNEL_HEIGHT - 1) * stride;
    float way = 0.0f;
    EACH_PIXEL if (here.holds(p)) {
        const int i = here.top + p, j = here.column;
        const long long at = begin + i * width + j;
        const int count = margins.count(i, j);
        c[p] += terms[p][0] + terms[p][1] + terms[p][2] + terms[p][3];
        for (int copy = 1, top, left; copy < count; copy++)
            if (margins.at(copy, i, j, top, left)) {
                spilt_on(terms[p], own, top, left, here);
                c[p] += terms[p][0] + terms[p][1] + terms[p][2] + terms[p][3];
            }
        const float free = old[p] - tau * c[p], safe = d[p] != 0.0f ? d[p] : 1.0f;
        float z = safe * free, step = tau * safe * safe;
        if (pull > 0.0) {
            const float shrink = 1.0f + step * (float)pull;
            z = (z + step * (float)pull * target[at]) / shrink;
            step /= shrink;
        }
        const float r = fidelity == 3 ? background[at] : 0.0f;
        z = data_prox(fidelity, z, step, data[p], (float)scale, r);
        float made = d[p] != 0.0f ? z / safe : free;
        // NaN stays visible instead of being clipped to the box
        if (made == made) made = fminf(fmaxf(made, (float)lower), (float)upper);
        x[at] = a * made + b * old[p] + (e != 0.0f ? e * anchor[at] : 0.0f);
        if (observed) {
            u[at] = made;
            way += (made - old[p]) * (made - old[p]);
        }
        bar[(i + KERNEL_HEIGHT / 2) * stride + j + KERNEL_WIDTH / 2] = 2.0f * made - old[p];
        for (int copy = 1, top, left; copy < count; copy++)
            if (margins.at(copy, i, j, top, left)) bar[top * stride + left] = 2.0f * made - old[p];
    }
    if (observed) {
        const double total = sum_of_threads(way, here);
        if (here.thread == 0) moved[here.tile()] = (float)total;
    }
}

// The dual half of an iteration, by matrix units: they multiply 16 x 8 by 8 x 8 numbers at a time. A warp
// takes 32 pixels of a row. V x_bar is the product of their patches, one row for each pixel and one
// column for each tap, with the filters; V* w is the product of w, one column for each channel, with the
// filters again, which leaves numbers by pixel and tap that are added up in the end. Matrix units read
// the first 11 bits of a number (TF32), so a product is three: high parts, and each high with a low one.
//
// Of a 16 x 8 matrix, lane 4 g + t holds rows g and g + 8, at columns t and t + 4 of a left factor and at
// 2 t and 2 t + 1 of a product. Rows may be any pixels: with 4 g, 4 g + 1 in one matrix and 4 g + 2, 4 g + 3
// in another, a lane has four pixels that are together in memory. Columns of a left factor may be any
// channels: with 2 t and 2 t + 1, a product is the next left factor as it is.
#define EIGHTS ((TAPS + 7) / 8)
#define CHANNEL_EIGHTS ((CHANNELS + 7) / 8)
#define FILTER_STRIDE (8 * EIGHTS + 4)               // no two lanes read from the same bank
#define MARGIN ((KERNEL_WIDTH + 2) / 4 * 4)          // of zeros beside a row of pixels
#define LINE ((32 + 2 * MARGIN + 11) / 16 * 16 + 4)  // no two lanes write to the same bank
#define EACH_EIGHT _Pragma("unroll") for (int k = 0; k < EIGHTS; k++)
#define EACH_HALF _Pragma("unroll") for (int m = 0; m < 2; m++)
#define EACH_OF_FOUR _Pragma("unroll") for (int p = 0; p < 4; p++)

typedef float Four[4];                   // a matrix of 16 x 8, or four pixels that are together
typedef float Factor[2][EIGHTS][4];      // a matrix of 32 pixels x taps

// The bits that matrix units read.
__device__ __forceinline__ float high_part(float f)
{
    return __uint_as_float(__float_as_uint(f) & 0xffffe000u);
}

// The same, again each time: compilers would keep what does not change, for which there are no registers.
__device__ __forceinline__ float high_part_again(float f)
{
#ifdef __CUDA_ARCH__
    unsigned bits;
    asm volatile("and.b32 %0, %1, 0xffffe000;" : "=r"(bits) : "r"(__float_as_uint(f)));
    return __uint_as_float(bits);
#else
    return high_part(f);
#endif
}

// c += a b, for matrices of 16 x 8 and 8 x 8
__device__ __forceinline__ void multiply_high(Four& c, const Four& a, float b0, float b1)
{
#ifdef __CUDA_ARCH__
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
#else
    multiply_on_host(c, a, b0, b1);
#endif
}

// c += a b in single precision for both halves of the pixels
__device__ __forceinline__ void multiply(Four& c0, Four& c1, const Four (&high)[2],
                                         const Four (&low)[2], float b0, float b1)
{
    const float high0 = high_part(b0), high1 = high_part(b1);
    multiply_high(c0, low[0], high0, high1);
    multiply_high(c1, low[1], high0, high1);
    multiply_high(c0, high[0], b0 - high0, b1 - high1);
    multiply_high(c1, high[1], b0 - high0, b1 - high1);
    multiply_high(c0, high[0], high0, high1);
    multiply_high(c1, high[1], high0, high1);
}

// Four pixels of a row, from `column` on, of which the first `inside` are in the image. If widths are
// multiples of 4 (ALIGNED), this is all or none of them, and memory is read four numbers at a time.
struct Spot {
    int height, width, size, row, column, inside;

    __device__ bool has(int channel) const
    {
        return inside > 0 && (CHANNELS % 8 == 0 || channel < CHANNELS);
    }
    __device__ int at(int channel) const { return channel * size + row * width + column; }
    __device__ void read(Four& numbers, const float* from, int channel) const
    {
        const bool known = has(channel);
        if (ALIGNED) {
            const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
            const float4 some = known ? *(const float4*)(from + at(channel)) : none;
            numbers[0] = some.x, numbers[1] = some.y, numbers[2] = some.z, numbers[3] = some.w;
        } else
            EACH_OF_FOUR numbers[p] = known && p < inside ? from[at(channel) + p] : 0.0f;
    }
    __device__ void write(float* to, int channel, const Four& numbers) const
    {
        if (!has(channel)) return;
        if (ALIGNED)
            *(float4*)(to + at(channel)) =
                make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
        else
            EACH_OF_FOUR if (p < inside) to[at(channel) + p] = numbers[p];
    }
    // Multipliers of the channel, of the pixels, or of blocks of COARSE x COARSE pixels; four pixels are
    // never in two blocks.
    __device__ void read_multipliers(Four& t, const float* multipliers, int channel) const
    {
        if (COARSE == 1) return read(t, multipliers, channel);
        const int down = (height + COARSE - 1) / max(COARSE, 1);
        const int across = (width + COARSE - 1) / max(COARSE, 1);
        const int block = COARSE == 0 ? channel
            : (channel * down + row / max(COARSE, 1)) * across + column / max(COARSE, 1);
        t[0] = has(channel) ? multipliers[block] : 0.0f;
    }
    __device__ void read_bias(Four& a, const float* bias, int channel) const
    {
        if (BIASED) return read(a, bias, channel);
        a[0] = has(channel) ? bias[channel] : 0.0f;
    }
};

// The dual half of an iteration: its numbers, and where its tensors begin for an image.
struct Iteration {
    float *w, *v;
    const float *anchor, *bias, *multipliers;
    float sigma, a, b, e, low, rise_by, begin, flat;  // sigma times the begin and the width of the ramp
    bool step, observed;
};

// What a lane reads of two channels. Nothing is computed from it yet, which would wait for memory.
struct Numbers {
    Four w[2], t[2], bias[2], anchor[2];
};

__device__ __forceinline__ void read_channels(Numbers& numbers, const Iteration& of,
                                              bool anchored, int channel, const Spot& here)
{
    EACH_HALF {
        here.read(numbers.w[m], of.w, channel + m);
        if (!of.step) continue;
        here.read_multipliers(numbers.t[m], of.multipliers, channel + m);
        here.read_bias(numbers.bias[m], of.bias, channel + m);
        if (anchored) here.read(numbers.anchor[m], of.anchor, channel + m);
    }
}

// v = prox_{sigma f*}(w + sigma a),  w <- a v + b w + e anchor  in one channel; squares of v - w
__device__ __forceinline__ float stepped(Four& w, const Four& response, const Four& multipliers,
                                         const Four& anchor, const Iteration& of, bool anchored,
                                         int channel, const Spot& here)
{
    float way = 0.0f, per_flat = 0.0f, start = 0.0f;
    Four made, old = {w[0], w[1], w[2], w[3]};
    EACH_OF_FOUR {
        const float t = multipliers[COARSE == 1 ? p : 0];
        // v = t times the slope at the proximal point, which is on the ramp or at one of its ends
        if (COARSE == 1 || p == 0) {
            per_flat = __fdividef(1.0f, fmaxf(of.flat + t * of.rise_by, TINY));
            start = -(of.begin + t * of.low) * per_flat;
        }
        const float share = __saturatef((old[p] + of.sigma * response[p]) * per_flat + start);
        made[p] = t * of.low + t * of.rise_by * share;
        w[p] = of.a * made[p] + of.b * old[p] + (anchored ? of.e * anchor[p] : 0.0f);
    }
    if (!ALIGNED) EACH_OF_FOUR if (p >= here.inside) w[p] = made[p] = 0.0f;
    here.write(of.w, channel, w);
    if (of.observed) {
        here.write(of.v, channel, made);
        EACH_OF_FOUR way += (made[p] - old[p]) * (made[p] - old[p]);
    }
    return way;
}

// The iteration at 32 pixels, in all channels: sums = w times the filters, by pixel and tap; sum of the
// squares of its steps.
__device__ __forceinline__ float all_channels(const Iteration& of, bool anchored,
                                              const Factor& patches, Factor& sums,
                                              const float* filters, const Spot& here)
{
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    float way = 0.0f;
    Numbers now;
    read_channels(now, of, anchored, 2 * t, here);
#pragma unroll 1
    for (int first = 0; first < CHANNELS; first += 8) {
        const int channel = first + 2 * t;
        if (of.step) {
            Four c[2];
            EACH_OF_FOUR EACH_HALF c[p / 2][p % 2 * 2 + m] = now.bias[m][BIASED ? p : 0];
            EACH_EIGHT {
                const float* f = filters + (first + g) * FILTER_STRIDE + 8 * k + t;
                Four high[2], low[2];
                EACH_OF_FOUR EACH_HALF {
                    high[m][p] = high_part_again(patches[m][k][p]);
                    low[m][p] = patches[m][k][p] - high[m][p];
                }
                multiply(c[0], c[1], high, low, f[0], f[4]);
            }
            EACH_HALF {
                const Four response = {c[0][m], c[0][m + 2], c[1][m], c[1][m + 2]};
                way += stepped(now.w[m], response, now.t[m], now.anchor[m], of, anchored,
                               channel + m, here);
            }
        }
        Four high[2], low[2];
        EACH_OF_FOUR EACH_HALF {
            high[p / 2][p % 2 + 2 * m] = high_part(now.w[m][p]);
            low[p / 2][p % 2 + 2 * m] = now.w[m][p] - high_part(now.w[m][p]);
        }
        // Eight channels ahead: there is work until memory answers.
        if (first + 8 < CHANNELS) read_channels(now, of, anchored, channel + 8, here);
        EACH_EIGHT {
            const float* f = filters + channel * FILTER_STRIDE + 8 * k + g;
            multiply(sums[0][k], sums[1][k], high, low, f[0], f[FILTER_STRIDE]);
        }
    }
    return way;
}

// Adds sums by pixel and tap to a window of the padded image, whose first row is that of the pixels.
// Lanes own columns, so that no two of them write to the same place.
__device__ __forceinline__ void add_to_window(float (*window)[ACROSS], const Factor& sums,
                                              float (*lines)[LINE])
{
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    float total = 0.0f, beyond = 0.0f;
    EACH_EIGHT {
        __syncwarp();
        EACH_HALF {
            float* line = lines[2 * t + m] + MARGIN + 4 * g;
            *(float4*)line = make_float4(sums[0][k][m], sums[0][k][m + 2], sums[1][k][m],
                                         sums[1][k][m + 2]);
        }
        __syncwarp();
#pragma unroll
        for (int tap = 8 * k; tap < 8 * k + 8 && tap < TAPS; tap++) {
            const float* line = lines[tap % 8] + MARGIN + lane - tap % KERNEL_WIDTH;
            total += line[0];
            if (lane < KERNEL_WIDTH - 1) beyond += line[32];
            if (tap % KERNEL_WIDTH < KERNEL_WIDTH - 1) continue;
            window[tap / KERNEL_WIDTH][lane] += total;
            if (lane < KERNEL_WIDTH - 1) window[tap / KERNEL_WIDTH][32 + lane] += beyond;
            total = beyond = 0.0f;
        }
    }
}

// The patches of 32 pixels, from a row of the padded image on.
__device__ __forceinline__ void read_patches(Factor& patches, const float (*x)[ACROSS])
{
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    EACH_EIGHT EACH_HALF {
        const int tap = 8 * k + 4 * m + t;
        const float* first = x[tap / KERNEL_WIDTH] + 4 * g + tap % KERNEL_WIDTH;
        EACH_OF_FOUR patches[p / 2][k][2 * m + p % 2] = tap < TAPS ? first[p] : 0.0f;
    }
}

// v = prox_{sigma f*}(w + sigma (V x_bar + bias)),  w <- a v + b w + e anchor,  spill = V* w;
// without `step`, V* w alone. The slope of the activation rises from low to high.
__global__ void __launch_bounds__(THREADS, PROGRAMS) dual_step(
    const float* x_bar, float* w, const float* anchor, float* v, float* spill, float* moved,
    const float* filters, const float* bias, const float* multipliers,
    const float* table, int* clock,
    double low, double high, double left, double ramp_width,
    int apart, int bias_apart, int height, int width, int columns, int step, int observed)
{
    __shared__ float x[DOWN][ACROSS], taps[CHANNEL_EIGHTS * 8 * FILTER_STRIDE];
    __shared__ float windows[WARPS][WINDOW][ACROSS];
    __shared__ __align__(16) float lines[WARPS][8][LINE];
    const Place here(height, width);
    const int row = clock[1];
    if (step && here.thread == 0 && here.tile() == 0) clock[0] = row + 1;
    const float* numbers = table + (row * (int)gridDim.y + here.image) * columns;
    if (step && numbers[1] == 0.0f) return;  // this image has ended
    const long long begin = (long long)here.image * CHANNELS * here.size;
    const Iteration of = {
        w + begin, v + begin, anchor + begin,
        bias + (long long)here.image * bias_apart, multipliers + (long long)here.image * apart,
        numbers[1], numbers[3], numbers[4], numbers[5],
        (float)low, (float)(high - low), numbers[1] * (float)left, numbers[1] * (float)ramp_width,
        step != 0, observed != 0,
    };
    for (int k = here.thread; k < CHANNEL_EIGHTS * 8 * FILTER_STRIDE; k += THREADS) {
        const int channel = k / FILTER_STRIDE, tap = k % FILTER_STRIDE;
        taps[k] = channel < CHANNELS && tap < TAPS ? filters[channel * TAPS + tap] : 0.0f;
    }
    const int rows = height + KERNEL_HEIGHT - 1, stride = width + KERNEL_WIDTH - 1;
    const float* padded = x_bar + (long long)here.image * rows * stride;
    const int first = here.top - threadIdx.y * PIXELS, start = here.column - threadIdx.x;
    for (int k = here.thread; k < DOWN * ACROSS; k += THREADS) {
        const int i = first + k / ACROSS, j = start + k % ACROSS;
        (&x[0][0])[k] = i < rows && j < stride ? padded[i * stride + j] : 0.0f;
    }
    for (int k = here.thread; k < WARPS * 8 * LINE; k += THREADS) (&lines[0][0][0])[k] = 0.0f;
    for (int k = here.thread; k < WARPS * WINDOW * ACROSS; k += THREADS)
        (&windows[0][0][0])[k] = 0.0f;
    __syncthreads();
    float way = 0.0f;
#pragma unroll 1
    for (int r = 0; r < PIXELS && here.top + r < height; r++) {
        const int column = start + threadIdx.x / 4 * 4;
        const Spot spot = {height, width, here.size, here.top + r, column,
                           width - column};
        Factor patches, sums;
        read_patches(patches, x + threadIdx.y * PIXELS + r);
        EACH_EIGHT EACH_HALF EACH_OF_FOUR sums[m][k][p] = 0.0f;
        // Two loops: reading anchors takes registers, and most iterations have none.
        way += of.e != 0.0f ? all_channels(of, true, patches, sums, taps, spot)
                            : all_channels(of, false, patches, sums, taps, spot);
        add_to_window(windows[threadIdx.y] + r, sums, lines[threadIdx.y]);
    }
    store(windows, spill, here);
    if (observed) {
        const double total = sum_of_threads(way, here);
        if (here.thread == 0) moved[here.tile()] = (float)total;
    }
}

// Sums of W h(a) and of t (h(a) + h*(s) - s a), for a = V x + bias, t = weight W and s t = p, the
// nearest to v that is feasible; spill = V* p. Both sums of a tile are one after the other.
// With POOL, `pooled` gets sums of h(a) instead, over PIXELS x POOL pixels, and the first sum is 0.
__global__ void __launch_bounds__(THREADS, PROGRAMS) one_pass(
    const float* x_padded, const float* v, float* spill, double* totals, float* pooled,
    const float* filters, const float* bias, const float* outputs, const float* weights,
    double low_, double high_, double left_, double ramp_width_, double offset_,
    int apart, int bias_apart, int height, int width)
{
    __shared__ float4 taps[CHANNELS * ROOM];
    const Place here(height, width);
    const float weight = weights[here.image], offset = offset_;
    const float low = low_, rise_by = high_ - low_, left = left_, ramp_width = ramp_width_;
    const float per_width = ramp_width > 0.0f ? 1.0f / ramp_width : 0.0f, per_rise = 1.0f / rise_by;
    const long long begin = (long long)here.image * CHANNELS * here.size;
    load_taps(taps, filters, here);
    Window x, sums;
    start(x, sums, x_padded, here);
    double value = 0.0, slack = 0.0;
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; channel++) {
        const float4* f = taps + channel * ROOM;
        Pixels a, made, output;
        EACH_PIXEL {
            a[p] = bias_of(bias, bias_apart, channel, p, here);
            made[p] = here.holds(p) ? v[begin + here.at(channel, p)] : 0.0f;
            output[p] = here.holds(p) ? multiplier(outputs, apart, channel, p, here) : 0.0f;
        }
        respond(a, x, f);
        float values = 0.0f, losses = 0.0f;
        EACH_PIXEL {
            const float t = weight * output[p];
            made[p] = fminf(fmaxf(made[p], t * low), t * (low + rise_by));
            // From the left end of the ramp: of a, of the part of a on it, of the point of slope s.
            const float way = a[p] - left, inside = fminf(fmaxf(way, 0.0f), ramp_width);
            const float share = (__fdividef(made[p], fmaxf(t, TINY)) - low) * per_rise;
            const float off = inside - share * ramp_width, beyond = way - inside;
            const float against = beyond > 0.0f ? 1.0f - share : share;
            losses += t * rise_by * (0.5f * per_width * off * off + fabsf(beyond) * against);
            // h is the integral of its slope
            const float bent = 0.5f * per_width * inside * inside + fmaxf(beyond, 0.0f);
            const float z = low * a[p] + rise_by * bent + offset;
            values += POOL ? (here.holds(p) ? z : 0.0f) : output[p] * z;
        }
        if (POOL) {
            const float sum = sum_of_neighbours(values);
            const int across = width / max(POOL, 1), down = height / PIXELS;
            const int block = here.column / max(POOL, 1), group = here.top / PIXELS;
            if (here.inside > 0 && here.column % max(POOL, 1) == 0)
                pooled[(((long long)here.image * down + group) * CHANNELS + channel) * across + block]
                    = sum;
        } else {
            value += values;
        }
        slack += losses;
        add_back(sums, made, f);
    }
    store_windows(sums, spill, here);
    const double all_values = sum_of_threads(value, here);
    const double all_losses = sum_of_threads(slack, here);
    if (here.thread == 0) {
        totals[2 * here.tile()] = all_values;
        totals[2 * here.tile() + 1] = all_losses;
    }
}

// Restarts: anchor <- made, and sums of (made - origin)^2 and (made - anchor)^2 for the old anchor, over
// `part` of the `size` numbers of an image.
__global__ void __launch_bounds__(THREADS) moved_anchor(
    const float* made, const float* origin, float* anchor, float* squares,
    const unsigned char* restarts, int size, int part)
{
    const Place here(1, 1);
    if (!restarts[here.image]) return;
    const long long begin = (long long)here.image * size, first = (long long)blockIdx.x * part;
    const long long end = first + part < size ? first + part : size;
    double far = 0.0, near = 0.0;
    for (long long k = first + here.thread; k < end; k += THREADS) {
        const float v = made[begin + k];
        const float whole = v - origin[begin + k], recent = v - anchor[begin + k];
        far += whole * whole;
        near += recent * recent;
        anchor[begin + k] = v;
    }
    const double all_far = sum_of_threads(far, here), all_near = sum_of_threads(near, here);
    if (here.thread == 0) {
        squares[2 * here.tile()] = (float)all_far;
        squares[2 * here.tile() + 1] = (float)all_near;
    }
}
