// Bounds on the data term of single pixels in double precision, and their sums: the functions of the
// same names in functionals/fidelity.py and problems/rigorous_bounds.py, which give the reasons, without
// a hundred passes over the image.
//
// f(w) is (w - y)^2 / 2 (kind 1) or scale |w - y| (kind 2). Fused multiply-adds only leave out rounding
// errors. Written for NVRTC: capitals are macros, from rigorous_pass.py.

#define THREADS (32 * WARPS)
#define UNIT 1.1102230246251565e-16
#define INFINITE (1e300 * 1e300)
#define GAMMA(count) (2 * (count) * UNIT)

struct Term {
    int kind;
    double y, scale, density_rounding, conjugate_rounding;

    __device__ double density(double w) const
    {
        return kind == 1 ? (w - y) * (w - y) / 2.0 : scale * fabs(w - y);
    }
    __device__ double gradient(double w) const
    {
        return kind == 1 ? w - y : w > y ? scale : w < y ? -scale : 0.0;
    }
    __device__ double conjugate(double v) const
    {
        if (kind == 1) return v * v / 2.0 + v * y;
        return fabs(v) <= scale ? v * y : INFINITE;
    }
    __device__ double density_above(double w, double error) const
    {
        if (error > 0.0) error = error * (1.0 + 1e-15) + 1e-15 * fabs(w);
        return fmax(density(w - error), density(w + error)) * (1.0 + density_rounding);
    }
    // f(w) + c w at an end of an interval, if it is smallest there; else the best so far.
    __device__ double at_end(double c, double end, double sign, bool unbounded, double best) const
    {
        const double height = density(end), steepness = gradient(end), linear = c * end;
        const double slope = sign * (steepness + c);
        const bool clear = slope > 1e-9 * (fabs(steepness) + fabs(c));
        const bool usable = height < INFINITE && (clear || (unbounded && slope >= 0.0));
        return usable ? height + linear - density_rounding * (height + fabs(linear)) : best;
    }
    __device__ double infimum_below(double c, double lower, double upper) const
    {
        const double value = conjugate(-c), size = fabs(value) + fabs(c) * fabs(y);
        const double whole = -(value + conjugate_rounding * size);
        const bool unbounded = !(fabs(whole) < INFINITE);
        const double best = at_end(c, lower, 1.0, unbounded, whole);
        return at_end(c, upper, -1.0, unbounded, best);
    }
};

// The sums of two numbers over the threads of a program.
__device__ __forceinline__ void collect(double number, double size, double2* place)
{
    __shared__ double2 numbers[THREADS];
    const int thread = threadIdx.y * 32 + threadIdx.x;
    double2& own = numbers[thread];
    own.x = number;
    own.y = size;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            own.x += numbers[thread + half].x;
            own.y += numbers[thread + half].y;
        }
        __syncthreads();
    }
    if (thread == 0) place[blockIdx.y * gridDim.x + blockIdx.x] = own;
}

#define EACH_PIXEL(k)                                                                          \
    for (int k = blockIdx.x * (THREADS * PIXELS) + threadIdx.y * 32 + threadIdx.x, turn = 0;   \
         turn < PIXELS && k < size; turn++, k += THREADS)

// Sums of f(d x), rounded up; without x, of the infimum of f(d x) + c x over lower <= x <= upper, lower
// >= 0, for every c within its error, rounded down; and of absolute values. Entries of d are `step`
// apart, its images `apart`.
__global__ void __launch_bounds__(THREADS) data_bounds(
    const double* x, const double* c, const double* errors, const double* y, const double* d,
    double* totals,
    double scale, double density_rounding, double conjugate_rounding, double product_rounding,
    double lower, double upper,
    int kind, int below, int size, int apart, int step, int error_apart)
{
    const long long begin = (long long)blockIdx.y * size;
    double sum = 0.0, sizes = 0.0;
    EACH_PIXEL(k) {
        const Term f = {kind, y[begin + k], scale, density_rounding, conjugate_rounding};
        const double factor = d[(long long)blockIdx.y * apart + (long long)k * step];
        const bool exact = fabs(factor) == 1.0;
        double bound;
        if (!below) {
            const double w = factor * x[begin + k];
            bound = f.density_above(w, exact ? 0.0 : product_rounding * fabs(w));
        } else {
            // The infimum grows with c, since x >= 0.
            const double end = c[begin + k] - (1.0 + GAMMA(1)) * errors[blockIdx.y * error_apart];
            if (factor == 0.0) {
                const double linear = fmin(end * lower, end * upper);
                bound = linear - GAMMA(1) * fabs(linear)
                    + f.density(0.0) * (1.0 - f.density_rounding);
            } else {
                const double one = factor * lower, other = factor * upper;
                const double low = fmin(one, other), high = fmax(one, other);
                const double slope = end / factor, outwards = factor > 0.0 ? -1.0 : 1.0;
                bound = f.infimum_below(
                    exact ? slope : slope + outwards * GAMMA(2) * fabs(slope),
                    low - GAMMA(1) * fabs(low), high + GAMMA(1) * fabs(high));
            }
        }
        sum += bound;
        sizes += fabs(bound);
    }
    collect(sum, sizes, (double2*)totals);
}
