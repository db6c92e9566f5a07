#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { LINE = 64 };

static void copy_lines(char *to, const char *from, size_t lines)
{
    for (size_t i = 0; i < lines; i++, to += LINE, from += LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + 48), d);
    }
    _mm_sfence(); /* before anybody is told that it is there */
}

void er_copy_streaming(void *to, const void *from, size_t n)
{
    size_t head = (size_t)(-(uintptr_t)to % LINE), lines;

    if (head > n)
        head = n;
    lines = (n - head) / LINE;
    memcpy(to, from, head);
    copy_lines((char *)to + head, (const char *)from + head, lines);
    head += lines * LINE;
    memcpy((char *)to + head, (const char *)from + head, n - head);
}
#else
void er_copy_streaming(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}
#endif
