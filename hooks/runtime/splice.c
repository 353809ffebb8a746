#define _GNU_SOURCE
#include "splice.h"

#include <stdio.h>
#include <string.h>

#include "../cleanup.h"

#define SPACE " \t\r\n"

bool has_hook(const struct json *config, const char *program)
{
    const struct json *hooks = json_member(config, "hooks");
    for (const struct json *stage = hooks && hooks->type == JSON_OBJECT ? hooks->child : NULL; stage; stage = stage->next)
        for (const struct json *hook = stage->type == JSON_ARRAY ? stage->child : NULL; hook; hook = hook->next) {
            const char *path = json_str(json_member(hook, "path"));
            if (path && !strcmp(path, program))
                return true;
        }
    return false;
}

static const char *after_space(const char *at)
{
    return at + strspn(at, SPACE);
}

static const char *after_string(const char *at)
{
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

static const char *after_value(const char *at)
{
    int depth = 0;
    do {
        if (*at == '"') {
            at = after_string(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth || !strchr(SPACE ",}]", *at));
    return at;
}

/* The value of an object's member, or NULL; of several with one name the last, as Go's encoding/json reads it. */
static const char *member(const char *object, const char *name)
{
    const char *found = NULL;
    size_t len = strlen(name);
    for (const char *at = after_space(object + 1); *at == '"'; at = after_space(at + (*at == ','))) {
        bool same = !strncmp(at + 1, name, len) && at[1 + len] == '"';
        const char *value = after_space(after_space(after_string(at)) + 1); /* the colon */
        if (same)
            found = value;
        at = after_space(after_value(value));
    }
    return found;
}

/* `whole` with `drop` bytes at `at` replaced. */
static char *replaced(const char *whole, const char *at, size_t drop, const char *with)
{
    char *result;
    return asprintf(&result, "%.*s%s%s", (int)(at - whole), whole, with, at + drop) < 0 ? NULL : result;
}

static char *with_stage(const char *whole, const char *stage, const char *hook)
{
    char piece[1024];
    const char *root = after_space(whole), *hooks = member(root, "hooks");
    if (!hooks) {
        snprintf(piece, sizeof piece, "\"hooks\":{\"%s\":[%s]}%s", stage, hook, *after_space(root + 1) == '}' ? "" : ",");
        return replaced(whole, root + 1, 0, piece);
    }
    if (*hooks != '{') {
        snprintf(piece, sizeof piece, "{\"%s\":[%s]}", stage, hook);
        return *hooks == 'n' ? replaced(whole, hooks, strlen("null"), piece) : NULL;
    }
    const char *list = member(hooks, stage);
    if (!list) {
        snprintf(piece, sizeof piece, "\"%s\":[%s]%s", stage, hook, *after_space(hooks + 1) == '}' ? "" : ",");
        return replaced(whole, hooks + 1, 0, piece);
    }
    if (*list != '[') {
        snprintf(piece, sizeof piece, "[%s]", hook);
        return *list == 'n' ? replaced(whole, list, strlen("null"), piece) : NULL;
    }
    snprintf(piece, sizeof piece, "%s%s", *after_space(list + 1) == ']' ? "" : ",", hook);
    return replaced(whole, after_value(list) - 1, 0, piece);
}

char *with_hook(const char *text, const char *program, const char *const *stages, struct error *err)
{
    char hook[512];
    const char *name = strrchr(program, '/');
    snprintf(hook, sizeof hook, "{\"path\":\"%s\",\"args\":[\"%s\"],\"timeout\":5}", program, name ? name + 1 : program);
    char *now = strdup(text);
    for (; now && *stages; stages++) {
        cleanup_free char *before = now;
        if (!(now = with_stage(before, *stages, hook)))
            return fail(err, 0, "\"hooks\" of config.json is not what the OCI runtime specification says"), NULL;
    }
    return now ? now : (fail(err, 0, "no memory"), NULL);
}
