#define _GNU_SOURCE
#include "deadline.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

#define REPEAT_MS 50

static struct timespec started;
static void (*expired)(void);

static void interrupt(int sig)
{
    (void)sig;
}

static void *watch(void *unused)
{
    for (int left; (left = ms_until(EXPIRE_MS));)
        poll(NULL, 0, left);
    expired();
    return unused;
}

void deadline_start(void (*expire)(void))
{
    pthread_t watcher;
    struct sigaction act = {.sa_handler = interrupt}; /* no SA_RESTART */
    struct itimerval timer = {
        .it_value = {.tv_sec = DEADLINE_MS / 1000, .tv_usec = DEADLINE_MS % 1000 * 1000},
        .it_interval = {.tv_usec = REPEAT_MS * 1000},
    };
    clock_gettime(CLOCK_MONOTONIC, &started);
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    expired = expire;
    pthread_create(&watcher, NULL, watch, NULL);
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
