/* Where messages go that are no errors: one process-wide sink behind a level. The library installs none and is silent; programs
 * install theirs before they start threads. */
#ifndef SOQ_BASE_LOG_H
#define SOQ_BASE_LOG_H

#include "base/error.h"
#include "soquete/plugin.h"

#define SOQ_LOG_TEXT_MAX 2000

/* level: enum soq_log_level; text: one line without its end. Any thread, several at once. */
typedef void (*soq__log_sink)(void *user, int level, const char *text);

/* Messages up to `level` go to the sink; NULL: none do. Not to be called while others log. */
void soq__log_install(soq__log_sink sink, void *user, enum soq_log_level level);
/* Nothing is logged any more, unless somebody else has installed a sink meanwhile. */
void soq__log_remove(soq__log_sink sink, void *user);
void soq__log(enum soq_log_level level, const char *fmt, ...) SOQ_PRINTF(2, 3);
/* "error", "warning", "info", "debug" */
const char *soq__log_level_text(enum soq_log_level level);

#endif
