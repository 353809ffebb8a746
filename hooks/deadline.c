#define _GNU_SOURCE
#include "deadline.h"

#include <signal.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

#define REPEAT_MS 50

static struct timespec started;

static void interrupt(int sig)
{
    (void)sig;
}

void deadline_start(void)
{
    struct sigaction act = {.sa_handler = interrupt}; /* no SA_RESTART */
    struct itimerval timer = {
        .it_value = {.tv_sec = DEADLINE_MS / 1000, .tv_usec = DEADLINE_MS % 1000 * 1000},
        .it_interval = {.tv_usec = REPEAT_MS * 1000},
    };
    clock_gettime(CLOCK_MONOTONIC, &started);
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

long long elapsed_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - started.tv_sec) * 1000000LL + (now.tv_nsec - started.tv_nsec) / 1000;
}

int ms_until(int at_ms)
{
    long long left = at_ms - elapsed_us() / 1000;
    return left > 0 ? (int)left : 0;
}
