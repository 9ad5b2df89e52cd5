/* Measure peak rates of this machine on N threads: fp32 FMAs, int8 dot products, memory reads.
 *
 * `limits N TRIES` prints one JSON object: GFLOP/s (a multiply-add counts as two operations), GOP/s of int8 dot products
 * (null if the target has no such instructions) and GB/s. Each is the best of all tries. A try lasts from the first
 * thread's start to the last one's end, as these threads measure it: any other thread might run late.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif

#if defined(__x86_64__)
#define VECTOR "x"
#else
#define VECTOR "w"
#endif
#define CHAINS 12 /* independent sums: at least latency x throughput of every known processor */
#define ROUNDS 50000000L
#define READ_BYTES (512L << 20) /* per thread, far more than any cache */

#if defined(__AVX512F__)
typedef float lanes __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float lanes __attribute__((vector_size(32)));
#else
typedef float lanes __attribute__((vector_size(16)));
#endif
enum { WIDTH = sizeof(lanes) / sizeof(float) };

static pthread_barrier_t barrier;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Both loops return the number of operations. */
static double fma_loop(void) {
    lanes sum[CHAINS], factor = {0}, addend = {0};
    _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = (lanes){0} + (float)i;
    factor += 0.999f;
    addend += 0.001f;
    for (long round = 0; round < ROUNDS; round++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) {
            sum[i] = sum[i] * factor + addend;
            __asm__ volatile("" : "+" VECTOR(sum[i])); /* keep the compiler from folding or removing it */
        }
    }
    return 2.0 * WIDTH * CHAINS * ROUNDS;
}

static double int8_loop(void) {
#if defined(__AVX512VNNI__)
    __m512i sum[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
    _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_set1_epi32(i);
    for (long round = 0; round < ROUNDS; round++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
            __asm__ volatile("" : "+" VECTOR(sum[i]));
        }
    }
    return 2.0 * 64 * CHAINS * ROUNDS;
#elif defined(__AVXVNNI__)
    __m256i sum[CHAINS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(2);
    _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = _mm256_set1_epi32(i);
    for (long round = 0; round < ROUNDS; round++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm256_dpbusd_avx_epi32(sum[i], a, b);
            __asm__ volatile("" : "+" VECTOR(sum[i]));
        }
    }
    return 2.0 * 32 * CHAINS * ROUNDS;
#else
    return 0;
#endif
}

typedef struct {
    double (*work)(void);
    const lanes *data;
    double amount, start, stop;
} job;

static double read_all(const lanes *data) {
    enum { STREAMS = 8 };
    lanes sum[STREAMS] = {{0}};
    long count = READ_BYTES / sizeof(lanes) / STREAMS;
    for (long offset = 0; offset < count; offset++)
        _Pragma("GCC unroll 12") for (int i = 0; i < STREAMS; i++) sum[i] += data[i * count + offset];
    _Pragma("GCC unroll 12") for (int i = 0; i < STREAMS; i++) __asm__ volatile("" : : VECTOR(sum[i]));
    return (double)READ_BYTES;
}

static void *run(void *argument) {
    job *task = argument;
    pthread_barrier_wait(&barrier);
    task->start = seconds();
    task->amount = task->data ? read_all(task->data) : task->work();
    task->stop = seconds();
    return NULL;
}

/* Return the total rate of all threads in units of 1e9 per second, the best of all tries. */
static double rate(int threads, int tries, double (*work)(void), lanes **data) {
    double best = 0;
    for (int try = 0; try < tries; try++) {
        pthread_t ids[threads];
        job jobs[threads];
        pthread_barrier_init(&barrier, NULL, threads);
        for (int i = 0; i < threads; i++) {
            jobs[i] = (job){work, data ? data[i] : NULL, 0};
            pthread_create(&ids[i], NULL, run, &jobs[i]);
        }
        double amount = 0, start = 0, stop = 0;
        for (int i = 0; i < threads; i++) {
            pthread_join(ids[i], NULL);
            amount += jobs[i].amount;
            if (!i || jobs[i].start < start) start = jobs[i].start;
            if (!i || jobs[i].stop > stop) stop = jobs[i].stop;
        }
        pthread_barrier_destroy(&barrier);
        if (amount / (stop - start) / 1e9 > best) best = amount / (stop - start) / 1e9;
    }
    return best;
}

int main(int count, char **arguments) {
    int threads = count > 2 ? atoi(arguments[1]) : 0, tries = count > 2 ? atoi(arguments[2]) : 0;
    if (threads < 1 || tries < 1) return 2;
    lanes *data[threads];
    for (int i = 0; i < threads; i++) {
        data[i] = aligned_alloc(1 << 21, READ_BYTES);
        if (!data[i]) return 1;
        memset(data[i], 1, READ_BYTES); /* untouched pages would all map to one zero page */
    }
    double fma = rate(threads, tries, fma_loop, NULL), dots = rate(threads, tries, int8_loop, NULL);
    double read = rate(threads, tries, NULL, data);
    printf("{\"threads\": %d, \"fp32_gflops\": %.1f, ", threads, fma);
    if (dots > 0) printf("\"int8_gops\": %.1f, ", dots);
    else printf("\"int8_gops\": null, ");
    printf("\"read_gbs\": %.2f}\n", read);
    return 0;
}
