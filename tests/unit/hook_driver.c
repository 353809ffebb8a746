/* Gives tests the hook's parsers. Input is a row of "LENGTH\n" + bytes; each gets one line: "ok VALUE" or "error TEXT". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../hooks/cgroup.h"
#include "../../hooks/container.h"
#include "../../hooks/json.h"
#include "../../hooks/json_write.h"
#include "../../hooks/mountinfo.h"

/* As JSON again, except that a number N becomes the string "#N". */
static void dump(struct json_out *out, const char *key, const struct json *v)
{
    char number[512];
    switch (v->type) {
    case JSON_NULL:
        json_put_str(out, key, "#null");
        break;
    case JSON_BOOL:
        json_put_bool(out, key, json_true(v));
        break;
    case JSON_NUMBER:
        snprintf(number, sizeof number, "#%.*s", (int)v->len, v->text);
        json_put_str(out, key, number);
        break;
    case JSON_STRING:
        json_put_str(out, key, json_str(v) ? v->text : "#NUL");
        break;
    default:
        json_open(out, key, v->type == JSON_ARRAY ? '[' : '{');
        for (const struct json *c = v->child; c; c = c->next)
            dump(out, c->key, c);
        json_close(out, v->type == JSON_ARRAY ? ']' : '}');
    }
}

static void one_json(char *buf, size_t len)
{
    struct json_doc doc;
    struct json_out out = {0};
    struct error err;
    if (json_parse(&doc, buf, len, &err)) {
        printf("error %s\n", err.text);
    } else {
        dump(&out, NULL, &doc.root);
        printf("ok %.*s\n", (int)out.len, out.buf);
    }
    free(out.buf);
    json_free(&doc);
}

static void one_string(char *buf, size_t len)
{
    struct json_out out = {0};
    (void)len;
    json_put_cut(&out, NULL, buf, 4096);
    printf("ok %.*s\n", (int)out.len, out.buf);
    free(out.buf);
}

static void one_mountinfo(char *buf, size_t len)
{
    struct mount_entry e;
    const char *at = buf;
    (void)len;
    printf("ok");
    while (mountinfo_next(&at, &e))
        printf(" %llu|%s|%s|%c%c%c", e.id, e.root, e.point, e.shared ? 's' : '-', e.writable ? 'w' : '-', e.cgroup2 ? 'c' : '-');
    printf("\n");
}

/* path \n cgroupsPath \n id \n subgroup */
static void one_cgroup(char *buf, size_t len)
{
    char *field[4] = {buf};
    (void)len;
    for (int i = 1; i < 4; i++) {
        field[i] = strchr(field[i - 1], '\n');
        *field[i]++ = 0;
    }
    printf("ok %d\n", cgroup_explained(field[0], field[1], field[2], *field[3] ? field[3] : NULL));
}

/* Reads a state from the file named in buf, and the config.json that it leads to. */
static void one_state(char *buf, size_t len)
{
    static struct container c;
    struct error err = {{0}};
    FILE *f = fopen(buf, "r");
    (void)len;
    memset(&c, 0, sizeof c);
    int failed = !f || container_read_state(&c, fileno(f), &err) || (!c.stopped && container_read_config(&c, &err));
    if (failed)
        printf("error %s\n", err.text);
    else
        printf("ok %s %d %d %s\n", c.id, c.pid, c.stopped, c.rootfs);
    json_free(&c.state_doc);
    json_free(&c.config_doc);
    free(c.state_text);
    free(c.config_text);
    if (f)
        fclose(f);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(char *buf, size_t len);
    } modes[] = {
        {"json", one_json}, {"string", one_string}, {"mountinfo", one_mountinfo}, {"cgroup", one_cgroup}, {"state", one_state},
    };
    size_t len;
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++)
        while (!strcmp(argv[1], modes[i].name) && scanf("%zu", &len) == 1) {
            getchar();
            /* exactly as large as the text, so that the sanitizer sees each byte read too far */
            int terminated = modes[i].run != one_json;
            char *buf = malloc(len + (size_t)terminated + !len);
            if (fread(buf, 1, len, stdin) != len)
                return 1;
            if (terminated)
                buf[len] = 0;
            modes[i].run(buf, len);
            free(buf);
        }
    return 0;
}
