/* `soquete config --placement`: which backend runs which ops and holds which weights of a model. */
#ifndef SOQ_CLI_PLACEMENT_H
#define SOQ_CLI_PLACEMENT_H

#include <stdbool.h>

#include "cli/cli.h"

/* model: NULL: [model] path. Opens the backends, but prepares no weights. Returns the exit code. */
int soq__print_placement(const struct soq__cli_globals *globals, const char *model, bool json);

#endif
