// What a check needs of data of single pixels, in single precision with sums in double precision: the
// functions of the same names in functionals/data_terms.py and problems/data_bound.py, without fifty
// passes over the image. Follows rigorous_data.cu.
//
// fminf and fmaxf drop NaN, where torch keeps it. Here it always reaches the sums by another factor.

// f(w) + c w - min over low <= w' <= high
__device__ __forceinline__ float excess(int kind, float w, float y, float scale, float c, float low,
                                        float high)
{
    const float free = kind == 1 ? y - c : y;
    float best = fminf(fmaxf(free, low), high), loss;
    if (kind == 1) {
        loss = (w - best) * ((w - free) + (best - free)) / 2.0f;
    } else {
        if (c > scale) best = low;
        if (c < -scale) best = high;
        loss = scale * (fabsf(w - y) - fabsf(best - y)) + c * (w - best);
    }
    return loss < 0.0f ? 0.0f : loss;
}

// Sums over the pixels of each program: `values` of f(d x) and of its excess, with the slope c, over
// lower <= x <= upper; `flags` are infinite where x leaves this box, and count what is not finite. Entries
// of d are `step` apart, its images `apart`.
__global__ void __launch_bounds__(THREADS) data_checks(
    const float* x, const float* c, const float* y, const float* d, double* values, double* flags,
    double scale, double lower, double upper,
    int kind, int size, int apart, int step)
{
    const long long begin = (long long)blockIdx.y * size;
    double density = 0.0, gap = 0.0, indicator = 0.0, wild = 0.0;
    EACH_PIXEL(k) {
        const float here = x[begin + k], slope = c[begin + k], datum = y[begin + k];
        const float factor = d[(long long)blockIdx.y * apart + (long long)k * step];
        const float w = factor * here, off = w - datum;
        const float one = factor * (float)lower, other = factor * (float)upper;
        density += kind == 1 ? off * off / 2.0f : (float)scale * fabsf(off);
        gap += factor == 0.0f ? slope * (here - (float)(slope > 0.0f ? lower : upper))
                              : excess(kind, w, datum, (float)scale, slope / factor,
                                       fminf(one, other), fmaxf(one, other));
        // In double precision, where the bounds are exact.
        indicator += here < lower || here > upper ? INFINITE : 0.0;
        wild += fabsf(here) < INFINITE ? 0.0 : 1.0;
    }
    collect(density, gap, (double2*)values);
    collect(indicator, wild, (double2*)flags);
}
