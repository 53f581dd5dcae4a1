// The dual half of a PDHG iteration, by matrix units.
//
// One program more than of others fits on a multiprocessor, if there are so many tiles, and if pixels have
// no biases, which take registers.
#define PROGRAMS_OF_STEPS (PIXELS > 2 && !BIASED ? PROGRAMS + 1 : PROGRAMS)

// The dual half of an iteration: its numbers, and where its tensors begin for an image.
struct Iteration {
    float *w, *v_numbers;
    Stored* v;
    const Stored* anchor;
    const float *bias, *multipliers;
    float sigma, a, b, e, low, rise_by, begin, flat;  // sigma times the begin and the width of the ramp
    bool step, observed;
};

// What a lane reads of two channels. Nothing is computed from it yet, which would wait for memory.
struct Numbers {
    Channels w, t, bias, anchor;
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
    Four made, parts, old = {w[0], w[1], w[2], w[3]};
    EACH_OF_FOUR {
        const float t = multipliers[COARSE == 1 ? p : 0];
        // v = t times the slope at the proximal point, which is on the ramp or at one of its ends
        if (COARSE == 1 || p == 0) {
            per_flat = __fdividef(1.0f, fmaxf(of.flat + t * of.rise_by, TINY));
            start = -(of.begin + t * of.low) * per_flat;
        }
        const float share = __saturatef((old[p] + of.sigma * response[p]) * per_flat + start);
        made[p] = t * of.low + t * of.rise_by * share;
        parts[p] = share;
        w[p] = of.a * made[p] + of.b * old[p];
        if (anchored) w[p] += of.e * (CODED ? t * (of.low + of.rise_by * anchor[p]) : anchor[p]);
    }
    if (!ALIGNED) EACH_OF_FOUR if (p >= here.inside) w[p] = made[p] = 0.0f;
    here.write(of.w, channel, w);
    if (of.observed) {
        if (CODED && of.v_numbers)
            here.write(of.v_numbers, channel, made);
        else
            here.write(of.v, channel, CODED ? parts : made);
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
    const int t = threadIdx.x % 4;
    float way = 0.0f;
    Numbers now;
    read_channels(now, of, anchored, 2 * t, here);
#pragma unroll 1
    for (int first = 0; first < CHANNELS; first += 8) {
        const int channel = first + 2 * t;
        if (of.step) {
            Channels a;
            respond(a, now.bias, patches, filters, first);
            EACH_HALF way += stepped(now.w[m], a[m], now.t[m], now.anchor[m], of, anchored,
                                     channel + m, here);
        }
        const Left left = as_left(now.w);
        // Eight channels ahead: there is work until memory answers.
        if (first + 8 < CHANNELS) read_channels(now, of, anchored, channel + 8, here);
        add_back(sums, left, filters, channel);
    }
    return way;
}

// v = prox_{sigma f*}(w + sigma (V x_bar + bias)),  w <- a v + b w + e anchor,  spill = V* w;
// without `step`, V* w alone. The slope of the activation rises from low to high. With CODED, numbers
// are written to `v_numbers`, if it is given, in place of codes.
__global__ void __launch_bounds__(THREADS, PROGRAMS_OF_STEPS) dual_step(
    const float* x_bar, float* w, const Stored* anchor, Stored* v, float* v_numbers, float* spill,
    float* moved,
    const float* filters, const float* bias, const float* multipliers,
    const float* table, int* clock,
    double low, double high, double left, double ramp_width,
    int apart, int bias_apart, int height, int width, int columns, int step, int observed)
{
    __shared__ float x[DOWN][ACROSS];
    __shared__ Taps taps;
    __shared__ float windows[WARPS][WINDOW][ACROSS];
    __shared__ __align__(16) float lines[WARPS][8][LINE];
    const Place here(height, width);
    const int row = clock[1];
    if (step && here.thread == 0 && here.tile() == 0) clock[0] = row + 1;
    const float* numbers = table + (row * (int)gridDim.y + here.image) * columns;
    if (step && numbers[1] == 0.0f) return;  // this image has ended
    const long long begin = (long long)here.image * CHANNELS * here.size;
    const Iteration of = {
        w + begin, v_numbers ? v_numbers + begin : v_numbers, v + begin, anchor + begin,
        bias + (long long)here.image * bias_apart, multipliers + (long long)here.image * apart,
        numbers[1], numbers[3], numbers[4], numbers[5],
        (float)low, (float)(high - low), numbers[1] * (float)left, numbers[1] * (float)ramp_width,
        step != 0, observed != 0,
    };
    load_filters(taps, filters, here);
    load_tile(x, x_bar, here);
    clear(&lines[0][0][0], WARPS * 8 * LINE, here);
    clear(&windows[0][0][0], WARPS * WINDOW * ACROSS, here);
    __syncthreads();
    float way = 0.0f;
#pragma unroll 1
    for (int r = 0; r < PIXELS && here.top + r < height; r++) {
        const Spot spot(here, r);
        Factor patches, sums;
        read_patches(patches, x + threadIdx.y * PIXELS + r);
        EACH_EIGHT EACH_HALF EACH_OF_FOUR sums[k][m][p] = 0.0f;
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
