"""Stands for srun on one machine: COPIES COMMAND... runs so many copies with Slurm's variables of a step.

Exits with the highest exit code. When one fails, the others have WAIT seconds to end by themselves, as with
--wait, and are ended then.
"""

import os
import subprocess
import sys
import time

WAIT = 15  # seconds


def main(copies: str, *command: str) -> int:
    size = int(copies)
    running = []
    for rank in range(size):
        slurm = {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": copies,
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_STEP_NODELIST": "localhost",
        }
        running.append(subprocess.Popen(command, env={**os.environ, **slurm}))
    while not any(process.poll() for process in running):
        if all(process.poll() == 0 for process in running):
            return 0
        time.sleep(0.05)
    ends = time.monotonic() + WAIT
    while time.monotonic() < ends and any(process.poll() is None for process in running):
        time.sleep(0.05)
    for process in running:
        process.terminate()  # does nothing to one that has ended
    return max(process.wait() for process in running)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
