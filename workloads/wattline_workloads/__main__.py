"""Entry point of `workloads`."""

from wattline.command_line import exit_if_not_installed


def main(program: str = "workloads") -> None:
    exit_if_not_installed("workloads")
    from wattline_workloads.cli import main as run_command

    run_command(program)


if __name__ == "__main__":
    main()
