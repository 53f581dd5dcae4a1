// What first_layer.cu needs of CUDA, on a CPU: a thread for each thread of a program.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

struct dim3 { int x, y; };
struct float4 { float x, y, z, w; };
static dim3 gridDim;
static thread_local dim3 threadIdx, blockIdx;
static std::barrier<>* whole;
static std::vector<std::barrier<>*> of_warps;

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
inline void __syncthreads() { whole->arrive_and_wait(); }
inline void __syncwarp() { of_warps[threadIdx.y]->arrive_and_wait(); }
inline float __fdividef(float a, float b) { return a / b; }
using std::max;

// Programs run one after the other, since they share what is static.
template <typename Call>
void launch(int programs, int batch, int warps, Call call)
{
    gridDim = {programs, batch};
    std::barrier<> all(32 * warps);
    whole = &all;
    of_warps.clear();
    for (int warp = 0; warp < warps; warp++) of_warps.push_back(new std::barrier<>(32));
    for (int image = 0; image < batch; image++)
        for (int program = 0; program < programs; program++) {
            std::vector<std::thread> threads;
            for (int warp = 0; warp < warps; warp++)
                for (int lane = 0; lane < 32; lane++)
                    threads.emplace_back([=] {
                        threadIdx = {lane, warp};
                        blockIdx = {program, image};
                        call();
                    });
            for (auto& thread : threads) thread.join();
        }
    for (auto barrier : of_warps) delete barrier;
}
