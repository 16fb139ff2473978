"""Stands for srun on one machine: COPIES COMMAND... runs so many copies with Slurm's variables of a step.

Exits with the highest exit code; ends the others when one fails, as --kill-on-bad-exit=1.
"""

import os
import subprocess
import sys


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
    codes = []
    for process in running:
        codes.append(process.wait())
        if codes[-1]:
            for other in running:
                other.terminate()
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
