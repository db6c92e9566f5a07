#pragma once
/* The status page, agent/http_page.html, as bytes of the program. */
#include <stddef.h>

extern const unsigned char er_http_page[];
extern const size_t er_http_page_bytes;
