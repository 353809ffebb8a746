/* What the annotations of CRI-O and containerd say of a container in a pod. */
#ifndef AGC_POD_H
#define AGC_POD_H

#include "json.h"

/* Is it the pod's infra container? That only holds the pod's namespaces, and the pod's annotations reach it as well. */
bool is_sandbox(const struct json *annotations);

#endif
