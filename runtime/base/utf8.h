/* UTF-8 by bytes: where a code point ends, whether it is well-formed. (Categories and normalisation come from utf8proc, PCRE2.)
 */
#ifndef SOQ_BASE_UTF8_H
#define SOQ_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point from s[0..n). Returns its length in bytes and the code point, or 0 if the bytes are no well-formed
 * sequence (overlong, surrogate, beyond U+10FFFF, stray or missing continuation); n must be > 0. */
size_t soq__utf8_decode(const char *s, size_t n, uint32_t *cp_out);
/* Writes cp (a Unicode scalar value) to out[0..4) and returns the number of bytes. */
size_t soq__utf8_encode(uint32_t cp, char out[4]);
/* Length of the longest prefix of s[0..n) that does not end inside a code point that could still be completed by later bytes.
 * Malformed bytes count as complete. A streaming writer may emit exactly that prefix. */
size_t soq__utf8_complete(const char *s, size_t n);
bool soq__utf8_valid(const char *s, size_t n);

#endif
