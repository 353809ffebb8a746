#include "json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(struct json_out *out, const char *bytes, size_t n)
{
    if (out->failed)
        return;
    if (out->len + n > out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 4096;
        while (cap < out->len + n)
            cap *= 2;
        char *bigger = realloc(out->buf, cap);
        if (!bigger) {
            out->failed = true;
            return;
        }
        out->buf = bigger;
        out->cap = cap;
    }
    memcpy(out->buf + out->len, bytes, n);
    out->len += n;
}

/* Length of the UTF-8 sequence at s (RFC 3629: shortest form, no surrogates), 0 if there is none. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (n < 2 || n > left)
        return n == 1;
    unsigned c = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    return c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

static size_t put_char(struct json_out *out, const unsigned char *s, size_t left)
{
    char escaped[8];
    size_t n = utf8_length(s, left);
    if (!n)
        put(out, "\xef\xbf\xbd", 3);
    else if (*s == '"' || *s == '\\')
        put(out, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\%c", *s));
    else if (*s < 0x20 || *s == 0x7f)
        put(out, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", *s));
    else
        put(out, (const char *)s, n);
    return n ? n : 1;
}

static void quoted(struct json_out *out, const char *value, size_t len)
{
    put(out, "\"", 1);
    for (size_t i = 0; i < len;)
        i += put_char(out, (const unsigned char *)value + i, len - i);
    put(out, "\"", 1);
}

static void before_value(struct json_out *out, const char *key)
{
    if (out->comma)
        put(out, ",", 1);
    if (key) {
        quoted(out, key, strlen(key));
        put(out, ":", 1);
    }
    out->comma = true;
}

void json_open(struct json_out *out, const char *key, char bracket)
{
    before_value(out, key);
    put(out, &bracket, 1);
    out->comma = false;
}

void json_close(struct json_out *out, char bracket)
{
    put(out, &bracket, 1);
    out->comma = true;
}

void json_put_str(struct json_out *out, const char *key, const char *value)
{
    before_value(out, key);
    quoted(out, value, strlen(value));
}

void json_put_cut(struct json_out *out, const char *key, const char *value, size_t max)
{
    size_t len = strlen(value);
    if (len > max)
        for (len = max; len && ((unsigned char)value[len] & 0xc0) == 0x80;)
            len--;
    before_value(out, key);
    quoted(out, value, len);
}

void json_put_int(struct json_out *out, const char *key, long long value)
{
    char digits[24];
    before_value(out, key);
    put(out, digits, (size_t)snprintf(digits, sizeof digits, "%lld", value));
}

void json_put_bool(struct json_out *out, const char *key, bool value)
{
    before_value(out, key);
    put(out, value ? "true" : "false", value ? 4 : 5);
}
