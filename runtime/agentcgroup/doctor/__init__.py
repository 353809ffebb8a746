"""What is wrong on this host, why that matters, and the command that mends it. Nothing here changes anything, and no
check needs the daemon. A capability is tried, or read where the kernel shows it; no version is compared.

finding.py has what a check yields, host.py what several of them ask for, examine.py the list of all checks; the other
modules are the checks, by topic.
"""
