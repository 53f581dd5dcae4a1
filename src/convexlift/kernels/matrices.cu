// V x and V* w by matrix units: they multiply 16 x 8 by 8 x 8 numbers at a time. A warp takes 32 pixels
// of a row. V x is the product of their patches, one row for each pixel and one column for each tap, with
// the filters; V* w is the product of w, one column for each channel, with the filters again, which leaves
// numbers by pixel and tap that are added up in the end. Matrix units read the first 11 bits of a number
// (TF32), so a product is three: high parts, and each high with a low one.
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
typedef Four Both[2];                    // two of them: a matrix of 32 x 8
typedef Both Factor[EIGHTS];             // a matrix of 32 pixels x taps
typedef Four Channels[2];                // four pixels in two channels

// The bits that matrix units read, anew each time: compilers would keep what does not change, for which
// there are no registers.
__device__ __forceinline__ float high_part(float f)
{
    unsigned bits = __float_as_uint(f) & 0xffffe000u;
#ifdef __CUDA_ARCH__
    asm volatile("and.b32 %0, %1, 0xffffe000;" : "=r"(bits) : "r"(__float_as_uint(f)));
#endif
    return __uint_as_float(bits);
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

// A left factor of 32 x 8 and a right one of 8 x 8, in parts that matrix units read.
struct Left {
    Both high, low;

    __device__ Left(const Both& a)
    {
        EACH_HALF EACH_OF_FOUR high[m][p] = high_part(a[m][p]), low[m][p] = a[m][p] - high[m][p];
    }
};
struct Right {
    float high[2], low[2];

    __device__ Right(float b0, float b1) : high{high_part(b0), high_part(b1)}
    {
        low[0] = b0 - high[0], low[1] = b1 - high[1];
    }
};

// c += a b
__device__ __forceinline__ void multiply(Both& c, const Left& a, const Right& b)
{
    EACH_HALF multiply_high(c[m], a.low[m], b.high[0], b.high[1]);
    EACH_HALF multiply_high(c[m], a.high[m], b.low[0], b.low[1]);
    EACH_HALF multiply_high(c[m], a.high[m], b.high[0], b.high[1]);
}

// Four pixels of a row, from `column` on, of which the first `inside` are in the image. If widths are
// multiples of 4 (ALIGNED), this is all or none of them, and memory is read four numbers at a time.
struct Spot {
    int height, width, size, row, column, inside;

    __device__ Spot(const Place& here, int r)
        : height(here.height), width(here.width), size(here.size), row(here.top + r),
          column(here.column - threadIdx.x + threadIdx.x / 4 * 4), inside(here.width - column) {}
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
    // The same for slopes in 16 bits, as parts of their interval.
    __device__ void read(Four& parts, const short* from, int channel) const
    {
        const bool known = has(channel);
        if (ALIGNED) {
            const short4 none = {0, 0, 0, 0};
            const short4 some = known ? *(const short4*)(from + at(channel)) : none;
            parts[0] = some.x, parts[1] = some.y, parts[2] = some.z, parts[3] = some.w;
        } else
            EACH_OF_FOUR parts[p] = known && p < inside ? from[at(channel) + p] : 0;
        EACH_OF_FOUR parts[p] = (parts[p] + MIDDLE) * (1.0f / STEPS);
    }
    __device__ void write(short* to, int channel, const Four& parts) const
    {
        if (!has(channel)) return;
        short codes[4];
        EACH_OF_FOUR codes[p] = (short)((int)rintf(parts[p] * STEPS) - MIDDLE);
        if (ALIGNED)
            *(short4*)(to + at(channel)) = make_short4(codes[0], codes[1], codes[2], codes[3]);
        else
            EACH_OF_FOUR if (p < inside) to[at(channel) + p] = codes[p];
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

// The taps of all filters, zeros beside them, in rows that start at different banks.
typedef float Taps[CHANNEL_EIGHTS * 8 * FILTER_STRIDE];

__device__ __forceinline__ void load_filters(Taps& taps, const float* filters, const Place& here)
{
    for (int k = here.thread; k < CHANNEL_EIGHTS * 8 * FILTER_STRIDE; k += THREADS) {
        const int channel = k / FILTER_STRIDE, tap = k % FILTER_STRIDE;
        taps[k] = channel < CHANNELS && tap < TAPS ? filters[channel * TAPS + tap] : 0.0f;
    }
}

// What the filters reach from the pixels of a program, of an image with margins; zeros beyond it.
__device__ __forceinline__ void load_tile(float (&x)[DOWN][ACROSS], const float* padded,
                                          const Place& here)
{
    const int rows = here.height + KERNEL_HEIGHT - 1, stride = here.width + KERNEL_WIDTH - 1;
    const float* image = padded + (long long)here.image * rows * stride;
    const int first = here.top - threadIdx.y * PIXELS, start = here.column - threadIdx.x;
    for (int k = here.thread; k < DOWN * ACROSS; k += THREADS) {
        const int i = first + k / ACROSS, j = start + k % ACROSS;
        (&x[0][0])[k] = i < rows && j < stride ? image[i * stride + j] : 0.0f;
    }
}

__device__ __forceinline__ void clear(float* numbers, int count, const Place& here)
{
    for (int k = here.thread; k < count; k += THREADS) numbers[k] = 0.0f;
}

// The patches of 32 pixels, from a row of the padded image on.
__device__ __forceinline__ void read_patches(Factor& patches, const float (*x)[ACROSS])
{
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    EACH_EIGHT EACH_HALF {
        const int tap = 8 * k + 4 * m + t;
        const float* first = x[tap / KERNEL_WIDTH] + 4 * g + tap % KERNEL_WIDTH;
        EACH_OF_FOUR patches[k][p / 2][2 * m + p % 2] = tap < TAPS ? first[p] : 0.0f;
    }
}

// a = V x + bias in eight channels from `first` on; a lane gets those of its four pixels in two channels.
__device__ __forceinline__ void respond(Channels& a, const Channels& bias, const Factor& patches,
                                        const float* filters, int first)
{
    const float* f = filters + (first + threadIdx.x / 4) * FILTER_STRIDE + threadIdx.x % 4;
    Both c;
    EACH_OF_FOUR EACH_HALF c[p / 2][p % 2 * 2 + m] = bias[m][BIASED ? p : 0];
    EACH_EIGHT multiply(c, Left(patches[k]), Right(f[8 * k], f[8 * k + 4]));
    EACH_OF_FOUR EACH_HALF a[m][p] = c[p / 2][p % 2 * 2 + m];
}

__device__ __forceinline__ Left as_left(const Channels& w)
{
    Both all;
    EACH_OF_FOUR EACH_HALF all[p / 2][p % 2 + 2 * m] = w[m][p];
    return Left(all);
}

// sums += V* w, for numbers of a lane in two channels from `channel` on.
__device__ __forceinline__ void add_back(Factor& sums, const Left& w, const float* filters,
                                         int channel)
{
    const float* f = filters + channel * FILTER_STRIDE + threadIdx.x / 4;
    EACH_EIGHT multiply(sums[k], w, Right(f[8 * k], f[8 * k + FILTER_STRIDE]));
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
            *(float4*)line = make_float4(sums[k][0][m], sums[k][0][m + 2], sums[k][1][m],
                                         sums[k][1][m + 2]);
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
