// What belongs to the iterations of a convolutional layer, for images with one channel, apart from the
// dual half (dual_step.cu) and the rules of restarts (restart_rules.cu): the primal half, and new anchors.
//
// A thread holds PIXELS pixels of a column. A warp is 32 columns wide, so that memory is read in whole
// lines whatever the width of the image. In the end the sums of a tile are added in a fixed order:
// results do not depend on the order in which threads run.

#define TINY 1e-37f

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
// `part` of the `size` numbers of an image. Before iteration `from`, neither the second sum nor
// the anchor is read, and the anchor stays. `more` iterations are not in `numbers` yet.
__global__ void __launch_bounds__(THREADS) moved_anchor(
    const float* __restrict__ made, const float* __restrict__ origin,
    float* __restrict__ anchor, float* squares,
    const unsigned char* restarts, const double* numbers, double from, int size, int part, int more)
{
    const Place here(1, 1);
    if (!restarts[here.image]) return;
    const bool moves = numbers[gridDim.y + here.image] + more >= from;
    const long long begin = (long long)here.image * size, first = (long long)blockIdx.x * part;
    const long long end = begin + (first + part < size ? first + part : size);
    double far = 0.0, near = 0.0;
#pragma unroll 4
    for (long long k = begin + first + TOGETHER * here.thread; k < end; k += TOGETHER * THREADS) {
        const float4 v = together(made + k);
        far += squared_distance(v, together(origin + k));
        if (!moves) continue;
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
