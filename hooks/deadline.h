/* The hook's own time: how much it used, how much it has left. */
#ifndef AGC_DEADLINE_H
#define AGC_DEADLINE_H

#define DEADLINE_MS 3000 /* the JSON file's timeout is 5 s: the hook says itself why it was slow */
#define EXPIRE_MS 4000

/* Starts the clock. From the deadline on, SIGALRM interrupts system calls again and again (EINTR), so that most hangs end
 * in an error like any other. A wait for a page of a FUSE or network file system does not: it ends with the process only.
 * So at EXPIRE_MS a thread calls `expire`, which must not return. (Nothing ends a FUSE request that is being served.) */
void deadline_start(void (*expire)(void));
long long elapsed_us(void);
/* ms until `at_ms` after the start; 0 if that has passed. */
int ms_until(int at_ms);

#endif
