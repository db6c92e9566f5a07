#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fence.h"
#include "tests/lib/tempdir.h"

Test(base_fence, names_come_back)
{
    static const char *const others[] = {
        ".fence-g", ".fence-g-1", ".fence-g1x", "fence-g1", ".fence-g99999999999999999999", ""};
    char name[ER_FENCE_NAME_MAX];
    uint64_t g = 0;

    er_fence_name(UINT64_MAX, name);
    cr_expect(er_fence_parse(name, &g) && g == UINT64_MAX);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        cr_expect(!er_fence_parse(others[i], &g), "%s", others[i]);
}

Test(base_fence, the_newest_of_a_folder)
{
    char dir[ER_TEST_PATH_MAX], path[ER_TEST_PATH_MAX + ER_FENCE_NAME_MAX];
    uint64_t newest = 9;
    struct er_error err = ER_ERROR_INIT;

    er_test_tempdir(dir);
    cr_expect(er_fence_newest(dir, &newest, &err) == 0 && newest == 0);
    for (int g = 9; g <= 11; g++) {
        snprintf(path, sizeof(path), "%s/.fence-g%d", dir, g);
        er_test_write_file(path, "");
    }
    cr_expect(er_fence_newest(dir, &newest, &err) == 0 && newest == 11);
    er_test_rmtree(dir);
    cr_expect(er_fence_newest(dir, &newest, &err) == -ENOENT && strstr(err.text, dir));
}
