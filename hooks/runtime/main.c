/* agentcgroup-runtime: for engines without a directory of hooks (Docker, containerd). It is named to the engine as an OCI
 * runtime; where a container asks for a policy it adds our hook to the bundle's config.json, and in any case it becomes
 * the real runtime: `--agentcgroup-runtime=PATH` as the first argument, else crun or runc, whichever is found. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../cleanup.h"
#include "../files.h"
#include "../journal.h"
#include "../paths.h"
#include "../pod.h"
#include "splice.h"

#define HOOK LIBEXECDIR "/agentcgroup-hook"
#define OPTION "--agentcgroup-runtime="
#define CONFIG_MAX (16u << 20)
#define POD_KEY "policy.agentcgroup.io/"

static const char *const stages[] = {"prestart", "poststop", NULL};

/* Global options of crun and runc that take a word of their own. */
static bool takes_a_word(const char *option)
{
    static const char *const all[] = {"--log", "--log-format", "--log-level", "--root", "--criu", "--rootless", "--cgroup-manager"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(option, all[i]))
            return true;
    return false;
}

/* The bundle of a container that is about to be made; NULL for every other command. */
static const char *bundle_of(char **argv)
{
    while (*argv && **argv == '-')
        argv += takes_a_word(*argv) && argv[1] ? 2 : 1;
    if (!*argv || (strcmp(*argv, "create") && strcmp(*argv, "run")))
        return NULL;
    for (argv++; *argv; argv++) {
        const char *value = strchr(*argv, '=');
        size_t len = value ? (size_t)(value - *argv) : strlen(*argv);
        bool asked = (len == 8 && !strncmp(*argv, "--bundle", len)) || (len == 2 && !strncmp(*argv, "-b", len));
        if (asked)
            return value ? value + 1 : argv[1];
    }
    return ".";
}

/* As the hook's JSON says it in oci-config/hooks.d. */
static bool asks_for_policy(const struct json *annotations)
{
    for (const struct json *at = annotations && annotations->type == JSON_OBJECT ? annotations->child : NULL; at; at = at->next) {
        const char *name = strncmp(at->key, POD_KEY, strlen(POD_KEY)) ? NULL : at->key + strlen(POD_KEY);
        if (!strcmp(at->key, "agentcgroup.policy") || !strcmp(at->key, "agentcgroup.io/policy")
            || (name && *name && !strchr(name, '/')))
            return true;
    }
    return false;
}

static int replace_file(int folder, const char *name, const char *content, struct error *err)
{
    static const char temporary[] = ".config.json.agentcgroup";
    struct stat st;
    if (fstatat(folder, name, &st, 0))
        return fail(err, errno, "stat %s", name);
    cleanup_close int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fchown(fd, st.st_uid, st.st_gid) || fchmod(fd, st.st_mode & 07777) || write_all(fd, content, strlen(content))
        || renameat(folder, temporary, folder, name)) {
        fail(err, errno, "write %s", name);
        unlinkat(folder, temporary, 0);
        return -1;
    }
    return 0;
}

/* 0 also where the container asks for nothing. `required`: it asks not to start ungoverned. */
static int add_hook(const char *bundle, bool *required, struct error *err)
{
    struct json_doc doc = {0};
    size_t len;
    cleanup_close int folder = open(bundle, O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return 0; /* the runtime has better words for that, and for a config.json that is not there */
    cleanup_free char *whole = read_file(folder, "config.json", CONFIG_MAX, &len, err);
    if (!whole)
        return errno == ENOENT ? 0 : -1;
    cleanup_free char *parsed = strdup(whole);
    if (!parsed || strlen(whole) != len)
        return fail(err, parsed ? 0 : ENOMEM, "config.json cannot be read");
    int status = json_parse(&doc, parsed, len, err);
    const struct json *annotations = status ? NULL : json_member(&doc.root, "annotations");
    const char *word = json_str(json_member(annotations, "agentcgroup.required"));
    *required = word && !strcmp(word, "true");
    if (!status && asks_for_policy(annotations) && !is_sandbox(annotations) && !has_hook(&doc.root, HOOK)) {
        cleanup_free char *more = with_hook(whole, HOOK, stages, err);
        status = more ? replace_file(folder, "config.json", more, err) : -1;
    }
    json_free(&doc);
    return status;
}

static int become(const char *runtime, char **argv)
{
    static const char *const known[] = {"crun", "runc", NULL};
    for (const char *const *name = runtime ? (const char *const[]){runtime, NULL} : known; *name; name++) {
        argv[0] = (char *)*name;
        execvp(*name, argv);
    }
    fprintf(stderr, "agentcgroup-runtime: %s: %s: name the real runtime with " OPTION "PATH\n", runtime ? runtime : "crun, runc",
            strerror(errno));
    return 127;
}

int main(int argc, char **argv)
{
    const char *runtime = NULL;
    struct error why;
    bool required = false;
    if (argc > 1 && !strncmp(argv[1], OPTION, strlen(OPTION))) {
        runtime = argv[1] + strlen(OPTION);
        argv[1] = argv[0];
        argv++, argc--;
    }
    const char *bundle = argc ? bundle_of(argv + 1) : NULL;
    if (bundle && add_hook(bundle, &required, &why)) {
        journal_send(&(struct log_line){PRIORITY_WARNING, argv[argc - 1], "not governed", why.text, 0});
        if (required) {
            fprintf(stderr, "agentcgroup-runtime: agentcgroup.required is true and the hook could not be added: %s\n", why.text);
            return EXIT_FAILURE;
        }
    }
    return become(runtime, argv);
}
