"""Become a server that ends with the process that started it: `python launch.py PARENT USER GROUP PROGRAM [ARGUMENT …]`.

A script of its own, because the alternative, code between fork and exec of a test process that has threads, may hang. The order
matters: a change of user takes the death signal away again, and a parent that died before it was asked for would never be noticed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, user: str, group: str, *command: str) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    # PostgreSQL takes SIGQUIT as the order to end at once together with its backends; of SIGKILL they would have to find out.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() == int(parent):
        os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
