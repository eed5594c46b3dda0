/* A feed-forward network at the observations of a few environments, which is what acting computes before every step of
   these. `nets/acting.py` describes the layers and calls `acting_forward`.

   Compared with a library's layers: no dispatch, weights packed once per pull, bias and activation where the sums still
   are in registers, and little code, since the emulator leaves none of it in the processor's caches.

   This file includes itself, once for each width of vectors. Sums are not added up in torch's order. */

#ifndef LANES

#include <stddef.h>
#include <stdint.h>

enum { NONE, RELU, TANH };

struct layer {
    int32_t activation;
    int32_t inputs, outputs;         /* numbers, or channels of an image */
    int32_t kernel, stride, padding; /* kernel 0: fully connected, unpacked */
    int32_t height, width;           /* of the input */
    int32_t out_height, out_width;
    float scale; /* of the weights */
    const float *weight, *bias;
    float *packed; /* a convolution's weights as `acting_pack` arranges them */
};

/* Output channels whose weights are side by side: 32, or 16 if there are not as many. */
static int panel_of(const struct layer *l) { return l->outputs % 32 ? 16 : 32; }

/* Weights [outputs, channels, k, k] of convolutions -> [outputs / panel, k, k, channels, panel], scaled. */
void acting_pack(const struct layer *layers, int count) {
    for (const struct layer *l = layers; l < layers + count && l->kernel; l++) {
        const int taps = l->kernel * l->kernel, n = l->inputs * taps, panel = panel_of(l);
        for (int o = 0; o < l->outputs; o++) {
            const float *from = l->weight + (size_t)o * n;
            float *to = l->packed + (size_t)(o / panel) * n * panel + o % panel;
            for (int c = 0; c < l->inputs; c++)
                for (int t = 0; t < taps; t++) to[(t * l->inputs + c) * panel] = from[c * taps + t] * l->scale;
        }
    }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define INLINE static inline __attribute__((always_inline))

/* Observations [batch, channels, height, width] of any type -> channels-last, within a border of `padding`. */
#define TO_CHANNELS_LAST(from, l, batch, to)                                                                           \
    for (int line = 0; line < batch * l->height; line++) {                                                             \
        const int b = line / l->height, y = line % l->height, c = l->inputs, plane = l->height * l->width;             \
        const int high = l->height + 2 * l->padding, wide = l->width + 2 * l->padding;                                 \
        float *into = to + (((size_t)b * high + y + l->padding) * wide + l->padding) * c;                              \
        if (c == 4) /* known here, it becomes a few shuffles */                                                        \
            for (int x = 0; x < l->width; x++)                                                                         \
                for (int k = 0; k < 4; k++) into[4 * x + k] = from[((size_t)b * 4 + k) * plane + y * l->width + x];    \
        else                                                                                                           \
            for (int x = 0; x < l->width; x++)                                                                         \
                for (int k = 0; k < c; k++) into[c * x + k] = from[((size_t)b * c + k) * plane + y * l->width + x];    \
    }

#define LANES 16
#define ROWS 8
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define NAMED(name) name##_avx512
#define VEC __m512
#define OP(name) _mm512_##name
#define POWER_OF_TWO(n) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23))
#include "acting.c"
#undef LANES
#undef ROWS
#undef TARGET
#undef NAMED
#undef VEC
#undef OP
#undef POWER_OF_TWO
#define LANES 8
#define ROWS 6
#define TARGET __attribute__((target("avx2,fma")))
#define NAMED(name) name##_avx2
#define VEC __m256
#define OP(name) _mm256_##name
#define POWER_OF_TWO(n) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23))
#include "acting.c"

/* Numbers that are computed at once; 0: this processor, or compiler, is not one for which this is written. */
int acting_lanes(void) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return 16;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 8 : 0;
}

/* Observations are uint8 if `bytes` is not 0, else float32. `out`: memory for the observations as channels-last float32,
   for the output of each layer, and for a copy of the last convolution's. That one's output is [batch, channels, height,
   width], that of others channels-last. */
void acting_forward(const struct layer *layers, int count, int lanes, const void *observations, int bytes, int batch,
                    float *const *out) {
    (lanes == 16 ? forward_avx512 : forward_avx2)(layers, count, observations, bytes, batch, out);
}

void acting_standardize(int lanes, const void *raw, int bytes, const float *mean, const float *scale, int64_t rows,
                        int64_t n, float most, float *out) {
    (lanes == 16 ? standardize_avx512 : standardize_avx2)(raw, bytes, mean, scale, rows, n, most, out);
}
#else
int acting_lanes(void) { return 0; }
void acting_forward(const struct layer *layers, int count, int lanes, const void *observations, int bytes, int batch,
                    float *const *out) {}
void acting_standardize(int lanes, const void *raw, int bytes, const float *mean, const float *scale, int64_t rows,
                        int64_t n, float most, float *out) {}
#endif

#else /* for one width of vectors */

/* tanh(x) = 1 - 2 / (exp(2 x) + 1), with exp as a power of two and a polynomial; the error is at most 2e-7. */
INLINE TARGET VEC NAMED(tanh)(VEC x) {
    const VEC one = OP(set1_ps)(1), most = OP(set1_ps)(9); /* where tanh is 1; min and max keep a NaN that is second */
    x = OP(max_ps)(OP(set1_ps)(-9), OP(min_ps)(most, x));
    const VEC twos = OP(mul_ps)(x, OP(set1_ps)(2.88539008f)); /* exp(2 x) = 2^twos */
    const VEC r = OP(mul_ps)(OP(sub_ps)(twos, OP(cvtepi32_ps)(OP(cvtps_epi32)(twos))), OP(set1_ps)(0.69314718f));
    static const float terms[] = {1.9841270e-4f, 1.3888889e-3f, 8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1, 1};
    VEC e = OP(set1_ps)(terms[0]);
    for (int i = 1; i < 8; i++) e = OP(fmadd_ps)(e, r, OP(set1_ps)(terms[i]));
    e = OP(fmadd_ps)(e, POWER_OF_TWO(OP(cvtps_epi32)(twos)), one);
    return OP(sub_ps)(one, OP(div_ps)(OP(set1_ps)(2), e));
}

/* A convolution's sums at ROWS patches that begin at `x`, for `vectors` vectors of channels, written to `to`. */
INLINE TARGET void NAMED(tile)(const struct layer *l, const float *const *x, const float *w, const float *bias,
                               float *const *to, int rows, const int vectors) {
    const int panel = panel_of(l), run = l->kernel * l->inputs, line = (l->width + 2 * l->padding) * l->inputs;
    VEC sums[ROWS][2];
    for (int m = 0; m < ROWS; m++)
        for (int v = 0; v < vectors; v++) sums[m][v] = OP(loadu_ps)(bias + v * LANES);
    const float *patch[ROWS];
    for (int m = 0; m < ROWS; m++) patch[m] = x[m];
    for (int r = 0; r < l->kernel; r++) {
        for (int i = 0; i < run; i++, w += panel) {
            VEC weights[2];
            for (int v = 0; v < vectors; v++) weights[v] = OP(loadu_ps)(w + v * LANES);
            for (int m = 0; m < ROWS; m++) {
                const VEC input = OP(set1_ps)(patch[m][i]);
                for (int v = 0; v < vectors; v++) sums[m][v] = OP(fmadd_ps)(input, weights[v], sums[m][v]);
            }
        }
        for (int m = 0; m < ROWS; m++) patch[m] += line;
    }
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vectors; v++) { /* max returns its second argument if that is NaN */
            const VEC sum = sums[m][v];
            OP(storeu_ps)(to[m] + v * LANES, l->activation == TANH ? NAMED(tanh)(sum) : OP(max_ps)(OP(setzero_ps)(), sum));
        }
}

/* A convolution and its activation, from and to channels-last images. */
static TARGET void NAMED(convolve)(const struct layer *l, const float *in, int batch, float *out) {
    const int high = l->height + 2 * l->padding, wide = l->width + 2 * l->padding, panel = panel_of(l);
    const int each = l->out_height * l->out_width, pixels = batch * each, n = l->kernel * l->kernel * l->inputs;
    const float *x[ROWS];
    float *to[ROWS];
    for (int p = 0; p < pixels; p += ROWS) {
        const int rows = pixels - p < ROWS ? pixels - p : ROWS;
        for (int m = 0; m < ROWS; m++) {
            const int at = p + (m < rows ? m : rows - 1), b = at / each, y = at % each / l->out_width;
            x[m] = in + (((size_t)b * high + y * l->stride) * wide + at % l->out_width * l->stride) * l->inputs;
        }
        for (int o = 0; o < l->outputs;) {
            const float *w = l->packed + (size_t)(o / panel) * n * panel + o % panel;
            for (int m = 0; m < rows; m++) to[m] = out + (size_t)(p + m) * l->outputs + o;
            if (panel - o % panel >= 2 * LANES) {
                NAMED(tile)(l, x, w, l->bias + o, to, rows, 2);
                o += 2 * LANES;
            } else {
                NAMED(tile)(l, x, w, l->bias + o, to, rows, 1);
                o += LANES;
            }
        }
    }
}

INLINE TARGET float NAMED(total)(VEC v) {
    float part[LANES];
    OP(storeu_ps)(part, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* `m` inputs times `n` outputs of a fully connected layer, both known when this is compiled. */
INLINE TARGET void NAMED(block)(const struct layer *l, const float *in, int o, float *out, const int m, const int n) {
    const int k = l->inputs;
    const float *w = l->weight + (size_t)o * k;
    VEC sums[8][4];
    for (int a = 0; a < m; a++)
        for (int b = 0; b < n; b++) sums[a][b] = OP(setzero_ps)();
    int i = 0;
    for (; i + LANES <= k; i += LANES)
        for (int b = 0; b < n; b++) {
            const VEC weights = OP(loadu_ps)(w + (size_t)b * k + i);
            for (int a = 0; a < m; a++)
                sums[a][b] = OP(fmadd_ps)(OP(loadu_ps)(in + (size_t)a * k + i), weights, sums[a][b]);
        }
    for (int a = 0; a < m; a++)
        for (int b = 0; b < n; b++) {
            float sum = NAMED(total)(sums[a][b]) + l->bias[o + b];
            for (int j = i; j < k; j++) sum += in[(size_t)a * k + j] * w[(size_t)b * k + j];
            out[(size_t)a * l->outputs + o + b] = l->activation == RELU && sum < 0 ? 0 : sum;
        }
}

/* A fully connected layer. Weights are read from memory once, and as they are: packing them would take as long. */
static TARGET void NAMED(connect)(const struct layer *l, const float *in, int batch, float *out) {
    for (int o = 0; o < l->outputs;) {
        const int n = l->outputs - o < LANES / 4 - 1 ? 1 : LANES / 4 - 1; /* 8 x 3 sums fit into 32 registers */
        for (int b = 0; b < batch;) {
            const float *from = in + (size_t)b * l->inputs;
            float *to = out + (size_t)b * l->outputs;
            const int left = batch - b;
            if (n > 1 && left >= 8) { NAMED(block)(l, from, o, to, 8, LANES / 4 - 1); b += 8; }
            else if (n > 1 && left >= 4) { NAMED(block)(l, from, o, to, 4, LANES / 4 - 1); b += 4; }
            else if (n > 1) { NAMED(block)(l, from, o, to, 1, LANES / 4 - 1); b += 1; }
            else if (left >= 8) { NAMED(block)(l, from, o, to, 8, 1); b += 8; }
            else { NAMED(block)(l, from, o, to, 1, 1); b += 1; }
        }
        o += n;
    }
}

/* (raw - mean) * scale, clipped, of `rows` rows of n numbers each: every element as torch computes it, to the bit. */
#define STANDARDIZE(from)                                                                                              \
    for (int64_t i = 0; i < rows * n; i += n)                                                                          \
        for (int64_t j = 0; j < n; j++) {                                                                              \
            const float v = ((float)from[i + j] - mean[j]) * scale[j];                                                 \
            out[i + j] = v < -most ? -most : v > most ? most : v;                                                      \
        }

static TARGET void NAMED(standardize)(const void *raw, int bytes, const float *restrict mean, const float *restrict scale,
                                      int64_t rows, int64_t n, float most, float *restrict out) {
    const uint8_t *pixels = raw;
    const float *numbers = raw;
    if (bytes) STANDARDIZE(pixels)
    else STANDARDIZE(numbers)
}
#undef STANDARDIZE

static TARGET void NAMED(forward)(const struct layer *layers, int count, const void *observations, int bytes, int batch,
                                  float *const *out) {
    const float *in = observations;
    if (layers->kernel) {
        if (bytes) {
            const uint8_t *from = observations;
            TO_CHANNELS_LAST(from, layers, batch, out[0])
        } else {
            TO_CHANNELS_LAST(in, layers, batch, out[0])
        }
        in = out[0];
    }
    for (int i = 0; i < count; in = out[++i]) {
        const struct layer *l = layers + i;
        if (!l->kernel) {
            NAMED(connect)(l, in, batch, out[i + 1]);
        } else if (i + 1 < count && l[1].kernel) {
            NAMED(convolve)(l, in, batch, out[i + 1]);
        } else {
            const int each = l->out_height * l->out_width, n = l->outputs;
            const float *from = out[count + 1];
            NAMED(convolve)(l, in, batch, out[count + 1]);
            for (int b = 0; b < batch; b++, from += (size_t)n * each)
                for (int o = 0; o < n; o++)
                    for (int x = 0; x < each; x++) out[i + 1][((size_t)b * n + o) * each + x] = from[(size_t)x * n + o];
        }
    }
}

#endif
