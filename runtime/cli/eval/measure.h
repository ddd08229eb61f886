/* Items through engines: everything that is asked for and has no record yet.
 *
 * Weights are loaded once for each configuration and budget, from one mapping of the file. Items of a configuration are
 * computed several at a time, which changes no result: an engine's tokens do not depend on who else is in the batch. */
#ifndef SOQ_CLI_EVAL_MEASURE_H
#define SOQ_CLI_EVAL_MEASURE_H

#include "cli/eval/plan.h"

/* Fills what depends on the model's tokens; then all that is missing is measured. A configuration that the runtime cannot
 * combine (SOQ_EUNSUPPORTED) is said on standard error and left out; all are tried before the first is measured.
 * -SOQ_ECANCELLED after Ctrl-C: what was finished is recorded. */
int soq__eval_measure(struct soq__eval *eval, struct soq_error *err);

#endif
