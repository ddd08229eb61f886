/* What Python's str methods know about characters: white space, case, categories. */
#ifndef SOQ_TEXT_JINJA_UNICODE_H
#define SOQ_TEXT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool soq__ju_space(uint32_t cp);     /* str.isspace */
bool soq__ju_linebreak(uint32_t cp); /* str.splitlines */
bool soq__ju_alpha(uint32_t cp);
bool soq__ju_decimal(uint32_t cp);
bool soq__ju_digit(uint32_t cp);
bool soq__ju_numeric(uint32_t cp);
bool soq__ju_lower(uint32_t cp);
bool soq__ju_upper(uint32_t cp);
bool soq__ju_cased(uint32_t cp);
bool soq__ju_case_ignorable(uint32_t cp);
bool soq__ju_printable(uint32_t cp); /* repr shows it as it is */
bool soq__ju_word(uint32_t cp);      /* \w of regular expressions */

enum jcase { JCASE_LOWER, JCASE_UPPER, JCASE_TITLE };

/* The full case mapping (without context) of one character; returns the number of characters in out, 1 to 3. */
size_t soq__ju_map(uint32_t cp, enum jcase to, uint32_t out[3]);

#endif
