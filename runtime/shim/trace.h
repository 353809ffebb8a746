/* Time stamps for bench/shim.py; nothing is left of this without -DAGC_TRACE=FD. */
#ifndef AGC_TRACE_H
#define AGC_TRACE_H

enum trace_point { TRACE_MAIN, TRACE_TOLD, TRACE_CLONED, TRACE_REAPED, TRACE_END, TRACE_CHILD, TRACE_POINTS };

#ifdef AGC_TRACE
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern uint64_t trace_stamps[TRACE_POINTS];

static inline void trace_stamp(enum trace_point point)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    trace_stamps[point] = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The child writes its own stamp as one number, the parent all of them at the end. */
static inline void trace_flush(const uint64_t *from, size_t n)
{
    if (write(AGC_TRACE, from, n * sizeof *from) < 0)
        return;
}

#define TRACE(point) trace_stamp(point)
#define TRACE_FLUSH_CHILD() trace_flush(trace_stamps + TRACE_CHILD, 1)
#define TRACE_FLUSH() trace_flush(trace_stamps, TRACE_CHILD)
#else
#define TRACE(point) ((void)0)
#define TRACE_FLUSH_CHILD() ((void)0)
#define TRACE_FLUSH() ((void)0)
#endif
#endif
