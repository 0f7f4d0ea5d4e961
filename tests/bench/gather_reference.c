/* The least that a non-temporal gather can be: one shape, known when it is compiled, one thread,
 * aligned addresses, nothing checked. Compiled for the machine it runs on.
 * Needs -DPLANES=, -DFRAGMENT_BYTES= (a multiple of 64). */
#include <immintrin.h>
#include <stdint.h>

static inline void fragment(char *to, const char *from)
{
#if defined(__AVX512F__)
    for (int64_t at = 0; at < FRAGMENT_BYTES; at += 64)
        _mm512_stream_si512((void *)(to + at), _mm512_load_si512(from + at));
#elif defined(__AVX2__)
    for (int64_t at = 0; at < FRAGMENT_BYTES; at += 32)
        _mm256_stream_si256((void *)(to + at), _mm256_load_si256((const void *)(from + at)));
#else
    for (int64_t at = 0; at < FRAGMENT_BYTES; at += 16)
        _mm_stream_si128((void *)(to + at), _mm_load_si128((const void *)(from + at)));
#endif
}

void reference_load(char *hbm, const char *host, int64_t pool_pages, const int64_t *hbm_pages,
                    const int64_t *host_pages, int64_t pages)
{
    for (int64_t i = 0; i < pages; i++)
        for (int64_t plane = 0; plane < PLANES; plane++)
            fragment(hbm + (plane * pool_pages + hbm_pages[i]) * FRAGMENT_BYTES,
                     host + (host_pages[i] * PLANES + plane) * FRAGMENT_BYTES);
    _mm_sfence();
}

void reference_store(char *hbm, char *host, int64_t pool_pages, const int64_t *hbm_pages,
                     const int64_t *host_pages, int64_t pages)
{
    for (int64_t i = 0; i < pages; i++)
        for (int64_t plane = 0; plane < PLANES; plane++)
            fragment(host + (host_pages[i] * PLANES + plane) * FRAGMENT_BYTES,
                     hbm + (plane * pool_pages + hbm_pages[i]) * FRAGMENT_BYTES);
    _mm_sfence();
}
