#compdef agentcgroup
local -a found
found=(${(f)"$(agentcgroup __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
if (( $#found )); then compadd -a found; else _files; fi
