/* The replay memory: its rows (`experience/steps.py`) and its tree of priorities (`experience/priorities.py`). Everything
   is computed as the Python code there does, to the bit: see `kernels.c`. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LAST = 1, START = 2, FINAL = 4 };
enum { BEGUN, WRITTEN, STEPS, COLUMNS = 8 };

/* What a row holds besides its image: without priorities nothing after `older`, and its action last of all. */
struct record {
    int64_t acted_at;
    float reward, discount;
    uint8_t marks, older;
    float action_value, state_value, priority;
};

struct steps {
    char *records, *actions, *frames;    /* of the first row; [streams, capacity] each */
    int64_t *cells, *ages;               /* [streams, COLUMNS], [streams] */
    uint8_t *ended;                      /* [streams] */
    int64_t record_bytes, action_bytes, frame_bytes; /* each record, actions and all; each action; each image */
    int64_t capacity, n, stack, floats, priorities;
};

/* Rows are at positions of a stream's ring, which goes round once where a transition reaches over its end. */
static inline int64_t round_ring(const struct steps *s, int64_t at) {
    return at < s->capacity ? at : at - s->capacity;
}

static inline struct record *record_at(const struct steps *s, int64_t stream, int64_t at) {
    return (struct record *)(s->records + (stream * s->capacity + round_ring(s, at)) * s->record_bytes);
}

static inline char *action_of(const struct steps *s, const struct record *record) {
    return s->actions + ((const char *)record - s->records);
}

/* How many steps the transition has that begins there; 0 if it is not whole. */
static int64_t length_of(const struct steps *s, int64_t stream, int64_t at) {
    int marks = record_at(s, stream, at)->marks;
    if (marks & FINAL) return 0;
    for (int64_t k = 1;; k++) {
        if (marks & LAST) return k;
        marks = record_at(s, stream, at + k)->marks;
        if (marks & START) return 0;
        if (k == s->n) return k;
    }
}

static void copy_observation(const struct steps *s, int64_t stream, int64_t at, char *to) {
    at = round_ring(s, at);
    int64_t older = record_at(s, stream, at)->older, size = s->frame_bytes;
    for (int64_t back = s->stack - 1; back >= 0; back--, to += size) {
        int64_t place = stream * s->capacity + at - back + (back > at ? s->capacity : 0);
        if (back > older)
            memset(to, 0, size);
        else
            memcpy(to, s->frames + place * size, size);
    }
}

/* Begin to load the ends of a transition into the cache. */
static void prefetch(const struct steps *s, int64_t stream, int64_t row) {
    int64_t first = stream * s->capacity + row % s->capacity;
    for (int64_t place = first; place <= first + s->n; place += s->n) {
        __builtin_prefetch(s->records + place * s->record_bytes);
        __builtin_prefetch(s->frames + place * s->frame_bytes);
    }
}

enum { AHEAD = 16 }; /* transitions that are loaded meanwhile: half of the time is saved */

/* `Steps.read`: copies of the `count` transitions that begin with `rows` of `streams`. */
void steps_read(const struct steps *s, int64_t count, const int64_t *streams, const int64_t *rows, int64_t *acted_at,
                uint8_t *usable, char *observations, char *actions, float *rewards, float *discounts, uint8_t *last,
                char *following) {
    int64_t size = s->stack * s->frame_bytes;
    for (int64_t b = 0; b < count; b++) {
        if (b + AHEAD < count) prefetch(s, streams[b + AHEAD], rows[b + AHEAD]);
        int64_t stream = streams[b], at = rows[b] % s->capacity, length = length_of(s, stream, at);
        const struct record *first = record_at(s, stream, at);
        copy_observation(s, stream, at, observations + b * size);
        copy_observation(s, stream, at + length, following + b * size);
        memcpy(actions + b * s->action_bytes, action_of(s, first), s->action_bytes);
        for (int64_t k = 0; k < s->n; k++) {
            const struct record *step = record_at(s, stream, at + k);
            rewards[k * count + b] = step->reward;
            discounts[k * count + b] = step->discount;
            last[k * count + b] = step->marks & LAST;
        }
        acted_at[b] = first->acted_at;
        usable[b] = length > 0;
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    for (int64_t b = 0; b < count; b++) {
        int64_t oldest = rows[b] - (s->stack - 1);
        if ((oldest < 0 ? 0 : oldest) < s->cells[streams[b] * COLUMNS + BEGUN] - s->capacity) usable[b] = 0;
    }
}

/* The absolute n-step error, as `transitions.first_priorities`; `clip` 0: rewards are not clipped. */
static float first_priority(const struct steps *s, int64_t stream, int64_t at, float scale, float clip, float least) {
    int64_t length = length_of(s, stream, at);
    double product = 1.0;
    float begun = 0.0f, later = 0.0f;
    for (int64_t k = 0; k < length; k++) {
        const struct record *step = record_at(s, stream, at + k);
        float reward = step->reward * scale;
        if (clip) reward = reward < -clip ? -clip : reward > clip ? clip : reward;
        if (k == 0)
            begun = reward;
        else
            later += (float)product * reward;
        product *= step->discount;
    }
    float value = (float)product * record_at(s, stream, at + length)->state_value;
    float error = begun + later + value - record_at(s, stream, at)->action_value;
    return length ? (isfinite(error) ? fabsf(error) : 0.0f) + least : 0.0f;
}

/* Whether there is anything but zeros in an observation beside its newest image. */
static int has_older(const struct steps *s, const char *observation) {
    int64_t size = (s->stack - 1) * s->frame_bytes;
    for (int64_t i = 0; i < (s->floats ? size / 4 : size); i++)
        if (s->floats ? ((const float *)observation)[i] != 0.0f : observation[i] != 0) return 1;
    return 0;
}

static struct record *begin_row(const struct steps *s, int64_t stream, int64_t row, const char *observation, int marks,
                                int64_t age) {
    int64_t at = row % s->capacity, oldest = s->stack - 1;
    char *frame = s->frames + (stream * s->capacity + at) * s->frame_bytes;
    memcpy(frame, observation + oldest * s->frame_bytes, s->frame_bytes);
    struct record *record = record_at(s, stream, at);
    record->marks = marks;
    record->older = age < oldest ? age : oldest;
    return record;
}

/* `Steps.add`: append [steps, environments] steps to as many streams, from `first` on. At `cuts` of them, which are
   given, a time limit truncated the episode. */
void steps_put(const struct steps *s, int64_t first, int64_t environments, int64_t steps, int64_t cuts,
               int64_t acted_at, float scale, float clip, float least, const char *seen, const char *actions,
               const float *rewards, const float *discounts, const uint8_t *last, const float *action_values,
               const float *state_values, const int64_t *cut_steps, const int64_t *cut_environments,
               const char *finals) {
    int64_t size = s->stack * s->frame_bytes;
    for (int64_t e = 0; e < environments; e++) {
        int64_t stream = first + e, *cells = s->cells + stream * COLUMNS, age = s->ages[stream];
        int64_t before = cells[WRITTEN], row = before, after = before + steps, ended = s->ended[stream];
        for (int64_t c = 0; c < cuts; c++) after += cut_environments[c] == e;
        if (cells[BEGUN] < after) cells[BEGUN] = after;
        __atomic_thread_fence(__ATOMIC_RELEASE);
        for (int64_t t = 0; t < steps; t++) {
            int64_t i = t * environments + e;
            int start = age < 0 || (ended && !has_older(s, seen + i * size));
            age = start ? 0 : age + 1;
            ended = last[i];
            struct record *r = begin_row(s, stream, row++, seen + i * size, LAST * ended + START * start, age);
            r->acted_at = acted_at;
            r->reward = rewards[i];
            r->discount = discounts[i];
            memcpy(action_of(s, r), actions + i * s->action_bytes, s->action_bytes);
            if (s->priorities) {
                r->action_value = action_values[i];
                r->state_value = state_values[i];
                r->priority = 0.0f;
            }
            for (int64_t c = 0; c < cuts; c++) {
                if (cut_steps[c] != t || cut_environments[c] != e) continue;
                r = begin_row(s, stream, row++, finals + c * size, FINAL, age + 1);
                if (s->priorities) r->state_value = state_values[i];
            }
        }
        for (row = before < s->n ? 0 : before - s->n; s->priorities && row < after - s->n; row++) {
            int64_t at = row % s->capacity;
            record_at(s, stream, at)->priority = first_priority(s, stream, at, scale, clip, least);
        }
        s->ages[stream] = age;
        s->ended[stream] = ended;
        cells[STEPS] += steps;
        __atomic_thread_fence(__ATOMIC_RELEASE);
        cells[WRITTEN] = after;
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
