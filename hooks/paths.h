/* Fixed when compiled: an OCI hook's environment and arguments come from the engine's JSON file, not from the admin. */
#ifndef AGC_PATHS_H
#define AGC_PATHS_H

#ifndef RUNDIR
#define RUNDIR "/run/agentcgroup"
#endif
#ifndef LIBEXECDIR
#define LIBEXECDIR "/usr/libexec/agentcgroup"
#endif
#ifndef STATEDIR
#define STATEDIR "/var/lib/agentcgroup"
#endif
#ifndef JOURNAL_SOCKET
#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#endif

#endif
