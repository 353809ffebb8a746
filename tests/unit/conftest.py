"""The tests' processes take signals as those of a terminal do, whoever started us: nohup, or a shell's `&`."""

import signal

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
