/* A JSON reader (RFC 8259) for what an engine hands over: the state on stdin and the bundle's config.json.
 *
 * Strings are decoded inside the input buffer, so the buffer is changed and must live as long as the document.
 * Nesting and the number of values are bounded; malformed input gives an error with line and column. */
#ifndef AGC_JSON_H
#define AGC_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    uint32_t len;     /* bytes in text; for a bool its value */
    const char *key;  /* an object member's name, NUL-terminated */
    union {
        const char *text;   /* STRING: NUL-terminated, may hold further NULs. NUMBER: len bytes, not terminated */
        struct json *child; /* ARRAY, OBJECT: the first element */
    };
    struct json *next;
};

struct json_doc {
    struct json root;
    struct json_chunk *chunks;
};

/* Reads one value from buf, which has room for len bytes. Free doc in either case. */
int json_parse(struct json_doc *doc, char *buf, size_t len, struct error *err);
void json_free(struct json_doc *doc);

/* The value under a path of member names, ended by NULL; NULL when a step is missing. Of duplicate names the last
 * counts, as in Go's encoding/json, which wrote the file. `at` may be NULL. */
const struct json *json_get(const struct json *at, ...) __attribute__((sentinel));

/* The member `name` of an object or NULL. */
const struct json *json_member(const struct json *at, const char *name);

/* A string without embedded NULs, or NULL for anything else. */
const char *json_str(const struct json *value);

/* An integer that fits, or `fallback` for anything else. */
long long json_int(const struct json *value, long long fallback);

/* Is this the literal true? */
bool json_true(const struct json *value);

#endif
