#include <criterion/criterion.h>
#include <string.h>

#include "base/copy.h"

Test(base_copy, any_length_at_any_alignment)
{
    static unsigned char from[512], to[512];

    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)(i * 7 + 1);
    for (size_t a = 0; a < 70; a++) {
        for (size_t b = 0; b < 70; b += 23) {
            for (size_t n = 0; n <= 300; n += n < 140 ? 1 : 37) {
                memset(to, 0xee, sizeof(to));
                er_copy_streaming(to + a, from + b, n);
                cr_assert_eq(memcmp(to + a, from + b, n), 0, "%zu bytes at %zu", n, a);
                for (size_t i = 0; i < sizeof(to); i++)
                    cr_assert(to[i] == 0xee || (i >= a && i < a + n), "outside at %zu", i);
            }
        }
    }
}
