// The rules of restarts (solvers/restart_rules.py, which explains them) for numbers of images: one program
// for each image. `numbers` has a row for each field of RestartMemory, `table` (rows, images, columns) the
// steps tau, sigma, sigma and the coefficients a, b, e of each iteration.

struct Rules {
    double relaxed, sufficient, necessary, too_long;
    int first, every;

    __device__ bool tests(double inner, double total) const
    {
        if (total <= relaxed) return total == relaxed;
        return inner == 1.0 || (long long)total % every == 0;
    }
    __device__ bool restarts(double now, double before, double at_restart, double inner, double total) const
    {
        return total == first || (now <= sufficient * at_restart && at_restart > 0.0)
            || (now <= necessary * at_restart && now > before)
            || (inner >= too_long * total && total > first);
    }
};

__device__ __forceinline__ double sum_of_tiles(const float* parts, int tiles, int stride, const Place& here)
{
    double sum = 0.0;
    for (int k = here.thread; k < tiles; k += THREADS)
        sum += parts[((long long)here.image * tiles + k) * stride];
    return sum_of_threads(sum, here);
}

// Counts `count` iterations, if any, and decides about a restart from the squared moves of the last one.
// Then writes the coefficients of iterations from `row` on; those of the first row follow a decision that
// was made before, and `restarts` says for which images.
__global__ void __launch_bounds__(THREADS) counted(
    double* numbers, const float* moved_u, const float* moved_v, const float* tau, const float* sigma,
    float* table, unsigned char* restarts, const unsigned char* active,
    double relaxed, double sufficient, double necessary, double too_long, double relaxation,
    int first, int every, int tiles_u, int tiles_v, int columns, int count, int row)
{
    const Place here(1, 1);
    const Rules rules = {relaxed, sufficient, necessary, too_long, first, every};
    const int image = here.image, batch = gridDim.y;
    const double u = sum_of_tiles(moved_u, tiles_u, 1, here), v = sum_of_tiles(moved_v, tiles_v, 1, here);
    if (here.thread) return;
    double* mine = numbers + image;
    double inner = mine[0], total = mine[batch];
    bool next = mine[2 * batch] > 0.0;
    if (count) {
        inner = next ? 0.0 : inner + count;
        total += count;
        const bool tested = rules.tests(inner, total);
        const double now = sqrt(u / tau[image] + v / sigma[image]);
        const double at_restart = mine[3 * batch], before = mine[4 * batch];
        const bool due = inner != 1.0 && rules.restarts(now, before, at_restart, inner, total);
        next = tested && (total <= relaxed || due);
        if (inner == 1.0) mine[3 * batch] = now;
        if (tested) mine[4 * batch] = now;
        mine[0] = inner;
        mine[batch] = total;
        mine[2 * batch] = next;
    } else {
        restarts[image] = next && active[image];
    }
    for (int k = 0; row + k < every; k++) {
        const float ahead = (float)(inner + k), kept = (ahead + 1.0f) / (ahead + 2.0f);
        const bool usual = total + k < relaxed;
        const bool restart = !count && !k && restarts[image];
        float* mix = table + ((long long)(row + k) * batch + image) * columns + 3;
        mix[0] = restart ? 1.0f : usual ? (float)relaxation : 2.0f * kept;
        mix[1] = restart ? 0.0f : usual ? (float)(1.0 - relaxation) : -kept;
        mix[2] = restart || usual ? 0.0f : 1.0f - kept;
    }
}

// The factor by which a displacement would change sigma, at most `largest`; 1 if nothing moved.
__device__ __forceinline__ float change(double du, double dv, float norm, float weight, float sigma,
                                        double largest)
{
    const float moved = (float)sqrt(du), reach = sqrtf(norm * (moved * moved));
    const float ratio = weight * (float)sqrt(dv) / reach / sigma;
    const float root = ratio != ratio ? 1.0f : sqrtf(ratio);
    const float least = (float)(1.0 / largest), most = (float)largest;
    return root < least ? least : root > most ? most : root;
}

// New steps of images that restart, from the squares of `moved_anchor`: first those of the whole way, then
// those since the last restart. `more` iterations are not in `numbers` yet.
__global__ void __launch_bounds__(THREADS) rebalanced(
    const float* squares_u, const float* squares_v, const double* numbers, const float* norm,
    const float* weight, float* tau, float* sigma, float* table,
    const unsigned char* restarts, const unsigned char* active,
    double begin, double end, double largest, double safety,
    int recent, int more, int every, int parts_u, int parts_v, int columns)
{
    const Place here(1, 1);
    const int image = here.image, batch = gridDim.y;
    if (!restarts[image]) return;
    double ways[4];
    for (int way = 0; way < 2; way++) {
        ways[way] = sum_of_tiles(squares_u + way, parts_u, 2, here);
        ways[2 + way] = sum_of_tiles(squares_v + way, parts_v, 2, here);
    }
    if (here.thread) return;
    const float old = sigma[image];
    const float whole = change(ways[0], ways[2], *norm, weight[image], old, largest);
    const float near = change(ways[1], ways[3], *norm, weight[image], old, largest);
    const double total = numbers[batch + image] + more;
    double late = log((total > 1.0 ? total : 1.0) / begin) / log(end / begin);
    late = recent || late > 1.0 ? 1.0 : late < 0.0 ? 0.0 : late;
    const float part = (float)late;
    const float made = old * powf(whole, 1.0f - part) * powf(near, part);
    const float step = 1.0f / (*norm * made) * (float)safety;
    sigma[image] = made;
    tau[image] = step;
    for (int row = 0; row < every; row++) {
        float* steps = table + ((long long)row * batch + image) * columns;
        steps[0] = active[image] ? step : 0.0f;
        steps[1] = steps[2] = active[image] ? made : 0.0f;
    }
}
