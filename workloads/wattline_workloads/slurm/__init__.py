"""Slurm's prolog and epilog: runs of jobs, and their energy in the accounting database."""
