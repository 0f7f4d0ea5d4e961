/* Moves KV pages between a page-first host pool and a layer-first device pool.
 *
 * A page falls into one fragment per plane. Fragments are written with non-temporal stores, so
 * that a destination is not read before it is overwritten and the caches keep what attention uses.
 * Which instructions do so is chosen at run time. A pool of threads holds all state: there is
 * nothing global that a fork could break. One call at a time on a pool; the caller sees to that. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define LINE_BYTES 64
#define FETCHED_BYTES 512 /* of the next fragment; the processor goes on by itself */
#define SHARE_BYTES (256 << 10) /* what a thread takes at a time; smaller moves wake nobody */
#define MAX_THREADS 64

enum level { MEMCPY, SSE2, AVX2, AVX512 };
enum refusal { NOT_REFUSED, BAD_PAGES, NO_MEMORY };

struct job {
    char *host;
    char *const *planes; /* of the window */
    const int64_t *host_pages;
    const int64_t *hbm_pages;
    int64_t pages;
    int64_t plane_count;
    int64_t host_stride; /* bytes between pages */
    int64_t hbm_stride;
    int64_t fragment_bytes;
    bool to_host;
    int64_t share; /* fragments that a thread takes at a time */
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    int wanted; /* helpers that the move would like to have */
    int busy;   /* helpers at work on it */
    bool closing;
    enum level level;
    struct job job;
    _Atomic int64_t next; /* first fragment that nobody has taken */
    int helpers;
    pthread_t threads[MAX_THREADS];
};

/* Each of these copies whole lines to where a line starts. They are compiled into the loop over
 * fragments: a call for each would cost an eighth of the speed at 512 bytes. */
typedef void (*copy_lines)(char *to, const char *from, size_t bytes);
#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
INLINE void lines_sse2(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(__m128i))
        _mm_stream_si128((void *)(to + at), _mm_loadu_si128((const void *)(from + at)));
}

INLINE __attribute__((target("avx2"))) void lines_avx2(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(__m256i))
        _mm256_stream_si256((void *)(to + at), _mm256_loadu_si256((const void *)(from + at)));
}

INLINE __attribute__((target("avx512f"))) void lines_avx512(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(__m512i))
        _mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
}
#endif

/* The ends of a destination that begins or ends inside a line are written plainly. */
INLINE void copy_fragment(copy_lines lines, char *to, const char *from, size_t bytes)
{
    size_t head = -(uintptr_t)to % LINE_BYTES;
    if (lines == NULL || bytes < head + LINE_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    size_t tail = (bytes - head) % LINE_BYTES;
    if (head)
        memcpy(to, from, head);
    lines(to + head, from + head, bytes - head - tail);
    if (tail)
        memcpy(to + bytes - tail, from + bytes - tail, tail);
}

/* A store reads from another plane each time, which no processor foresees. */
INLINE void fetch(const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes && at < FETCHED_BYTES; at += LINE_BYTES)
        __builtin_prefetch(from + at);
}

/* Fragments are numbered page by page, so that all of a host page is one run. The loop over a page's
 * planes is one per direction and reads nothing of the job: a reload after each store would show. */
INLINE void copy_share(copy_lines lines, const struct job *job, int64_t first, int64_t last)
{
    char *const *planes = job->planes;
    const int64_t plane_count = job->plane_count, bytes = job->fragment_bytes;
    int64_t place = first / plane_count, plane = first % plane_count;
    for (int64_t left = last - first; left > 0; place++, plane = 0) {
        char *host = job->host + job->host_pages[place] * job->host_stride + plane * bytes;
        int64_t hbm = job->hbm_pages[place] * job->hbm_stride;
        int64_t stop = left < plane_count - plane ? plane + left : plane_count;
        left -= stop - plane;
        if (job->to_host) {
            for (; plane < stop; plane++, host += bytes) {
                if (plane + 1 < stop)
                    fetch(planes[plane + 1] + hbm, (size_t)bytes);
                copy_fragment(lines, host, planes[plane] + hbm, (size_t)bytes);
            }
        } else {
            for (; plane < stop; plane++, host += bytes)
                copy_fragment(lines, planes[plane] + hbm, host, (size_t)bytes);
        }
    }
}

static void share_memcpy(const struct job *job, int64_t first, int64_t last)
{
    copy_share(NULL, job, first, last);
}

#if defined(__x86_64__)
static void share_sse2(const struct job *job, int64_t first, int64_t last)
{
    copy_share(lines_sse2, job, first, last);
}

__attribute__((target("avx2"))) static void share_avx2(const struct job *job, int64_t first,
                                                       int64_t last)
{
    copy_share(lines_avx2, job, first, last);
}

__attribute__((target("avx512f"))) static void share_avx512(const struct job *job, int64_t first,
                                                            int64_t last)
{
    copy_share(lines_avx512, job, first, last);
}

static void (*const share_by_level[])(const struct job *, int64_t, int64_t) = {
    share_memcpy, share_sse2, share_avx2, share_avx512};
#else
static void (*const share_by_level[])(const struct job *, int64_t, int64_t) = {share_memcpy};
#endif

static void work(struct pool *pool)
{
    const struct job *job = &pool->job;
    int64_t fragments = job->pages * job->plane_count;
    for (;;) {
        int64_t first = atomic_fetch_add_explicit(&pool->next, job->share, memory_order_relaxed);
        if (first >= fragments)
            break;
        int64_t last = first + job->share < fragments ? first + job->share : fragments;
        share_by_level[pool->level](job, first, last);
    }
#if defined(__x86_64__)
    _mm_sfence(); /* non-temporal stores are visible to others only after this */
#endif
}

static void *help(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->wanted == 0 && !pool->closing)
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->closing)
            break;
        pool->wanted--;
        pool->busy++;
        pthread_mutex_unlock(&pool->lock);
        work(pool);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Pages are in their pools, and none of those written is written twice. */
static enum refusal check(const int64_t *pages, int64_t count, int64_t pool_pages, bool written)
{
    for (int64_t i = 0; i < count; i++)
        if (pages[i] < 0 || pages[i] >= pool_pages)
            return BAD_PAGES;
    if (!written || count < 2)
        return NOT_REFUSED;
    unsigned char *seen = calloc((size_t)pool_pages / 8 + 1, 1);
    if (seen == NULL)
        return NO_MEMORY;
    bool twice = false;
    for (int64_t i = 0; i < count && !twice; i++) {
        unsigned char bit = (unsigned char)(1 << pages[i] % 8);
        twice = seen[pages[i] / 8] & bit;
        seen[pages[i] / 8] = (unsigned char)(seen[pages[i] / 8] | bit);
    }
    free(seen);
    return twice ? BAD_PAGES : NOT_REFUSED;
}

/* The best of `enum level` that this processor has. */
EXPORT int kvready_best_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return AVX512;
    if (__builtin_cpu_supports("avx2"))
        return AVX2;
    return SSE2;
#else
    return MEMCPY;
#endif
}

EXPORT void kvready_destroy(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->helpers; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* The caller works too, so one thread fewer than said is started. NULL: errno says why not. */
EXPORT struct pool *kvready_create(int threads, int level)
{
    if (threads < 1 || threads > MAX_THREADS || level < MEMCPY || level > kvready_best_level()) {
        errno = EINVAL;
        return NULL;
    }
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->level = (enum level)level;
    sigset_t all, before; /* signals are for the threads of the host program */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    while (!failed && pool->helpers < threads - 1) {
        failed = pthread_create(&pool->threads[pool->helpers], NULL, help, pool);
        pool->helpers += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        kvready_destroy(pool);
        errno = failed;
        return NULL;
    }
    return pool;
}

/* Moves nothing, and says so by `enum refusal`, unless every page is good. `host` is where the
 * first plane of the window lies in host page 0. */
EXPORT int kvready_move(struct pool *pool, int to_host, char *host, int64_t host_pool_pages,
                        int64_t host_stride, char *const *planes, int64_t plane_count,
                        int64_t hbm_pool_pages, int64_t hbm_stride, int64_t fragment_bytes,
                        const int64_t *host_pages, const int64_t *hbm_pages, int64_t pages)
{
    if (pages == 0)
        return NOT_REFUSED;
    enum refusal refusal = check(host_pages, pages, host_pool_pages, to_host);
    if (refusal == NOT_REFUSED)
        refusal = check(hbm_pages, pages, hbm_pool_pages, !to_host);
    if (refusal != NOT_REFUSED)
        return (int)refusal;
    int64_t share = SHARE_BYTES / fragment_bytes;
    struct job job = {host,        planes,     host_pages,     hbm_pages, pages,         plane_count,
                      host_stride, hbm_stride, fragment_bytes, to_host,   share ? share : 1};
    int64_t others = (pages * plane_count - 1) / job.share; /* shares beside the caller's first */
    pthread_mutex_lock(&pool->lock);
    pool->job = job;
    atomic_store(&pool->next, 0);
    pool->wanted = others < pool->helpers ? (int)others : pool->helpers;
    if (pool->wanted)
        pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    work(pool);
    pthread_mutex_lock(&pool->lock);
    pool->wanted = 0; /* who has not begun by now need not */
    while (pool->busy)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return NOT_REFUSED;
}
