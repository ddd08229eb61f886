/* Ctrl-C. */
#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

#include "soquete/soquete.h"

static volatile sig_atomic_t interrupted, idle;
static soq__cancel *volatile cancel_work;
static void *volatile cancel_arg;

static void on_signal(int number)
{
    if (interrupted && !idle) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    interrupted = 1;
    if (cancel_work)
        cancel_work(cancel_arg);
}

void soq__interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: a read that waits ends too */

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void soq__interrupt_arm(soq__cancel *cancel, void *arg)
{
    soq__interrupt_disarm();
    cancel_arg = arg;
    cancel_work = cancel;
}

void soq__interrupt_disarm(void)
{
    cancel_work = NULL;
}

bool soq__interrupted(void)
{
    return interrupted;
}

void soq__interrupt_clear(void)
{
    interrupted = 0;
}

void soq__interrupt_idle(bool is_idle)
{
    idle = is_idle;
}

void soq__interrupt_session(void *session)
{
    soq_session_cancel(session);
}
