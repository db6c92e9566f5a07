#include "agent/secret.h"

#include <string.h>

#include "base/cleanup.h"

enum { NAME_MAX_BYTES = 128 };

static const char *const WORDS[] = {"TOKEN",      "SECRET", "PASSWORD",    "PASSWD",
                                    "PASSPHRASE", "APIKEY", "API_KEY",     "PRIVATE_KEY",
                                    "ACCESS_KEY", "AUTH",   "CREDENTIALS", "COOKIE"};

bool er_secret_name(const char *name, size_t n)
{
    char upper[NAME_MAX_BYTES];

    n = n < sizeof(upper) ? n : sizeof(upper) - 1;
    for (size_t i = 0; i < n; i++)
        upper[i] = name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 32) : name[i];
    upper[n] = '\0';
    for (size_t i = 0; i < ER_ARRAY_N(WORDS); i++) {
        if (strstr(upper, WORDS[i]))
            return true;
    }
    return false;
}
