#include "messages.h"

#include <string.h>

#include "daemon.h"

#define VALUE_MAX 4096             /* bytes of an annotation */
#define ANNOTATIONS_END (56u << 10) /* of a message; what does not fit is left out */

static bool begins(const char *s, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (!strncmp(s, *prefixes, strlen(*prefixes)))
            return true;
    return false;
}

static void put_annotations_like(struct json_out *out, const struct json *all, const char *const *prefixes)
{
    for (const struct json *a = all && all->type == JSON_OBJECT ? all->child : NULL; a; a = a->next) {
        if (!begins(a->key, prefixes) || !json_str(a))
            continue;
        struct json_out before = *out;
        json_put_cut(out, a->key, a->text, VALUE_MAX);
        if (out->len > ANNOTATIONS_END) {
            out->len = before.len;
            out->comma = before.comma;
        }
    }
}

/* Ours come first: CRI-O adds dozens of its own. */
static void put_annotations(struct json_out *out, const struct container *c)
{
    static const char *const ours[] = {"agentcgroup.", "policy.agentcgroup.io/", NULL};
    static const char *const engines[] = {"io.kubernetes.", "io.container.manager", "io.podman.", NULL};
    json_open(out, "annotations", '{');
    put_annotations_like(out, c->annotations, ours);
    put_annotations_like(out, c->annotations, engines);
    json_close(out, '}');
}

static void put_notes(struct json_out *out, const char *key, const struct notes *notes)
{
    json_open(out, key, '[');
    for (unsigned i = 0; i < notes->count; i++)
        json_put_str(out, NULL, notes->text[i]);
    json_close(out, ']');
}

static void put_injected(struct json_out *out, const struct injection *in)
{
    json_open(out, "injected", '[');
    for (unsigned i = 0; in->attached_count && i < in->targets.count; i++)
        json_put_str(out, NULL, in->targets.list[i].path);
    for (unsigned i = 0; i < in->targets.wrapped_count; i++)
        json_put_str(out, NULL, in->targets.wrapped[i]);
    json_close(out, ']');
}

static void start(struct json_out *out, const char *op, const char *id)
{
    memset(out, 0, sizeof *out);
    json_open(out, NULL, '{');
    json_put_int(out, "v", 1);
    if (op)
        json_put_str(out, "op", op);
    json_put_str(out, "id", id);
}

void plan_message(struct json_out *out, const struct container *c, const char *base, const struct notes *reasons)
{
    start(out, "plan", c->id);
    json_put_int(out, "pid", c->pid);
    json_put_str(out, "bundle", c->bundle);
    json_put_str(out, "base", base);
    json_put_str(out, "engine", engine_name(c)); /* whose annotations are trusted how far is the daemon's to say */
    put_notes(out, "cooperative", reasons);
    put_annotations(out, c);
    json_close(out, '}');
}

void short_message(struct json_out *out, const char *op, const char *id)
{
    start(out, op, id);
    json_close(out, '}');
}

void ready_message(struct json_out *out, const struct container *c, const struct injection *in, const struct notes *notes,
                   long long us)
{
    start(out, "ready", c->id);
    put_injected(out, in);
    put_notes(out, "notes", notes);
    json_put_int(out, "us", us);
    json_close(out, '}');
}

void record_json(struct json_out *out, const struct record *r)
{
    const char *name = annotation(r->c, "io.kubernetes.container.name");
    start(out, NULL, r->c->id);
    if (name)
        json_put_cut(out, "name", name, VALUE_MAX);
    json_put_int(out, "pid", r->c->pid);
    json_put_int(out, "start_time", r->c->start_time);
    json_put_str(out, "base", r->base);
    json_put_str(out, "bundle", r->c->bundle);
    put_notes(out, "cooperative", r->reasons);
    if (r->policy)
        json_put_str(out, "policy", r->policy);
    json_put_int(out, "uid", r->c->uid);
    json_put_int(out, "gid", r->c->gid);
    json_put_str(out, "engine", engine_name(r->c));
    json_put_bool(out, "registered", false); /* the daemon's to change */
    if (r->in) {
        put_injected(out, r->in);
        put_notes(out, "notes", r->notes);
    }
    put_annotations(out, r->c);
    json_close(out, '}');
}
