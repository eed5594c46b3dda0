/* What costs the most time beside the emulator and the matrix products, each in one pass over the memory.

   `kernels.py` loads this library and calls it through ctypes, so nothing here needs Python's headers. Every function
   computes exactly what the Python code beside its caller does, to the bit: that code runs where there is no compiler.
   Compile without contraction (-ffp-contract=off): where a product and a sum are rounded once, that is written here. */

#include <stdint.h>
#include <string.h>

/* One library for every machine of a cluster: on loading, the widest instructions that the processor has are chosen. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define WITH_AVX2
#define FLOATS __attribute__((target_clones("avx512f", "fma", "default")))
#define BYTES __attribute__((target_clones("avx2", "default")))
#else
#define FLOATS
#define BYTES
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

/* Screens of the Atari 2600, from the emulator's colour numbers to the merged and shrunk image: see `envs/screens.py`.

   Most of a screen does not change from one step to the next, so only rows that changed are merged and shrunk again. */

struct screen {
    const uint8_t *greys;   /* [256]: the grey of each colour, UNKNOWN for those not seen yet */
    uint8_t *merged;        /* [height, width], and MARGIN bytes */
    uint8_t *changed;       /* [height]: whether a row may differ from what the latest image shows */
    const int32_t *first_x; /* [columns]: where the pixels under each column of the image begin */
    const float *weights_x; /* [taps_x, columns]: their weights; 0 after the last */
    const int32_t *first_y; /* [size] */
    const float *weights_y; /* [size, taps_y] */
    const uint8_t *picks;   /* [columns, 4]: for `add_pixels_8`, where a column's pixel is in the 16 that it loads */
    float *row, *total;     /* [columns] each */
    int32_t height, width, size, columns, taps_x, taps_y;
};

enum { UNKNOWN = 255 };

/* Turn a screen of colour numbers into grey, given the one seen before in the same place. Returns whether a grey was
   unknown. (A colour whose grey is 255 always counts as unknown, which costs time only.) */
int screen_read(struct screen *s, const uint8_t *colours, uint8_t *seen, uint8_t *grey) {
    int unknown = 0;
    for (int y = 0; y < s->height; y++, colours += s->width, seen += s->width, grey += s->width) {
        if (memcmp(colours, seen, s->width) == 0) continue;
        s->changed[y] = 1;
        for (int x = 0; x < s->width; x += 8) {
            if (memcmp(colours + x, seen + x, 8) == 0) continue;
            memcpy(seen + x, colours + x, 8);
            for (int i = x; i < x + 8; i++) {
                grey[i] = s->greys[colours[i]];
                unknown |= grey[i] == UNKNOWN;
            }
        }
    }
    return unknown;
}

/* Merge two grey screens by their maximum, where they changed. */
BYTES void screen_merge(struct screen *s, const uint8_t *one, const uint8_t *other) {
    for (int y = 0; y < s->height; y++) {
        if (!s->changed[y]) continue;
        uint8_t *merged = s->merged + y * s->width, differs = 0;
        for (int x = 0; x < s->width; x++) {
            uint8_t a = one[y * s->width + x], b = other[y * s->width + x], most = a > b ? a : b;
            differs |= most ^ merged[x];
            merged[x] = most;
        }
        s->changed[y] = differs != 0;
    }
}

/* Sum up the pixels of a row under each column of the image, by their weights, from left to right as cv2 does. */
static void add_pixels(const struct screen *s, const uint8_t *pixels) {
    for (int x = 0; x < s->columns; x++) {
        float sum = 0.0f;
        for (int tap = 0; tap < s->taps_x; tap++) {
            sum += pixels[s->first_x[x] + tap] * s->weights_x[tap * s->columns + x];
        }
        s->row[x] = sum;
    }
}

#ifdef WITH_AVX2
/* The same for eight columns at a time: those of each half lie within 16 pixels. */
__attribute__((target("avx2"))) static void add_pixels_8(const struct screen *s, const uint8_t *pixels) {
    for (int x = 0; x < s->columns; x += 8) {
        __m256i picks = _mm256_loadu_si256((const __m256i *)(s->picks + 4 * x));
        const uint8_t *low = pixels + s->first_x[x], *high = pixels + s->first_x[x + 4];
        __m256 sum = _mm256_setzero_ps();
        for (int tap = 0; tap < s->taps_x; tap++) {
            __m256i both = _mm256_loadu2_m128i((const __m128i *)(high + tap), (const __m128i *)(low + tap));
            __m256 values = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both, picks));
            __m256 weights = _mm256_loadu_ps(s->weights_x + tap * s->columns + x);
            sum = _mm256_add_ps(sum, _mm256_mul_ps(values, weights));
        }
        _mm256_storeu_ps(s->row + x, sum);
    }
}
#endif

BYTES static void add_row(float *restrict total, const float *restrict row, float weight, int columns, int first) {
    for (int x = 0; x < columns; x++) total[x] = first ? row[x] * weight : total[x] + row[x] * weight;
}

/* Round to the nearest, to even in the middle: what the sum with 1.5 * 2^23 leaves. */
BYTES static void round_row(uint8_t *restrict image, const float *restrict total, int columns) {
    for (int x = 0; x < columns; x++) image[x] = (uint8_t)(int)(total[x] + 12582912.0f - 12582912.0f);
}

/* Shrink the rows of the merged screen that changed since the image `before` into `image`, both [size, size], to the
   bit as cv2's INTER_AREA does. Afterwards no row counts as changed. */
void screen_shrink(struct screen *s, const uint8_t *before, uint8_t *image) {
    void (*add)(const struct screen *, const uint8_t *) = add_pixels;
#ifdef WITH_AVX2
    if (s->picks && __builtin_cpu_supports("avx2")) add = add_pixels_8;
#endif
    int summed = -1; /* the row of the screen of which s->row is the sum: two rows of the image may share one */
    for (int y = 0; y < s->size; y++, before += s->size, image += s->size) {
        const float *weights = s->weights_y + y * s->taps_y;
        int first = s->first_y[y], taps = 0, changed = 0;
        while (taps < s->taps_y && weights[taps] != 0.0f) changed |= s->changed[first + taps++];
        if (!changed) {
            memcpy(image, before, s->size);
            continue;
        }
        for (int tap = 0; tap < taps; tap++) {
            if (summed != first + tap) add(s, s->merged + (first + tap) * s->width);
            summed = first + tap;
            add_row(s->total, s->row, weights[tap], s->columns, tap == 0);
        }
        round_row(image, s->total, s->size);
    }
    memset(s->changed, 0, s->height);
}
