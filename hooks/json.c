#include "json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64
#define CHUNK_NODES 512
#define MAX_CHUNKS 2048 /* a million values, 32 MiB: a config.json has a few thousand */

struct json_chunk {
    struct json_chunk *next;
    unsigned used;
    struct json node[CHUNK_NODES];
};

struct parser {
    char *at, *end, *line_start;
    struct json_doc *doc;
    unsigned line, chunks;
    struct error *err;
};

static int syntax(struct parser *p, const char *what)
{
    return fail(p->err, 0, "line %u column %ld: %s", p->line, (long)(p->at - p->line_start) + 1, what);
}

static struct json *new_node(struct parser *p)
{
    struct json_chunk *chunk = p->doc->chunks;
    if (!chunk || chunk->used == CHUNK_NODES) {
        if (p->chunks == MAX_CHUNKS || !(chunk = malloc(sizeof *chunk)))
            return NULL;
        chunk->next = p->doc->chunks;
        chunk->used = 0;
        p->doc->chunks = chunk;
        p->chunks++;
    }
    struct json *node = &chunk->node[chunk->used++];
    memset(node, 0, sizeof *node);
    return node;
}

static void skip_space(struct parser *p)
{
    for (; p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'); p->at++)
        if (*p->at == '\n') {
            p->line++;
            p->line_start = p->at + 1;
        }
}

static int hex4(struct parser *p, unsigned *out)
{
    unsigned value = 0;
    if (p->end - p->at < 4)
        return syntax(p, "\\u is cut off");
    for (int i = 0; i < 4; i++, p->at++) {
        char c = *p->at, lower = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            value = value * 16 + (unsigned)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            value = value * 16 + (unsigned)(lower - 'a' + 10);
        else
            return syntax(p, "\\u needs four hexadecimal digits");
    }
    *out = value;
    return 0;
}

static char *put_utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xc0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *out++ = (char)(0xe0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
        *out++ = (char)(0x80 | (c & 0x3f));
    } else {
        *out++ = (char)(0xf0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3f));
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
        *out++ = (char)(0x80 | (c & 0x3f));
    }
    return out;
}

/* After \u. A surrogate without its other half becomes U+FFFD, as Go and browsers read it. */
static int unicode_escape(struct parser *p, char **out)
{
    unsigned c, low;
    if (hex4(p, &c))
        return -1;
    if (c >= 0xd800 && c < 0xdc00 && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
        char *here = p->at;
        p->at += 2;
        if (hex4(p, &low))
            return -1;
        if (low >= 0xdc00 && low < 0xe000)
            c = 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00));
        else
            p->at = here;
    }
    *out = put_utf8(*out, c >= 0xd800 && c < 0xe000 ? 0xfffd : c);
    return 0;
}

static int escape(struct parser *p, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end)
        return syntax(p, "the text ends inside a string");
    char c = *p->at++;
    if (c == 'u')
        return unicode_escape(p, out);
    const char *known = c ? strchr(from, c) : NULL;
    if (!known)
        return p->at--, syntax(p, "unknown escape");
    *(*out)++ = to[known - from];
    return 0;
}

/* What stands for itself inside a string. */
static const bool plain[256] = {[0x20 ... '"' - 1] = true, ['"' + 1 ... '\\' - 1] = true, ['\\' + 1 ... 0xff] = true};

static size_t plain_run(struct parser *p)
{
    char *from = p->at;
    while (p->at < p->end && plain[(unsigned char)*p->at])
        p->at++;
    return (size_t)(p->at - from);
}

/* At the opening quote. What is decoded is never longer than what it was written as, so it can stay in place. */
static int string(struct parser *p, const char **text, uint32_t *len)
{
    char *out = ++p->at;
    *text = out;
    for (;;) {
        char *from = p->at;
        size_t run = plain_run(p);
        if (out != from)
            memmove(out, from, run);
        out += run;
        if (p->at == p->end)
            return syntax(p, "the text ends inside a string");
        if (*p->at == '"')
            break;
        if (*p->at++ != '\\')
            return p->at--, syntax(p, "control character inside a string");
        if (escape(p, &out))
            return -1;
    }
    p->at++;
    *len = (uint32_t)(out - *text);
    *out = 0; /* the closing quote, or earlier */
    return 0;
}

static size_t digits(struct parser *p)
{
    const char *from = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return (size_t)(p->at - from);
}

static int number(struct parser *p, struct json *out)
{
    char *from = p->at;
    if (*p->at == '-')
        p->at++;
    bool zero = p->at < p->end && *p->at == '0';
    size_t n = digits(p);
    if (!n || (zero && n > 1))
        return syntax(p, "not a value");
    if (p->at < p->end && *p->at == '.' && (p->at++, !digits(p)))
        return syntax(p, "digits must follow the point");
    if (p->at < p->end && (*p->at | 0x20) == 'e') {
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-'))
            p->at++;
        if (!digits(p))
            return syntax(p, "digits must follow the exponent");
    }
    out->type = JSON_NUMBER;
    out->text = from;
    out->len = (uint32_t)(p->at - from);
    return 0;
}

static int literal(struct parser *p, struct json *out, const char *word, enum json_type type, uint32_t len)
{
    size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n))
        return syntax(p, "not a value");
    p->at += n;
    out->type = type;
    out->len = len;
    return 0;
}

static int value(struct parser *p, struct json *out, int depth);

static int member_name(struct parser *p, struct json *child)
{
    uint32_t len;
    skip_space(p);
    if (p->at == p->end || *p->at != '"')
        return syntax(p, "expected a member name in quotes");
    if (string(p, &child->key, &len))
        return -1;
    if (strlen(child->key) != len)
        return syntax(p, "NUL inside a member name");
    skip_space(p);
    if (p->at == p->end || *p->at != ':')
        return syntax(p, "expected ':'");
    p->at++;
    return 0;
}

static int elements(struct parser *p, struct json *out, int depth)
{
    char close = *p->at++ == '{' ? '}' : ']';
    struct json **tail = &out->child;
    out->type = close == '}' ? JSON_OBJECT : JSON_ARRAY;
    if (depth == MAX_DEPTH)
        return syntax(p, "nested too deeply");
    skip_space(p);
    if (p->at < p->end && *p->at == close)
        return p->at++, 0;
    for (;;) {
        struct json *child = new_node(p);
        if (!child)
            return syntax(p, "too many values");
        if ((close == '}' && member_name(p, child)) || value(p, child, depth + 1))
            return -1;
        *tail = child;
        tail = &child->next;
        skip_space(p);
        if (p->at == p->end || (*p->at != ',' && *p->at != close))
            return syntax(p, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
        if (*p->at++ == close)
            return 0;
    }
}

static int value(struct parser *p, struct json *out, int depth)
{
    skip_space(p);
    if (p->at == p->end)
        return syntax(p, "the text ends where a value should be");
    switch (*p->at) {
    case '{':
    case '[':
        return elements(p, out, depth);
    case '"':
        out->type = JSON_STRING;
        return string(p, &out->text, &out->len);
    case 't':
        return literal(p, out, "true", JSON_BOOL, 1);
    case 'f':
        return literal(p, out, "false", JSON_BOOL, 0);
    case 'n':
        return literal(p, out, "null", JSON_NULL, 0);
    default:
        return number(p, out);
    }
}

int json_parse(struct json_doc *doc, char *buf, size_t len, struct error *err)
{
    struct parser p = {.at = buf, .end = buf + len, .line_start = buf, .line = 1, .doc = doc, .err = err};
    memset(doc, 0, sizeof *doc);
    if (len > UINT32_MAX)
        return syntax(&p, "too long");
    if (value(&p, &doc->root, 0))
        return -1;
    skip_space(&p);
    return p.at == p.end ? 0 : syntax(&p, "text after the value");
}

void json_free(struct json_doc *doc)
{
    while (doc->chunks) {
        struct json_chunk *chunk = doc->chunks;
        doc->chunks = chunk->next;
        free(chunk);
    }
}

const struct json *json_member(const struct json *at, const char *name)
{
    const struct json *found = NULL;
    if (!at || at->type != JSON_OBJECT)
        return NULL;
    for (const struct json *m = at->child; m; m = m->next)
        if (!strcmp(m->key, name))
            found = m;
    return found;
}

const struct json *json_get(const struct json *at, ...)
{
    va_list names;
    const char *name;
    va_start(names, at);
    while (at && (name = va_arg(names, const char *)))
        at = json_member(at, name);
    va_end(names);
    return at;
}

const char *json_str(const struct json *value)
{
    return value && value->type == JSON_STRING && strlen(value->text) == value->len ? value->text : NULL;
}

long long json_int(const struct json *value, long long fallback)
{
    char digits[24], *end;
    if (!value || value->type != JSON_NUMBER || value->len >= sizeof digits)
        return fallback;
    memcpy(digits, value->text, value->len);
    digits[value->len] = 0;
    errno = 0;
    long long n = strtoll(digits, &end, 10);
    return errno || *end ? fallback : n;
}

bool json_true(const struct json *value)
{
    return value && value->type == JSON_BOOL && value->len;
}
