# bash completion of agentcgroup. mapfile evaluates nothing, as compgen -W would: names of containers are others' words.
_agentcgroup() {
    mapfile -t COMPREPLY < <(agentcgroup __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _agentcgroup agentcgroup
