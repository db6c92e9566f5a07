#pragma once
/*
 * UTF-8, read strictly: no overlong form, no surrogate, nothing above U+10FFFF. Pure. Source:
 * RFC 3629, section 4.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the sequence at `s` (of `n` >= 1 bytes that may be read), 1 to 4, and its code point;
 * 0 when there is none, then *ret_code is untouched. `ret_code` may be NULL. */
size_t er_utf8_decode(const char *s, size_t n, uint32_t *ret_code);

/* The longest length <= `max` at which the text may be cut without parting a sequence: `text` has
 * more than `max` bytes, valid or not. */
size_t er_utf8_cut(const char *text, size_t max);

/* C0, DEL and C1: what a terminal might act upon. */
bool er_utf8_is_control(uint32_t code);

/* All of the text is UTF-8 without a control character: it may stand on a terminal as it is. */
bool er_utf8_is_printable(const char *text, size_t n);

/* Makes the text fit to stand on a terminal, in place: each byte that is no UTF-8 or belongs to a
 * control character becomes '?'; line breaks stay. */
void er_utf8_tame(char *text, size_t n);
