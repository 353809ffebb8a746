/* The hook's own time: how much it used, how much it has left. */
#ifndef AGC_DEADLINE_H
#define AGC_DEADLINE_H

#include <stdbool.h>

#define DEADLINE_MS 3000 /* the JSON file's timeout is 5 s: the hook says itself why it was slow */

/* Starts the clock. From the deadline on, SIGALRM interrupts system calls again and again (EINTR), so that a hang in a
 * FUSE or network file system ends in an error like any other. */
void deadline_start(void);
long long elapsed_us(void);
/* ms until `at_ms` after the start; 0 if that has passed. */
int ms_until(int at_ms);

#endif
