"""The tests' processes take signals as those of a terminal do, whoever started us: nohup, or a shell's `&`. No property
fails because the machine is busy.
"""

import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
