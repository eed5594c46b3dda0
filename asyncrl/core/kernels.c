/* What costs the most time beside the emulator and the matrix products, each in one pass over the memory.

   `kernels.py` loads this library and calls it through ctypes, so nothing here needs Python's headers. Every function
   computes exactly what the Python code beside its caller does, to the bit: that code runs where there is no compiler.
   Compile without contraction (-ffp-contract=off): where a product and a sum are rounded once, that is written here. */

#include <math.h>
#include <stdint.h>
#include <string.h>

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

/* Replay (`experience/steps.py`). What a row holds besides its image; without priorities it ends after `older`. */

enum { LAST = 1, START = 2, FINAL = 4 };

struct record {
    int64_t action, acted_at;
    float reward, discount;
    uint8_t marks, older;
    float action_value, state_value, priority;
};

/* Of `count` transitions of at most n steps that begin with `rows` of `streams`: the places and copies of n + 1 records
   each, [n + 1, count], how many steps they have, and whether they are whole. */
void transitions(const char *records, int64_t size, int64_t capacity, int64_t n, int64_t count, const int64_t *streams,
                 const int64_t *rows, int64_t *places, char *copies, int64_t *lengths, uint8_t *whole) {
    for (int64_t b = 0; b < count; b++) {
        int64_t at = rows[b] % capacity, length = 0;
        int goes_on = 1, joins_others = 0, is_step = 1;
        for (int64_t k = 0; k <= n; k++) {
            int64_t place = streams[b] * capacity + at;
            char *copy = copies + (k * count + b) * size;
            places[k * count + b] = place;
            memcpy(copy, records + place * size, size);
            int marks = ((struct record *)copy)->marks;
            if (k == 0)
                is_step = !(marks & FINAL);
            else if (goes_on)
                joins_others |= marks & START;
            if (k < n) {
                length += goes_on;
                goes_on = goes_on && !(marks & LAST);
            }
            at = at + 1 == capacity ? 0 : at + 1;
        }
        lengths[b] = length;
        whole[b] = is_step && !joins_others;
    }
}

/* Absolute n-step errors of transitions, from what `transitions` copied: `n_step_targets` in torch's precision, where
   products of discounts are doubles and rounded when used. `clip` 0: rewards are not clipped. */
void first_priorities(const char *copies, int64_t size, int64_t count, const int64_t *lengths, const uint8_t *whole,
                      float scale, float clip, float least, float *priorities) {
    for (int64_t b = 0; b < count; b++) {
        const char *own = copies + b * size;
        const struct record *first = (const struct record *)own;
        double product = 1.0;
        float begun = 0.0f, later = 0.0f;
        for (int64_t k = 0; k < lengths[b]; k++) {
            const struct record *step = (const struct record *)(own + k * count * size);
            float reward = step->reward * scale;
            if (clip)
                reward = reward < -clip ? -clip : reward > clip ? clip : reward;
            if (k == 0)
                begun = reward;
            else
                later += (float)product * reward;
            product *= step->discount;
        }
        const struct record *after = (const struct record *)(own + lengths[b] * count * size);
        float error = begun + later + (float)product * after->state_value - first->action_value;
        float priority = (isfinite(error) ? fabsf(error) : 0.0f) + least;
        priorities[b] = whole[b] ? priority : 0.0f;
    }
}

/* One level of the tree of priorities (`experience/priorities.py`), whose nodes have 16 children. */

enum { BRANCHES = 16 };

/* From each of `count` nodes, and a position along it, to the child there. */
void descend(const double *families, int64_t count, int64_t *nodes, double *along) {
    for (int64_t b = 0; b < count; b++) {
        const double *children = families + nodes[b] * BRANCHES;
        double ends[BRANCHES];
        ends[0] = children[0];
        for (int i = 1; i < BRANCHES; i++)
            ends[i] = ends[i - 1] + children[i];
        double most = nextafter(ends[BRANCHES - 1], 0.0), position = along[b] < 0.0 ? 0.0 : along[b];
        position = position > most ? most : position;
        int chosen = 0;
        while (chosen < BRANCHES - 1 && ends[chosen] <= position)
            chosen++;
        along[b] = position - (ends[chosen] - children[chosen]);
        nodes[b] = nodes[b] * BRANCHES + chosen;
    }
}

/* The parents of `count` children, in the order in which numpy adds sixteen numbers. `children` become the parents. */
void add_up(const double *families, int64_t count, int64_t *children, double *parents) {
    for (int64_t b = 0; b < count; b++) {
        int64_t parent = children[b] / BRANCHES;
        const double *f = families + parent * BRANCHES;
        double s[8];
        for (int i = 0; i < 8; i++)
            s[i] = f[i] + f[i + 8];
        parents[parent] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
        children[b] = parent;
    }
}
