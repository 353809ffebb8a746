complete -c agentcgroup -a '(agentcgroup __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
