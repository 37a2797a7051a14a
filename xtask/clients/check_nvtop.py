"""Checks that nvtop ($PROGRAM) shows the GPU that a program ($TENANT) uses beside it."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pyte
from checks import run

NVTOP, TENANT = os.environ["PROGRAM"], os.environ["TENANT"]
MEMORY = int(os.environ["MEMORY"])
ROWS, COLUMNS = 40, 160
# Until what is looked for is shown; there is no other bound on how long a machine takes.
PATIENCE = 120


def beside(look):
    """Calls it with the number of a process that uses the GPU meanwhile."""
    program = subprocess.Popen([TENANT, "matrices", "--seconds", "1000"], stdout=subprocess.DEVNULL)
    try:
        look(program.pid)
    finally:
        program.kill()
        program.wait()


def until(found):
    """Asks again until it is found."""
    end = time.monotonic() + PATIENCE
    while (said := found()) is not True:
        assert time.monotonic() < end, said
        time.sleep(0.1)


def snapshot():
    """The GPUs, as it tells other programs."""
    return json.loads(subprocess.run([NVTOP, "-s"], check=True, capture_output=True, timeout=PATIENCE).stdout)


def tells():
    """snapshot: name, utilisation, memory"""

    def look(_):
        def found():
            gpus = snapshot()
            assert [gpu["device_name"] for gpu in gpus] == ["Sundial Software GPU"], gpus
            # What a software GPU has not is not made up.
            assert all(gpus[0][absent] is None for absent in ("temp", "fan_speed", "power_draw", "gpu_clock")), gpus
            busy, memory = (int(gpus[0][each].rstrip("%")) for each in ("gpu_util", "mem_util"))
            assert busy <= 100 and memory <= 100, gpus
            return (busy > 0 and memory > 0) or gpus

        until(found)

    beside(look)


def draws():
    """terminal: memory, the process with its memory and its part"""

    def look(process):
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "linux"
            os.execv(NVTOP, [NVTOP])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        screen = pyte.Screen(COLUMNS, ROWS)
        stream = pyte.ByteStream(screen)

        def found():
            while select.select([terminal], [], [], 0)[0]:
                stream.feed(os.read(terminal, 1 << 16))
            shown = "\n".join(line.rstrip() for line in screen.display if line.strip())
            whole = re.search(r"GPU\[\|+ *\d+%\] MEM\[\|+ *([\d.]+)Mi/([\d.]+)Mi\]", shown)
            line = re.search(rf"^ *{process} +\S+ +0 +Compute +(\d+)% +(\d+)MiB +\d+% .*sundial-tenant matrices", shown, re.M)
            if not whole or not line or line[1] == "0":
                return shown
            used, limit = (float(each) for each in whole.groups())
            assert limit == MEMORY, shown
            assert 0 < int(line[1]) <= 100 and 0 < int(line[2]) <= used + 1, shown
            return True

        try:
            until(found)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(terminal)

    beside(look)


run(tells, draws)
