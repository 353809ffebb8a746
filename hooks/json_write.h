/* A JSON writer. Any bytes give valid JSON: what is not UTF-8 becomes U+FFFD. */
#ifndef AGC_JSON_WRITE_H
#define AGC_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>

struct json_out {
    char *buf; /* free() it */
    size_t len, cap;
    bool comma;  /* a value precedes */
    bool failed; /* out of memory: buf is not to be used */
};

/* The key of the next value; NULL inside an array. */
void json_open(struct json_out *out, const char *key, char bracket);
void json_close(struct json_out *out, char bracket);
void json_put_str(struct json_out *out, const char *key, const char *value);
/* At most `max` bytes of value, cut between characters. */
void json_put_cut(struct json_out *out, const char *key, const char *value, size_t max);
void json_put_int(struct json_out *out, const char *key, long long value);
void json_put_bool(struct json_out *out, const char *key, bool value);

#endif
