// A layer and its adjoint in one pass over its dual variable: the sums of a certificate (see
// problems/one_pass.py); and the first dual variable.

// What a layer has: its biases, output weights W, and the slope of its activation, which rises by `rise_by`
// from `low` on a ramp from `left` on.
struct Layer {
    const float *bias, *outputs;
    float weight, low, rise_by, left, ramp_width, offset;

    __device__ Layer(const float* bias, const float* outputs, const float* weights, double low,
                     double high, double left, double ramp_width, double offset, int apart,
                     int bias_apart)
        : bias(bias + (long long)blockIdx.y * bias_apart),
          outputs(outputs + (long long)blockIdx.y * apart), weight(weights[blockIdx.y]), low(low),
          rise_by(high - low), left(left), ramp_width(ramp_width), offset(offset) {}
};

struct Read {
    Channels v, output, bias;
};

__device__ __forceinline__ void read_layer(Read& numbers, const Layer& of, const Stored* v,
                                           int channel, const Spot& here)
{
    EACH_HALF {
        here.read_bias(numbers.bias[m], of.bias, channel + m);
        if (v) here.read(numbers.v[m], v, channel + m);
        if (v || !POOL) here.read_multipliers(numbers.output[m], of.outputs, channel + m);
    }
}

// Sums of W h(a), or of h(a) with POOL, and of t (h(a) + h*(s) - s a) over four pixels.
struct Sums {
    float values, losses;
};

// v becomes p = s t, the nearest to it that is feasible, with t = weight W.
__device__ __forceinline__ Sums passed(Four& v, const Four& a, const Four& outputs,
                                       const Layer& of, bool whole, int channel, const Spot& here)
{
    const float per_width = of.ramp_width > 0.0f ? 1.0f / of.ramp_width : 0.0f;
    const float per_rise = 1.0f / of.rise_by;
    Sums sums = {0.0f, 0.0f};
    EACH_OF_FOUR {
        const bool holds = here.has(channel) && (ALIGNED || p < here.inside);
        const float output = holds && (whole || !POOL) ? outputs[COARSE == 1 ? p : 0] : 0.0f;
        // From the left end of the ramp: of a, of the part of a on it.
        const float way = a[p] - of.left, inside = fminf(fmaxf(way, 0.0f), of.ramp_width);
        const float beyond = way - inside;
        // h is the integral of its slope
        const float bent = 0.5f * per_width * inside * inside + fmaxf(beyond, 0.0f);
        const float z = of.low * a[p] + of.rise_by * bent + of.offset;
        sums.values += POOL ? (holds ? z : 0.0f) : output * z;
        if (!whole) continue;
        const float t = of.weight * output;
        if (CODED) v[p] = t * (of.low + of.rise_by * v[p]);
        v[p] = fminf(fmaxf(v[p], t * of.low), t * (of.low + of.rise_by));
        const float share = (__fdividef(v[p], fmaxf(t, TINY)) - of.low) * per_rise;
        const float off = inside - share * of.ramp_width;
        const float against = beyond > 0.0f ? 1.0f - share : share;
        sums.losses += t * of.rise_by * (0.5f * per_width * off * off + fabsf(beyond) * against);
    }
    return sums;
}

// The sum over blocks of POOL pixels of a row, whose first lanes write it.
__device__ __forceinline__ void write_pooled(float* pooled, float sum, int channel, const Spot& here)
{
#pragma unroll
    for (int apart = 4; apart < POOL; apart *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (!here.has(channel) || here.column % max(POOL, 1)) return;
    const int across = here.width / max(POOL, 1), block = here.column / max(POOL, 1);
    const long long row = (long long)blockIdx.y * here.height + here.row;
    pooled[(row * CHANNELS + channel) * across + block] = sum;
}

// Sums of W h(a) and of t (h(a) + h*(s) - s a), for a = V x + bias, t = weight W and s t = p, the
// nearest to v that is feasible; spill = V* p. Both sums of a tile are one after the other.
// With POOL, `pooled` gets sums of h(a) instead, over POOL pixels of a row, and the first sum is 0.
// Without v, there is nothing but h(a).
__global__ void __launch_bounds__(THREADS, PROGRAMS) one_pass(
    const float* x_padded, const Stored* v, float* spill, double* totals, float* pooled,
    const float* filters, const float* bias, const float* outputs, const float* weights,
    double low, double high, double left, double ramp_width, double offset,
    int apart, int bias_apart, int height, int width)
{
    __shared__ float x[DOWN][ACROSS];
    __shared__ Taps taps;
    __shared__ float windows[WARPS][WINDOW][ACROSS];
    __shared__ __align__(16) float lines[WARPS][8][LINE];
    const Place here(height, width);
    const Layer layer(bias, outputs, weights, low, high, left, ramp_width, offset, apart, bias_apart);
    const bool whole = v != 0;
    const Stored* dual = whole ? v + (long long)here.image * CHANNELS * here.size : 0;
    load_filters(taps, filters, here);
    load_tile(x, x_padded, here);
    clear(&lines[0][0][0], WARPS * 8 * LINE, here);
    clear(&windows[0][0][0], WARPS * WINDOW * ACROSS, here);
    __syncthreads();
    const int t = threadIdx.x % 4;
    double value = 0.0, slack = 0.0;
#pragma unroll 1
    for (int r = 0; r < PIXELS && here.top + r < height; r++) {
        const Spot spot(here, r);
        Factor patches, sums;
        read_patches(patches, x + threadIdx.y * PIXELS + r);
        EACH_EIGHT EACH_HALF EACH_OF_FOUR sums[k][m][p] = 0.0f;
        Read now;
        read_layer(now, layer, dual, 2 * t, spot);
#pragma unroll 1
        for (int first = 0; first < CHANNELS; first += 8) {
            const int channel = first + 2 * t;
            Channels a;
            respond(a, now.bias, patches, taps, first);
            EACH_HALF {
                const Sums of = passed(now.v[m], a[m], now.output[m], layer, whole, channel + m, spot);
                if (POOL)
                    write_pooled(pooled, of.values, channel + m, spot);
                else
                    value += of.values;
                slack += of.losses;
            }
            if (whole) {
                const Left left = as_left(now.v);
                // Eight channels ahead: there is work until memory answers.
                if (first + 8 < CHANNELS) read_layer(now, layer, dual, channel + 8, spot);
                add_back(sums, left, taps, channel);
            } else if (first + 8 < CHANNELS)
                read_layer(now, layer, dual, channel + 8, spot);
        }
        if (whole) add_to_window(windows[threadIdx.y] + r, sums, lines[threadIdx.y]);
    }
    if (whole) store(windows, spill, here);
    const double all_values = sum_of_threads(value, here);
    const double all_losses = sum_of_threads(slack, here);
    if (here.thread == 0) {
        totals[2 * here.tile()] = all_values;
        totals[2 * here.tile() + 1] = all_losses;
    }
}

// p = t h'(a), a = V x + bias, t = weight W: the dual variable of the tangent at x.
__global__ void __launch_bounds__(THREADS, PROGRAMS) tangent(
    const float* x_padded, Stored* slopes, const float* filters, const float* bias,
    const float* outputs, const float* weights,
    double low, double high, double left, double ramp_width,
    int apart, int bias_apart, int height, int width)
{
    __shared__ float x[DOWN][ACROSS];
    __shared__ Taps taps;
    const Place here(height, width);
    const Layer layer(bias, outputs, weights, low, high, left, ramp_width, 0.0, apart, bias_apart);
    const float per_width = 1.0f / fmaxf(layer.ramp_width, TINY);
    Stored* p = slopes + (long long)here.image * CHANNELS * here.size;
    load_filters(taps, filters, here);
    load_tile(x, x_padded, here);
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < PIXELS && here.top + r < height; r++) {
        const Spot spot(here, r);
        Factor patches;
        read_patches(patches, x + threadIdx.y * PIXELS + r);
#pragma unroll 1
        for (int first = 0; first < CHANNELS; first += 8) {
            const int channel = first + 2 * (threadIdx.x % 4);
            Read now;
            Channels a;
            read_layer(now, layer, 0, channel, spot);
            respond(a, now.bias, patches, taps, first);
            EACH_HALF {
                EACH_OF_FOUR {
                    const float t = layer.weight * now.output[m][COARSE == 1 ? p : 0];
                    const float share = __saturatef((a[m][p] - layer.left) * per_width);
                    a[m][p] = CODED ? share : t * (layer.low + layer.rise_by * share);
                }
                spot.write(p, channel + m, a[m]);
            }
        }
    }
}
