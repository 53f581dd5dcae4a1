// A convolutional layer and its adjoint in one pass over its dual variable, for images with one
// channel: the sums of a certificate (see problems/minorant.py), the first dual variable, and what belongs
// to iterations: the primal half and restarts. The dual half is in dual_step.cu, the rules of restarts in restart_rules.cu,
// which follow this text.
//
// A thread holds PIXELS pixels of a column, one channel after the other, and two windows of the image
// around them in registers: what V reads, and the sums that V* makes. A number of the dual variable
// is read once. A warp is 32 columns wide, so that memory is read in whole lines whatever the width of
// the image. In the end the windows of a tile are added in a fixed order: results do not depend on the
// order in which threads run.

#define ROOM ((TAPS + 3) / 4)
#define TINY 1e-37f

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

// Sums of W h(a) and of t (h(a) + h*(s) - s a), for a = V x + bias, t = weight W and s t = p, the
// nearest to v that is feasible; spill = V* p. Both sums of a tile are one after the other.
// With POOL, `pooled` gets sums of h(a) instead, over PIXELS x POOL pixels, and the first sum is 0.
// Without v, there is nothing but h(a).
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
    const bool whole = v != 0;
    double value = 0.0, slack = 0.0;
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; channel++) {
        const float4* f = taps + channel * ROOM;
        Pixels a, made, output;
        EACH_PIXEL {
            a[p] = bias_of(bias, bias_apart, channel, p, here);
            made[p] = whole && here.holds(p) ? v[begin + here.at(channel, p)] : 0.0f;
            const bool weighted = here.holds(p) && (whole || !POOL);
            output[p] = weighted ? multiplier(outputs, apart, channel, p, here) : 0.0f;
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
        if (whole) add_back(sums, made, f);
    }
    if (whole) store_windows(sums, spill, here);
    const double all_values = sum_of_threads(value, here);
    const double all_losses = sum_of_threads(slack, here);
    if (here.thread == 0) {
        totals[2 * here.tile()] = all_values;
        totals[2 * here.tile() + 1] = all_losses;
    }
}

// p = t h'(a), a = V x + bias, t = weight W: the dual variable of the tangent at x.
__global__ void __launch_bounds__(THREADS, PROGRAMS) tangent(
    const float* x_padded, float* slopes, const float* filters, const float* bias,
    const float* outputs, const float* weights,
    double low_, double high_, double left_, double ramp_width_,
    int apart, int bias_apart, int height, int width)
{
    __shared__ float4 taps[CHANNELS * ROOM];
    const Place here(height, width);
    const float weight = weights[here.image], left = left_;
    const float low = low_, rise_by = high_ - low_, ramp_width = fmaxf((float)ramp_width_, TINY);
    const long long begin = (long long)here.image * CHANNELS * here.size;
    load_taps(taps, filters, here);
    Window x, unused;
    start(x, unused, x_padded, here);
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; channel++) {
        Pixels a;
        EACH_PIXEL a[p] = bias_of(bias, bias_apart, channel, p, here);
        respond(a, x, taps + channel * ROOM);
        EACH_PIXEL if (here.holds(p)) {
            const float t = weight * multiplier(outputs, apart, channel, p, here);
            const float share = __saturatef((a[p] - left) / ramp_width);
            slopes[begin + here.at(channel, p)] = t * (low + rise_by * share);
        }
    }
}

// Numbers that are together in memory: four if widths are multiples of 4 (ALIGNED), else one and zeros.
#define TOGETHER (ALIGNED ? 4 : 1)

__device__ __forceinline__ float4 together(const float* from)
{
    return ALIGNED ? *(const float4*)from : make_float4(*from, 0.0f, 0.0f, 0.0f);
}

__device__ __forceinline__ float squared_distance(float4 a, float4 b)
{
    const float x = a.x - b.x, y = a.y - b.y, z = a.z - b.z, w = a.w - b.w;
    return x * x + y * y + z * z + w * w;
}

// Restarts: anchor <- made, and sums of (made - origin)^2 and (made - anchor)^2 for the old anchor, over
// `part` of the `size` numbers of an image.
__global__ void __launch_bounds__(THREADS) moved_anchor(
    const float* __restrict__ made, const float* __restrict__ origin,
    float* __restrict__ anchor, float* squares,
    const unsigned char* restarts, int size, int part)
{
    const Place here(1, 1);
    if (!restarts[here.image]) return;
    const long long begin = (long long)here.image * size, first = (long long)blockIdx.x * part;
    const long long end = begin + (first + part < size ? first + part : size);
    double far = 0.0, near = 0.0;
#pragma unroll 4
    for (long long k = begin + first + TOGETHER * here.thread; k < end; k += TOGETHER * THREADS) {
        const float4 v = together(made + k);
        far += squared_distance(v, together(origin + k));
        near += squared_distance(v, together(anchor + k));
        if (ALIGNED)
            *(float4*)(anchor + k) = v;
        else
            anchor[k] = v.x;
    }
    const double all_far = sum_of_threads(far, here), all_near = sum_of_threads(near, here);
    if (here.thread == 0) {
        squares[2 * here.tile()] = (float)all_far;
        squares[2 * here.tile() + 1] = (float)all_near;
    }
}
