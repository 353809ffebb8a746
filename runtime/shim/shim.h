/* What the parts of the shim share. See docs/architecture.md for the protocol. */
#ifndef AGC_SHIM_H
#define AGC_SHIM_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef AGC_DIR
#define AGC_DIR "/dev/agentcgroup"
#endif

/* Everywhere openat(2): musl's open() follows each O_CLOEXEC with an fcntl for kernels before 2.6.23. */
#define AGC_MESSAGE_MAX 16384 /* bytes of a message, either way */
#define AGC_LONG_CALL_MS 200  /* past this a call has a story to tell */
/* Linkers put common symbols last: large buffers must not part the few variables that every call touches, one page. */
#define AGC_LAST __attribute__((common))
#define AGC_COUNTERS 3        /* files that say what happened in a cgroup */

/* How a call runs, as the daemon or its absence decides. */
enum verdict {
    RUN_IN_PLACE, /* this process becomes the shell */
    RUN_IN_CALL,  /* a child is cloned into calls/N */
    RUN_MOVED,    /* a child is forked and asks to be moved to calls/N */
    RUN_FALLBACK, /* a child is cloned into calls/fallback */
};

struct call {
    char **argv;
    enum verdict verdict;
    uint32_t number; /* N; 0 in fallback */
    int hinted;      /* a hint was given, and what became of it is news */
    int announced;   /* the daemon has been told, or has been given up */
    int sock;        /* the start connection, or -1; its hang-up ends the call for the daemon */
    int dir;         /* O_PATH of calls/N, or -1 */
    pid_t self;
    int counters[AGC_COUNTERS];
};

/* payload.c: what the hook wrote into this file */
uint32_t ack_ms(void);
uint64_t payload_offset(void);
uint64_t payload_length(void);
void payload_name(char name[32]);

/* text.c */
size_t put_text(char *out, size_t at, size_t size, const char *text);
size_t put_number(char *out, size_t at, size_t size, uint32_t number);
uint32_t read_number(const char *text);
ssize_t read_whole(int at, const char *path, char *buf, size_t size);
int lift(int fd);
void say(const char *text);

/* place.c */
int belongs_to_agent(pid_t parent);
int is_placed(void);

/* daemon.c */
extern char message[AGC_MESSAGE_MAX];
int dial(void);
int tell(int sock, size_t length);
ssize_t hear(int sock, char *buf, size_t size, int ms);
void decide(struct call *call);
void announce(struct call *call);
void hang_up(struct call *call);
void tell_signal(const struct call *call, int sig);
int ask_to_be_moved(uint32_t number);

/* launch.c */
pid_t launch(struct call *call);

/* supervise.c: the wait status of the shell, and the monotonic clock */
int64_t now_ms(void);
int supervise(struct call *call, pid_t shell, int *was_long);

/* witness.c */
void hire_witness(void);
void dismiss_witness(void);
int hung_up(int sig, const siginfo_t *info);
int group_got(int sig, const siginfo_t *info, int ask_twice);
void hire_watch(pid_t shell);
void dismiss_watch(void);
void helper_ended(pid_t pid);

/* ending.c */
void open_counters(struct call *call);
void print_feedback(const struct call *call, int status, int was_long);
void end_like(int status) __attribute__((noreturn));

/* real.c */
void exec_real(char **argv, char **envp) __attribute__((noreturn));
int exec_file(int fd, char **argv, char **envp);

/* copies.c: for places where AGC_DIR is out of sight */
void exec_copy(char **argv, char **envp);

/* hint.c */
int send_hint(char **words);

#endif
