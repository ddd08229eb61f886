/* What a manifest asks of the machine: requires-cpu, requires-device. */
#ifndef SOQ_PLUGIN_NEEDS_H
#define SOQ_PLUGIN_NEEDS_H

#include "plugin/manifest.h"

/* The CPU has all features, and one of the device files is there; -SOQ_EUNSUPPORTED says what is missing,
 * -SOQ_EINVAL which name is probably misspelt. */
int soq__needs_met(const struct soq__manifest *manifest, struct soq_error *err);

#endif
