#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "base/error.h"

Test(base_error, set_returns_the_code_and_keeps_the_text)
{
    struct er_error err = ER_ERROR_INIT;

    cr_expect(er_error_set(&err, -EINVAL, "rank %d", 3) == -EINVAL);
    cr_expect(err.code == -EINVAL && !strcmp(err.text, "rank 3"));
    cr_expect(er_error_set(NULL, ER_E_STALE, "nobody listens") == ER_E_STALE);
}

Test(base_error, errno_becomes_code_and_text)
{
    struct er_error err = ER_ERROR_INIT;

    errno = ENOENT;
    cr_expect(er_error_errno(&err, "open '%s'", "x") == -ENOENT);
    cr_expect(!strcmp(err.text, "open 'x': No such file or directory"), "%s", err.text);
    errno = ENOENT;
    cr_expect(er_error_errno(NULL, "open") == -ENOENT);
    errno = 0;
    cr_expect(er_error_errno(&err, "forgotten errno") < 0);
}

Test(base_error, wrap_prefixes_and_keeps_the_code)
{
    struct er_error err = ER_ERROR_INIT;

    er_error_set(&err, -EIO, "disk");
    cr_expect(er_error_wrap(&err, -EIO, "shard %d", 2) == -EIO);
    cr_expect(er_error_wrap(&err, ER_E_CORRUPT, "step %s", "5") == ER_E_CORRUPT);
    cr_expect(!strcmp(err.text, "step 5: shard 2: disk") && err.code == ER_E_CORRUPT);
    cr_expect(er_error_wrap(NULL, -EIO, "x") == -EIO);
}

Test(base_error, wrap_of_nothing_still_says_what_failed)
{
    struct er_error err = ER_ERROR_INIT;

    er_error_wrap(&err, ER_E_PEER_LOST, "all-reduce");
    cr_expect(!strcmp(err.text, "all-reduce: peer lost"), "%s", err.text);
}

Test(base_error, arguments_may_be_the_old_text)
{
    struct er_error err = ER_ERROR_INIT;

    er_error_set(&err, -EIO, "inner");
    er_error_set(&err, -EPIPE, "outer (%s)", err.text);
    cr_expect(!strcmp(err.text, "outer (inner)") && err.code == -EPIPE);
}

Test(base_error, long_texts_are_cut_with_a_mark)
{
    struct er_error err = ER_ERROR_INIT;
    char longer[3 * ER_ERROR_TEXT_MAX];

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    er_error_set(&err, -EIO, "%s", longer);
    cr_expect(strlen(err.text) == ER_ERROR_TEXT_MAX - 1);
    cr_expect(!strcmp(err.text + ER_ERROR_TEXT_MAX - 4, "..."));
    er_error_wrap(&err, -EIO, "head");
    cr_expect(!strncmp(err.text, "head: xxx", 9) && strlen(err.text) == ER_ERROR_TEXT_MAX - 1);
    cr_expect(!strcmp(err.text + ER_ERROR_TEXT_MAX - 4, "..."));
    errno = EIO;
    er_error_errno(&err, "%s", longer);
    cr_expect(!strcmp(err.text + ER_ERROR_TEXT_MAX - 4, "..."));
}

Test(base_error, cut_never_splits_a_character)
{
    struct er_error err = ER_ERROR_INIT;
    char longer[2 * ER_ERROR_TEXT_MAX + 1];

    for (size_t shift = 0; shift < 2; shift++) {
        for (size_t i = 0; i < ER_ERROR_TEXT_MAX; i++)
            memcpy(longer + 2 * i, "\xC3\xA4", 3);
        er_error_set(&err, -EIO, "%s%s", shift ? "x" : "", longer);
        cr_expect((strlen(err.text) - 3 - shift) % 2 == 0);
        cr_expect(!strcmp(err.text + strlen(err.text) - 3, "..."));
    }
}

Test(base_error, every_code_has_a_name)
{
    cr_expect(!strcmp(er_error_name(ER_E_STALE), "generation superseded"));
    cr_expect(!strcmp(er_error_name(-ENOSPC), "No space left on device"));
    cr_expect(!strcmp(er_error_name(-3999), "unknown error"));
    cr_expect(!strcmp(er_error_name(-4999), "unknown error"));
    cr_expect(!strcmp(er_error_name(7), "unknown error"));
#define CHECK_NAME(name, value, text) cr_expect(!strcmp(er_error_name(name), text));
    ER_ERROR_CODES(CHECK_NAME)
#undef CHECK_NAME
}
