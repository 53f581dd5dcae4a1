// The tiles of an image, for kernels in which a thread has PIXELS pixels of a column, and a program 32
// columns and WARPS times as many rows. A window is what filters reach from the pixels of a thread.
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

