"""Entry point of `workloads`; it checks for a hidden package before the command line imports it."""

from workloads.runner.shadow_check import exit_if_shadowed


def main(program: str = "workloads") -> None:
    exit_if_shadowed()
    from exporter.contract.command_line import exit_if_not_installed

    exit_if_not_installed("workloads")
    from workloads.cli import main as run_command

    run_command(program)


if __name__ == "__main__":
    main()
