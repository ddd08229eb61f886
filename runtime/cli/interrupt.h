/* Ctrl-C: the first one stops the work in hand, which then ends cleanly; a second one kills the process.
 *
 * Work that can be stopped arms itself with a function that the signal handler calls. Only the main thread takes the signal
 * (the runtime's own threads block it), so that what is disarmed is never called again. */
#ifndef SOQ_CLI_INTERRUPT_H
#define SOQ_CLI_INTERRUPT_H

#include <stdbool.h>

struct soq_session;

/* Async-signal-safe. */
typedef void soq__cancel(void *arg);

/* From now on Ctrl-C sets the flag instead of ending the process. */
void soq__interrupt_catch(void);
void soq__interrupt_arm(soq__cancel *cancel, void *arg);
void soq__interrupt_disarm(void);
/* There was a Ctrl-C since the last clear. */
bool soq__interrupted(void);
void soq__interrupt_clear(void);
/* While true a second Ctrl-C kills nothing: somebody types a line, there is no work to stop. */
void soq__interrupt_idle(bool is_idle);

/* A soq__cancel for struct soq_session. */
void soq__interrupt_session(void *session);

#endif
