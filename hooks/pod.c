#include "pod.h"

#include <string.h>

bool is_sandbox(const struct json *annotations)
{
    static const char *const keys[] = {"io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri.container-type", NULL};
    for (const char *const *key = keys; *key; key++) {
        const char *type = json_str(json_member(annotations, *key));
        if (type && !strcmp(type, "sandbox"))
            return true;
    }
    return false;
}
