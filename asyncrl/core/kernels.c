/* What costs the most time beside the emulator and the matrix products, each in one pass over the memory.

   `kernels.py` loads this library and calls it through ctypes, so nothing here needs Python's headers. Every function
   computes exactly what the Python code beside its caller does, to the bit: that code runs where there is no compiler.
   Compile without contraction (-ffp-contract=off): where a product and a sum are rounded once, that is written here. */

#include <stdint.h>

/* One library for every machine of a cluster: on loading, the widest instructions that the processor has are chosen. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FLOATS __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define FLOATS
#endif

/* The checksum of the sources this library was built from: an older library must not be used. */
uint32_t kernels_source(void) { return SOURCE; }

/* a * b + c, rounded once if `fused`, as torch does wherever the processor can. */
static inline float sum(float a, float b, float c, int fused) {
    return fused ? __builtin_fmaf(a, b, c) : a * b + c;
}

/* Update rules, whose formulas are in `updates.py`: `rest` is 1 - decay, `rate` is -eta.

   Other processes may write to theta and the statistics meanwhile, which is Hogwild. Each element is read once and
   written once, so what they write between the two is lost, and nothing is applied twice. */

FLOATS void rmsprop(float *restrict theta, const float *restrict gradient, float *restrict statistics, int64_t n,
                    float decay, float rest, float epsilon, float rate, int fused) {
    for (int64_t i = 0; i < n; i++) {
        float d = gradient[i];
        float g = sum(rest * d, d, statistics[i] * decay, fused);
        statistics[i] = g;
        theta[i] = sum(rate * d, 1.0f / __builtin_sqrtf(g + epsilon), theta[i], fused);
    }
}

FLOATS void centred_rmsprop(float *restrict theta, const float *restrict gradient, float *restrict statistics,
                            int64_t n, float decay, float rest, float epsilon, float rate, int fused) {
    float *restrict means = statistics + n;
    for (int64_t i = 0; i < n; i++) {
        float d = gradient[i];
        float g = sum(rest * d, d, statistics[i] * decay, fused);
        float m = sum(d, rest, means[i] * decay, fused);
        statistics[i] = g;
        means[i] = m;
        float variance = sum(-m, m, g, fused);
        variance = variance < 0.0f ? 0.0f : variance;
        theta[i] = sum(rate * d, 1.0f / __builtin_sqrtf(variance + epsilon), theta[i], fused);
    }
}

FLOATS void momentum_sgd(float *restrict theta, const float *restrict gradient, float *restrict statistics, int64_t n,
                         float decay, float rest, float epsilon, float rate, int fused) {
    (void)epsilon;
    for (int64_t i = 0; i < n; i++) {
        float m = sum(gradient[i], rest, statistics[i] * decay, fused);
        statistics[i] = m;
        theta[i] = sum(m, rate, theta[i], fused);
    }
}
