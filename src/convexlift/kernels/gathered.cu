// V* p of the tiles of tiles.cu, put together, in the precision NUMBER of the kernels that precede it.

// The pixel of which a place of the padded image is a copy, along one axis; -1 if it is zero. The
// boundary is zero, circular, reflect or replicate, in this order.
__device__ __forceinline__ int origin(int place, int count, int margin, int boundary)
{
    const int i = place - margin;
    if (i >= 0 && i < count) return i;
    if (boundary == 0) return -1;
    if (boundary == 1) return i < 0 ? i + count : i - count;
    if (boundary == 2) return i < 0 ? -i : 2 * (count - 1) - i;
    return i < 0 ? 0 : count - 1;
}

// The n-th place that may be a copy of pixel i: the first is its own, the others are all margins.
__device__ __forceinline__ int candidate(int n, int i, int count, int margin)
{
    return n == 0 ? i + margin : n <= margin ? n - 1 : count + n - 1;
}

__device__ __forceinline__ int candidates(int i, int count, int margin)
{
    return i <= margin || i >= count - 1 - margin ? 2 * margin + 1 : 1;
}

// c = V* p from the sums of all tiles, with the margins added to the pixels that they are copies of.
__global__ void __launch_bounds__(THREADS) gathered(
    const NUMBER* spill, NUMBER* c, int boundary, int height, int width)
{
    const Place here(height, width);
    const int across = (width + 31) / 32, down = (height + WARPS * PIXELS - 1) / (WARPS * PIXELS);
    const NUMBER* own = spill + (long long)here.image * gridDim.x * (DOWN * ACROSS);
    const int margin = KERNEL_HEIGHT / 2, beside = KERNEL_WIDTH / 2, j = here.column;
    EACH_PIXEL if (here.holds(p)) {
        const int i = here.top + p;
        NUMBER sum = 0;
        for (int m = 0; m < candidates(i, height, margin); m++) {
            const int row = candidate(m, i, height, margin);
            if (origin(row, height, margin, boundary) != i) continue;
            for (int n = 0; n < candidates(j, width, beside); n++) {
                const int column = candidate(n, j, width, beside);
                if (origin(column, width, beside, boundary) != j) continue;
                // All tiles whose margins reach this place.
                for (int a = min(row / (WARPS * PIXELS), down - 1); a >= 0; a--) {
                    const int r = row - a * (WARPS * PIXELS);
                    if (r >= DOWN) break;
                    for (int b = min(column / 32, across - 1); b >= 0; b--) {
                        const int s = column - b * 32;
                        if (s >= ACROSS) break;
                        sum += own[(a * across + b) * (DOWN * ACROSS) + r * ACROSS + s];
                    }
                }
            }
        }
        c[(long long)here.image * here.size + i * width + j] = sum;
    }
}
