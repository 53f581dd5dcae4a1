// What the kernels need of CUDA, on a CPU: a fibre for each thread of a program, all of them on one
// thread of the CPU, since a barrier of fibres takes far less time than one of threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

struct dim3 { int x, y; };
struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
static dim3 gridDim, threadIdx, blockIdx;

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
inline float __saturatef(float f) { return f > 0 ? std::min(f, 1.0f) : 0.0f; }
inline float __fdividef(float a, float b) { return a / b; }
struct short4 { short x, y, z, w; };
inline short4 make_short4(short x, short y, short z, short w) { return {x, y, z, w}; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
using std::max;
using std::min;

struct Fibre {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 17);
    dim3 place;
    bool ended = false;
};
struct Barrier { int expected = 0, arrived = 0, opened = 0; };
static ucontext_t scheduler;
static Fibre* running;
static std::function<void()> program;
static Barrier of_all;
static std::vector<Barrier> of_warps;

inline void wait_at(Barrier& barrier)
{
    const int before = barrier.opened;
    if (++barrier.arrived == barrier.expected) barrier.arrived = 0, barrier.opened++;
    while (barrier.opened == before) swapcontext(&running->context, &scheduler);
}
inline void leave(Barrier& barrier)
{
    if (barrier.arrived == --barrier.expected) barrier.arrived = 0, barrier.opened++;
}
inline void __syncthreads() { wait_at(of_all); }
inline void __syncwarp() { wait_at(of_warps[threadIdx.y]); }
static void enter()
{
    program();
    leave(of_all), leave(of_warps[threadIdx.y]);
    running->ended = true;
    swapcontext(&running->context, &scheduler);
}

inline float __shfl_xor_sync(unsigned, float number, int apart)
{
    static float numbers[64][32];
    auto& of_warp = numbers[threadIdx.y];
    of_warp[threadIdx.x] = number;
    __syncwarp();
    const float other = of_warp[threadIdx.x ^ apart];
    __syncwarp();
    return other;
}

// c += a b for the 16 x 8 and 8 x 8 numbers of the lanes of a warp, which read 11 bits of a factor.
inline void multiply_on_host(float (&c)[4], const float (&a)[4], float b0, float b1)
{
    static float lefts[64][16][8], rights[64][8][8];
    auto& left = lefts[threadIdx.y];
    auto& right = rights[threadIdx.y];
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    auto read = [](float f) { return __uint_as_float(__float_as_uint(f) & 0xffffe000u); };
    left[g][t] = read(a[0]), left[g + 8][t] = read(a[1]);
    left[g][t + 4] = read(a[2]), left[g + 8][t + 4] = read(a[3]);
    right[t][g] = read(b0), right[t + 4][g] = read(b1);
    __syncwarp();
    for (int k = 0; k < 8; k++) {
        c[0] += left[g][k] * right[k][2 * t], c[1] += left[g][k] * right[k][2 * t + 1];
        c[2] += left[g + 8][k] * right[k][2 * t], c[3] += left[g + 8][k] * right[k][2 * t + 1];
    }
    __syncwarp();
}

// Programs run one after the other, since they share what is static.
template <typename Call>
void launch(int programs, int batch, int warps, Call call)
{
    gridDim = {programs, batch};
    program = call;
    std::vector<std::unique_ptr<Fibre>> fibres;
    for (int k = 0; k < 32 * warps; k++) fibres.push_back(std::make_unique<Fibre>());
    for (int k = 0; k < programs * batch; k++) {
        of_all = {32 * warps};
        of_warps.assign(warps, {32});
        for (int thread = 0; thread < 32 * warps; thread++) {
            Fibre& fibre = *fibres[thread];
            getcontext(&fibre.context);
            fibre.context.uc_stack.ss_sp = fibre.stack.data();
            fibre.context.uc_stack.ss_size = fibre.stack.size();
            makecontext(&fibre.context, enter, 0);
            fibre.place = {thread % 32, thread / 32};
            fibre.ended = false;
        }
        blockIdx = {k % programs, k / programs};
        for (bool left = true; left;) {
            left = false;
            for (auto& fibre : fibres) {
                if (fibre->ended) continue;
                left = true;
                running = fibre.get();
                threadIdx = fibre->place;
                swapcontext(&scheduler, &fibre->context);
            }
        }
    }
}
