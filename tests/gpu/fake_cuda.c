/* A CUDA driver whose device is this process's memory. Like the real one it carries out nothing
 * until a stream is waited for, and it notes what it was told. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_ORDERS (1 << 20)
#define MAX_RANGES 4096
#define MAX_STREAMS 256

enum { COPY, EVENT };
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201,
       NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };

typedef struct { int kind; uintptr_t stream; void *target; const void *source; size_t size; } Order;
typedef struct { uintptr_t start; size_t size; uint32_t type, ordinal; } Range;
typedef struct { int order; int source[2]; int destination[2]; unsigned flags; } Attributes;

/* What a test sets. */
EXPORT int fake_version = 12080, fake_devices = 1, fake_has_batch = 1, fake_init_error = 0;
EXPORT int fake_multiprocessors = 132;
EXPORT long fake_fail_copy = -1;       /* this copy, counted from now, is refused */
EXPORT int fake_synchronize_error = 0; /* what waiting says once */
EXPORT int fake_broken = 0;            /* nothing can be given back, as after a kernel's failure */
EXPORT double fake_ahead_seconds = 0;  /* of the host's clock */

/* What a test reads. */
EXPORT long fake_pending = 0, fake_copies = 0, fake_batches = 0, fake_streams = 0, fake_events = 0;
EXPORT long fake_pushed = 0, fake_retained = 0, fake_allocated = 0;
EXPORT long fake_legacy_orders = 0, fake_without_context = 0;
EXPORT int fake_source_order = 0;
EXPORT unsigned fake_flags = 0;
EXPORT size_t fake_attribute_count = 0, fake_attribute_first = 99;
EXPORT long fake_batch_sizes[64];

static Order orders[MAX_ORDERS];
static Range ranges[MAX_RANGES];
static int range_count = 0;
static __thread int current = 0;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9 + fake_ahead_seconds;
}

/* Whatever lay there before is gone. */
EXPORT void fake_register(uintptr_t start, size_t size, int type, int ordinal) {
    pthread_mutex_lock(&lock);
    int kept = 0;
    for (int i = 0; i < range_count; i++) {
        Range r = ranges[i];
        int overlaps = r.start < start + size && start < r.start + r.size;
        if (r.size && !overlaps) ranges[kept++] = r;
    }
    range_count = kept;
    if (range_count == MAX_RANGES) abort();
    ranges[range_count++] = (Range){start, size, type, ordinal};
    pthread_mutex_unlock(&lock);
}

static void forget(uintptr_t start) {
    for (int i = 0; i < range_count; i++)
        if (ranges[i].start == start) ranges[i].size = 0;
}

/* Marks of an idle stream are passed at once. */
static int stamped(Order what) {
    for (long i = 0; i < fake_pending; i++)
        if (orders[i].stream == what.stream) return 0;
    *(double *)what.target = now();
    return 1;
}

static int order(Order what) {
    if (!current) fake_without_context++;
    if (what.stream <= 1) fake_legacy_orders++;
    if (what.kind == EVENT && stamped(what)) return 0;
    if (fake_pending == MAX_ORDERS) return OUT_OF_MEMORY;
    orders[fake_pending++] = what;
    return 0;
}

EXPORT int cuInit(unsigned flags) { (void)flags; return fake_init_error; }
EXPORT int cuDriverGetVersion(int *version) { *version = fake_version; return 0; }
EXPORT int cuDeviceGetCount(int *count) { *count = fake_devices; return 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
EXPORT int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    strncpy(name, "Fake GPU", size);
    return 0;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 16 ? fake_multiprocessors : 0;
    return 0;
}
EXPORT int cuGetErrorName(int code, const char **name) {
    *name = code == INVALID_VALUE   ? "CUDA_ERROR_INVALID_VALUE"
            : code == NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
            : code == ILLEGAL_ADDRESS           ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                    : NULL;
    return *name ? 0 : INVALID_VALUE;
}
EXPORT int cuGetErrorString(int code, const char **text) {
    *text = code == INVALID_VALUE ? "invalid argument" : NULL;
    return *text ? 0 : INVALID_VALUE;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = (void *)0xC0;
    fake_retained++;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; fake_retained--; return 0; }
EXPORT int cuCtxPushCurrent_v2(void *context) {
    if (!context) return INVALID_CONTEXT;
    current++;
    fake_pushed++;
    return 0;
}
EXPORT int cuCtxPopCurrent_v2(void **context) { *context = NULL; current--; fake_pushed--; return 0; }

EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    static uintptr_t next = 0x1000;
    if (flags != 1) return INVALID_VALUE;
    *stream = (void *)(next += 16);
    fake_streams++;
    return 0;
}
EXPORT int cuStreamDestroy_v2(void *stream) {
    (void)stream;
    if (fake_broken) return ILLEGAL_ADDRESS;
    fake_streams--;
    return 0;
}
static void carry_out(uintptr_t stream) {
    long kept = 0;
    for (long i = 0; i < fake_pending; i++) {
        Order *o = &orders[i];
        if (o->stream != stream) orders[kept++] = *o;
        else if (o->kind == COPY) memcpy(o->target, o->source, o->size);
        else *(double *)o->target = now();
    }
    fake_pending = kept;
}

EXPORT int cuStreamSynchronize(void *stream) {
    pthread_mutex_lock(&lock);
    carry_out((uintptr_t)stream);
    int failed = fake_synchronize_error;
    fake_synchronize_error = 0;
    pthread_mutex_unlock(&lock);
    return failed;
}
EXPORT int cuEventSynchronize(void *event) {
    pthread_mutex_lock(&lock);
    for (long i = 0; i < fake_pending; i++)
        if (orders[i].target == event) {
            carry_out(orders[i].stream);
            break;
        }
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(double));
    fake_events++;
    return 0;
}
EXPORT int cuEventDestroy_v2(void *event) {
    if (fake_broken) return ILLEGAL_ADDRESS;
    free(event);
    fake_events--;
    return 0;
}
EXPORT int cuEventRecord(void *event, void *stream) {
    pthread_mutex_lock(&lock);
    int failed = order((Order){EVENT, (uintptr_t)stream, event, NULL, 0});
    pthread_mutex_unlock(&lock);
    return failed;
}
EXPORT int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    if (!*(double *)start || !*(double *)end) return 600; /* not ready */
    *milliseconds = (float)((*(double *)end - *(double *)start) * 1e3);
    return 0;
}

EXPORT int cuMemHostAlloc(void **place, size_t size, unsigned flags) {
    (void)flags;
    *place = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);
    if (!*place) return OUT_OF_MEMORY;
    fake_register((uintptr_t)*place, size, 1, 0);
    fake_allocated++;
    return 0;
}
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    void *place;
    int failed = cuMemHostAlloc(&place, size, 0);
    if (failed) return failed;
    fake_register((uintptr_t)place, size, 2, 0);
    *address = (uint64_t)place;
    return 0;
}
EXPORT int cuMemFreeHost(void *place) {
    if (fake_broken) return ILLEGAL_ADDRESS;
    forget((uintptr_t)place);
    free(place);
    fake_allocated--;
    return 0;
}
EXPORT int cuMemFree_v2(uint64_t address) { return cuMemFreeHost((void *)address); }

EXPORT int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    for (int i = 0; i < range_count; i++) {
        Range *r = &ranges[i];
        if (address < r->start || address >= r->start + r->size) continue;
        if (attribute == 2) *(uint32_t *)value = r->type;
        else if (attribute == 3) *(uint64_t *)value = address;
        else if (attribute == 9) *(int *)value = r->ordinal;
        else return INVALID_VALUE;
        return 0;
    }
    return INVALID_VALUE;
}

static int copy(uint64_t target, uint64_t source, size_t size, uintptr_t stream) {
    if (fake_fail_copy >= 0 && fake_fail_copy-- == 0) return INVALID_VALUE;
    fake_copies++;
    return order((Order){COPY, stream, (void *)target, (void *)source, size});
}
EXPORT int cuMemcpyAsync(uint64_t target, uint64_t source, size_t size, void *stream) {
    pthread_mutex_lock(&lock);
    int failed = copy(target, source, size, (uintptr_t)stream);
    pthread_mutex_unlock(&lock);
    return failed;
}

static int batch(uint64_t *targets, uint64_t *sources, size_t *sizes, size_t count,
                 Attributes *attributes, size_t *firsts, size_t attribute_count,
                 size_t *failed_copy, void *stream) {
    if ((uintptr_t)stream <= 1 || !count) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    fake_batch_sizes[fake_batches++ % 64] = (long)count;
    fake_source_order = attributes->order;
    fake_flags = attributes->flags;
    fake_attribute_count = attribute_count;
    fake_attribute_first = firsts[0];
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) {
        failed = sizes[i] ? copy(targets[i], sources[i], sizes[i], (uintptr_t)stream) : INVALID_VALUE;
        if (failed) *failed_copy = i;
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

/* The plain name has the arguments of 13.0 and must never be bound. */
EXPORT int cuMemcpyBatchAsync(void) { abort(); }

EXPORT int cuGetProcAddress_v2(const char *symbol, void **entry, int version, uint64_t flags,
                               int *status) {
    (void)flags;
    int found = fake_has_batch && !strcmp(symbol, "cuMemcpyBatchAsync") && version == 12080;
    *entry = found ? (void *)batch : NULL;
    *status = found ? 0 : 1;
    return found ? 0 : NOT_FOUND;
}
