"""Entry point of the exporter; it handles SIGINT before the slow imports of the command line."""

from wattline.command_line import exit_if_not_installed
from wattline_exporter.cli.signals import exit_on_sigint


def main(program: str = "exporter") -> None:
    exit_on_sigint()
    exit_if_not_installed("exporter")
    from wattline_exporter.cli.main import main as run_command

    run_command(program)


if __name__ == "__main__":
    main()
