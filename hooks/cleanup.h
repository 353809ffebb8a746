/* Resources that end with their scope. */
#ifndef AGC_CLEANUP_H
#define AGC_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_closep(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void cleanup_freep(void *p)
{
    free(*(void **)p);
}

#define cleanup_close __attribute__((cleanup(cleanup_closep)))
#define cleanup_free __attribute__((cleanup(cleanup_freep)))

#endif
