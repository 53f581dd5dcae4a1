// The tiles of an image, for kernels in which a thread has PIXELS pixels of a column, and a program 32
// columns and WARPS times as many rows. A window is what filters reach from the pixels of a thread. Numbers
// have the precision NUMBER.
//
// Written for NVRTC: names in capitals that are not defined here are macros, from the modules that put
// texts together, inside extern "C"; hence no templates. Lambdas would be host functions.

#define WINDOW (PIXELS + KERNEL_HEIGHT - 1)
#define TAPS (KERNEL_HEIGHT * KERNEL_WIDTH)
#define THREADS (32 * WARPS)
#define DOWN (WARPS * PIXELS + KERNEL_HEIGHT - 1)
#define ACROSS (32 + KERNEL_WIDTH - 1)
#define EACH_PIXEL _Pragma("unroll") for (int p = 0; p < PIXELS; p++)
#define PROGRAMS (TAPS <= 32 ? 3 : 2)  // on a multiprocessor, which limits their registers

// A dual variable p = s t is stored as numbers or, with CODED, by its slopes in 16 bits: steps from one end of
// their interval to the other (problems/packed_slopes.py).
#if CODED
typedef short Stored;
#else
typedef float Stored;
#endif
#define STEPS 65535
#define MIDDLE 32768

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

typedef NUMBER Window[WINDOW][KERNEL_WIDTH];
typedef NUMBER Pixels[PIXELS];

__device__ __forceinline__ NUMBER bias_of(const NUMBER* bias, int apart, int channel, int p,
                                         const Place& here)
{
    if (!BIASED) return bias[channel];
    return here.holds(p) ? bias[(long long)here.image * apart + here.at(channel, p)] : 0;
}

// The sum over POOL neighbouring threads of a warp, known to the first of them.
__device__ __forceinline__ NUMBER sum_of_neighbours(NUMBER number)
{
    __shared__ NUMBER numbers[WARPS][32 + POOL];
    numbers[threadIdx.y][threadIdx.x] = number;
    __syncwarp();
#pragma unroll
    for (int half = POOL / 2; half > 0; half /= 2) {
        const NUMBER other = numbers[threadIdx.y][threadIdx.x + half];
        __syncwarp();
        number += other;
        numbers[threadIdx.y][threadIdx.x] = number;
        __syncwarp();
    }
    return number;
}

// The sums of a tile and its margin, from windows of its warps, whose rows overlap.
__device__ __forceinline__ void store(const NUMBER (&windows)[WARPS][WINDOW][ACROSS], NUMBER* spill,
                                      const Place& here)
{
    __syncthreads();
    NUMBER* own = spill + (long long)here.tile() * (DOWN * ACROSS);
    for (int k = here.thread; k < DOWN * ACROSS; k += THREADS) {
        NUMBER total = 0;
        for (int warp = 0; warp < WARPS; warp++) {
            const int r = k / ACROSS - warp * PIXELS;
            if (r >= 0 && r < WINDOW) total += windows[warp][r][k % ACROSS];
        }
        own[k] = total;
    }
}

// The same, from windows of its threads.
__device__ __forceinline__ void store_windows(const Window& sums, NUMBER* spill, const Place& here)
{
    __shared__ NUMBER windows[WARPS][WINDOW][ACROSS];
    for (int k = here.thread; k < WARPS * WINDOW * ACROSS; k += THREADS)
        (&windows[0][0][0])[k] = 0;
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

