// Sums over a convolutional layer in double precision, for images with one channel: what a rigorous
// claim needs of it, without storing anything of its size. problems/rigorous_layer.py bounds their
// rounding errors.
//
// As in first_layer.cu, a thread holds PIXELS pixels of a column, one channel after the other, and a
// window of the image around them in registers: `values` what V reads, `minorants` the sums that V*
// makes. Two kernels, since registers hold one window in double precision and not two; they have
// nothing in common anyway, because the values of h do not depend on dual variables.
//
// Sums are taken in a fixed order, and results do not depend on the order in which threads run. The
// compiler may fuse products with sums, which only leaves out rounding errors.

#define ROOM ((TAPS + 1) / 2)

// The taps of all filters, two at a time.
__device__ __forceinline__ void load_taps(double2 (&taps)[CHANNELS * ROOM], const double* filters,
                                          const Place& here)
{
    for (int k = here.thread; k < CHANNELS * ROOM * 2; k += THREADS) {
        const int tap = k % (ROOM * 2);
        (&taps[0].x)[k] = tap < TAPS ? filters[k / (ROOM * 2) * TAPS + tap] : 0.0;
    }
    __syncthreads();
}

#define EACH_TAP(statement)                                             \
    _Pragma("unroll") for (int two = 0; two < ROOM; two++)              \
    {                                                                   \
        const double2 some = taps[two];                                 \
        const double each[2] = {some.x, some.y};                        \
        _Pragma("unroll") for (int k = 0; k < 2; k++)                   \
            if (2 * two + k < TAPS) EACH_PIXEL                          \
            {                                                           \
                const double f = each[k];                               \
                const int r = p + (2 * two + k) / KERNEL_WIDTH;         \
                const int s = (2 * two + k) % KERNEL_WIDTH;             \
                statement;                                              \
            }                                                           \
    }

// The sum of one number over the threads of a tile, and the maximum of another, at `place`.
__device__ __forceinline__ void collect(double number, double size, double2* place,
                                        const Place& here)
{
    __shared__ double2 numbers[THREADS];
    double2& own = numbers[here.thread];
    own.x = number;
    own.y = size;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (here.thread < half) {
            const double2 other = numbers[here.thread + half];
            own.x += other.x;
            own.y = fmax(own.y, other.y);
        }
        __syncthreads();
    }
    if (here.thread == 0) place[here.tile()] = own;
}

// Multipliers of a pixel: of its channel, of the pixel, or of a block of COARSE x COARSE pixels, which
// contains all pixels of a thread; those of the next image are `apart`.
__device__ __forceinline__ double multiplier(const double* multipliers, int apart, int channel,
                                             int p, const Place& here)
{
    const double* own = multipliers + (long long)here.image * apart;
    if (!here.holds(COARSE > 1 ? 0 : p)) return 0.0;
    if (COARSE == 0) return own[channel];
    if (COARSE == 1) return own[here.at(channel, p)];
    const int down = here.height / max(COARSE, 1), across = here.width / max(COARSE, 1);
    return own[(channel * down + here.top / max(COARSE, 1)) * across + here.column / max(COARSE, 1)];
}

// Sums of W h(a) over each tile, a = V x + bias; with POOL, instead, sums of h(a) over PIXELS x POOL
// pixels, in `pooled`. h(0) = 0, and the slope of h rises from low, at the left
// end of a ramp, to high, at its right end; at 0 it is `middle`. `bend` is half of h'' on the ramp.
__global__ void __launch_bounds__(THREADS, PROGRAMS) values(
    const double* x_padded, double* totals, double* pooled,
    const double* filters, const double* bias, const double* outputs,
    double low, double high, double left, double right, double middle, double bend,
    int apart, int bias_apart, int height, int width)
{
    __shared__ double2 all_taps[CHANNELS * ROOM];
    const Place here(height, width);
    load_taps(all_taps, filters, here);
    const int rows = height + KERNEL_HEIGHT - 1, stride = width + KERNEL_WIDTH - 1;
    const double* image = x_padded + (long long)here.image * rows * stride;
    Window x;
#pragma unroll
    for (int r = 0; r < WINDOW; r++)
#pragma unroll
        for (int s = 0; s < KERNEL_WIDTH; s++) {
            const bool known = here.top + r < rows && here.column < width;
            x[r][s] = known ? image[(here.top + r) * stride + here.column + s] : 0.0;
        }
    double total = 0.0;
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; channel++) {
        const double2* taps = all_taps + channel * ROOM;
        Pixels a, output;
        EACH_PIXEL {
            a[p] = bias_of(bias, bias_apart, channel, p, here);
            if (!POOL) output[p] = multiplier(outputs, apart, channel, p, here);
        }
        EACH_TAP(a[p] += f * x[r][s])
        double sum = 0.0;
        EACH_PIXEL {
            // The integral of the slope from 0: inside the ramp and beyond it.
            const double inside = fmin(fmax(a[p], left), right), beyond = a[p] - inside;
            const double z = inside * (middle + bend * inside) + beyond * (beyond > 0.0 ? high : low);
            sum += POOL ? (here.holds(p) ? z : 0.0) : output[p] * z;
        }
        if (POOL) {
            const double of_block = sum_of_neighbours(sum);
            const int across = width / max(POOL, 1), down = height / PIXELS;
            const int block = here.column / max(POOL, 1), group = here.top / PIXELS;
            if (here.inside > 0 && here.column % max(POOL, 1) == 0)
                pooled[(((long long)here.image * down + group) * CHANNELS + channel) * across + block]
                    = of_block;
        } else {
            total += sum;
        }
    }
    if (!POOL) collect(total, 0.0, (double2*)totals, here);
}

// What a thread reads of a channel of the dual variable v. With CODED, this includes the multipliers t in
// single precision by which v was coded; layers that are pooled have no coded v.
struct Numbers {
    Stored v[PIXELS];
    float single_t[PIXELS];
    Pixels t, bias;
};

__device__ __forceinline__ void read_channel(Numbers& numbers, const Stored* v, const float* single_t,
                                             const double* bias, int bias_apart,
                                             const double* multipliers, int apart, int channel,
                                             const Place& here)
{
    EACH_PIXEL {
        numbers.v[p] = here.holds(p) ? v[here.at(channel, p)] : 0;
        if (CODED) {
            const float* own = single_t + (long long)here.image * apart;
            numbers.single_t[p] = here.holds(p) ? own[COARSE ? here.at(channel, p) : channel] : 0.0f;
        }
        numbers.t[p] = multiplier(multipliers, apart, channel, p, here);
        numbers.bias[p] = bias_of(bias, bias_apart, channel, p, here);
    }
}

// The v of a pixel. A claim states what `feasible` of packed_slopes.py makes of a code, so this must be the
// same to the last bit: products and sums must not be fused.
__device__ __forceinline__ float decoded(const Numbers& numbers, int p, double low, double high)
{
    if (!CODED) return numbers.v[p];
    const float t = numbers.single_t[p], step = (float)((high - low) / STEPS);
    const float slope = __fadd_rn(__fmul_rn((float)(numbers.v[p] + MIDDLE), step), (float)low);
    const float first = __fmul_rn(t, (float)low), last = __fmul_rn(t, (float)high);
    return fminf(fmaxf(__fmul_rn(slope, t), first), last);
}

// Sums of p bias - t h*(s) over each tile, p = s t, with the slopes s nearest to v / t in the domain
// of h*, and the largest |s|; spill = V* p, tile by tile. `bend` is half of (h*)''.
__global__ void __launch_bounds__(THREADS, PROGRAMS) minorants(
    const Stored* v, const float* single_t, double* spill, double* totals,
    const double* filters, const double* bias, const double* multipliers,
    double low, double high, double middle, double bend,
    int apart, int bias_apart, int height, int width)
{
    __shared__ double2 all_taps[CHANNELS * ROOM];
    const Place here(height, width);
    load_taps(all_taps, filters, here);
    const Stored* own_v = v + (long long)here.image * CHANNELS * here.size;
    Window sums;
#pragma unroll
    for (int r = 0; r < WINDOW; r++)
#pragma unroll
        for (int s = 0; s < KERNEL_WIDTH; s++) sums[r][s] = 0.0;
    double total = 0.0, steepest = 0.0;
    Numbers next;
    read_channel(next, own_v, single_t, bias, bias_apart, multipliers, apart, 0, here);
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; channel++) {
        const double2* taps = all_taps + channel * ROOM;
        const Numbers now = next;
        // One channel ahead: there is work until memory answers.
        if (channel + 1 < CHANNELS)
            read_channel(next, own_v, single_t, bias, bias_apart, multipliers, apart, channel + 1, here);
        Pixels made;
        double sum = 0.0;
        EACH_PIXEL {
            const double t = now.t[p], inverse = t > 0.0 ? 1.0 / t : 0.0;
            const double v_here = decoded(now, p, low, high);
            const double slope = fmin(fmax(v_here * inverse, low), high), way = slope - middle;
            made[p] = slope * t;
            sum += made[p] * now.bias[p] - t * (bend * way * way);
            if (here.holds(p)) steepest = fmax(steepest, fabs(slope));
        }
        total += sum;
        EACH_TAP(sums[r][s] += f * made[p])
    }
    store_windows(sums, spill, here);
    collect(total, steepest, (double2*)totals, here);
}
